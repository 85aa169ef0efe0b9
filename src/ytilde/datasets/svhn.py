"""SVHN: MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..data.types import Data
from ..errors import BadInput
from .classes import DIGITS
from .locate import find, make_set


def svhn(root: Path, split: str) -> Data:
    from scipy.io import loadmat

    path = find(root, "svhn", ("svhn", "SVHN", ""), [f"{split}_32x32.mat"])
    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"].reshape(-1)
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise BadInput(f"{path} cannot be read ({error}); get it again.") from error
    # Stored as (32, 32, 3, N), and the digit 0 as label 10.
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
    return make_set(images, torch.from_numpy(y.astype(np.int64) % 10), DIGITS, what=path)
