"""Files inside tar archives (the shards of WebDataset), read by their place; nothing is unpacked.

A member is named like a file in a folder that is called like its archive: shards/a.tar/cat/1.jpg.
"""

from __future__ import annotations

import io
import os
import tarfile
from functools import lru_cache
from pathlib import Path

from .errors import BadInput

SUFFIX = ".tar"


def is_shard(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIX)


def split_member(path: str) -> tuple[str, str] | None:
    """The archive and the name within it, or None for a path that leads into no archive."""
    start = path.lower().find(SUFFIX + "/")
    while start >= 0:
        archive = path[: start + len(SUFFIX)]
        if os.path.isfile(archive):
            return archive, path[len(archive) + 1 :]
        start = path.lower().find(SUFFIX + "/", start + 1)
    return None


def real_file(path: str | Path) -> Path:
    """The file on disk that holds this path: of a member, its archive."""
    found = split_member(str(path))
    return Path(found[0] if found else path)


def members(archive: str | Path) -> dict[str, tuple[int, int]]:
    """Where each file of an archive begins, and its bytes, by name and in the archive's order."""
    status = os.stat(archive)
    return _members(str(archive), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _members(archive: str, size: int, changed: int) -> dict[str, tuple[int, int]]:
    """size and changed: of the archive, so that one that was written anew is looked at anew."""
    places: dict[str, tuple[int, int]] = {}
    end = 0
    try:
        with tarfile.open(archive, "r:") as file:
            for each in file:
                end = each.offset_data + -(-each.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if not each.isreg() or each.issparse():
                    continue
                name = each.name.removeprefix("./")
                if name in places:
                    raise BadInput(f"{archive} holds {name} twice; give each file its own name.")
                places[name] = (each.offset_data, each.size)
        with open(archive, "rb") as raw:
            raw.seek(end)
            if raw.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it ends too early")
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise BadInput(
            f"{archive} cannot be read as a tar archive ({error}); write it again, uncompressed."
        ) from error
    return places


def read_member(archive: str, name: str) -> bytes:
    """The content of one file of an archive; OSError where it has no such file."""
    try:
        start, size = members(archive)[name]
    except (KeyError, BadInput) as error:
        raise FileNotFoundError(f"{archive} holds no {name}") from error
    with open(archive, "rb") as file:
        file.seek(start)
        return file.read(size)


def open_member(path: str) -> io.BytesIO | None:
    """The content that this path names, if it leads into an archive."""
    found = split_member(path)
    return io.BytesIO(read_member(*found)) if found else None
