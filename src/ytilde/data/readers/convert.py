"""Tensors and arrays of any kind as plain ones: dense, on the CPU, in this machine's byte order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput, sentence

DENSE = 2**31  # bytes that a sparse matrix may fill as float32


def dense(x: Any, what: str) -> Any:
    """Sparse inputs with all of their zeros, which networks need; anything else as it is."""
    is_sparse = isinstance(x, Tensor) and x.layout not in (torch.strided, torch.jagged)
    if not (is_sparse or hasattr(x, "toarray")):
        return x
    if (size := 4 * math.prod(x.shape)) > DENSE:
        raise BadInput(
            f"{sentence(what)} is sparse and would fill {size / 2**30:.0f} GB; reduce its columns "
            "first, such as by scikit-learn's TruncatedSVD."
        )
    return x.to_dense() if isinstance(x, Tensor) else x.toarray()


def plain_tensor(x: Tensor, what: str) -> Tensor:
    """A tensor that holds its numbers, on the CPU, without its history."""
    if x.is_nested or x.layout != torch.strided:
        raise BadInput(f"A sparse or nested tensor cannot be read ({what}); give x.to_dense().")
    if x.device.type == "meta":
        raise BadInput(f"A meta tensor holds no values ({what}); give one that does.")
    if x.is_complex():
        raise BadInput(f"Complex numbers cannot be read ({what}); give real ones.")
    x = x.detach().cpu()
    if x.is_floating_point() and x.element_size() == 1:
        return x.float()  # float8 has no arithmetic
    return x.dequantize() if x.is_quantized else x


def as_array(values: Any, what: str) -> np.ndarray:
    """Values in rows as an array: numbers of this machine, or texts and what may be missing."""
    if isinstance(values, Tensor):
        x = plain_tensor(values, what)
        return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    if np.ma.is_masked(values):
        raise BadInput(f"Values of {what} are masked, that is missing; fill or leave them out.")
    if hasattr(values, "toarray"):
        raise BadInput(f"{sentence(what)} is sparse; give x.toarray().")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "SU" and not isinstance(values, np.ndarray):
            array = np.asarray(values, dtype=object)  # else a NaN among texts is the text "nan"
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"The rows of {what} differ in shape; make them alike.") from error
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
