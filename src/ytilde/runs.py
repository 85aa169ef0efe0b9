"""Run folders: what was asked for, what came out, and one writer at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from . import parallel
from .checkpoint import TEMPORARY, write_text
from .data import BadInput, few
from .engine import Diverged, Record


class Run:
    """An open run folder: config.json, metrics.jsonl, summary.json; locked while it is open."""

    def __init__(self, folder: Path, lock: IO[str], new: bool, made: list[Path]) -> None:
        self.folder, self._lock, self._new, self._made = folder, lock, new, made
        path = folder / "metrics.jsonl"
        cut = path.exists() and not path.read_bytes().endswith(b"\n")
        self._metrics = path.open("a")
        if cut:  # by a crash or a full disk
            self._metrics.write("\n")

    @classmethod
    def open(cls, folder: Path, config: dict[str, Any], *, resume: bool, force: bool) -> Run:
        """Start a run, go on with one (`resume`), or replace one (`force`)."""
        if parallel.team().rank:
            return Follower()
        exists = (folder / "config.json").exists()
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"{folder} is a file; give --out another folder")
        if resume and not exists:
            raise BadInput(f"{folder} holds no run to go on with; leave --resume out to begin one")
        if exists and not (resume or force):
            raise BadInput(f"{folder} holds a run already; use --resume, --force or another --out")
        if folder.exists() and not exists and any(map(_foreign, folder.iterdir())):
            raise BadInput(f"{folder} is not empty and holds no run; give --out another folder")
        if force and (folder / "review.sqlite").exists():
            raise BadInput(
                f"{folder} holds the decisions of a review; keep them with `ytilde review {folder} "
                "--export labels.csv` and delete review.sqlite, or give --out another folder"
            )
        if resume:
            _same_run(cls.config(folder), config, folder)
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / ".lock").open("w")
        except OSError as error:
            raise BadInput(f"cannot write into {folder}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"another process is writing to {folder}; wait for it to end") from None
        for left in folder.rglob(f"{TEMPORARY}*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        if force and not resume:
            _empty(folder)
        if not resume:
            signed = {**config, "digest": _digest(config)}
            write_text(folder / "config.json", json.dumps(signed, indent=1))
        return cls(folder, lock, not exists, made)

    @staticmethod
    def config(folder: Path) -> dict[str, Any]:
        try:
            config = json.loads((folder / "config.json").read_text())
            digest = config.pop("digest", None) if isinstance(config, dict) else ""
            if digest is not None and digest != _digest(config):
                raise ValueError("it was changed or damaged, its digest does not fit its content")
            return config
        except FileNotFoundError:
            raise BadInput(
                f"{folder} holds no run; `ytilde fit ... --out {folder}` makes one"
            ) from None
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder / 'config.json'} cannot be read: {error}") from error

    @staticmethod
    def history(folder: Path) -> list[Record]:
        """The epochs' records; of an epoch that was run twice (after a crash) the later one."""
        path = folder / "metrics.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        records: dict[tuple[str, int], Record] = {}
        for line in lines:
            try:
                record = json.loads(line)
                records[record["stage"], record["epoch"]] = record
            except (ValueError, TypeError, KeyError):
                continue  # a line that a crash cut short
        return list(records.values())

    def log(self, record: Record) -> None:
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()

    def finish(self, summary: dict[str, Any]) -> None:
        write_text(self.folder / "summary.json", json.dumps(summary, indent=1))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: type | None, error: BaseException | None, *__: Any) -> None:
        self._metrics.close()
        self._lock.close()
        if not isinstance(error, BadInput | Diverged):
            return
        if self._new and not self.history(self.folder):  # before it began: no trace
            _empty(self.folder)
            (self.folder / ".lock").unlink(missing_ok=True)
            for folder in self._made:
                with suppress(OSError):  # another run may have come beside it
                    folder.rmdir()
        elif isinstance(error, Diverged):
            raise Diverged(f"{error}; the last good checkpoint is in {self.folder}") from error


class Follower(Run):
    """The run folder as the processes beside the leader have it: they write nothing."""

    def __init__(self) -> None:
        pass

    def log(self, record: Record) -> None:
        pass

    def finish(self, summary: dict[str, Any]) -> None:
        pass

    def __exit__(self, _: type | None, error: BaseException | None, *__: Any) -> None:
        pass


def _same_run(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    """Resuming must continue the same run: what differs is named."""
    ignored = {"versions", "realised_noise", "schema", "started_in"}
    differ = [
        line
        for key in new
        if key not in ignored
        for line in _differences(key, old.get(key), _plain(new[key]))
    ]
    if differ:
        raise BadInput(
            f"{folder} was started with other settings ({few(differ)}); "
            "repeat its command, or use --force"
        )


def _differences(name: str, old: Any, new: Any) -> list[str]:
    """What two settings differ in, each as `name OLD, not NEW`; of groups of them, which inside."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = sorted(old.keys() | new.keys())
        return [line for key in inner for line in _differences(key, old.get(key), new.get(key))]
    return [] if old == new else [f"{name} {old}, not {new}"]


def _digest(config: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(_plain(config)).encode(), digest_size=16).hexdigest()


def _foreign(path: Path) -> bool:
    """A file that no run leaves which was killed before it began."""
    return path.name not in (".lock", "metrics.jsonl") and not path.name.startswith(TEMPORARY)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == ".lock":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
