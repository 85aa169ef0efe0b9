"""From the readings to a verdict: of each label, of each class, of them all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .blocks import total
from .inputs import Array, Labels
from .notes import Agreement
from .readings import Evidence, Readings, fit_readings
from .sample import members, sampled

DOUBT = 0.25  # of the rows at which the model may be wrong: no label is surer wrong than 1 - that
BLEND = (3, 1, 2)  # what p_wrong, self-confidence and margin weigh in the order
TINY = np.finfo(np.float64).tiny
KNOTS = 100  # quantiles by which p_wrong follows the order
LEAST = 1 / 3  # p_wrong of a suspect at least


class Rows(NamedTuple):
    """The verdict on each of some labelled rows."""

    p_wrong: Array
    quality: Array  # 1 - p_wrong, exact where that is small
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

    def at(self, part: Any) -> Rows:
        """The verdict on some of the rows."""
        columns: Any = (column[part] for column in self)
        return Rows(*columns)

    def put(self, part: slice, rows: Rows) -> None:
        """Write the verdict on some of the rows in its place."""
        for column, values in zip(self, rows, strict=True):
            column[part] = values

    def with_p_wrong(self, y: Labels, p_wrong: Array, quality: Array) -> Rows:
        """With other p_wrong; the other classes keep their proportions. A label that is more likely
        wrong than right is never suggested."""
        was_kept = self.predicted == y
        other = np.where(was_kept, self.runner_up, self.predicted)
        ratio = np.minimum(p_wrong / np.maximum(self.p_wrong, 1e-300), 1e300)
        prob = np.where(was_kept, self.runner_up_prob, self.predicted_prob)
        prob = np.minimum(prob * ratio, p_wrong)
        keep = (quality >= 0.5) & (quality >= prob)
        turned = keep != was_kept
        runner_up = np.where(turned, np.where(keep, other, y), self.runner_up)
        third = np.where(runner_up == y, quality, np.minimum(self.runner_up_prob * ratio, p_wrong))
        return Rows(
            p_wrong,
            quality,
            np.where(keep, y, other),
            np.where(keep, quality, prob),
            runner_up,
            np.where(runner_up == other, prob, third),
            self.ambiguity,
        )

    def suggesting(self, y: Labels, flagged: NDArray[np.bool_]) -> Rows:
        """With another class than the given one suggested for every suspect."""
        kept = flagged & (self.predicted == y)

        def swapped(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.where(kept, other, one)

        return self._replace(
            predicted=swapped(self.predicted, self.runner_up),
            predicted_prob=swapped(self.predicted_prob, self.runner_up_prob),
            runner_up=swapped(self.runner_up, self.predicted),
            runner_up_prob=swapped(self.runner_up_prob, self.predicted_prob),
        )


class Sums(NamedTuple):
    """What is expected of some rows together; `blocks.total` adds them up."""

    joint: Array  # [K, K] number of rows that are truly i and were given j
    wrong: Array  # wrong labels, by each reading
    model_wrong: Array  # rows whose likeliest clean class is not the truth, [1]
    given: Array  # [K] rows
    expected: Array  # [K] wrong labels by p_wrong, once it is in order

    def expecting(self, y: Labels, p_wrong: Array) -> Sums:
        k = len(self.joint)
        given, expected = np.bincount(y, minlength=k), _expected(y, p_wrong, k)
        return self._replace(given=given.astype(np.float64), expected=expected)


class Verdict(NamedTuple):
    """Per labelled row, and in sums over the rows."""

    p_wrong: Array
    quality: Array  # 1 - p_wrong, exact where that is small
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
        joint = _rescaled(sums.joint, sums.given, sums.expected)
        return Verdict(*rows, joint, sums.wrong / n, float(sums.model_wrong[0]) / n)


def with_p_wrong(verdict: Verdict, y: Labels, p_wrong: Array, quality: Array) -> Verdict:
    """The verdict with other p_wrong, see Rows."""
    rows, k = verdict.by_row.with_p_wrong(y, p_wrong, quality), len(verdict.joint)
    count = np.bincount(y, minlength=k).astype(np.float64)
    joint = _rescaled(verdict.joint, count, _expected(y, p_wrong, k))
    return Verdict(*rows, joint, verdict.rates, verdict.model_error)


def _rescaled(joint: Array, given: Array, expected: Array) -> Array:
    """With so many wrong labels of each given class [K]."""
    off = joint * (1 - np.eye(len(given)))
    before = off.sum(0)
    off *= np.divide(expected, before, out=np.zeros_like(before), where=before > 0)
    return off + np.diag(given - off.sum(0))


def _expected(y: Labels, p_wrong: Array, k: int) -> Array:
    """Wrong labels of each given class."""
    return np.bincount(y, p_wrong, minlength=k).astype(np.float64, copy=False)


class Order(NamedTuple):
    """How p_wrong follows the score of a row, by a few quantiles of both, with straight lines
    between: rows that hardly differ in the score hardly differ in p_wrong."""

    score: Array
    right: Array  # log-odds

    @staticmethod
    def of(rows: Rows, score: Array) -> Order:
        """p_wrong in the order of the score, and spread as it was among these rows."""
        number, depth = min(KNOTS, max(2, len(score) // 10)), np.log(max(len(score), 2))
        levels = np.concatenate([[0.0], expit(np.linspace(-depth, depth, number)), [1.0]])
        own = np.quantile(log_odds(rows.quality, rows.p_wrong), levels)
        return Order(np.quantile(score, levels), own)

    def apply(self, rows: Rows, score: Array, y: Labels) -> Rows:
        right = np.interp(score, self.score, self.right)
        return rows.with_p_wrong(y, expit(-right), expit(right))


class Rules(NamedTuple):
    """What a row is judged by, all fitted to the sample."""

    readings: Readings
    order: Order
    cut: float  # the p_wrong of a suspect

    @staticmethod
    def fit(sample: Evidence) -> Rules:
        readings, n = fit_readings(sample), len(sample.rows)
        rows, score = Rows.empty(n), np.empty(n)
        for _, part in sample.blocks():
            judged, _, score[part] = judge_rows(sample, readings, part)
            rows.put(part, judged)
        order = Order.of(rows, score)
        ordered = order.apply(rows, score, sample.y[sample.rows])
        return Rules(readings, order, cut_of(ordered.p_wrong))


def cut_of(p_wrong: Array) -> float:
    """The p_wrong from which on labels are worth a look: that of the largest expected F1, which is
    half of that F1 (Lipton et al., 2014), but not below LEAST."""
    worst = np.sort(p_wrong)[::-1]
    found = np.cumsum(worst)
    f1 = 2 * found / (np.arange(1, len(worst) + 1) + found[-1])
    return max(float(worst[f1.argmax()]), LEAST)


def suspects(p_wrong: Array, cut: float) -> NDArray[np.bool_]:
    """Which labels to look at."""
    return (p_wrong > 0.5) | (p_wrong >= cut)


def judge(evidence: Evidence) -> Verdict:
    """The mean over the readings; where T was given, Bayes by it alone."""
    y, n, k = evidence.y[evidence.rows], len(evidence.rows), evidence.p.shape[1]
    readings = None if evidence.transition is not None else fit_readings(sampled(evidence))
    found, score, sums = Rows.empty(n), np.empty(n), []
    for first, part in evidence.blocks():
        rows, own, score[part] = judge_rows(evidence, readings, part)
        found.put(part, rows)
        sums.append((first, part, own))
    if readings is not None:
        sample = members(evidence.rows, k)
        order = Order.of(found.at(sample), score[sample])
        for _, part, _ in sums:
            found.put(part, order.apply(found.at(part), score[part], y[part]))
    added = ((first, own.expecting(y[part], found.p_wrong[part])) for first, part, own in sums)
    together = total(added)
    if readings is None:  # T is given, and nothing was put in order
        return Verdict(
            *found, together.joint, together.wrong / n, float(together.model_wrong[0]) / n
        )
    return Verdict.of(found, together, n)


def judge_rows(
    evidence: Evidence, readings: Readings | None, part: slice
) -> tuple[Rows, Sums, Array]:
    """Of some labelled rows: the verdict before it is put in order, sums, the score."""
    from scipy.sparse import csr_array  # here, as scipy takes a while to import

    y, k = evidence.y[evidence.rows[part]], evidence.p.shape[1]
    at, modesty, score = np.arange(len(y)), 1.0, np.zeros(len(y))
    if readings:
        modesty = 1 - 2 * DOUBT * readings.doubt
        q, f, post, right_by = readings.judge(evidence, part)
    else:
        f, post = evidence.bayes(part)
        right_by = np.array([post[at, y].sum()])
    wrong, quality = _wrong_and_right(post, y)
    if readings:
        score = _score(quality, wrong, q, y)
    modest = np.where(wrong > 0.5, 0.5 + modesty * (wrong - 0.5), wrong)
    right = np.where(quality < 0.5, 0.5 - modesty * (0.5 - quality), quality)
    others = np.where(wrong > 0.5, modest / np.maximum(wrong, 0.5), 1.0)  # what it leaves them
    joint = (csr_array((np.ones(len(y)), (y, at)), shape=(k, len(y))) @ post).T
    second, first = np.partition(f, -2, axis=1)[:, -2:].T
    # A label that is more likely wrong than right is never suggested again.
    post[at, y] = np.where(quality < 0.5, -np.inf, quality)
    best = post.argmax(1)
    best_prob = post[at, best] * others
    post[at, y], post[at, best] = -1, -np.inf  # the label only where no class is left
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
    none = np.zeros(k)
    wrong_model = np.array([len(y) - f.max(1).sum()])
    return rows, Sums(joint, len(y) - right_by, wrong_model, none, none), score


def _score(right: Array, wrong: Array, q: Array, y: Labels) -> Array:
    """Log-odds that rows are put in order by: simple scores have a say in it.

    p_wrong knows how far the judges can be trusted and which classes are confused; their own
    probability of the label does better where noise is even, its margin where classes meet. So the
    log-odds of the three are averaged; none of them saturates.
    """
    at = np.arange(len(y))
    q = q.copy()
    own = q[at, y]
    q[at, y] = 0.0
    best = q.argmax(1)
    ahead = q[at, best]
    q[at, best] = 0.0
    rest = q.sum(1)
    scores = ((right, wrong), (own, ahead + rest), (2 * own + rest, 2 * ahead + rest))
    odds = (weight * log_odds(*each) for weight, each in zip(BLEND, scores, strict=True))
    return np.sum(list(odds), 0) / sum(BLEND)


def log_odds(a: Array, b: Array) -> Array:
    """log(a / b), of two that add up to 1: either still differs where the other is rounded to 1."""
    return np.log(np.maximum(a, TINY)) - np.log(np.maximum(b, TINY))


def expit(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


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
    return np.divide(joint, total, out=np.eye(len(joint)), where=total > 0)


class Counts(NamedTuple):
    """What the labels and the verdict on them add up to, class by class."""

    given: NDArray[np.int64]  # [K] rows
    wrong: Array  # [K] expected wrong labels
    flagged: NDArray[np.int64]  # [K, K] labels more likely wrong than right: [given, suggested]
    guessed: NDArray[np.int64]  # [K] rows by the model's best guess
    agree: NDArray[np.int64]  # [1] rows whose label that is

    @staticmethod
    def of(p: np.ndarray, y: Labels, rows: Rows, suspect: NDArray[np.bool_]) -> Counts:
        """Of some rows with a label."""
        k, guess, p_wrong, predicted = p.shape[1], p.argmax(1), rows.p_wrong, rows.predicted
        pair = y[suspect] * k + predicted[suspect]
        return Counts(
            np.bincount(y, minlength=k),
            _expected(y, p_wrong, k),
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
