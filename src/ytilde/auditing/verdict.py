"""From the readings to a verdict: of each label, of each class, of them all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .inputs import Array, Labels
from .readings import Evidence, fit_readings, posterior

DOUBT = 0.25  # of the rows at which the model may be wrong: no label is surer wrong than 1 - that
BLEND = (3, 1, 1)  # what p_wrong, self-confidence and margin weigh in the order
TINY = np.finfo(np.float64).tiny
KNOTS = 100  # quantiles by which p_wrong follows the order
LEAST = 0.3  # p_wrong of a suspect at least


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


def judge(evidence: Evidence) -> Verdict:
    """The mean over the readings; where T was given, Bayes by it alone."""
    from scipy.sparse import csr_array  # here, as scipy takes a while to import

    n, k = len(evidence.rows), evidence.p.shape[1]
    names = ("wrong", "quality", "score", "prob", "next", "ambiguity")
    columns = {name: np.empty(n) for name in names}
    predicted, runner_up = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    readings = fit_readings(evidence) if evidence.transition is None else None
    joint, doubt = np.zeros((k, k)), 0.0
    rates = np.zeros(len(readings.all) if readings else 1)
    modesty = 1 - 2 * DOUBT * readings.doubt if readings else 1.0
    for part, p, y, T in evidence.chunks():
        at = np.arange(len(y))
        if readings:
            q, f, posts = readings.judge(evidence, part)
            post = np.mean(posts, 0)
        else:
            assert T is not None
            f, post = p, posterior(p, y, T)
            posts = [post]
        rates += [len(y) - each[at, y].sum() for each in posts]
        doubt += len(y) - f.max(1).sum()
        wrong, quality = _wrong_and_right(post, y)
        if readings:
            columns["score"][part] = _score(quality, wrong, q, y)
        columns["wrong"][part] = modest = np.where(
            wrong > 0.5, 0.5 + modesty * (wrong - 0.5), wrong
        )
        columns["quality"][part] = np.where(quality < 0.5, 0.5 - modesty * (0.5 - quality), quality)
        others = np.where(wrong > 0.5, modest / np.maximum(wrong, 0.5), 1.0)  # what it leaves them
        joint += (csr_array((np.ones(len(y)), (y, at)), shape=(k, len(y))) @ post).T
        second, first = np.partition(f, -2, axis=1)[:, -2:].T
        columns["ambiguity"][part] = 1 - (first - second)
        # A label that is more likely wrong than right is never suggested again.
        post[at, y] = np.where(quality < 0.5, -1.0, quality)
        predicted[part] = best = post.argmax(1)
        columns["prob"][part] = post[at, best] * others
        post[at, y], post[at, best] = -1.0, -2.0
        runner_up[part] = beside = post.argmax(1)
        right = columns["quality"][part]
        columns["next"][part] = np.where(beside == y, right, post[at, beside] * others)
    verdict = Verdict(
        np.clip(columns["wrong"], 0, 1),
        np.clip(columns["quality"], 0, 1),
        predicted,
        columns["prob"],
        runner_up,
        columns["next"],
        np.clip(columns["ambiguity"], 0, 1),
        joint,
        rates / n,
        doubt / n,
    )
    if readings is None or not n:
        return verdict
    order = Order.of(columns["score"], log_odds(verdict.quality, verdict.p_wrong))
    right = order.odds_right(columns["score"])
    return with_p_wrong(verdict, evidence.y[evidence.rows], expit(-right), expit(right))


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


class Order(NamedTuple):
    """Turns the score into p_wrong: in the order of the score, and spread as p_wrong was.

    A few quantiles of the one are turned into those of the other, with straight lines between, so
    that rows that hardly differ in the score hardly differ in p_wrong. Fitted to any sample of the
    rows, it judges each row by itself.
    """

    score: Array  # quantiles
    right: Array  # the same of the log-odds that a label is right

    @staticmethod
    def of(score: Array, right: Array) -> Order:
        n = len(score)
        depth = np.log(max(n, 2))
        inner = expit(np.linspace(-depth, depth, min(KNOTS, max(2, n // 10))))
        levels = np.concatenate([[0.0], inner, [1.0]])
        return Order(np.quantile(score, levels), np.quantile(right, levels))

    def odds_right(self, score: Array) -> Array:
        """Log-odds that the label is right."""
        return np.interp(score, self.score, self.right)


def with_p_wrong(verdict: Verdict, y: Labels, p_wrong: Array, quality: Array) -> Verdict:
    """The verdict with other p_wrong; the other classes keep their proportions. A label that is
    more likely wrong than right is never suggested."""
    was_kept = verdict.predicted == y
    other = np.where(was_kept, verdict.runner_up, verdict.predicted)
    ratio = np.minimum(p_wrong / np.maximum(verdict.p_wrong, 1e-300), 1e300)
    prob = np.where(was_kept, verdict.runner_up_prob, verdict.predicted_prob)
    prob = np.minimum(prob * ratio, p_wrong)
    keep = (quality >= 0.5) & (quality >= prob)
    turned = keep != was_kept
    runner_up = np.where(turned, np.where(keep, other, y), verdict.runner_up)
    third = np.where(runner_up == y, quality, np.minimum(verdict.runner_up_prob * ratio, p_wrong))
    count = np.bincount(y, minlength=len(verdict.joint)).astype(np.float64)
    expected = np.bincount(y, p_wrong, minlength=len(count))
    off = verdict.joint * (1 - np.eye(len(count)))
    before = off.sum(0)
    off *= np.where(before > 0, expected / np.where(before > 0, before, 1.0), 0.0)
    return verdict._replace(
        p_wrong=p_wrong,
        quality=quality,
        predicted=np.where(keep, y, other),
        predicted_prob=np.where(keep, quality, prob),
        runner_up=runner_up,
        runner_up_prob=np.where(runner_up == other, prob, third),
        joint=off + np.diag(count - off.sum(0)),
    )


def cut_of(p_wrong: Array) -> float:
    """The p_wrong of a suspect at least: one half, or less where fewer labels than expected are
    above that, so that there are as many suspects as wrong labels are expected; never below LEAST.
    """
    worst = np.sort(p_wrong)[::-1]
    expected = round(float(worst.sum()))
    return min(0.5, max(float(worst[expected - 1]), LEAST)) if expected else 0.5


def suspects(p_wrong: Array, cut: float) -> NDArray[np.bool_]:
    """Which labels to look at."""
    return p_wrong >= cut if cut < 0.5 else p_wrong > 0.5


def suggesting(verdict: Verdict, y: Labels, flagged: NDArray[np.bool_]) -> Verdict:
    """The same, with another class than the given one suggested for every suspect."""
    kept = flagged & (verdict.predicted == y)

    def swapped(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(kept, other, one)

    return verdict._replace(
        predicted=swapped(verdict.predicted, verdict.runner_up),
        predicted_prob=swapped(verdict.predicted_prob, verdict.runner_up_prob),
        runner_up=swapped(verdict.runner_up, verdict.predicted),
        runner_up_prob=swapped(verdict.runner_up_prob, verdict.predicted_prob),
    )


def _wrong_and_right(post: Array, y: Labels) -> tuple[Array, Array]:
    """p_wrong, and the probability of the label itself; both keep their order near 0 and near 1."""
    at = np.arange(len(y))
    quality = post[at, y]
    others = post.sum(1) - quality
    np.subtract(1, quality, out=others, where=quality < 0.99)
    return others, quality


def interval(verdict: Verdict, n: int) -> tuple[float, float, float]:
    """The noise rate, and its 95 % interval from low to high.

    Mean p_wrong; the readings' span, widened by half the model's own expected errors (each
    could be taken for a label error, or hide one) and by 1.96 binomial standard errors.
    """
    rate = float(verdict.p_wrong.mean())
    widen = 0.5 * verdict.model_error + 1.96 * np.sqrt(max(rate * (1 - rate), 1 / n) / n)
    low, high = verdict.rates.min() - widen, verdict.rates.max() + widen
    return rate, max(low, 0.0), min(high, 1.0)


def row_stochastic(joint: Array) -> Array:
    total = joint.sum(1, keepdims=True)
    return np.where(total > 0, joint / np.where(total > 0, total, 1.0), np.eye(len(joint)))


def per_class(verdict: Verdict, y: Labels, flagged: np.ndarray, shown: np.ndarray) -> pd.DataFrame:
    k = len(shown)
    count = np.bincount(y, minlength=k)
    wrong = np.bincount(y, verdict.p_wrong, minlength=k)
    return pd.DataFrame(
        {
            "label": shown,
            "given": count,
            "issues": np.bincount(y, flagged, minlength=k).astype(np.int64),
            "expected_errors": wrong,
            "noise_rate": np.divide(wrong, count, out=np.zeros(k), where=count > 0),
            "expected_true": verdict.joint.sum(1),
            "lost_rate": 1 - np.diag(row_stochastic(verdict.joint)),
        }
    )


def pairs(verdict: Verdict, y: Labels, flagged: np.ndarray, shown: np.ndarray) -> pd.DataFrame:
    """Given -> true pairs by expected number of errors, those of at least half a row."""
    k = len(shown)
    found = np.bincount(y[flagged] * k + verdict.predicted[flagged], minlength=k * k)
    off = verdict.joint.T * (1 - np.eye(k))  # [given, true]
    given, true = np.nonzero(off >= 0.5)
    table = pd.DataFrame(
        {
            "given_label": shown[given],
            "predicted_label": shown[true],
            "expected_errors": off[given, true],
            "issues": found.reshape(k, k)[given, true],
        }
    )
    return table.sort_values("expected_errors", ascending=False, ignore_index=True, kind="stable")
