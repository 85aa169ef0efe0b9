"""The hash by which data is known again."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..hashing import digest_of
from .images import Images
from .types import Data

HASHED = 2**28  # bytes of inputs that a fingerprint covers in full; beyond, it takes a sample


def fingerprint(data: Data) -> str:
    """A hash of the inputs, the observed labels and the classes: the same data, the same hash.

    Above 256 MB, and of lazy readers, only some rows, evenly spaced, are hashed.
    """
    n = len(data)
    files = [Path(path).name for path in data.x.paths] if isinstance(data.x, Images) else []
    if isinstance(data.x, Tensor):
        wanted = HASHED * n // max(1, data.x.numel() * data.x.element_size())
    else:
        wanted = 64
    index = torch.arange(0, n, max(1, -(-n // max(1, wanted))))
    about = repr((tuple(data.x.shape), data.num_classes, data.names))
    votes: list[str | Tensor]  # and groups
    votes = [] if data.votes is None else [data.votes, "\0".join(data.annotators)]
    votes += [] if data.groups is None else ["groups", data.groups]
    return digest_of(about, data.y, "\0".join(files), data.x[index], *votes)
