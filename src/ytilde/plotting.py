"""Plots of T and of images. matplotlib is imported when one is drawn, without pyplot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from .data import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

__all__ = ["plot_T", "plot_comparison", "plot_images", "plot_instances"]

Matrix = Tensor | np.ndarray
VALUES_UP_TO = 20  # classes; beyond, numbers in the cells cannot be read
TICKS = 25  # class names on an axis


def plot_T(
    T: Matrix,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    difference: bool = False,
) -> Axes:
    """T [K, K] as a heat map: true class down, given label across. Save with `ax.figure.savefig`.

    Colours follow the square root of the probability, so that rare flips show beside the
    diagonal. difference: T is a difference of two matrices, drawn from blue (less) to red (more).
    """
    from matplotlib.colors import Normalize, PowerNorm

    A = _array(T)
    if ax is None:
        ax = _figure(1, 1, _side(len(A)))[1][0]
    most = max(float(np.abs(A).max()), 0.1)
    norm: Normalize = Normalize(-most, most) if difference else PowerNorm(0.5, 0, 1)
    cmap = "RdBu_r" if difference else "Blues"
    image = ax.imshow(A, norm=norm, cmap=cmap, interpolation="nearest")
    _name_axes(ax, len(A), names)
    if len(A) <= VALUES_UP_TO:
        _write_values(ax, A, norm, signed=difference)
    ax.set(xlabel="given label", ylabel="true class", title=title or "")
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.02)
    if not difference:
        ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
        bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.ax.tick_params(labelsize=8)
    return ax


def plot_instances(
    Ts: Matrix, names: Sequence[str] | None = None, titles: Sequence[str] | None = None
) -> Figure:
    """T(x) of chosen rows, Ts [n, K, K], one panel each with its title (say, the row's index)."""
    A = _array(Ts)
    columns = min(len(A), 3)
    figure, axes = _figure(math.ceil(len(A) / columns), columns, _side(A.shape[-1]))
    for i, ax in enumerate(axes):
        if i < len(A):
            plot_T(A[i], names, ax, titles[i] if titles else None)
        else:
            ax.set_axis_off()
    return figure


def plot_comparison(T_true: Matrix, T: Matrix, names: Sequence[str] | None = None) -> Figure:
    """The true T, the estimated one and their difference, side by side; [K, K] each."""
    true, estimate = _array(T_true), _array(T)
    figure, axes = _figure(1, 3, _side(len(true)))
    error = np.abs(estimate - true).sum() / np.abs(true).sum()
    plot_T(true, names, axes[0], "true")
    plot_T(estimate, names, axes[1], f"estimated (relative L1 error {error:.3f})")
    plot_T(estimate - true, names, axes[2], "estimated − true", difference=True)
    return figure


def plot_images(rows: Mapping[str, Matrix], titles: Sequence[str] | None = None) -> Figure:
    """A grid of images: a row for each entry, its name beside it, titles above the columns.

    Each row is [n, C, H, W] with C = 1 (grey) or 3 (colour), bytes or floats in [0, 1]; n and the
    size may differ from row to row.
    """
    arrays = {name: _pixels(images, name) for name, images in rows.items()}
    columns = max(map(len, arrays.values()))
    figure, axes = _figure(len(arrays), columns, 1.1)
    for ax in axes:
        ax.set_axis_off()
    for i, (name, images) in enumerate(arrays.items()):
        line = axes[i * columns : (i + 1) * columns]
        line[0].text(-0.1, 0.5, name, transform=line[0].transAxes, ha="right", va="center")
        for ax, image in zip(line, images, strict=False):
            ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    for ax, title in zip(axes, titles or (), strict=False):
        ax.set_title(title, fontsize=8)
    return figure


def _pixels(images: Matrix, name: str) -> np.ndarray:
    """Floats in [0, 1], [n, H, W, 3] or [n, H, W]."""
    A = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    if A.ndim != 4 or A.shape[1] not in (1, 3):
        shape = tuple(A.shape)
        raise BadInput(f"images of {name!r} are {shape}: give [n, C, H, W] with 1 or 3 channels.")
    A = A / 255 if A.dtype == np.uint8 else A
    A = np.clip(A, 0, 1).transpose(0, 2, 3, 1)
    return A[..., 0] if A.shape[-1] == 1 else A


def _array(T: Matrix) -> np.ndarray:
    return T.detach().cpu().double().numpy() if isinstance(T, Tensor) else np.asarray(T, float)


def _side(k: int) -> float:
    """Inches of a panel: cells wide enough for their numbers, within reason."""
    return min(max(0.5 * k, 3.5), 8.0) + 1.0


def _figure(rows: int, columns: int, side: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(side * columns, side * rows * 0.9), dpi=110, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _name_axes(ax: Axes, k: int, names: Sequence[str] | None) -> None:
    at = range(0, k, math.ceil(k / TICKS))
    labels = [str(names[i]) if names else str(i) for i in at]
    long = max(map(len, labels)) > 2
    ax.set_xticks(at, labels, rotation=90 if long else 0, fontsize=8)
    ax.set_yticks(at, labels, fontsize=8)


def _write_values(ax: Axes, A: np.ndarray, norm: Normalize, signed: bool) -> None:
    for (i, j), value in np.ndenumerate(A):
        text = f"{value:+.2f}" if signed else f"{value:.2f}"
        nothing = abs(value) < 0.005
        text = "0" if nothing else text.replace("0.", ".")
        shade = float(norm(value))
        dark = abs(shade - 0.5) > 0.35 if signed else shade > 0.6
        colour = "0.7" if nothing else "white" if dark else "black"
        ax.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
