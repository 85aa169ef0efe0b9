"""MNIST and Fashion-MNIST: idx files, and the small set that comes with the package."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.types import Data
from ..errors import BadInput
from .classes import DIGITS, FASHION
from .locate import find, make_set


def embedded(root: Path, split: str) -> Data:
    """6,000 + 2,000 images of Fashion-MNIST that come with the package (MIT licence)."""
    file = resources.files("ytilde") / "embedded" / "fashion_mnist.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        x, y, names = arrays[f"x_{split}"], arrays[f"y_{split}"], arrays["names"]
    images, labels = torch.from_numpy(x)[:, None], torch.from_numpy(y).long()
    return make_set(images, labels, names.tolist(), what=file)


def mnist(root: Path, split: str) -> Data:
    return _idx_set(root, split, "mnist", ("MNIST/raw", "MNIST", "mnist", ""), DIGITS)


def fashion_mnist(root: Path, split: str) -> Data:
    folders = ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "")
    return _idx_set(root, split, "fashion-mnist", folders, FASHION)


def _idx_set(
    root: Path, split: str, name: str, folders: Sequence[str], names: Sequence[str]
) -> Data:
    prefix = "train" if split == "train" else "t10k"
    parts = []
    for kind in ("images-idx3", "labels-idx1"):
        stem = f"{prefix}-{kind}-ubyte"
        dotted = stem.replace("-idx", ".idx")  # some unpackers keep the dot of the original name
        files = (stem, f"{stem}.gz", dotted, f"{dotted}.gz")
        parts.append(_idx(find(root, name, folders, files)))
    x, y = parts
    return make_set(x.unsqueeze(1), y.long(), names, what=f"{name} under {root}")


def _idx(path: Path) -> Tensor:
    """An idx file of bytes: two zeros, type 8, number of axes, sizes (big-endian), content."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be unpacked ({error}); get it again.") from error
    axes = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    shape = np.frombuffer(raw, ">i4", axes, 4).tolist() if len(raw) >= 4 + 4 * axes else []
    if not axes or len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise BadInput(f"{path} is not a whole idx file of bytes; get it again.")
    return torch.frombuffer(bytearray(raw[4 + 4 * axes :]), dtype=torch.uint8).reshape(shape)
