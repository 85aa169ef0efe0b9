"""Similar rows: what a person compares a suspect with, of its given and of its suggested class.

They are the nearest in feature space. Rows whose own label is suspected are passed over: they would
be poor witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from ..encoders.neighbours import neighbours
from .inputs import chunks

BESIDE = 3  # rows of each class
SUSPECTS = 20_000  # for which similar rows are looked up, the worst first
WITNESSES = 50_000  # rows that are looked at; of more, every second, third, ... of each class

Features = Callable[[Sequence[int]], Tensor]  # of rows by their numbers: [n, D]


class Similar(NamedTuple):
    """Numbers of rows, the nearest first."""

    given: list[int]
    predicted: list[int]


def similar_rows(
    issues: pd.DataFrame, suspects: pd.DataFrame, features: Features | Tensor | np.ndarray
) -> dict[int, Similar]:
    """For each of these suspects of the issues, by its row; rows of [N, D] features are compared.

    By Euclidean distance, so features of length one are compared by their angle.
    """
    suspects = suspects.head(SUSPECTS)
    trusted = issues[~issues.is_label_issue]
    step = max(1, -(-len(trusted) // WITNESSES))
    trusted = trusted[trusted.groupby("given_label", sort=False).cumcount() % step == 0]
    rows = [*trusted["index"].tolist(), *suspects["index"].tolist()]
    if not len(suspects):
        return {}
    h = _centred(features(rows) if callable(features) else torch.as_tensor(features[rows]))
    # the largest inner product is then the smallest distance
    keys = torch.cat([h, -0.5 * h.square().sum(1, keepdim=True)], 1)[: len(trusted)]
    queries = F.pad(h[len(trusted) :], (0, 1), value=1.0)
    numbers, label = trusted["index"].to_numpy(), trusted.given_label.to_numpy()
    beside = {}
    for column in ("given_label", "predicted_label"):
        asked, found = suspects[column].to_numpy(), [list[int]() for _ in range(len(suspects))]
        for name in pd.unique(asked):
            near = np.flatnonzero(label == name)
            who = np.flatnonzero(asked == name)
            for part in chunks(len(who), max(1, len(near))) if len(near) else ():
                top = neighbours(queries[who[part]], keys[near], min(BESIDE, len(near)))
                for place, ranked in zip(who[part], numbers[near[top.numpy()]], strict=True):
                    found[place] = ranked.tolist()
        beside[column] = found
    both = zip(beside["given_label"], beside["predicted_label"], strict=True)
    return dict(zip(suspects["index"].tolist(), (Similar(*each) for each in both), strict=True))


def standardised(x: Tensor, one_scale: tuple[int, int] = (0, 0)) -> Tensor:
    """A table's columns at zero mean and unit variance, so that none is louder than another.

    one_scale: of the features that share one; together they count as one column.
    """
    x = x.double()
    scale, (first, last) = x.std(0, correction=0), one_scale
    if last > first:
        scale[first:last] = scale[first:last].square().sum().sqrt()
    return (x - x.mean(0)) / scale.clamp_min(1e-12)


def _centred(h: Tensor) -> Tensor:
    h = h.detach().cpu().double().flatten(1).nan_to_num()
    return (h - h.mean(0)).float()
