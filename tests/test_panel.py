"""The judges beside a model: each is asked about rows without their own labels."""

import numpy as np
import pytest
import torch

from ytilde.auditing import panel as panels
from ytilde.auditing.kernel import (
    RIDGES,
    Ridge,
    Span,
    _relevance,
    fit_kernel,
    kernel_features,
    kernel_scores,
    standardised,
)
from ytilde.auditing.panel import COMPONENTS, NEIGHBOURS, WIDTH, panel, reduced

K = 3


@pytest.fixture
def rows():
    """Three groups of points, one label in six wrong, some missing."""
    rng = np.random.default_rng(0)
    truth = np.arange(150) % K
    x = rng.normal(size=(150, 4)) + 2.5 * np.eye(4)[truth]
    y = np.where(rng.random(150) < 1 / 6, (truth + 1) % K, truth)
    y[::25] = -1
    return x, y, truth


def test_no_judge_sees_the_label_of_the_row(rows):
    x, y, _ = rows
    before = panel(x, y, K)
    for row in (1, 7, 50):
        other = y.copy()
        other[row] = (y[row] + 1) % K
        # a kernel's scaling and penalty are chosen by all labels: compare where they stay
        for judge, (old, new) in enumerate(zip(before, panel(x, other, K), strict=True)):
            if judge == 0:
                assert np.array_equal(old[row], new[row])
            else:
                assert np.abs(old[row] - new[row]).max() < 0.1 * WIDTH
            assert not np.array_equal(old, new)  # its neighbours see it


def test_every_judge_is_mostly_right_and_disagrees_with_wrong_labels(rows):
    x, y, truth = rows
    known = y >= 0
    for scores in panel(x, y, K):
        assert scores.shape == (150, K)
        assert (scores.argmax(1) == truth).mean() > 0.85
        assert (scores.argmax(1) != y)[known & (y != truth)].mean() > 0.7


def test_votes_are_the_shares_among_the_nearest_others(rows):
    x, y, _ = rows
    z = reduced(x)
    asked = np.flatnonzero(y >= 0)
    scores = panels._votes(z, y, asked, K)
    distance = ((z[:, None].astype(float) - z[None]) ** 2).sum(2)
    for row in range(0, 150, 7):
        others = [k for k in asked[np.argsort(distance[row][asked])] if k != row][:NEIGHBOURS]
        votes = np.bincount(y[others], minlength=K)
        assert np.allclose(np.exp(scores[row]), (votes + 1 / K) / (NEIGHBOURS + 1))
    assert np.allclose(np.exp(scores).sum(1), 1)


def test_few_rows_ask_a_quarter_of_them():
    x = np.arange(9, dtype=np.float32)[:, None]
    y = np.arange(9) % 2
    scores = panels._votes(x, y, np.arange(9), 2)  # two neighbours of each
    assert np.allclose(np.exp(scores[4]), [0.5 / 3, 2.5 / 3])  # rows 3 and 5 say 1
    assert np.allclose(np.exp(scores[0]), [1.5 / 3, 1.5 / 3])  # rows 1 and 2


def test_the_linear_judge_is_a_refit_without_the_row(rows, monkeypatch):
    x, y, _ = rows
    monkeypatch.setattr(panels, "RIDGES", np.array([1e-2]))
    z = reduced(x).astype(np.float64)
    asked = np.flatnonzero(y >= 0)
    scores = panels._linear(reduced(x), y, asked, K)
    centred = z[asked] - z[asked].mean(0)
    ridge = 1e-2 * np.linalg.eigvalsh(centred.T @ centred).max()

    def refit(rows_used, row):
        target = np.eye(K)[y[rows_used]]
        design = z[rows_used] - z[rows_used].mean(0)
        gram = design.T @ design + ridge * np.eye(z.shape[1])
        w = np.linalg.solve(gram, design.T @ (target - target.mean(0)))
        return (z[row] - z[rows_used].mean(0)) @ w + target.mean(0)

    for row in (1, 2, 3):
        assert np.allclose(scores[row] / WIDTH, refit(np.setdiff1d(asked, row), row), atol=1e-6)
    assert np.allclose(scores[0] / WIDTH, refit(asked, 0), atol=1e-6)  # it has no label


def test_the_linear_judge_takes_the_ridge_of_the_smallest_error(rows, monkeypatch):
    x, y, _ = rows
    asked, z = (
        np.flatnonzero(y >= 0),
        reduced(np.c_[x, np.random.default_rng(1).normal(size=(150, 90))]),
    )

    def error(ridges):
        monkeypatch.setattr(panels, "RIDGES", np.array(ridges))
        scores = panels._linear(z, y, asked, K)[asked] / WIDTH
        return ((scores - np.eye(K)[y[asked]]) ** 2).mean()

    ridges = (1e-4, 1e-1, 1.0, 1e3)  # one that is too small, and one that leaves nothing
    alone = [error([ridge]) for ridge in ridges]
    assert error(ridges) == pytest.approx(min(alone))
    assert min(alone[0], alone[-1]) > 1.1 * min(alone)


def test_features_are_standardised_and_many_become_components():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)) * [1, 10, 100, 1, 0] + 3
    z = reduced(x)
    assert np.allclose(z[:, :4].mean(0), 0, atol=1e-5) and np.allclose(
        z[:, :4].std(0), 1, atol=1e-5
    )
    assert (z[:, 4] == 0).all()  # a constant says nothing
    wide = reduced(rng.normal(size=(300, 3)) @ rng.normal(size=(3, COMPONENTS + 50)))
    assert wide.shape == (300, COMPONENTS)
    spread = wide.std(0)
    assert spread[0] == pytest.approx(1, abs=1e-4) and (spread[3:] < 0.01).all()
    assert (np.diff(spread[:3]) <= 1e-6).all()


