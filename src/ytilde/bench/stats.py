"""Statistics for tables of runs: tests, intervals, ranks. Every sd has ddof = 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ..data import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

__all__ = [
    "Result",
    "average_ranks",
    "best_marks",
    "bootstrap_interval",
    "critical_difference",
    "holm",
    "mean_sd",
    "paired_t",
    "plot_critical_difference",
    "welch_t",
    "wilcoxon",
]


def mean_sd(values: ArrayLike) -> tuple[float, float]:
    """Mean and sample standard deviation (ddof = 1); the sd of a single value is NaN."""
    v = np.asarray(values, dtype=np.float64)
    return float(v.mean()), float(v.std(ddof=1)) if v.size > 1 else float("nan")


class Result(NamedTuple):
    """A two-sided test of two series: mean(a) - mean(b), the statistic and its p-value."""

    difference: float
    statistic: float
    p: float


def paired_t(a: ArrayLike, b: ArrayLike) -> Result:
    """Student's t-test of the differences of two series paired by seed."""
    x, z = _series(a, b, paired=True)
    d = x - z
    sd = d.std(ddof=1)
    if sd == 0:  # the same difference everywhere: no t, but no doubt either
        return Result(float(d.mean()), *_certain(float(d.mean())))
    t = float(d.mean() / (sd / np.sqrt(d.size)))
    return Result(float(d.mean()), t, float(2 * stats.t.sf(abs(t), d.size - 1)))


def welch_t(a: ArrayLike, b: ArrayLike) -> Result:
    """Welch's t-test: two unpaired series whose variances may differ."""
    x, z = _series(a, b, paired=False)
    difference = float(x.mean() - z.mean())
    vx, vz = x.var(ddof=1) / x.size, z.var(ddof=1) / z.size
    if vx + vz == 0:
        return Result(difference, *_certain(difference))
    t = difference / np.sqrt(vx + vz)
    freedom = (vx + vz) ** 2 / (vx**2 / (x.size - 1) + vz**2 / (z.size - 1))
    return Result(difference, float(t), float(2 * stats.t.sf(abs(t), freedom)))


def wilcoxon(a: ArrayLike, b: ArrayLike) -> Result:
    """Wilcoxon's signed-rank test of two paired series; exact for small n without ties."""
    x, z = _series(a, b, paired=True)
    d = x - z
    if not d.any():
        return Result(0.0, 0.0, 1.0)
    result = stats.wilcoxon(d)
    return Result(float(d.mean()), float(result.statistic), float(result.pvalue))


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[..., Array] = np.mean,
    *,
    level: float = 0.95,
    kind: Literal["bca", "percentile"] = "bca",
    resamples: int = 9999,
    seed: int = 0,
) -> tuple[float, float]:
    """Bootstrap interval of a statistic: bias-corrected and accelerated, or percentile.

    Efron (1987). `statistic` takes `axis=`. The first axis of `values` [N] is resampled.
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or v.size < 2:
        raise BadInput("A bootstrap interval needs a series of at least two values.")
    if np.ptp(v) == 0:
        return float(v[0]), float(v[0])
    rng = np.random.default_rng(seed)
    at_once = max(1, 1_000_000 // v.size)  # so that memory does not grow with resamples x N
    sizes = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    draws = (v[rng.integers(0, v.size, (size, v.size))] for size in sizes)
    boot = np.concatenate([np.asarray(statistic(draw, axis=1)) for draw in draws])
    tail = np.array([(1 - level) / 2, (1 + level) / 2])
    if kind == "bca":
        tail = _bca_levels(v, boot, statistic, tail)
    low, high = np.quantile(boot, tail)
    return float(low), float(high)


def _bca_levels(v: Array, boot: Array, statistic: Callable[..., Array], tail: Array) -> Array:
    """The percentiles to read off instead of `tail`: Efron (1987), eq. 2.3 with the jackknife."""
    estimate = float(statistic(v[None], axis=1)[0])
    below = (np.mean(boot < estimate) + np.mean(boot <= estimate)) / 2
    bias = stats.norm.ppf(np.clip(below, 1 / (boot.size + 1), boot.size / (boot.size + 1)))
    others = np.broadcast_to(v, (v.size, v.size))[~np.eye(v.size, dtype=bool)]
    jack = np.asarray(statistic(others.reshape(v.size, v.size - 1), axis=1))
    pull = jack.mean() - jack
    spread = (pull**2).sum()
    acceleration = (pull**3).sum() / (6 * spread**1.5) if spread > 0 else 0.0
    z = bias + stats.norm.ppf(tail)
    return stats.norm.cdf(bias + z / (1 - acceleration * z))


def holm(p: ArrayLike) -> Array:
    """Holm's (1979) step-down p-values, in the order given; NaN (no test) stays NaN."""
    raw = np.asarray(p, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    order = np.argsort(raw)[: np.count_nonzero(~np.isnan(raw))]  # NaN sorts last
    factor = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(raw[order] * factor), 1.0)
    return adjusted


