"""Run folders: what was asked for, what came out, and one writer at a time."""

from __future__ import annotations

import dataclasses
import fcntl
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..engine import Recipe, Record, parallel
from ..errors import BadInput, Diverged, plural, shorten_list
from ..files import TEMPORARY, write_text
from ..runfolder import CONFIG, LOCK, METRICS, REVIEW, SUMMARY, RunFolder
from ..signing import sign, verify


class Run:
    """An open run folder: config.json, metrics.jsonl, summary.json; locked while it is open."""

    def __init__(self, folder: Path, lock: IO[str], new: bool, made: list[Path]) -> None:
        self.folder, self._lock, self._new, self._made = folder, lock, new, made
        path = folder / METRICS
        cut = path.exists() and not path.read_bytes().endswith(b"\n")
        self._metrics = path.open("a")
        if cut:  # by a crash or a full disk
            self._metrics.write("\n")

    @classmethod
    def open(
        cls,
        path: Path,
        config: dict[str, Any],
        *,
        resume: bool,
        force: bool,
        inputs: Iterable[Path] = (),
    ) -> Run:
        """Start a run, continue one (`resume`) or replace one (`force`); never over an input."""
        if parallel.team().rank:
            return Follower()
        folder = RunFolder(path)
        _check_folder(folder, resume, force)
        folder.check(inputs)
        exists = (folder / CONFIG).exists()
        if resume:
            _same_run(cls.config(path), config, path)
        made = [each for each in (path, *path.parents) if not each.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("a")
        except OSError as error:
            raise BadInput(f"cannot write into {path}: {error.strerror}") from error
        _lock(lock, path)
        folder.remove_unfinished()
        if force and not resume:
            folder.clear(keep=(LOCK, CONFIG))  # a run whose replacement is cut short stays a run
        if not resume:
            write_text(folder / CONFIG, json.dumps(sign(config), indent=1))
        return cls(path, lock, not exists, made)

    @staticmethod
    def config(folder: Path) -> dict[str, Any]:
        try:
            config = json.loads((folder / CONFIG).read_text())
            if not isinstance(config, dict):
                raise ValueError("it was changed or damaged")
            return verify(config)
        except FileNotFoundError:
            raise BadInput(
                f"{folder} contains no run; `ytilde fit ... --out {folder}` makes one"
            ) from None
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder / CONFIG} cannot be read: {error}") from error

    @classmethod
    def is_of(cls, folder: Path, config: dict[str, Any]) -> bool:
        """Does the folder hold the run of this config?"""
        try:
            return not _all_differences(cls.config(folder), config)
        except BadInput:
            return False

    @staticmethod
    @contextmanager
    def held(folder: Path) -> Iterator[None]:
        """Lock a run folder, so that no other process writes to it."""
        with (folder / LOCK).open("a") as lock:
            _lock(lock, folder)
            yield

    @staticmethod
    def history(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Record]:
        """The records of the epochs; if one was run twice (after a crash), the later record.

        say: told about lines that a crash cut short or that are damaged; they are left out.
        """
        path = folder / METRICS
        lines = path.read_bytes().splitlines() if path.is_file() else []
        records: dict[tuple[str, int], Record] = {}
        lost = 0
        for line in lines:
            try:
                record = verify(json.loads(line))
                records[record["stage"], record["epoch"]] = record
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                lost += 1
        if lost:
            say(f"note: {plural(lost, 'damaged line')} of {path} left out")
        return list(records.values())

    def log(self, record: Record) -> None:
        self._metrics.write(json.dumps(sign(record)) + "\n")
        self._metrics.flush()

    def finish(self, summary: dict[str, Any]) -> None:
        write_text(self.folder / SUMMARY, json.dumps(summary, indent=1))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: type | None, error: BaseException | None, *__: Any) -> None:
        self._metrics.close()
        self._lock.close()
        if not isinstance(error, BadInput | Diverged):
            return
        if self._new and not self.history(self.folder):  # before it began: no trace
            RunFolder(self.folder).clear(keep=())
            for folder in self._made:
                with suppress(OSError):  # another run may have come beside it
                    folder.rmdir()
        elif isinstance(error, Diverged):
            raise Diverged(f"{error}; the last good checkpoint is in {self.folder}") from error


class Follower(Run):
    """The run folder for the processes beside the leader, which write nothing."""

    def __init__(self) -> None:
        pass

    def log(self, record: Record) -> None:
        pass

    def finish(self, summary: dict[str, Any]) -> None:
        pass

    def __exit__(self, _: type | None, error: BaseException | None, *__: Any) -> None:
        pass


def _lock(lock: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(f"another process is writing to {folder}; wait for it to end") from None


def _same_run(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    """Refuse to resume a run with other settings, and name those that differ."""
    if differ := _all_differences(old, new):
        raise BadInput(
            f"{folder} was started with other settings ({shorten_list(differ)}); "
            "repeat its command, or use --force"
        )


def _all_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    ignored = {"versions", "realised_noise", "schema", "started_in", "network"}
    if isinstance(recipe := old.get("recipe"), dict):  # fields that it is too old to have
        old = old | {"recipe": dataclasses.asdict(Recipe()) | recipe}
    return [
        line
        for key in new
        if key not in ignored
        for line in _differences(key, old.get(key), _plain(new[key]))
    ]


def _differences(name: str, old: Any, new: Any) -> list[str]:
    """How two settings differ, each as `name OLD, not NEW`; groups are compared inside."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = sorted(old.keys() | new.keys())
        return [line for key in inner for line in _differences(key, old.get(key), new.get(key))]
    return [] if old == new else [f"{name} {old}, not {new}"]


def _check_folder(folder: RunFolder, resume: bool, force: bool) -> None:
    """Only a folder that holds a run of ytilde, or nothing, may become a run's."""
    path, exists = folder.path, (folder / CONFIG).exists()
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file; give --out another folder")
    if resume and not exists:
        raise BadInput(f"{path} contains no run to resume; leave out --resume to start one")
    if not exists and path.exists() and any(map(_foreign, path.iterdir())):
        raise BadInput(f"{path} is not empty and contains no run; give --out another folder")
    if exists and not resume and not folder.is_run():
        raise BadInput(
            f"{folder / CONFIG} was not written by ytilde, or it was changed: what is in {path} is "
            "left as it is; give --out another folder"
        )
    if exists and not (resume or force):
        raise BadInput(f"{path} already contains a run; use --resume, --force or another --out")
    if force and not resume and (folder / REVIEW).exists():
        raise BadInput(
            f"{path} contains the decisions of a review; keep them with `ytilde review {path} "
            "--export labels.csv` and delete review.sqlite, or give --out another folder"
        )


def _foreign(path: Path) -> bool:
    """Is this a file that a run killed before its start would not have left?"""
    if path.is_symlink() or not path.is_file():
        return True
    empty = path.name in (LOCK, METRICS) and not path.stat().st_size
    return not (empty or path.name.startswith(TEMPORARY))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