def test_as_many_columns_as_components_stay_as_they_are():
    x = np.random.default_rng(0).normal(size=(300, COMPONENTS)) + 3
    assert np.allclose(reduced(x), (x - x.mean(0)) / x.std(0), atol=1e-5)


@pytest.mark.parametrize("rows", [10**2, 10**5, 4 * 10**5, 10**6, 10**8])
def test_rows_are_compared_in_so_many_pairs_or_with_so_few(rows):
    most = panels.reference(rows)
    assert most <= panels.REFERENCE and (most * rows <= 4e9 or most == 2_000)
    assert (most + 1) * rows > 4e9 or most == panels.REFERENCE  # and no fewer


def test_many_rows_ask_a_part_of_them(rows, monkeypatch):
    x, y, _ = rows
    monkeypatch.setattr(panels, "REFERENCE", 60)
    seen = []
    monkeypatch.setattr(panels, "_kernel", lambda x, y, asked, k: seen.append(asked))
    panel(x, y, K)
    assert len(seen[0]) == 60 and (np.diff(seen[0]) > 0).all() and (y[seen[0]] >= 0).all()


# ---- the kernel ----------------------------------------------------------------------------------


def test_standardised_leaves_out_constants():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 50, 0])
    z = standardised(x)
    assert z.shape == (50, 2)
    assert z.mean(0).abs().max() < 1e-6 and torch.allclose(z.std(0), torch.ones(2))


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_what_varies_does_not_depend_on_the_unit(unit):
    """The last feature is constant but for rounding: beside the others it says nothing."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    x[:, 2] *= 1e-8
    torch.testing.assert_close(standardised(unit * x), standardised(x[:, :2]))
    y = torch.arange(50) % K
    scale = fit_kernel(unit * x, y, K, torch.Generator().manual_seed(0)).scale
    one = fit_kernel(x, y, K, torch.Generator().manual_seed(0)).scale
    torch.testing.assert_close(scale * unit, one, rtol=1e-3, atol=0)


def test_a_span_over_all_rows_is_the_gaussian_kernel_of_its_width():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    span = Span.of(x, 40, torch.Generator().manual_seed(1))
    to_tenth = torch.cdist(x.double(), x.double()).sort(1).values[:, 10]
    assert span.width == pytest.approx(float(2 * to_tenth.median() ** 2))
    features = span.features(x)
    exact = torch.exp(-torch.cdist(x, x).square() / span.width.float())
    assert (features @ features.T - exact).abs().max() < 1e-3


def test_the_kernel_judges_unasked_rows_by_all_that_were_asked(rows):
    x, y, truth = rows
    z, label = torch.from_numpy(reduced(x)), torch.from_numpy(y)
    asked = torch.from_numpy(np.flatnonzero(y >= 0))
    scores = kernel_scores(z, label, asked, K)
    assert torch.allclose(scores.sum(1), torch.ones(len(z)), atol=1e-3)
    unasked = torch.from_numpy(y < 0)
    assert (scores.argmax(1)[unasked] == torch.from_numpy(truth)[unasked]).float().mean() > 0.7
    # a twin of a row, without a label, is judged by the row's label too
    twin = torch.cat([z, z[1:2]])
    judged = kernel_scores(twin, torch.cat([label, torch.tensor([-1])]), asked, K)
    assert judged[-1, y[1]] > judged[1, y[1]]


def test_penalties_are_about_three_times_one_another():
    steps = np.divide(RIDGES[1:], RIDGES[:-1])
    assert steps.min() > 2.5 and steps.max() < 4


@pytest.mark.parametrize("seed", range(3))
def test_features_are_halved_doubled_or_left_out_where_that_lowers_the_error(seed):
    """The label swings with the last feature, hardly with the second, and not with the first."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(seed))
    y = ((2 * x[:, 2]).sin() + 0.5 * x[:, 1] > 0).long()
    Y = torch.nn.functional.one_hot(y, 2).float()
    weights = _relevance(x, Y, torch.Generator().manual_seed(1))
    assert weights.tolist() == [0, 0.5, 2]

    def error(scaled):
        features = kernel_features(scaled, 150, torch.Generator().manual_seed(0))
        return min(ridge.error(Y) for ridge in Ridge.of(features, RIDGES))

    assert error(x * weights) < 0.7 * error(x)


def test_scaling_and_penalty_have_the_smallest_leave_one_out_error(rows):
    x, y, _ = rows
    known = y >= 0
    # the classes differ along one feature, which is small beside the noise of another
    noisy = np.c_[x[known], 300 * np.random.default_rng(0).normal(size=known.sum())]
    z, label = torch.from_numpy(noisy).float(), torch.from_numpy(y[known])
    chosen = fit_kernel(z, label, K, torch.Generator().manual_seed(0))
    Y = torch.nn.functional.one_hot(label, K).float()
    assert chosen.penalty in RIDGES
    assert torch.allclose(chosen.x, ((z.double() - z.double().mean(0)) * chosen.scale).float())
    plain = Ridge.of(
        Span.of(standardised(z), 1000, torch.Generator().manual_seed(0)).features(standardised(z)),
        RIDGES,
    )
    assert chosen.ridge.error(Y) <= min(ridge.error(Y) for ridge in plain) + 1e-3
    loud, quiet = float(chosen.scale[-1]) * 300, float(chosen.scale[:3].max())
    assert loud < quiet  # what says nothing weighs less
