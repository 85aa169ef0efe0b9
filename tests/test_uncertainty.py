"""The parts of uncertainty against sums written out, and that they mean what they say."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from ytilde import BadInput, Classifier, create
from ytilde.uncertainty import decompose


def member(p):
    return SimpleNamespace(classes_=np.arange(p.shape[-1]), noisy_proba=lambda X: p)


def entropy(p):
    return sum(-q * math.log(q) for q in p if q > 0)


def test_against_a_slow_version():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), (3, 5, 2))  # members, rows, pixels
    p[0, 0, 0] = [1, 0, 0, 0]
    found = decompose([member(q) for q in p], None)
    for row in range(5):
        for pixel in range(2):
            q = [p[m, row, pixel] for m in range(3)]
            aleatoric = sum(entropy(each) for each in q) / 3
            divergence = sum(
                each[k] * math.log(each[k] / np.mean(q, 0)[k])
                for each in q for k in range(4) if each[k] > 0
            ) / 3  # fmt: skip
            assert found.aleatoric[row, pixel] == pytest.approx(aleatoric, abs=1e-6)
            assert found.epistemic[row, pixel] == pytest.approx(divergence, abs=1e-6)
            assert found.total[row, pixel] == pytest.approx(entropy(np.mean(q, 0)), abs=1e-6)


def test_labels_drawn_at_random_are_aleatoric():
    """Near 0 the labels are flips of a coin, at 2 they are sure."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)).astype(np.float32)
    y = np.where(np.abs(X[:, 0]) < 0.7, rng.integers(0, 2, 400), X[:, 0] > 0)
    method = create("het", train_samples=5, eval_samples=100)
    members = [
        Classifier(method, "mlp:width=16", epochs=30, lr=0.01, random_state=k).fit(X, y)
        for k in range(3)
    ]
    found = decompose(members, np.float32([[0], [2]]))
    assert found.aleatoric[0] > 0.6 and found.aleatoric[1] < 0.4
    assert (found.epistemic >= 0).all()
    alone = decompose(members[:1], X)
    assert (alone.epistemic == 0).all() and (alone.total == alone.aleatoric).all()


def test_bad_ensembles():
    with pytest.raises(BadInput, match="at least one"):
        decompose([], None)
    with pytest.raises(BadInput, match="same classes"):
        decompose([member(np.ones((1, 2)) / 2), member(np.ones((1, 3)) / 3)], None)
