"""Where the files of a named set lie, and a Data made of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor

from ..data.types import IGNORE, Data, Rows
from ..errors import BadInput
from .sources import ON_REQUEST


def home(root: str | Path | None = None) -> Path:
    """The folder below which the official files lie."""
    return Path(root or os.environ.get("YTILDE_DATA") or "data")


class FileFound(Exception):
    """A file is there: enough for `at_hand`, which reads none."""


ONLY_LOOK = ContextVar("ONLY_LOOK", default=False)


def find(root: Path, name: str, folders: Iterable[str], files: Iterable[str]) -> Path:
    """The first of these files that lies in one of these folders below root."""
    folders, files = list(folders), list(files)
    for folder in folders:
        for file in files:
            if (root / folder / file).exists():
                if ONLY_LOOK.get():
                    raise FileFound
                return root / folder / file
    wanted = root / folders[0] / files[0]
    where = ON_REQUEST.get(name.split("-")[0])
    how = f"ask for it {where}" if where else f"get it with `ytilde data {name} --to {root}`"
    raise BadInput(
        f"{name} needs {wanted}, which is not there; name the folder of the data with --data-root "
        f"or $YTILDE_DATA, or {how}."
    )


def make_set(
    x: Rows, y: Tensor, names: Sequence[str], clean: Tensor | None = None, *, what: object
) -> Data:
    """A Data whose parts fit together."""
    if not len(y) or len(x) != len(y):
        raise BadInput(f"{what} holds {len(x)} inputs and {len(y)} labels; get the files again.")
    if int(y.max()) >= len(names) or int(y.min()) < IGNORE:
        raise BadInput(f"{what} holds labels outside its {len(names)} classes.")
    return Data(x, y, len(names), clean, tuple(names))
