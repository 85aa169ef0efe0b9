"""Sets that are made here: points, scikit-learn's digits, shapes with pixel labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.types import Data
from .classes import DIGITS


def moons(root: Path, split: str) -> Data:
    from sklearn.datasets import make_moons

    x, y = make_moons(1000, noise=0.2, random_state=0 if split == "train" else 1)
    return _points(x, y, ("upper", "lower"))


def circles(root: Path, split: str) -> Data:
    from sklearn.datasets import make_circles

    x, y = make_circles(1000, noise=0.1, factor=0.5, random_state=0 if split == "train" else 1)
    return _points(x, y, ("outer", "inner"))


def digits(root: Path, split: str) -> Data:
    """scikit-learn's 1797 digits of 8x8 pixels as 64 features; every fifth one is for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    test = np.arange(len(y)) % 5 == 4
    rows = test if split == "test" else ~test
    return _points(x[rows] / 16, y[rows], DIGITS)


def _points(x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> Data:
    return Data(
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(y.astype(np.int64)),
        len(names),
        names=tuple(names),
    )


SHAPES = ("background", "circle", "square", "triangle")


def shapes(n: int, generator: torch.Generator, *, boundary: float = 0.0, side: int = 64) -> Data:
    """n pictures [n, 3, side, side] of coloured shapes on texture, and their pixel labels.

    boundary: how far, in pixels (standard deviation), the annotator's outline strays from the true
    one, smoothly along the outline; y is what was drawn, clean is the truth.
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    grid = torch.arange(side).float()
    row, column = grid[:, None], grid[None, :]
    wave = sum(
        torch.sin(uniform(0.1, 0.6, 1, 1) * row + uniform(0.1, 0.6, 1, 1) * column + phase)
        for phase in (uniform(0, 6.3, 1, 1), uniform(0, 6.3, 1, 1))
    )
    x = uniform(0.2, 0.8, 3, 1, 1) + 0.08 * torch.as_tensor(wave)[:, None]
    y = torch.zeros(n, side, side, dtype=torch.int64)
    clean = torch.zeros_like(y)
    for _ in range(3):
        kind = 1 + torch.randint(3, (n, 1, 1), generator=generator)
        radius = uniform(0.12, 0.22, 1, 1) * side
        down = row - uniform(0.2, 0.8, 1, 1) * side
        right = column - uniform(0.2, 0.8, 1, 1) * side
        distance = _distance(kind, radius, uniform(0, 6.3, 1, 1), down, right)
        clean = torch.where(distance < 0, kind, clean)
        coarse = torch.randn(n, 1, side // 8, side // 8, generator=generator)
        stray = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")[:, 0]
        y = torch.where(distance < boundary * stray, kind, y)
        x = torch.where((distance < 0)[:, None], uniform(0, 1, 3, 1, 1), x)
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return Data(pixels, y, len(SHAPES), clean, SHAPES)


def _distance(kind: Tensor, radius: Tensor, angle: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Distance to the outline in pixels, negative inside (the usual lower bound near corners)."""
    u = angle.cos() * right + angle.sin() * down
    v = angle.cos() * down - angle.sin() * right
    circle = (u**2 + v**2).sqrt() - radius
    square = torch.maximum(u.abs(), v.abs()) - 0.85 * radius
    slope = 3**0.5 / 2
    triangle = torch.maximum(torch.maximum(slope * u + v / 2, v / 2 - slope * u), -v) - radius / 1.6
    return torch.where(kind == 1, circle, torch.where(kind == 2, square, triangle))


def shapes_set(boundary: float) -> Callable[[Path, str], Data]:
    def read(root: Path, split: str) -> Data:
        seed = ("train", "val", "test").index(split)
        n = 800 if split == "train" else 200
        data = shapes(n, torch.Generator().manual_seed(seed), boundary=boundary)
        if split == "test" or boundary == 0:
            assert data.clean is not None
            return replace(data, y=data.clean, clean=None)
        return data

    return read
