"""Arrays and npz files: inputs as tensors, checked."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput, sentence, which_rows
from ...files import check_no_stream
from ..precision import features
from ..types import Data, Rows
from .convert import as_array, dense, plain_tensor
from .labels import FILL, class_name, read_labels
from .source import ReadOptions, Source, with_schema
from .texts import array_texts, npz_texts


def as_inputs(x: Any, what: str = "the array", double: bool | None = None) -> Tensor:
    """Features [N, D] as float32, or images as [N, C, H, W]: uint8, or float32 in [0, 1].

    Images may come as [N, H, W] or with the channels (1, 3 or 4) last. Features are float64 where
    float32 would lose what tells rows apart; double: whether they are, as in the training data.
    """
    x = dense(x, what)
    tensor = plain_tensor(x, what) if isinstance(x, Tensor) else as_tensor(as_array(x, what), what)
    if tensor.ndim not in (2, 3, 4):
        raise BadInput(
            f"{sentence(what)} has shape {tuple(tensor.shape)}; features are [rows, columns], "
            "images [rows, channels, height, width]."
        )
    if 0 in tensor.shape[1:]:
        raise BadInput(f"{sentence(what)} has shape {tuple(tensor.shape)}: its inputs are empty.")
    if tensor.ndim == 2:
        _finite(tensor.float(), what)
        return features(tensor, double)
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    elif tensor.shape[1] not in (1, 3, 4) and tensor.shape[3] in (1, 3, 4):
        tensor = tensor.permute(0, 3, 1, 2)
    if tensor.dtype == torch.uint8 or not tensor.numel():
        return tensor.contiguous()
    low, high = tensor.amin().item(), tensor.amax().item()
    if not tensor.is_floating_point():
        if low < 0 or high > 255:
            raise BadInput(f"The pixels of {what} run from {low} to {high}; they must be 0 to 255.")
        return tensor.to(torch.uint8).contiguous()
    tensor = _finite(tensor.float(), what)
    if low < 0 or high > 1:
        raise BadInput(
            f"The pixels of {what} run from {low:g} to {high:g}; give bytes, or floats from 0 to 1 "
            "without normalisation (divide yours by 255)."
        )
    return tensor.contiguous()


def as_tensor(array: np.ndarray, what: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{sentence(what)} holds {array.dtype} instead of numbers.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch knows few kinds of them
        large = array.size and array.max() > np.iinfo(np.int64).max
        array = array.astype(np.float64 if large else np.int64)
    with warnings.catch_warnings():  # inputs are never written to, so a read-only array will do
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def _finite(x: Tensor, what: str) -> Tensor:
    bad = ~torch.isfinite(x.flatten(1))
    if bad.any():
        rows, column = bad.any(1).nonzero()[:, 0].numpy(), int(bad.nonzero()[0, 1])
        raise BadInput(
            f"There is a missing or infinite value in {which_rows(rows)} of {what} (column "
            f"{column}); {FILL}."
        )
    return x


def read_arrays(
    x: Any, y: Any, clean: Any, options: ReadOptions, what: str, names: Sequence[str] | None = None
) -> Source:
    inputs = as_inputs(x, what, options.schema.double if options.schema else None)
    observed, truth, chosen = read_labels(y, clean, len(inputs), options, what, names)
    check_pixels(observed, inputs, what)
    found = with_schema(Data(inputs, observed, len(chosen), truth, tuple(chosen)))
    return replace(found, texts=partial(array_texts, x)) if inputs.ndim == 2 else found


def check_pixels(y: Tensor, x: Rows, what: str) -> None:
    """Labels of more than one axis are labels of pixels; others, such as one-hot ones, are not."""
    if y.ndim > 1 and tuple(y.shape[1:]) != tuple(x.shape[2:]):
        raise BadInput(
            f"Labels of shape {tuple(y.shape)} do not fit inputs of shape {tuple(x.shape)} in "
            f"{what}; give one label per row, or one per pixel (one-hot labels: their argmax)."
        )


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by their names."""
    check_no_stream(path)
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} cannot be read as plain arrays (it is damaged, or no npz file).")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # damaged archives raise many kinds
        raise BadInput(f"{path} cannot be read as plain arrays ({error}).") from error


INPUTS = ("x", "X", "features", "inputs", "data", "images", "embeddings", "x_train", "X_train")
LABELS = ("y", "Y", "labels", "label", "targets", "target", "y_train")


def read_npz(path: Path, options: ReadOptions) -> Source:
    """Keys x, y, or other usual names; optional clean, and names, which integer labels count into.

    --label names the array of labels.
    """
    parts = load_npz(path)
    x = _array_called("x", INPUTS, parts, path)
    wanted = (options.label,) if options.label in parts else LABELS
    y = _array_called("y", wanted, parts, path) if options.labelled else None
    if (x, y) not in (("x", "y"), ("x", None)):
        options.notes.append(f"inputs are the array {x!r}" + (f", labels {y!r}" if y else ""))
    own = parts["names"].reshape(-1) if "names" in parts else None
    names = None if own is None else [class_name(name, str(path)) for name in own]
    labels = None if y is None else parts[y]
    found = read_arrays(parts[x], labels, parts.get("clean"), options, str(path), names)
    return found if found.texts is None else replace(found, texts=partial(npz_texts, path, x))


def _array_called(name: str, usual: Sequence[str], parts: dict[str, np.ndarray], path: Path) -> str:
    """The array of this name, or the only one that has another usual name for the same."""
    found = [name] if name in parts and name in usual else [each for each in usual if each in parts]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInput(
            f"{path} has several arrays that could be {name!r} ({', '.join(found)}); call one of "
            f"them {name}."
        )
    raise BadInput(
        f"{path} has no array {name!r}; it holds {', '.join(parts)}. Call it {name}, or "
        f"{', '.join(usual[1:5])}."
    )
