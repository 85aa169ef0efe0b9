"""How many labels are wrong, from a few rows that somebody checked, whatever the model is worth.

The rows are cut into groups by p_wrong. Within a group the checked rows are a random sample, so its
share of wrong labels is estimated from them alone; the groups are weighted by their size. The model
decides nothing but the groups: a good one makes them alike inside and the interval narrow; those of
a bad one are joined, and the interval is that of the sample. (Stratified prediction-powered
inference, after Angelopoulos et al., 2023; why not its usual interval:
docs/decisions/0014-checked-rows.md.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data import IGNORE, BadInput, plural, which_rows
from .inputs import Array, Labels

Z = 1.959964  # of a 95 % interval
GROUPS = 20  # by p_wrong, for a sample that is drawn from them
PER_GROUP = 10  # rows expected in a group of a sample that was drawn from all rows alike
AT_LEAST = 5  # checked rows expected in a group; smaller ones join their neighbours
STRATA = 50  # different probabilities of being drawn
NONE, DRAWN, CHOSEN, OPEN = range(4)  # roles of rows, see Checked
NO_CLASS = -2  # the truth of a bad item
GOALS = (0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)  # half widths worth a sentence


class Checked(NamedTuple):
    """Rows whose true label somebody looked up, of all N.

    truth: the class, IGNORE where nobody knows it, NO_CLASS of a bad item, which belongs to none:
        whatever its label is, it counts as a wrong one.
    role: DRAWN at random; CHOSEN: known, and chosen without a look at what was drawn; OPEN: chosen
        likewise, but left open; NONE: any other.
    group: rows of one group had equal chances of being drawn.
    probability: that of each row; 1 where it was chosen.
    """

    truth: Labels
    role: NDArray[np.int8]
    group: NDArray[np.int64]
    probability: Array

    def at(self, rows: NDArray[np.int64]) -> Checked:
        return Checked(self.truth[rows], self.role[rows], self.group[rows], self.probability[rows])


class Count(NamedTuple):
    """The number of wrong labels with its 95 % interval, and what it rests on."""

    value: float
    low: float
    high: float
    rows: int  # judged in all
    drawn: int  # rows checked of a random sample
    wrong: int  # of these
    chosen: int  # other rows whose truth is known
    groups: tuple[Array, Array, Array]  # sizes, checked and wrong rows of each

    def more_rows(self, within: float) -> int | None:
        """How many more rows to check, drawn at random, to know the share of wrong labels within
        so much on either side, such as .02; None: not even all of them would do."""
        if not within > 0:
            raise BadInput(f"within is a share above 0, such as 0.02, not {within}")
        size, checked, wrong = self.groups
        left, beside = size - checked, self._beside()

        def is_enough(more: int) -> bool:
            now = checked + left * min(1.0, more / max(left.sum(), 1))
            _, low, high = interval(size, now, wrong * now / checked)
            return high - low + beside <= 2 * within * self.rows

        none, all_of_them = -1, int(left.sum())
        if not is_enough(all_of_them):
            return None
        while all_of_them - none > 1:
            half = (none + all_of_them) // 2
            none, all_of_them = (none, half) if is_enough(half) else (half, all_of_them)
        return all_of_them

    def _beside(self) -> float:
        """The part of the width that no further row of these groups removes."""
        _, low, high = interval(*self.groups)
        return max(0.0, self.high - self.low - (high - low))

    def next_step(self) -> tuple[int, float] | None:
        """How many more rows would narrow the interval to the next round half width, and that."""
        now = (self.high - self.low) / 2 / self.rows
        within = next((goal for goal in GOALS if goal < 0.75 * now), None)
        more = None if within is None else self.more_rows(within)
        return (more, within) if within and more and more < self.rows / 2 else None

    def advice(self) -> str:
        """The same as a sentence; empty where it would not pay."""
        if (step := self.next_step()) is None:
            return ""
        more, within = step
        points = f"{100 * within:g} {'point' if within == 0.01 else 'points'}"
        return f"Check about {plural(more, 'more row')} to know the share within ±{points}."

    def to_dict(self) -> dict[str, Any]:
        """What audit.json keeps."""
        numbers = {"rows": self.drawn, "wrong": self.wrong, "chosen": self.chosen}
        return numbers | {"advice": self.advice()}

    def told(self) -> str:
        """What the interval rests on."""
        if not self.drawn:
            return "Every label was checked: the number of wrong ones is known."
        others = f", beside {plural(self.chosen, 'chosen row')}" if self.chosen else ""
        return (
            f"Checked by hand: {plural(self.drawn, 'row')} drawn at random{others}. {self.wrong} "
            f"of the {self.drawn} had a wrong label. The 95 % interval of the count rests on them "
            "and holds however good or bad the model is."
        )


def count(checked: Checked, wrong: NDArray[np.bool_], order: Array) -> Count | None:
    """The number of wrong labels by what was drawn and checked; None where it says nothing.

    Args:
        checked: of the judged rows.
        wrong: where the truth is known, is it another than the given label?
        order: p_wrong; groups with few checked rows are joined with their neighbours in it.
    """
    if not (checked.role == DRAWN).any() and not (checked.role == CHOSEN).all():
        return None
    size, seen, bad, unknown = _groups(checked, wrong, order)
    value, low, high = interval(size, seen, bad)
    chosen = checked.role == CHOSEN
    exact = float(wrong[chosen].sum())
    left = float((checked.role == OPEN).sum() + unknown)
    known = checked.truth != IGNORE
    rows = len(wrong)
    least, most = float(wrong[known].sum()), float(rows - (known & ~wrong).sum())
    value += exact + left * value / max(size.sum(), 1)
    low, high = max(low + exact, least), min(high + exact + left, most)
    drawn = checked.role == DRAWN
    others = int((known & ~drawn).sum())
    numbers = (int(drawn.sum()), int(wrong[drawn].sum()), others)
    return Count(min(max(value, low), high), low, high, rows, *numbers, (size, seen, bad))


def interval(size: Array, checked: Array, wrong: Array) -> tuple[float, float, float]:
    """The number of wrong rows in all groups together, and its 95 % interval.

    All numbers that a score test does not refuse. For a number other than the estimate the groups'
    shares are the likeliest that add up to it (Miettinen and Nurminen, 1985), which is also where
    the standard error and the skewness of the estimate are taken from (Cornish and Fisher, 1938),
    for samples without replacement. One group alone has Wilson's interval but for the skewness.

    Args:
        size, checked, wrong: of each group; at least one row of each is checked.
    """
    share, total = wrong / checked, float(size.sum())
    if not total:
        return 0.0, 0.0, 0.0
    weight = size / total
    part = checked / size
    n = np.where(part < 1, checked * (size - 1) / np.maximum(size - checked, 1e-9), 1e12)
    estimate = float(weight @ share)
    third = np.maximum((1 - part) * (1 - 2 * part), 0) / checked**2

    def hypothesis(push: float) -> tuple[float, float, float]:
        """A number of wrong rows (as a share) with its standard error and skewness."""
        likely = _likeliest(share * n, n, push * weight)
        spread = likely * (1 - likely)
        variance = float(weight**2 @ (spread / n))
        moment = float(weight**3 @ (spread * (1 - 2 * likely) * third))
        return float(weight @ likely), variance**0.5, moment / max(variance, 1e-60) ** 1.5

    def limit(side: int) -> float:
        """The last hypothesis on a side (1: below the estimate) that is not refused."""
        near, far = -3.0, 14.0  # the push's logarithm
        for _ in range(45):
            middle = (near + far) / 2
            value, error, skewness = hypothesis(side * 10**middle)
            quantile = Z + side * min(max(skewness, -3), 3) * (Z**2 - 1) / 6
            refused = side * (estimate - value) > max(quantile, 0.5) * error
            near, far = (near, middle) if refused else (middle, far)
        return hypothesis(side * 10**far)[0]

    low, high = min(limit(1), estimate), max(limit(-1), estimate)
    return estimate * total, low * total, high * total


def _likeliest(wrong: Array, checked: Array, push: Array) -> Array:
    """Shares that maximise the likelihood less push @ share: roots of a quadratic for each."""
    b = checked + push
    root = np.sqrt(np.maximum(b * b - 4 * push * wrong, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(b > 0, 2 * wrong / (b + root), (b - root) / (2 * push))
    return np.minimum(np.maximum(share, 0), 1)


def groups_by(order: Array, seed: int = 0, groups: int = GROUPS) -> NDArray[np.int64]:
    """Groups of equal size by p_wrong, the lowest first; equal ones are shared out at random."""
    n = len(order)
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((np.random.default_rng(seed).random(n), order))] = np.arange(n)
    return rank * min(groups, max(n, 1)) // max(n, 1)


def _groups(
    checked: Checked, wrong: NDArray[np.bool_], order: Array
) -> tuple[Array, Array, Array, int]:
    """Size, checked and wrong rows of the groups after joining, and rows of no group.

    Groups of another probability are never joined. Where no row of one was checked, its rows are
    of no group: nothing is known of them.
    """
    counts: list[list[float]] = []
    unknown = 0
    at_stake = (checked.role == NONE) | (checked.role == DRAWN)
    for probability in np.unique(checked.probability[at_stake]):
        same = at_stake & (checked.probability == probability)
        part = (same & (checked.role == DRAWN)).sum() / same.sum()
        joined: list[list[float]] = [[0, 0, 0]]
        # equal ones stay as they come: by what was found in them they would look like an order
        for _, *group in sorted(_parts(checked, wrong, order, same), key=lambda part: part[0]):
            # by their size, not by what was drawn: that would favour some of the draws
            if joined[-1][0] * part > AT_LEAST - 0.5 and joined[-1][1]:
                joined.append([0, 0, 0])
            joined[-1] = [a + b for a, b in zip(joined[-1], group, strict=True)]
        if len(joined) > 1 and not (joined[-1][0] * part > AT_LEAST - 0.5 and joined[-1][1]):
            last = joined.pop()
            joined[-1] = [a + b for a, b in zip(joined[-1], last, strict=True)]
        if joined[0][1]:
            counts += _in_order(joined)
        else:
            unknown += int(joined[0][0])
    size, seen, bad = np.array(counts, dtype=np.float64).reshape(-1, 3).T
    return size, seen, bad, unknown


def _in_order(groups: list[list[float]]) -> list[list[float]]:
    """Neighbours joined until the share of wrong rows rises with p_wrong, or falls all the way.

    Of the five rows of a group the share is mostly chance, and its variance would be told too
    small. Groups whose shares are in no order become one, so that a model that says nothing has
    about the interval of the sample alone.
    """
    return max((_rising(groups), _rising(groups[::-1])), key=_log_likelihood)


def _rising(groups: list[list[float]]) -> list[list[float]]:
    """Pool adjacent violators (Ayer et al., 1955)."""
    found: list[list[float]] = []
    for group in groups:
        found.append(group)
        while len(found) > 1 and found[-2][2] * found[-1][1] >= found[-1][2] * found[-2][1]:
            last = found.pop()
            found[-1] = _joined(found[-1], last)
    return found


def _joined(one: list[float], other: list[float]) -> list[float]:
    """Two groups as one, whose share is the mean by size: what is estimated stays the same. It
    counts as many checked rows as give that mean its variance where both shares are equal."""
    size = one[0] + other[0]
    share = (one[0] * one[2] / one[1] + other[0] * other[2] / other[1]) / size
    checked = size**2 / (one[0] ** 2 / one[1] + other[0] ** 2 / other[1])
    return [size, checked, share * checked]


def _log_likelihood(groups: list[list[float]]) -> float:
    _, seen, bad = np.array(groups).T
    share = np.clip(bad / seen, 1e-12, 1 - 1e-12)
    return float(bad @ np.log(share) + (seen - bad) @ np.log1p(-share))


def _parts(
    checked: Checked, wrong: NDArray[np.bool_], order: Array, rows: NDArray[np.bool_]
) -> Iterator[tuple[float, int, int, int]]:
    """Mean p_wrong, size, checked and wrong rows of each group."""
    for group in np.unique(checked.group[rows]):
        own = rows & (checked.group == group)
        drawn = own & (checked.role == DRAWN)
        yield float(order[own].mean()), int(own.sum()), int(drawn.sum()), int(wrong[drawn].sum())


# ---- what a caller gives ----------------------------------------------------------------------


def check_checked(
    checked: Mapping[int, Any] | Sequence[Any] | np.ndarray,
    drawn: Sequence[float] | np.ndarray | None,
    y: Labels,
    names: tuple[str, ...] | None,
    num_classes: int,
    order: Array,
) -> Checked:
    """What a caller checked, of all N rows.

    Args:
        checked: true labels by row, or one for each row, -1, None or NaN where it is not known.
        drawn: the probability that each row had of being checked, 1: chosen; None: all had the
            same.
        y: the given labels [N], as numbers.
        names: of the classes.
        num_classes: K.
        order: p_wrong [N].
    """
    truth = _truth(checked, y, names, num_classes)
    known = truth != IGNORE
    probability = _probability(drawn, y, known)
    role = np.where(known, np.where(probability == 1, CHOSEN, DRAWN), NONE).astype(np.int8)
    group = np.zeros(len(y), dtype=np.int64)
    for value in np.unique(probability):
        same = np.flatnonzero((probability == value) & (y != IGNORE))
        few = int(known[same].sum()) // PER_GROUP
        group[same] = groups_by(order[same], groups=min(GROUPS, max(1, few)))
    return Checked(truth, role, group, probability)


def _truth(checked: Any, y: Labels, names: tuple[str, ...] | None, num_classes: int) -> Labels:
    n = len(y)
    if not isinstance(checked, Mapping):
        if len(checked) != n:
            raise BadInput(f"checked has {len(checked)} labels for {n} rows; give -1 for no label")
        values = checked.tolist() if hasattr(checked, "tolist") else list(checked)
        checked = {row: label for row, label in enumerate(values) if not _is_none(label)}
    number = {name: k for k, name in enumerate(names or ())}
    truth = np.full(n, IGNORE, dtype=np.int64)
    for row, label in checked.items():
        if not isinstance(row, Integral) or not 0 <= int(row) < n:
            raise BadInput(f"checked names row {row}, and the rows are 0 to {n - 1}")
        is_number = isinstance(label, Integral) and str(label) not in number
        k = int(label) if is_number else number.get(str(label), -1)
        if not 0 <= k < num_classes:
            raise BadInput(f"the checked label {label!r} of row {row} is no class of the labels")
        if y[row] == IGNORE:
            raise BadInput(f"row {row} was checked, but it has no label that could be wrong")
        truth[row] = k
    return truth


def _is_none(label: Any) -> bool:
    return label is None or bool(pd.isna(label)) or (isinstance(label, Integral) and label == -1)


def _probability(drawn: Any, y: Labels, known: NDArray[np.bool_]) -> Array:
    if drawn is None:
        return np.full(len(y), known.sum() / max((y != IGNORE).sum(), 1))
    probability = np.asarray(drawn, dtype=np.float64)
    if probability.shape != y.shape:
        raise BadInput(f"drawn has {probability.shape} probabilities for {len(y)} rows")
    if not ((probability > 0) & (probability <= 1))[y != IGNORE].all():
        raise BadInput(
            "drawn holds the probability with which each row was drawn: above 0, at most 1"
        )
    if (lost := np.flatnonzero((probability == 1) & ~known & (y != IGNORE))).size:
        raise BadInput(
            f"drawn says that {which_rows(lost)} was surely drawn, but checked has no label for it"
        )
    if len(np.unique(probability)) > STRATA:
        raise BadInput(
            f"drawn holds more than {STRATA} different probabilities; draw from a few groups of "
            "rows, with one probability each"
        )
    return probability
