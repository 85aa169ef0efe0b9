"""`download`: the files of a named set from its publisher, digests checked."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

from ..errors import BadInput
from ..files import check_writable
from .registry import known_name
from .sources import SOURCES, origin, source_of


def download(
    name: str,
    to: str | Path,
    base_url: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Fetch a named set from its publisher, or from a mirror at base_url, into the folder `to`.

    A cut download goes on where it stopped (NAME.part, HTTP Range); a file appears under its name
    only after its digest is right. progress(file, bytes, total) is called as the bytes arrive.
    Returns the folder of the files; what is there already is not fetched again.
    """
    if source_of(known_name(name)) not in SOURCES:
        raise BadInput(f"{name} cannot be downloaded by ytilde: {origin(name)}.")
    source = SOURCES[source_of(name)]
    folder = Path(to) / source.folder
    for file, sha256 in source.sha256.items():
        packed = ".tar" in file
        if folder.is_dir() if packed else (folder / file).is_file():
            continue
        url = (base_url or source.url).rstrip("/") + "/" + file
        target = (Path(to) if packed else folder) / file
        for path in (target, _part(target)):  # of a link the target would be written or removed
            check_writable(path)
            if path.is_symlink():
                raise BadInput(f"{path} is a link; move it away, or download into another folder.")
        fetched = not target.is_file()  # an archive that could not be unpacked is still there
        try:
            if fetched:
                _fetch(url, target, sha256, progress)
            if packed:
                unpack(target, Path(to), source.folder, keep=not fetched)
        except OSError as error:
            raise BadInput(f"{target} cannot be written: {error.strerror or error}.") from error
    return folder


def _part(target: Path) -> Path:
    """What has come of a file so far."""
    return target.with_name(target.name + ".part")


def _fetch(
    url: str, target: Path, sha256: str, progress: Callable[[str, int, int], None] | None
) -> None:
    _check_https(url)
    part = _part(target)
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            _check_https(response.url)  # where it was sent on to
            if response.status != 206:  # the server sends all of it again
                have = 0
            total = have + int(response.headers.get("Content-Length") or 0)
            target.parent.mkdir(parents=True, exist_ok=True)  # not before there is what to write
            with part.open("ab" if have else "wb") as file:
                while block := _receive(response, url):
                    file.write(block)
                    have += len(block)
                    if progress:
                        progress(target.name, have, total)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to send; the digest decides
            raise BadInput(f"{url} cannot be fetched: the server says {error.code}.") from error
        total = have
    except urllib.error.URLError as error:
        raise BadInput(f"{url} cannot be reached ({error.reason}).") from error
    if have < total:
        raise BadInput(
            f"{url} was cut off at {have:,} of {total:,} bytes; run it again to continue."
        )
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        part.unlink()
        raise BadInput(
            f"{url} has digest {found}, not {sha256}; it was removed, try again or a mirror."
        )
    os.replace(part, target)


def _check_https(url: str) -> None:
    """Refuse an address that others could listen in on, or change; this machine's own is safe."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise BadInput(f"{url} is not fetched: its address must begin with https.")


def _receive(response: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return response.read(1 << 20)
    except (OSError, http.client.HTTPException) as error:
        raise BadInput(f"{url} was cut off ({error!r}); run it again to continue.") from error


def unpack(archive: Path, to: Path, folder: str, keep: bool = False) -> None:
    """Extract beside the place and rename, so that the folder is there whole or not at all.

    keep: an archive that was there before may be the user's own.
    """
    with tempfile.TemporaryDirectory(dir=to, prefix=".unpack-") as temporary:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(temporary, filter="data")  # refuses paths that lead outside
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise BadInput(f"{archive} cannot be unpacked ({error}); remove it.") from error
        inner = Path(temporary) / folder
        if not inner.is_dir():
            raise BadInput(f"{archive} does not hold the folder {folder}; remove it.")
        (to / folder).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(inner, to / folder)
    if not keep:
        archive.unlink()
