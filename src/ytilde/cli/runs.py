"""Run folders: what was asked for, what came out, and one writer at a time."""

from __future__ import annotations

import dataclasses
import fcntl
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import IO, Any

from ..engine import Recipe, Record, parallel
from ..errors import BadInput, Diverged, plural, shorten_list
from ..files import TEMPORARY, write_text
from ..runfolder import CONFIG, LOCK, METRICS, REVIEW, SUMMARY, RunFolder
from ..signing import sign, verify
from .flags import flag_of


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
    """Refuse to resume a run with other settings, and say which options it was started with."""
    if ("method" in old) != ("method" in new):
        raise BadInput(f"{folder} contains a run of another command; give another --out")
    differ = _all_differences(old, new)
    if not differ:
        return
    options = {name: value for name, value in differ.items() if name not in _CONTENTS}
    typed = [words for name, value in options.items() for words in _as_typed(name, value)]
    absent = [_flag(name) for name, value in options.items() if value is None]
    steps = [f"give {' '.join(typed)}"] if typed else []
    steps += [f"leave out {shorten_list(absent)}"] if absent else []
    if steps:
        raise BadInput(
            f"{folder} was started with other settings; to continue it, {' and '.join(steps)}, or "
            "replace it with --force"
        )
    changed = shorten_list(sorted({_CONTENTS[name] for name in differ}))
    raise BadInput(
        f"{folder} was started with other {changed}; give another --out, or replace it with --force"
    )


_CONTENTS = dict.fromkeys(("fingerprint", "classes", "multilabel"), "data")
_CONTENTS |= {"encoder_digest": "weights in --encoder"}
_FLAGS = {"id_column": "--id", "text_column": "--text", "group_column": "--group"}
_FLAGS |= {"path": "--annotations"}  # of the votes


def _flag(name: str) -> str:
    return _FLAGS.get(name, flag_of(name))


def _as_typed(name: str, value: Any) -> list[str]:
    """A setting as the words of a command; none where it was not given."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    words = [quote(str(each)) for each in values]
    return words if name == "source" else [f"{_flag(name)} {word}" for word in words]


def _all_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The settings that differ, with their old values."""
    ignored = {"versions", "realised_noise", "schema", "started_in", "network"}
    if isinstance(recipe := old.get("recipe"), dict):  # fields that it is too old to have
        old = old | {"recipe": dataclasses.asdict(Recipe()) | recipe}
    new = dict.fromkeys(("annotations", "features", "image_size")) | new  # if given
    return _differences(old, {key: _plain(new[key]) for key in new if key not in ignored})


def _differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old values of what differs; groups are compared inside."""
    found: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict):
            found |= _differences(before, dict.fromkeys(before) | (value or {}))
        elif before != value:
            found[name] = before
    return found


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
