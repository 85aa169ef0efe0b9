"""Made data for the tiny scale: each set's shape and classes, few rows, and something to learn."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import torch

from .. import datasets, noise
from ..data import Data
from ..engine import Recipe


@cache
def load_set(name: str, split: str, root: Path | None, stand_in: bool) -> Data:
    return made_set(name, split) if stand_in else datasets.load(name, root, split)


# The tiny scale's sets: shape of an input, classes, rows of (train, test).
SIZES: dict[str, tuple[tuple[int, int, int], int, tuple[int, int]]] = {
    "mnist": ((1, 28, 28), 10, (200, 100)),
    "fashion": ((1, 28, 28), 10, (200, 100)),
    "cifar10": ((3, 32, 32), 10, (200, 100)),
    "svhn": ((3, 32, 32), 10, (200, 100)),
    "cifar10n": ((3, 32, 32), 10, (200, 100)),
    "cifar100": ((3, 32, 32), 100, (200, 100)),
    "cifar100n": ((3, 32, 32), 100, (200, 100)),
    "clothing1m": ((3, 224, 224), 14, (28, 14)),
    "webvision": ((3, 299, 299), 50, (50, 25)),
    "ilsvrc12": ((3, 299, 299), 50, (50, 25)),
    "voc2012": ((3, 256, 256), 21, (4, 2)),
    "cityscapes": ((3, 256, 512), 19, (4, 2)),
    "camvid": ((3, 160, 224), 11, (4, 2)),
}


def made_set(name: str, split: str) -> Data:
    """A made set of the same shape and classes, with few rows: one pattern a class, and noise."""
    if name.split("-")[0] not in SIZES:
        return datasets.load(name, split=split)  # small, and always at hand
    shape, k, sizes = SIZES[name.split("-")[0]]
    n = sizes[0] if split == "train" else sizes[1]
    pixels = name in ("voc2012", "cityscapes", "camvid")
    patterns = torch.rand(k, shape[0], 4, 4, generator=Recipe().generator("noise", name))
    generator = Recipe().generator("noise", f"{name}/{split}")
    if pixels:  # blocks of a class each, in the class's colour
        coarse = torch.randint(k, (n, shape[1] // 32, shape[2] // 32), generator=generator)
        y = coarse.repeat_interleave(32, 1).repeat_interleave(32, 2)
        x = patterns[:, :, 0, 0][y].permute(0, 3, 1, 2)
    else:
        y = torch.arange(n) % k
        x = torch.nn.functional.interpolate(patterns, shape[1:], mode="bilinear")[y]
    x = x + 0.1 * torch.randn(x.shape, generator=generator)
    data = Data((x.clamp(0, 1) * 255).to(torch.uint8), y, k)
    if name.startswith(("cifar10n", "cifar100n")) and split == "train":
        wrong = noise.symmetric(y, k, rate=0.3, generator=generator)
        return dataclasses.replace(data, y=wrong.y, clean=y)
    return data
