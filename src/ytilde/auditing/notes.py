"""What an audit says of its own limits: weak models, rows without a label, what it assumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data import IGNORE, BadInput
from .inputs import Labels

NOTE_ASSUMPTION = (
    "Without checked rows the rate rests on an assumption: the model errs less often where it is "
    "more confident, while wrong labels occur regardless of its confidence. The interval covers "
    "every explanation that fits the data."
)
WEAK = 0.7  # of the labels are the model's best guess: below, it may be the model that is wrong,
ERRS = 0.25  # unless it is expected to be wrong in fewer rows than this
NOTE_WEAK = (
    "The model's best guess is the given label in only {share:.0f} % of the rows: either that many "
    "labels are wrong, or the model is too weak to judge them. Look at some before you fix any, or "
    "train longer, with more data or a better network."
)
CHANCE = 0.05  # a model whose Cohen's kappa with the labels is not surely above this cannot judge
NOTE_CHANCE = (
    "The model's best guess is the given label in only {share:.0f} % of the rows, where chance "
    "alone gives {chance:.0f} %: it has learnt next to nothing of these labels, so it cannot tell "
    "which are wrong. Change no label by this audit. See whether inputs and labels belong "
    "together, then train longer, with more data or a better network, and audit again."
)
MANY_UNLABELLED = 0.05  # of the rows are -1, and a class is missing: it may be meant as that class
NOTE_OUT_OF_FOLD = "The probabilities should come from models that did not train on the row."


def notes(
    given: Labels, unjudged: int, agreement: Agreement, model_error: float | None, has_t: bool
) -> list[str]:
    """All that holds for what was audited, the most urgent first.

    given: how many rows have each class as their label; unjudged: how many have none; has_t: T was
        given.
    """
    assumption = [] if has_t else [NOTE_ASSUMPTION]
    left_out = _unlabelled(given, unjudged)
    return [*left_out, *_weakness(agreement, model_error), *assumption, NOTE_OUT_OF_FOLD]


def doubts(said: Sequence[str]) -> list[str]:
    """Those of an audit's notes that doubt the model itself: NOTE_WEAK and NOTE_CHANCE.

    A report puts them first and advises nothing that they warn of.
    """
    opening = NOTE_WEAK.partition("{")[0]  # of both
    return [note for note in said if note.startswith(opening)]


def unlabelled(y: Labels, num_classes: int) -> list[str]:
    """What to say of rows whose label is -1, for none. Refused where -1 was meant as a class.

    That is: one of two classes is missing, or of more the last, with -1 in many rows.
    """
    known = y[y != IGNORE]
    return _unlabelled(np.bincount(known, minlength=num_classes), len(y) - len(known))


def _unlabelled(given: Labels, none: int) -> list[str]:
    if not none:
        return []
    rows, num_classes, missing = int(given.sum()) + none, len(given), np.flatnonzero(given == 0)
    many = none >= MANY_UNLABELLED * rows and num_classes - 1 in missing
    if len(missing) == 1 and (num_classes == 2 or many):
        raise BadInput(
            f"The labels hold -1, which means no label, and class {missing[0]} in no row; code the "
            f"classes as 0 to {num_classes - 1}."
        )
    return [f"{none} of {rows} rows {'has' if none == 1 else 'have'} no label (-1)."]


class Agreement(NamedTuple):
    """How often the best guess is the given label."""

    share: float
    chance: float  # the same for guesses and labels that know nothing of each other
    error: float  # its standard deviation for such

    @staticmethod
    def of(p: np.ndarray, y: Labels) -> Agreement:
        """Of probabilities [N, K] and labels [N]."""
        rows = np.flatnonzero(y != IGNORE)
        best, given = p[rows].argmax(1), y[rows]
        guess, label = (np.bincount(v, minlength=p.shape[1]) for v in (best, given))
        return Agreement.counted(guess, label, int((best == given).sum()))

    @staticmethod
    def counted(guessed: Labels, given: Labels, agree: int) -> Agreement:
        """Of the number of rows with each best guess, and with each label, and with both alike."""
        n = int(given.sum())
        guess, label = guessed / n, given / n
        chance = float(guess @ label)
        # Fleiss, Cohen and Everitt (1969). The share's binomial is far too large where one class is
        # frequent: it would hide a perfect model of a rare class.
        variance = chance + chance**2 - float((guess * label) @ (guess + label))
        return Agreement(agree / n, chance, math.sqrt(max(0.0, variance) / n))

    @property
    def is_chance(self) -> bool:
        """Is Cohen's kappa (1960) below CHANCE, or not surely (95 %, one-sided) above it?

        Guessing the largest class always has kappa 0, however often that is right.
        """
        return self.share - 1.645 * self.error - self.chance < CHANCE * (1 - self.chance)


def weakness(p: np.ndarray, y: Labels, model_error: float | None = None) -> list[str]:
    """What to say of probabilities [N, K] that seldom agree with the labels [N], if they do.

    model_error: the share of rows in which the model is expected to be wrong, where that is known.
    """
    return _weakness(Agreement.of(p, y), model_error)


def _weakness(found: Agreement, model_error: float | None) -> list[str]:
    if found.is_chance:
        return [NOTE_CHANCE.format(share=100 * found.share, chance=100 * found.chance)]
    weak = found.share < WEAK and (model_error is None or model_error > ERRS)
    return [NOTE_WEAK.format(share=100 * found.share)] if weak else []
