"""Out-of-fold answers: every label is judged by a model that never saw it.

Whoever can fit a model hands over how; this file cuts the folds, gathers what the models say of
the rows they did not see, and keeps it: of each fold as it ends, so that an audit that was stopped
goes on, and of all in one file, so that the next audit of the same needs no fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from .. import checkpoint
from ..data import IGNORE, BadInput, Data, few, plural
from ..engine import Record
from ..runfolder import FOLDING, RunFolder

COPIES = 0.05  # share of rows with a copy from which on a note says so
KEPT = 2**28  # bytes of an audit's probabilities up to which they are kept in a file

Probs = NDArray[Any]  # clean posteriors [N, K]

# from data, a listener and a folder for checkpoints to what the fitted model answers of other data
FoldFit = Callable[[Data, Callable[[Record], None], Path | None], Callable[[Data], Probs]]


class Folds:
    """The folds of one audit in its run's folder, until the last has ended.

    Their names begin with `key`, the hash of all that they depend on: what other data, settings or
    numbers of folds left is not taken for theirs.
    """

    def __init__(self, run: Path, key: str) -> None:
        self.run, self.key = RunFolder(run), key
        self.notes: list[str] = []
        self.run.check()

    def training(self, number: int) -> Path:
        """Where the model of a fold keeps its checkpoints."""
        return self.run / FOLDING / f"{self.key}-{number}"

    def ended(self, number: int) -> bool:
        return self._path(number).exists()

    def load(self, number: int, shape: tuple[int, ...]) -> Probs | None:
        """What a fold said before the audit was stopped; a damaged file is none, and is named."""

        def fits(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bool:
            return meta.get("made_of") == self._made_of(number) and tensors["probs"].shape == shape

        found, refused = checkpoint.newest([self._path(number)], fits)
        self.notes += [f"{reason}; this fold was trained again" for reason in refused]
        return found[0]["probs"].numpy() if found else None

    def save(self, number: int, probs: Probs) -> None:
        meta = {"made_of": self._made_of(number), "count": 0}
        checkpoint.save(self._path(number), {"probs": torch.from_numpy(probs)}, meta)
        self.run.clear(keep=(), below=f"{FOLDING}/{self.key}-{number}")

    def clear(self) -> None:
        """Once an audit has ended: of others that were stopped nothing is wanted either."""
        self.run.clear(keep=(), below=FOLDING)

    def _path(self, number: int) -> Path:
        return self.run / FOLDING / f"{self.key}-{number}.safetensors"

    def _made_of(self, number: int) -> str:
        return f"{self.key}-{number}"


def check_folds(
    labels: NDArray[Any], folds: int, groups: NDArray[Any] | Tensor | None = None
) -> None:
    if labels.ndim > 1:  # of pixels: pictures are cut into folds
        labels = np.zeros(len(labels), dtype=np.int64)
    most = np.bincount(labels[labels != IGNORE], minlength=2).max()
    if not 2 <= folds <= most:
        raise BadInput(
            f"folds={folds} must lie between 2 and the rows of the largest class ({most}), "
            "or be 0: judge with the fitted model"
        )
    if groups is not None and len(found := np.unique(groups)) < folds:
        raise BadInput(f"{folds} folds need as many groups, and there are {len(found)}")


def out_of_fold(
    data: Data,
    folds: int,
    seed: int,
    fit: FoldFit,
    on_record: Callable[[Record], None] = lambda record: None,
    kept: Folds | None = None,
    on_start: Callable[[int], None] = lambda left: None,
    first: NDArray[np.int64] | None = None,
) -> Probs:
    """Cuts the rows into folds, class by class, and asks a model fitted to the others of each.

    Rows of one group are in one fold, and so are copies of a row.

    on_record: hears of every epoch of these fits; the record's stage names the fold, and its "fold"
        and "folds" are their numbers.
    kept: the folds that have ended, which are not fitted again, and the checkpoints of the others.
    on_start: hears, before the first fit, how many folds are left.
    first: of each row the first that it is a copy of, or itself.
    """
    labels = data.y.numpy()
    first = np.arange(len(data)) if first is None else first
    heads, which = np.unique(first, return_inverse=True)  # of groups, there are no copies
    check_folds(labels[heads], folds, data.groups)
    pixels = labels.ndim > 1
    cutter = KFold if pixels else StratifiedKFold if data.groups is None else StratifiedGroupKFold
    parts = cutter(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # rare classes are in some folds only, and that is well
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        held_out = parts.split(heads, None if pixels else labels[heads], data.groups)
        fold = np.zeros(len(heads), np.int64)
        for number, (_, held) in enumerate(held_out):
            fold[held] = number
    fold = fold[which]
    cuts = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(folds)]

    def show(record: Record, number: int) -> None:
        stage = f"fold {number} of {folds}: {record['stage']}"
        on_record({**record, "stage": stage, "fold": number, "folds": folds})

    on_start(folds - sum(kept.ended(k) for k in range(1, folds + 1)) if kept else folds)
    said: list[Probs] = []
    for number, (train, held) in enumerate(cuts, 1):
        shape = (len(held), *labels.shape[1:], data.num_classes)
        probs = kept.load(number, shape) if kept else None
        if probs is None:
            folder = kept.training(number) if kept else None
            ask = fit(data.rows(torch.from_numpy(train)), partial(show, number=number), folder)
            probs = ask(data.rows(torch.from_numpy(held)))
            probs = probs.astype(np.float16) if pixels else probs
            if kept:
                kept.save(number, probs)
        said.append(probs)
    rows = np.concatenate([held for _, held in cuts]).argsort()
    return np.concatenate(said)[rows]


def single_rows(data: Data, first: NDArray[np.int64]) -> list[str]:
    """A note on the classes of which no model saw any other row.

    first: of each row the first that it is a copy of, or itself.
    """
    y = data.y[torch.from_numpy(np.unique(first))]
    count = torch.bincount(y[y != IGNORE], minlength=data.num_classes)
    rare = [data.class_name(k) for k, n in enumerate(count.tolist()) if n == 1]
    if not rare:
        return []
    return [
        f"Of {plural(len(rare), 'class')} ({few(rare, 5)}) there is a single row, copies aside, "
        "which was judged by a model that never saw its class."
    ]


def copies_told(
    issues: pd.DataFrame, first: NDArray[np.int64], equal: NDArray[np.int64]
) -> list[str]:
    """Notes where many rows are copies of others, or nearly; the folds keep the former together.

    first: of each row the first that it is a copy of, or itself.
    equal: of each row the first that it is equal to, which may be by chance.
    """
    if "near_duplicate" not in issues:
        return []
    together, same = (np.bincount(at)[at][issues["index"]] > 1 for at in (first, equal))
    notes = []
    if (many := int(together.sum())) >= max(1, COPIES * len(issues)):
        notes.append(
            f"{many} of {len(issues)} rows are copies of others. Each was judged by a model that "
            "saw none of its copies; they are counted one by one."
        )
    apart = (issues["near_duplicate"] >= 0) & ~same
    if (many := int(apart.sum())) >= max(1, COPIES * len(issues)):
        notes.append(
            f"{many} of {len(issues)} rows are nearly copies of others: a model that did not see a "
            "row saw its copy, label included, so that wrong labels look right. Audit each once, "
            "or name what belongs together with --group (groups=)."
        )
    return notes


def kept_or_made(keep: Path | None, key: str, make: Callable[[], Probs]) -> tuple[Probs, list[str]]:
    """The probabilities from the file `keep` where it holds them, else made and kept; and a note.

    key: the hash of all that they depend on.
    """
    if keep is None:
        return make(), []
    found, _ = checkpoint.newest([keep], lambda _, meta: meta.get("made_of") == key)
    if found:
        note = f"Nothing was trained again: {keep} holds what the folds said."
        return found[0]["probs"].numpy(), [note]
    made = make()
    if made.nbytes <= KEPT:
        checkpoint.save(keep, {"probs": torch.from_numpy(made)}, {"made_of": key, "count": 0})
    return made, []
