"""Features too large for memory, in a file of plain rows: `x[index]` reads those it is asked for.

A column store such as parquet cannot give single rows, so that an epoch over one in a truly random
order is out of reach. Copied once, row after row, any row is one short read, and training draws the
very batches that it would draw from memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput


class Spool:
    """A lazy reader of features [N, D], float32 or float64. It can be pickled.

    The file is read without being mapped into memory: only the rows that were asked for count.
    """

    def __init__(self, path: Path, rows: int, columns: int, double: bool) -> None:
        self.path, self._shape = path, (rows, columns)
        self.dtype = torch.float64 if double else torch.float32
        self._file: int | None = None

    @property
    def shape(self) -> Sequence[int]:
        return self._shape

    def __len__(self) -> int:
        return self._shape[0]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_file": None}

    def __getitem__(self, index: Tensor) -> Tensor:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDONLY)
        x = torch.empty((len(index), self._shape[1]), dtype=self.dtype)
        rows = index.numpy()
        if not len(rows):
            return x
        size, into = self._shape[1] * x.element_size(), memoryview(x.numpy()).cast("B")
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)  # of rows in a row
        stops = np.append(starts[1:], len(rows))
        for start, stop, row in zip(
            starts.tolist(), stops.tolist(), rows[starts].tolist(), strict=True
        ):
            _fill(self._file, into[start * size : stop * size], row * size)
        return x


def _fill(file: int, into: memoryview, at: int) -> None:
    while len(into):
        read = os.preadv(file, [into], at)
        if not read:
            raise OSError("the copy of the features on disk is cut short")
        into, at = into[read:], at + read


class SpoolWriter:
    """Makes such a file in a folder of its own, which goes when the process ends."""

    def __init__(self, rows: int, columns: int, double: bool) -> None:
        self.rows, self.columns, self.double = rows, columns, double
        need, folder = rows * columns * (8 if double else 4), tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        if need > 0.95 * free:
            raise BadInput(
                f"The features need {need / 1e9:.1f} GB on disk while they are trained on, and "
                f"{folder} has {free / 1e9:.1f} GB left; name another folder with TMPDIR."
            )
        self.folder = Path(tempfile.mkdtemp(prefix="ytilde-"))
        self._remove = weakref.finalize(self, _remove, self.folder, os.getpid())
        self._file = (self.folder / "rows").open("wb")

    def write(self, x: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(x, np.float64 if self.double else np.float32).data)

    def finish(self) -> Spool:
        self._file.close()
        spool = Spool(self.folder / "rows", self.rows, self.columns, self.double)
        self._remove.detach()
        weakref.finalize(spool, _remove, self.folder, os.getpid())
        return spool


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # processes that were forked off leave it alone
        shutil.rmtree(folder, ignore_errors=True)
