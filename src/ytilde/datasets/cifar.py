"""CIFAR-10 and CIFAR-100 in their binary versions, and CIFAR-N's human labels."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.types import Data
from ..errors import BadInput
from .classes import CIFAR10, CIFAR100, CIFAR100_COARSE, CIFAR100_FINE
from .locate import find, make_set


def cifar10(root: Path, split: str) -> Data:
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    folders = ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "")
    return _cifar(root, "cifar10", folders, files, 0, CIFAR10)


def cifar100(root: Path, split: str) -> Data:
    folders = ("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100", "")
    return _cifar(root, "cifar100", folders, [f"{split}.bin"], 1, CIFAR100_FINE)


def cifar100_coarse(root: Path, split: str) -> Data:
    data = cifar100(root, split)
    y = torch.tensor(CIFAR100_COARSE)[data.y]
    return replace(data, y=y, num_classes=len(CIFAR100), names=tuple(CIFAR100))


def _cifar(
    root: Path, name: str, folders: Sequence[str], files: list[str], column: int, names: list[str]
) -> Data:
    """Records of `column + 1` label bytes and 3072 pixels; the label wanted is the last one."""
    try:
        paths = [find(root, name, folders, [file]) for file in files]
    except BadInput:
        _refuse_pickles(root, name)
        raise
    records = []
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        if not len(raw) or len(raw) % (column + 1 + 3072):
            raise BadInput(f"{path} is not a whole file of {name}'s binary version; get it again.")
        records.append(raw.reshape(-1, column + 1 + 3072))
    table = torch.from_numpy(np.concatenate(records))
    x = table[:, column + 1 :].reshape(-1, 3, 32, 32).contiguous()
    return make_set(x, table[:, column].long(), names, what=f"{name} under {root}")


def _refuse_pickles(root: Path, name: str) -> None:
    dashed = name.replace("cifar", "cifar-")
    python = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    for found in (python, f"{name}/{python}", f"{dashed}-python.tar.gz"):
        if (root / found).exists():
            raise BadInput(
                f"{root / found} is the pickled version, never loaded because a pickle can "
                f"run code; get {dashed}-binary.tar.gz instead: `ytilde data {name} --to {root}`."
            )


def cifar_n(base: Callable[[Path, str], Data], key: str) -> Callable[[Path, str], Data]:
    """CIFAR with human labels (Wei et al. 2022) as y and CIFAR's own as clean."""

    def read(root: Path, split: str) -> Data:
        if split == "test":
            return base(root, split)
        labels, path = _human_labels(root, "cifar10n" if base is cifar10 else "cifar100n")
        data = base(root, split)
        if key not in labels or "clean_label" not in labels:
            raise BadInput(f"{path} holds no {key} and clean_label; get it again.")
        if not torch.equal(labels["clean_label"], data.y):
            raise BadInput(
                f"{path} does not follow the order of the images (its clean_label differs); "
                "get the file in PyTorch's order, not TensorFlow's."
            )
        return make_set(data.x, labels[key], data.names or (), data.y, what=path)

    return read


def _human_labels(root: Path, stem: str) -> tuple[dict[str, Tensor], Path]:
    official = stem.upper().replace("CIFAR", "CIFAR-")[:-1] + "_human.pt"
    folders = ("cifar-n", "CIFAR-N", "data", "")
    path = find(root, stem, folders, [f"{stem}.npz", official])
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise BadInput(f"{path} cannot be read ({error}); get it again.") from error
    else:
        arrays = _weights_only(path)
    try:
        labels = {key: torch.from_numpy(np.asarray(a, np.int64)) for key, a in arrays.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a plain file of label arrays ({error}).") from error
    return labels, path


def _weights_only(path: Path) -> dict[str, np.ndarray]:
    """A dict of integer arrays saved by torch, read with nothing allowed beyond numpy's arrays."""
    rebuild = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    allowed = [np.ndarray, np.dtype, (rebuild, "numpy.core.multiarray._reconstruct"), rebuild]
    allowed += [type(np.dtype(code)) for code in ("i8", "i4", "i2", "i1", "u1")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; the user needs one sentence of any
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"{path} is not a plain file of label arrays ({reason}).") from error
