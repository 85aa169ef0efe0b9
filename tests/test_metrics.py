"""metrics.py against loops written from the definitions, and against scikit-learn."""

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ytilde import metrics
from ytilde.data import BadInput


def case(seed, n=60, k=4):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(k), n)
    y = rng.integers(-1, k, n)
    return probs, y


def slow_ece(confidence, correct, bins, adaptive):
    pairs = sorted(zip(confidence, correct, strict=True), key=lambda pair: pair[0])
    total = 0.0
    for b in range(bins):
        if adaptive:
            inside = [p for r, p in enumerate(pairs) if r * bins // len(pairs) == b]
        else:
            inside = [p for p in pairs if (b / bins < p[0] or b == 0) and p[0] <= (b + 1) / bins]
        if inside:
            gap = sum(c for c, _ in inside) - sum(h for _, h in inside)
            total += abs(gap) / len(pairs)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_probability_metrics_match_loops(seed):
    probs, y = case(seed)
    rows = [(p, t) for p, t in zip(probs, y, strict=True) if t != -1]
    hit = [float(np.argmax(p) == t) for p, t in rows]
    assert metrics.accuracy(probs, y) == pytest.approx(sum(hit) / len(rows))
    assert metrics.nll(probs, y) == pytest.approx(sum(-math.log(p[t]) for p, t in rows) / len(rows))
    squares = sum(sum((p[i] - (i == t)) ** 2 for i in range(4)) for p, t in rows)
    assert metrics.brier(probs, y) == pytest.approx(squares / len(rows))
    top = [max(p) for p, _ in rows]
    assert metrics.ece(probs, y) == pytest.approx(slow_ece(top, hit, 15, False))
    assert metrics.adaptive_ece(probs, y) == pytest.approx(slow_ece(top, hit, 15, True))


@pytest.mark.parametrize("seed", range(5))
def test_ranking_metrics_match_pairs_and_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 8, 50) / 7  # with ties
    positive = rng.random(50) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in score[positive] for b in score[~positive]]
    assert metrics.auroc(score, positive) == pytest.approx(np.mean(pairs))
    expected = sk.average_precision_score(positive, score)
    assert metrics.average_precision(score, positive) == pytest.approx(expected)
    assert metrics.f1(score > 0.5, positive) == pytest.approx(sk.f1_score(positive, score > 0.5))
    top = sorted(range(50), key=lambda i: (-score[i], i))[:7]
    expected = sum(positive[i] for i in top) / 7
    assert metrics.precision_at_k(score, positive, 7) == pytest.approx(expected)


def test_ranking_ignores_minus_one():
    assert metrics.auroc([0.9, 0.1, 0.5], [1, 0, -1]) == 1.0
    assert metrics.f1([1, 1, 0], [1, -1, 0]) == 1.0


def test_torch_bf16_and_leading_axes_equal_flat_numpy():
    probs = torch.rand(2, 3, 4, 5).softmax(-1)
    y = torch.randint(-1, 5, (2, 3, 4))
    flat, labels = probs.reshape(-1, 5).numpy(), y.reshape(-1).numpy()
    for name in ("accuracy", "nll", "brier", "ece", "adaptive_ece"):
        measure = getattr(metrics, name)
        assert measure(probs, y) == pytest.approx(measure(flat, labels))
    assert metrics.nll(probs.bfloat16(), y) == pytest.approx(metrics.nll(probs, y), rel=0.01)


def test_a_probability_a_hair_above_one_joins_the_last_bin():
    curve = metrics.reliability([1.0, 1 + 1e-9, 0.97], [1, 0, 1])
    assert curve.size.tolist() == [3] and curve.accuracy == pytest.approx(2 / 3)


def test_a_certain_mistake_has_finite_nll():
    value = metrics.nll(np.array([[0.0, 1.0]]), np.array([0]))
    assert math.isfinite(value) and value > 80


def test_streamed_miou_equals_whole_and_the_definition():
    rng = np.random.default_rng(0)
    said, y = rng.integers(0, 3, (4, 6, 6)), rng.integers(-1, 3, (4, 6, 6))
    ious = []
    for c in range(3):
        a, b = (said == c) & (y != -1), y == c
        ious.append((a & b).sum() / (a | b).sum())
    stream = metrics.Confusion(4)  # class 3 never occurs and must not count
    for part in range(4):
        stream.update(torch.tensor(said[part]), torch.tensor(y[part]))
    assert stream.miou() == pytest.approx(np.mean(ious))
    assert metrics.miou(said, y, 4) == stream.miou()
    with np.errstate(all="raise"):  # without a warning
        assert np.isnan(stream.iou()[3])
    assert stream.accuracy() == pytest.approx((said == y)[y != -1].mean())


def test_undefined_is_nan():
    nothing = np.empty((0, 3))
    for name in ("accuracy", "nll", "brier", "ece"):
        assert math.isnan(getattr(metrics, name)(nothing, np.empty(0, dtype=int)))
    assert math.isnan(metrics.auroc([0.1, 0.2], [1, 1]))
    assert math.isnan(metrics.average_precision([0.1], [0]))
    assert math.isnan(metrics.miou(np.array([1]), np.array([-1]), 2))


def test_wrong_shapes_are_refused():
    with pytest.raises(BadInput, match="do not fit"):
        metrics.accuracy(np.ones((3, 2)) / 2, np.zeros(4, dtype=int))
    with pytest.raises(BadInput, match="3 scores but 2"):
        metrics.auroc([1, 2, 3], [0, 1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_auroc_depends_on_order_alone_and_flips(seed):
    rng = np.random.default_rng(seed)
    score, positive = rng.random(20), rng.permutation(20) < 8
    value = metrics.auroc(score, positive)
    assert metrics.auroc(np.exp(3 * score), positive) == pytest.approx(value)
    assert metrics.auroc(-score, positive) == pytest.approx(1 - value)
    assert metrics.auroc(score, ~positive) == pytest.approx(1 - value)


def test_calibrated_probabilities_have_small_ece():
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    happened = rng.random(20_000) < p
    assert metrics.calibration_error(p, happened) < 0.015
    assert metrics.calibration_error(p**3, happened) > 0.15
    curve = metrics.reliability(p, happened, adaptive=True)
    assert curve.size.sum() == 20_000 and np.ptp(curve.size) <= 1
    assert np.abs(curve.confidence - curve.accuracy).max() < 0.05
