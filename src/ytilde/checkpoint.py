"""Tensors as safetensors files with a digest, never a pickle; `files.py` writes them whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .errors import BadInput, is_out_of_memory
from .files import (
    TEMPORARY,
    check_writable,
    locked,
    spreadsheet_safe,
    write_atomic,
    write_bytes,
    write_csv,
    write_text,
)
from .hashing import digest_of

__all__ = [
    "TEMPORARY",
    "check_writable",
    "load",
    "locked",
    "newest",
    "save",
    "spreadsheet_safe",
    "write_atomic",
    "write_csv",
    "write_text",
]


def save(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able `meta` as one safetensors file with a digest over both."""
    kept = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    text = json.dumps(meta)
    # one entry: safetensors writes several in a random order, and equal content is equal bytes
    header = {"ytilde": json.dumps({"meta": text, "digest": _digest(kept, text)})}
    write_bytes(path, save_tensors(kept, header))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a truncated, altered or foreign file is refused in one sentence."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no file")
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["ytilde"])
        tensors = load_tensors(content)
        text = header["meta"]
        whole = header["digest"] == _digest(tensors, text)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise  # it may be whole: nothing may be begun again in its place
        raise BadInput(f"{path} is not a ytilde file, or it is damaged") from error
    if not whole:
        raise BadInput(f"{path} is damaged: its digest does not fit its content")
    return tensors, json.loads(text)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    parts: list[str | Tensor] = [text]
    for name in sorted(tensors):
        tensor = tensors[name]
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}", tensor]
    return digest_of(*parts)


def newest(
    paths: list[Path], fits: Callable[[Mapping[str, Tensor], Mapping[str, Any]], bool]
) -> tuple[tuple[dict[str, Tensor], dict[str, Any]] | None, list[str]]:
    """The newest whole checkpoint (by its own counter) that fits, or None; and what was refused."""
    found, refused = [], []
    for path in filter(Path.exists, paths):
        try:
            tensors, meta = load(path)
            if fits(tensors, meta):
                found.append((tensors, meta))
            else:
                refused.append(f"{path} belongs to another model")
        except BadInput as error:
            refused.append(str(error))
    return max(found, key=lambda item: item[1]["count"], default=None), refused
