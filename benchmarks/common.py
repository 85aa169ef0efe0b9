"""What several benchmarks need: the digits as pixels, and the lines of a file of results."""

import json
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor


def load_pixels() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits: pixels in [0, 1], [N, 64], and labels [N]."""
    x, y = load_digits(return_X_y=True)
    return torch.as_tensor(x / 16).float(), torch.as_tensor(y).long()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The results in a file, a JSON object a line; none where there is no file yet.

    Lines marked `superseded`, of a method that has changed since, stay there and are passed over.
    """
    texts = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, texts) if "superseded" not in line]
