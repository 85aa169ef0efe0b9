"""Out-of-fold answers: every label is judged by a model that never saw it.

Whoever can fit a model hands over how; this file cuts the folds, gathers what the models say of
the rows they did not see, and keeps it in a file, so that the next audit of the same needs no fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from .. import checkpoint
from ..data import IGNORE, BadInput, Data, few, plural
from ..engine import Record

KEPT = 2**28  # bytes of an audit's probabilities and T(x) up to which they are kept in a file


class Answers(NamedTuple):
    """Of all rows: clean posteriors [N, K], and T(x) [N, K, K] where the method has one."""

    probs: NDArray[Any]
    transition: NDArray[Any] | None


# from data and a listener to what the fitted model answers of other data
FoldFit = Callable[[Data, Callable[[Record], None]], Callable[[Data], Answers]]


def out_of_fold(
    data: Data,
    folds: int,
    seed: int,
    fit: FoldFit,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Answers:
    """Cuts the rows into folds, class by class, and asks a model fitted to the others of each.

    on_record: hears of every epoch of these fits; the record's stage names the fold.
    """
    labels = data.y.numpy()
    most = np.bincount(labels[labels != IGNORE], minlength=2).max()
    if not 2 <= folds <= most:
        raise BadInput(
            f"folds={folds} must lie between 2 and the rows of the largest class ({most}), "
            "or be 0: judge with the fitted model"
        )
    probs = np.zeros((len(data), data.num_classes), np.float32)
    T = None
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # rare classes are in some folds only, and that is well
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        cuts = list(parts.split(np.zeros(len(data)), labels))

    def show(record: Record, number: int) -> None:
        on_record({**record, "stage": f"fold {number} of {folds}: {record['stage']}"})

    for number, (train, held) in enumerate(cuts, 1):
        ask = fit(data.rows(torch.from_numpy(train)), partial(show, number=number))
        probs[held], own = ask(data.rows(torch.from_numpy(held)))
        if own is not None:
            T = np.zeros((len(data), *own.shape[1:]), np.float32) if T is None else T
            T[held] = own
    return Answers(probs, T)


def single_rows(data: Data) -> list[str]:
    """A note on the classes of which no model saw any other row."""
    count = torch.bincount(data.y[data.y != IGNORE], minlength=data.num_classes)
    rare = [data.class_name(k) for k, n in enumerate(count.tolist()) if n == 1]
    if not rare:
        return []
    return [
        f"Of {plural(len(rare), 'class')} ({few(rare, 5)}) there is a single row, which was judged "
        "by a model that never saw its class."
    ]


def kept_or_made(
    keep: Path | None, made_of: Callable[[], str], make: Callable[[], Answers]
) -> tuple[Answers, list[str]]:
    """The answers from the file `keep` where it holds them, else made and kept; and a note.

    made_of: the hash of all that they depend on.
    """
    if keep is None:
        return make(), []
    key = made_of()
    found, _ = checkpoint.newest([keep], lambda _, meta: meta.get("made_of") == key)
    if found:
        said = {name: tensor.numpy() for name, tensor in found[0].items()}
        note = f"Nothing was trained again: {keep} holds what the folds said."
        return Answers(said["probs"], said.get("T")), [note]
    made = make()
    arrays = {"probs": made.probs, "T": made.transition}
    tensors = {name: torch.from_numpy(a) for name, a in arrays.items() if a is not None}
    if sum(tensor.nbytes for tensor in tensors.values()) <= KEPT:
        checkpoint.save(keep, tensors, {"made_of": key, "count": 0})
    return made, []
