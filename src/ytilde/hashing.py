"""Content hashes: equal content, equal name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor  # of texts alone, no torch is needed


def digest_of(*parts: str | Tensor, size: int = 16) -> str:
    """The hexadecimal blake2b digest, of `size` bytes, of these parts one after the other.

    Of a tensor its bytes are taken, not its shape: say it in a text beside it where it counts.
    """
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(_bytes(part))
    return digest.hexdigest()


def _bytes(part: str | Tensor) -> Any:
    if isinstance(part, str):
        return part.encode(errors="surrogateescape")  # a file's name may hold any bytes
    import torch

    return part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def hash_of(inputs: Any) -> str:
    """A short name for tensors and plain values, nested in any way."""
    return digest_of(*_parts(inputs), size=12)


def _parts(value: Any) -> Iterator[str | Tensor]:
    from torch import Tensor

    if isinstance(value, Tensor):
        yield str((value.dtype, tuple(value.shape)))
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value):
            yield str(key)
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield json.dumps(value, sort_keys=True)
