"""From the readings to a verdict: of each label, of each class, of them all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from .inputs import Array, Labels
from .readings import Evidence, fit_readings, posterior

DOUBT = (
    0.25  # of the share of rows at which the model is wrong: no label is surer wrong than 1 - that
)


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


def judge(evidence: Evidence) -> Verdict:
    """The mean over the readings; where T was given, Bayes by it alone."""
    from scipy.sparse import csr_array  # here, as scipy takes a while to import

    n, k = len(evidence.rows), evidence.p.shape[1]
    columns = {name: np.empty(n) for name in ("wrong", "quality", "prob", "next", "ambiguity")}
    predicted, runner_up = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    readings = fit_readings(evidence) if evidence.transition is None else None
    joint, doubt = np.zeros((k, k)), 0.0
    rates = np.zeros(len(readings.all) if readings else 1)
    modesty = 1 - 2 * DOUBT * readings.model_error if readings else 1.0
    for part, p, y, T in evidence.chunks():
        at = np.arange(len(y))
        if readings:
            f, posts = readings.judge(evidence, part)
            post = np.mean(posts, 0)
        else:
            assert T is not None
            f, post = p, posterior(p, y, T)
            posts = [post]
        rates += [len(y) - each[at, y].sum() for each in posts]
        doubt += len(y) - f.max(1).sum()
        wrong, quality = _wrong_and_right(post, y)
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
    return Verdict(
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
