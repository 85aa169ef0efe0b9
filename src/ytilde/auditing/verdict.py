"""From the readings to a verdict: of each label, of each class, of them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .blocks import total
from .inputs import Array, Labels
from .notes import Agreement
from .readings import Evidence, Readings, fit_readings
from .sample import sampled

DOUBT = (
    0.25  # of the share of rows at which the model is wrong: no label is surer wrong than 1 - that
)


class Rows(NamedTuple):
    """The verdict on each of some labelled rows."""

    p_wrong: Array
    quality: Array
    predicted: Labels
    predicted_prob: Array
    runner_up: Labels
    runner_up_prob: Array
    ambiguity: Array

    @staticmethod
    def empty(n: int) -> Rows:
        number, label = np.empty(0), np.empty(0, dtype=np.int64)
        kinds: Any = (number, number, label, number, label, number, number)
        return Rows(*(np.empty(n, kind.dtype) for kind in kinds))


class Sums(NamedTuple):
    """What is expected of some rows together; `blocks.total` adds them up."""

    joint: Array  # [K, K] number of rows that are truly i and were given j
    wrong: Array  # wrong labels, by each reading
    model_wrong: Array  # rows whose likeliest clean class is not the truth, [1]


class Verdict(NamedTuple):
    """Per labelled row, and in sums over the rows."""

    p_wrong: Array
    quality: Array
    predicted: Labels
    predicted_prob: Array
    runner_up: Labels
    runner_up_prob: Array
    ambiguity: Array
    joint: Array  # [K, K] expected number of rows that are truly i and were given j
    rates: Array  # the noise rate according to each reading
    model_error: float  # expected share of rows whose likeliest clean class is not the truth

    @property
    def by_row(self) -> Rows:
        return Rows(*self[: len(Rows._fields)])  # type: ignore[arg-type]

    @staticmethod
    def of(rows: Rows, sums: Sums, n: int) -> Verdict:
        return Verdict(*rows, sums.joint, sums.wrong / n, float(sums.model_wrong[0]) / n)


def judge(evidence: Evidence) -> Verdict:
    """The mean over the readings; where T was given, Bayes by it alone."""
    readings = None if evidence.transition is not None else fit_readings(sampled(evidence))
    found = Rows.empty(len(evidence.rows))

    def judged() -> Iterator[tuple[int, Sums]]:
        for first, part in evidence.blocks():
            rows, sums = judge_rows(evidence, readings, part)
            for column, values in zip(found, rows, strict=True):
                column[part] = values
            yield first, sums

    return Verdict.of(found, total(judged()), len(evidence.rows))


def judge_rows(evidence: Evidence, readings: Readings | None, part: slice) -> tuple[Rows, Sums]:
    """The same of some labelled rows."""
    from scipy.sparse import csr_array  # here, as scipy takes a while to import

    y, k = evidence.y[evidence.rows[part]], evidence.p.shape[1]
    at, modesty = np.arange(len(y)), 1.0
    if readings:
        modesty = 1 - 2 * DOUBT * readings.model_error
        f, post, right_by = readings.judge(evidence, part)
    else:
        f, post = evidence.bayes(part)
        right_by = np.array([post[at, y].sum()])
    wrong, quality = _wrong_and_right(post, y)
    modest = np.where(wrong > 0.5, 0.5 + modesty * (wrong - 0.5), wrong)
    right = np.where(quality < 0.5, 0.5 - modesty * (0.5 - quality), quality)
    others = np.where(wrong > 0.5, modest / np.maximum(wrong, 0.5), 1.0)  # what it leaves them
    joint = (csr_array((np.ones(len(y)), (y, at)), shape=(k, len(y))) @ post).T
    second, first = np.partition(f, -2, axis=1)[:, -2:].T
    # A label that is more likely wrong than right is never suggested again.
    post[at, y] = np.where(quality < 0.5, -1.0, quality)
    best = post.argmax(1)
    best_prob = post[at, best] * others
    post[at, y], post[at, best] = -1.0, -2.0
    beside = post.argmax(1)
    rows = Rows(
        np.clip(modest, 0, 1),
        np.clip(right, 0, 1),
        best,
        best_prob,
        beside,
        np.where(beside == y, right, post[at, beside] * others),
        np.clip(1 - (first - second), 0, 1),
    )
    return rows, Sums(joint, len(y) - right_by, np.array([len(y) - f.max(1).sum()]))


def _wrong_and_right(post: Array, y: Labels) -> tuple[Array, Array]:
    """p_wrong, and the probability of the label itself; both keep their order near 0 and near 1."""
    at = np.arange(len(y))
    quality = post[at, y]
    others = post.sum(1) - quality
    np.subtract(1, quality, out=others, where=quality < 0.99)
    return others, quality


def interval(wrong: float, rates: Array, model_error: float, n: int) -> tuple[float, float, float]:
    """The noise rate, and its 95 % interval from low to high.

    The expected share of wrong labels; the readings' span, widened by half the model's own expected
    errors (each could be taken for a label error, or hide one) and by 1.96 binomial standard
    errors.
    """
    rate = wrong / n
    widen = 0.5 * model_error + 1.96 * np.sqrt(max(rate * (1 - rate), 1 / n) / n)
    low, high = rates.min() - widen, rates.max() + widen
    return rate, max(low, 0.0), min(high, 1.0)


def row_stochastic(joint: Array) -> Array:
    total = joint.sum(1, keepdims=True)
    return np.where(total > 0, joint / np.where(total > 0, total, 1.0), np.eye(len(joint)))


class Counts(NamedTuple):
    """What the labels and the verdict on them add up to, class by class."""

    given: NDArray[np.int64]  # [K] rows
    wrong: Array  # [K] expected wrong labels
    flagged: NDArray[np.int64]  # [K, K] labels more likely wrong than right: [given, suggested]
    guessed: NDArray[np.int64]  # [K] rows by the model's best guess
    agree: NDArray[np.int64]  # [1] rows whose label that is

    @staticmethod
    def of(p: np.ndarray, y: Labels, p_wrong: Array, predicted: Labels) -> Counts:
        """Of some rows with a label."""
        k, guess, suspect = p.shape[1], p.argmax(1), p_wrong > 0.5
        pair = y[suspect] * k + predicted[suspect]
        return Counts(
            np.bincount(y, minlength=k),
            np.bincount(y, p_wrong, minlength=k).astype(np.float64, copy=False),
            np.bincount(pair, minlength=k * k).reshape(k, k),
            np.bincount(guess, minlength=k),
            np.array([(guess == y).sum()]),
        )

    @property
    def agreement(self) -> Agreement:
        return Agreement.counted(self.guessed, self.given, int(self.agree[0]))


def per_class(joint: Array, counts: Counts, shown: np.ndarray) -> pd.DataFrame:
    count, wrong = counts.given, counts.wrong
    return pd.DataFrame(
        {
            "label": shown,
            "given": count,
            "issues": counts.flagged.sum(1),
            "expected_errors": wrong,
            "noise_rate": np.divide(wrong, count, out=np.zeros(len(shown)), where=count > 0),
            "expected_true": joint.sum(1),
            "lost_rate": 1 - np.diag(row_stochastic(joint)),
        }
    )


def pairs(joint: Array, counts: Counts, shown: np.ndarray) -> pd.DataFrame:
    """Given -> true pairs by expected number of errors, those of at least half a row."""
    off = joint.T * (1 - np.eye(len(shown)))  # [given, true]
    given, true = np.nonzero(off >= 0.5)
    table = pd.DataFrame(
        {
            "given_label": shown[given],
            "predicted_label": shown[true],
            "expected_errors": off[given, true],
            "issues": counts.flagged[given, true],
        }
    )
    return table.sort_values("expected_errors", ascending=False, ignore_index=True, kind="stable")
