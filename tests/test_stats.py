"""stats.py against scipy, worked examples and simulation."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ytilde.bench import stats
from ytilde.data import BadInput

A = [0.91, 0.93, 0.90, 0.94, 0.95]
B = [0.89, 0.92, 0.91, 0.90, 0.93]


def test_sd_has_ddof_one():
    mean, sd = stats.mean_sd([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3)
    assert sd == pytest.approx(math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2))
    assert math.isnan(stats.mean_sd([3.0])[1])


def test_tests_agree_with_scipy():
    cases = [
        (stats.paired_t(A, B), scipy_stats.ttest_rel(A, B)),
        (stats.welch_t(A, [*B, 0.7]), scipy_stats.ttest_ind(A, [*B, 0.7], equal_var=False)),
        (stats.wilcoxon(A, B), scipy_stats.wilcoxon(A, B)),
    ]
    for ours, theirs in cases:
        assert ours.statistic == pytest.approx(theirs.statistic)
        assert ours.p == pytest.approx(theirs.pvalue)
    assert stats.paired_t(A, B).difference == pytest.approx(np.mean(A) - np.mean(B))


def test_student_sleep_data():
    """The worked example of Student (1908): t = -4.062, p = .0028 with 9 degrees of freedom."""
    one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    result = stats.paired_t(one, two)
    assert result.statistic == pytest.approx(-4.0621, abs=1e-4)
    assert result.p == pytest.approx(0.002833, abs=1e-6)


def test_series_without_spread():
    assert stats.paired_t([1, 2], [1, 2]).p == 1.0
    assert stats.paired_t([2, 3], [1, 2]) == (1.0, math.inf, 0.0)
    assert stats.welch_t([1, 1], [1, 1]).p == 1.0
    assert stats.welch_t([1, 1], [2, 2]).p == 0.0
    assert stats.wilcoxon([1, 2], [1, 2]).p == 1.0


def test_paired_test_keeps_its_error_rate_under_the_null():
    rng = np.random.default_rng(0)
    seeds = rng.normal(size=(2000, 5))  # what both methods of a pair share
    a, b = seeds + rng.normal(size=(2, 2000, 5))
    rejected = sum(stats.paired_t(x, z).p < 0.05 for x, z in zip(a, b, strict=True))
    low, high = scipy_stats.binom.ppf([0.001, 0.999], 2000, 0.05)
    assert low <= rejected <= high


def test_bootstrap_agrees_with_scipy_and_is_seeded():
    values = np.random.default_rng(1).exponential(size=40)
    for kind, method in (("bca", "BCa"), ("percentile", "percentile")):
        theirs = scipy_stats.bootstrap(
            (values,), np.mean, method=method, rng=np.random.default_rng(0)
        ).confidence_interval
        ours = stats.bootstrap_interval(values, kind=kind)
        assert ours == pytest.approx((theirs.low, theirs.high), abs=0.02)
        assert ours == stats.bootstrap_interval(values, kind=kind)
    assert stats.bootstrap_interval(values, seed=1) != stats.bootstrap_interval(values, seed=2)
    assert stats.bootstrap_interval([2.0, 2.0]) == (2.0, 2.0)


def test_bca_of_a_symmetric_series_is_the_percentile_interval():
    """All 256 resamples: means that equal the estimate count half, so nothing is biased."""
    values = np.array([0.0, 0.0, 1.0, 1.0])
    every = values[np.indices((4,) * 4).reshape(4, -1).T]
    tail = np.array([0.025, 0.9])
    levels = stats._bca_levels(values, every.mean(1), np.mean, tail)
    np.testing.assert_allclose(levels, tail)


def test_a_long_series_is_resampled_as_often_as_a_short_one():
    seen = []

    def first(v, axis):
        seen.append(len(v))
        return v[:, 0]

    stats.bootstrap_interval(np.arange(400_000.0), first, kind="percentile", resamples=5)
    assert sum(seen) == 5 and len(seen) > 1


def test_bootstrap_covers():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = stats.bootstrap_interval(rng.exponential(size=30), resamples=499)
        inside += low <= 1.0 <= high
    assert 0.86 <= inside / 200 <= 0.99


def test_bootstrap_of_what_resampling_can_only_lower_stays_finite():
    """Every resample has fewer different values than the series: the correction has a limit."""

    def different(v, axis):
        v = np.sort(v, axis=axis)
        return 1 + (np.diff(v, axis=axis) > 0).sum(axis)

    low, high = stats.bootstrap_interval(np.arange(12.0), different, resamples=99)
    assert low < high < 12


def test_holm_worked_example():
    adjusted = stats.holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(stats.holm([0.5, np.nan, 0.02]), [0.5, np.nan, 0.04])
    np.testing.assert_allclose(stats.holm([0.9, 0.8]), [1.0, 1.0])


def test_ranks_and_critical_difference():
    scores = [[3, 2, 1], [3, 1, 1], [9, 8, 7]]
    np.testing.assert_allclose(
        stats.average_ranks(scores), [1, (2 + 2.5 + 2) / 3, (3 + 2.5 + 3) / 3]
    )
    flipped = stats.average_ranks(scores, higher_is_better=False)
    np.testing.assert_allclose(flipped, 4 - stats.average_ranks(scores))
    # Demšar (2006), 3.2.2: q.05 = 2.569 for four classifiers, 14 data sets, CD = 1.25.
    assert stats.critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(20 / 84), abs=1e-3)
    with pytest.raises(BadInput, match="full table"):
        stats.average_ranks([[1.0, np.nan]])


def test_diagram_joins_what_does_not_differ():
    rng = np.random.default_rng(0)
    scores = np.array([0.9, 0.89, 0.5]) + 0.02 * rng.normal(size=(12, 3))
    figure = stats.plot_critical_difference(["a", "b <c>", "d"], scores)
    text = [t.get_text().strip() for t in figure.axes[0].texts]
    assert any(t.startswith("b <c> (") for t in text)
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 3]
    assert len(bars) == 1
    ranks = np.sort(stats.average_ranks(scores))
    low, high = bars[0].get_xdata()
    assert low <= ranks[0] and ranks[1] <= high < ranks[2]
    bottom, top = figure.axes[0].get_ylim()  # room for half a line below the lowest name
    assert all(bottom + 0.3 < t.get_position()[1] < top for t in figure.axes[0].texts)
    with pytest.raises(BadInput, match="2 names"):
        stats.plot_critical_difference(["a", "b"], scores)


def test_a_diagram_of_many_methods_can_be_read():
    scores = np.random.default_rng(0).normal(size=(2, 36))
    axes = stats.plot_critical_difference([f"m{k}" for k in range(36)], scores).axes[0]
    distance = next(line for line in axes.lines if line.get_linewidth() == 2).get_xdata()
    assert distance[1] - distance[0] == pytest.approx(stats.critical_difference(36, 2))
    assert distance[1] < axes.get_xlim()[1]  # whole, though longer than the axis of ranks
    assert sum(t.get_text().isdigit() for t in axes.texts) <= 12


def test_groups_are_maximal():
    groups = stats._indistinct(np.array([1.0, 1.5, 2.0, 3.0, 3.2]), 1.0)
    assert groups == [(1.0, 2.0), (2.0, 3.0), (3.0, 3.2)]


def test_best_marks():
    runs = {"best": A, "near": [a - 0.005 for a in A], "far": [a - 0.2 for a in A], "one": [0.9]}
    assert stats.best_marks(runs) == {"best", "near"}
    assert stats.best_marks({k: runs[k] for k in ("best", "near")}, test="paired") == {"best"}
    assert stats.best_marks(runs, higher_is_better=False) == {"far"}
    assert stats.best_marks({"one": [0.9], "other": [0.8], "none": []}) == {"one"}
    assert stats.best_marks({}) == set()


def test_bad_series_are_refused():
    with pytest.raises(BadInput, match="at least two"):
        stats.welch_t([1.0], [2.0, 3.0])
    with pytest.raises(BadInput, match="needs pairs"):
        stats.paired_t([1.0, 2.0], [1.0, 2.0, 3.0])
