"""Files, written whole or not at all; tensors as safetensors with a digest, never a pickle."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from . import parallel
from .data import BadInput

TEMPORARY = ".new-"  # how the names of unfinished files begin


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: whole file or none.

    Of the processes that train one model only the leader writes.
    """
    if parallel.team().rank:
        return
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock; a killed process holds none.

    Those that train one model with the leader do not wait for each other.
    """
    if parallel.team().rank:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before the work whose result it is to hold."""
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder")
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"cannot write {path}: {above} is no folder that can be written to")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda temporary: _write(temporary, text.encode()))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """A table for people: no text in it makes a spreadsheet call, start or fetch anything."""
    text = frame.select_dtypes(include=["object", "string"]).columns
    safe = frame.assign(**{c: frame[c].map(spreadsheet_safe) for c in text})
    write_text(path, safe.to_csv(index=False))


def spreadsheet_safe(value: object) -> object:
    """Text behind a quote where it is a formula that calls a function, a program or another file.

    Anything else stays as it is: labels called +, -1 or @home must equal the classes.
    """
    if not isinstance(value, str):
        return value
    text = unicodedata.normalize("NFKC", value).lstrip()  # full-width signs count too
    return "'" + value if text[:1] in {*"=+-@"} and set(text) & set("(|!") else value


def save(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able `meta` as one safetensors file with a digest over both."""
    kept = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    text = json.dumps(meta)
    # one entry: safetensors writes several in a random order, and equal content is equal bytes
    header = {"ytilde": json.dumps({"meta": text, "digest": _digest(kept, text)})}
    write_atomic(path, lambda temporary: _write(temporary, save_tensors(kept, header)))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a truncated, altered or foreign file is refused in one sentence."""
    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["ytilde"])
        tensors = load_tensors(content)
        text = header["meta"]
        whole = header["digest"] == _digest(tensors, text)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        raise BadInput(f"{path} is not a ytilde file, or it is damaged: {error}") from error
    if not whole:
        raise BadInput(f"{path} is damaged: its digest does not fit its content")
    return tensors, json.loads(text)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


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