def average_ranks(scores: ArrayLike, *, higher_is_better: bool = True) -> Array:
    """Mean rank of each column (method) over the rows (data sets); 1 = best, ties share."""
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or np.isnan(table).any():
        raise BadInput("Average ranks need a full table: data sets as rows, methods as columns.")
    return stats.rankdata(-table if higher_is_better else table, axis=1).mean(0)


def critical_difference(methods: int, datasets: int, *, alpha: float = 0.05) -> float:
    """How far two average ranks must lie apart to differ: Nemenyi, as in Demšar (2006), 3.2.2."""
    q = stats.studentized_range.ppf(1 - alpha, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))


def plot_critical_difference(
    names: Sequence[str], scores: ArrayLike, *, higher_is_better: bool = True, alpha: float = 0.05
) -> Figure:
    """Demšar's diagram: methods at their average rank, bars join those that do not differ."""
    from matplotlib.figure import Figure

    ranks = average_ranks(scores, higher_is_better=higher_is_better)
    k, n = len(ranks), len(np.asarray(scores))
    if len(names) != k:
        raise BadInput(f"There are {len(names)} names but {k} columns of scores.")
    distance = critical_difference(k, n, alpha=alpha)
    order = np.argsort(ranks, kind="stable")
    bars = _indistinct(ranks[order], distance)
    depth = len(bars) * 0.3 + 0.4  # labels hang below the bars
    figure = Figure(figsize=(7, 1.4 + 0.3 * len(bars) + 0.22 * ((k + 1) // 2)), layout="tight")
    axes = figure.add_subplot()
    # the critical difference may be longer than the axis: then nothing differs
    axes.set(xlim=(0.2, max(k, distance + 1) + 0.8), ylim=(-(depth + 0.3 * (k + 1)), 1.8))
    axes.axis("off")
    axes.plot([1, k], [0, 0], "k", lw=1)
    for tick in range(1, k + 1, -(-k // 12)):
        axes.plot([tick, tick], [0, 0.15], "k", lw=1)
        axes.text(tick, 0.25, str(tick), ha="center")
    axes.plot([1, 1 + distance], [1.1, 1.1], "k", lw=2)
    axes.text(1 + distance / 2, 1.25, f"critical difference {distance:.2f}", ha="center")
    for place, column in enumerate(order):
        left = place < (k + 1) // 2
        level = -depth - 0.6 * (place if left else k - 1 - place)
        edge = 0.8 if left else k + 0.2
        axes.plot([ranks[column], ranks[column], edge], [0, level, level], "k", lw=0.8)
        label = f" {names[column]} ({ranks[column]:.2f}) "
        axes.text(edge, level, label, ha="right" if left else "left", va="center")
    for row, (low, high) in enumerate(bars):
        axes.plot([low - 0.03, high + 0.03], [-0.3 * (row + 1)] * 2, "k", lw=3)
    return figure


def _indistinct(ranks: Array, distance: float) -> list[tuple[float, float]]:
    """Maximal groups of sorted ranks no wider than the distance, as (lowest, highest)."""
    groups: list[tuple[float, float]] = []
    for low in ranks:
        high = ranks[(ranks >= low) & (ranks - low <= distance)].max()
        if high > low and not any(high <= seen for _, seen in groups):
            groups.append((float(low), float(high)))
    return groups


def best_marks(
    runs: Mapping[str, ArrayLike],
    *,
    higher_is_better: bool = True,
    test: Literal["welch", "paired"] = "welch",
    alpha: float = 0.05,
) -> set[str]:
    """Names to print bold: the best mean, and all that are not significantly worse than it.

    A row of a single run cannot be tested and is marked only when it is the best.
    """
    series = {name: np.asarray(v, dtype=np.float64) for name, v in runs.items()}
    series = {name: v for name, v in series.items() if v.size}
    if not series:
        return set()
    sign = 1 if higher_is_better else -1
    best = max(series, key=lambda name: sign * series[name].mean())
    compare = {"welch": welch_t, "paired": paired_t}[test]
    marked = {best}
    for name, v in series.items():
        testable = min(v.size, series[best].size) > 1
        if name != best and testable and compare(series[best], v).p >= alpha:
            marked.add(name)
    return marked


def _series(a: ArrayLike, b: ArrayLike, *, paired: bool) -> tuple[Array, Array]:
    x, z = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or z.ndim != 1 or min(x.size, z.size) < 2:
        raise BadInput("A test needs two series of at least two values each.")
    if paired and x.size != z.size:
        raise BadInput(f"A paired test needs pairs, but there are {x.size} and {z.size} values.")
    return x, z


def _certain(difference: float) -> tuple[float, float]:
    """Statistic and p of series without any spread."""
    return (0.0, 1.0) if difference == 0 else (float(np.copysign(np.inf, difference)), 0.0)
