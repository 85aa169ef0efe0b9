"""Files, written whole or not at all: atomic writes, locks, tables that spreadsheets may open.

A link stays a link and its target is written; an existing file keeps its mode and owner; what is no
regular file (/dev/null, /dev/stdout, a pipe) is written into, never replaced. What may be written
at all is decided in `outputs.py`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

TEMPORARY = ".new-"  # how the names of unfinished files begin
STREAMS = (stat.S_ISCHR, stat.S_ISFIFO)  # what is written into as it is


def may_write() -> bool:
    """Does this process write? `parallel` says so of processes that train one model together."""
    return True


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: whole file or none.

    Of the processes that train one model only the leader writes.
    """
    if not may_write():
        return
    temporary = None
    try:
        stream = is_stream(path)
        target = Path(os.path.realpath(path))
        if not stream:
            target.parent.mkdir(parents=True, exist_ok=True)
            _check_target(path, target)
        handle, name = tempfile.mkstemp(dir=None if stream else target.parent, prefix=TEMPORARY)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        if stream:
            with temporary.open("rb") as source, path.open("ab") as into:
                shutil.copyfileobj(source, into)
        else:
            _take_over(temporary, target)
            os.replace(temporary, target)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Is it a device, a pipe, or what a process has open (/dev/stdout, also sent to a file)?"""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(kind(mode) for kind in STREAMS) or _is_descriptor(path)


def _is_descriptor(path: Path) -> bool:
    """Do the links lead through /proc/PID/fd? A file that is open there must not be replaced."""
    while path.is_symlink():
        folder = path.parent.resolve()
        if folder.parts[:2] == ("/", "proc") and folder.name == "fd":
            return True
        path = folder / path.readlink()
    return False


def _check_target(path: Path, target: Path) -> None:
    """Refuse what exists and is no regular file that can be written."""
    if target.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder")
    if target.exists() and not target.is_file():
        raise BadInput(f"cannot write {path}: it is no file, device or pipe to write into")
    if target.exists() and not os.access(target, os.W_OK):
        raise BadInput(f"cannot write {path}: it is write-protected")


def _take_over(temporary: Path, target: Path) -> None:
    """Mode and owner of the file that is replaced, those of any new file where there is none."""
    if not target.exists():
        temporary.chmod(0o666 & ~_umask())  # mkstemp's files are for their owner alone
        return
    old, new = target.stat(), temporary.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        with suppress(OSError):  # another's file can be replaced, but not given back
            os.chown(temporary, old.st_uid, old.st_gid)
    temporary.chmod(stat.S_IMODE(old.st_mode))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before the work whose result it is to hold."""
    try:
        if is_stream(path):
            if not os.access(path, os.W_OK):
                raise BadInput(f"cannot write {path}: no permission")
            return
        target = Path(os.path.realpath(path))
        _check_target(path, target)
        above = next(folder for folder in target.parents if folder.exists())
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from error
    try:  # what a file system says of rights is not always so, least of all to root
        if not os.access(above, os.W_OK):
            raise PermissionError
        handle, name = tempfile.mkstemp(dir=above, prefix=TEMPORARY)
        os.close(handle)
        os.unlink(name)
    except OSError:
        raise BadInput(
            f"cannot write {path}: {above} is no folder that can be written to"
        ) from None


def check_no_stream(path: Path) -> None:
    """Refuse to read what gives its content once, or never ends."""
    if path.exists() and not path.is_dir() and not path.is_file():
        raise BadInput(f"{path} is a pipe or a device; save what it gives in a file.")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock; a killed process holds none.

    Those that train one model with the leader do not wait for each other.
    """
    if not may_write():
        yield
        return
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # a file that has such a name by chance keeps its content
            fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
        except OSError as error:
            raise BadInput(f"cannot write {path}: {error.strerror or error}") from error
        yield


def write_bytes(path: Path, content: bytes) -> None:
    write_atomic(path, lambda temporary: _write(temporary, content))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """A table for people: no text in it makes a spreadsheet call, start or fetch anything."""
    write_text(path, csv_text(frame))


def write_csv_parts(path: Path, frames: Iterable[pd.DataFrame]) -> None:
    """The same of a table that comes in parts."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            for number, frame in enumerate(frames):
                file.write(csv_text(frame, header=not number))
            file.flush()
            os.fsync(file.fileno())

    write_atomic(path, write)


def csv_text(frame: pd.DataFrame, header: bool = True) -> str:
    """What `write_csv` writes."""
    text = frame.select_dtypes(include=["object", "string"]).columns
    safe = frame.assign(**{c: frame[c].map(spreadsheet_safe) for c in text})
    return safe.rename(columns=spreadsheet_safe).to_csv(index=False, header=header)


_CUTS = re.compile("([;\t\r\n]+)")  # where a spreadsheet may begin a new cell, quoted or not
_ACTS = re.compile(r"[^\W\d][\w.]*\s*\(|[|!]")  # a call, a program, another file


def spreadsheet_safe(value: object) -> object:
    """Text with a quote before each formula that calls a function, a program or another file.

    Anything else stays as it is: labels called +, -1 or @home must equal the classes.
    """
    if not isinstance(value, str):
        return value
    return "".join("'" + part if _is_formula(part) else part for part in _CUTS.split(value))


def _is_formula(text: str) -> bool:
    text = unicodedata.normalize("NFKC", text).lstrip()  # full-width signs count too
    return text[:1] in {*"=+-@"} and bool(_ACTS.search(text))
