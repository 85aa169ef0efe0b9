"""RunFolder: the names of all files that a run leaves in its folder, and how they are removed.

A folder is a run's where its config.json carries ytilde's digest of its content. Only files that
have a run's names are ever removed; whatever else lies in the folder is the user's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from .errors import BadInput
from .files import TEMPORARY
from .signing import DIGEST, verify

CONFIG = "config.json"
LOCK = ".lock"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
TEXT = "text.safetensors"  # how texts became numbers
PREDICTIONS = "predictions.csv"
ISSUES = "issues.csv"
REPORT = "report.html"
LABELS = "labels.csv"
AUDIT = "audit.json"
REGIONS = "regions.csv"  # of pixel labels: the suspicious regions
ROWS = "row_issues.csv"  # of several labels a row: how sure it is that one is wrong
ANNOTATORS = "annotators.csv"  # of several annotators: how good each is, and each vote
VOTES = "votes.csv"
FOLDS = "audit.safetensors"  # what the folds of an audit said
FOLDING = "folds"  # folder: the folds of an audit that has not ended
REVIEW = "review.sqlite"
SAMPLE = "sample.safetensors"  # which rows were drawn for a review
METHODS = "methods.json"  # the race of methods
RACE = "race.json"  # the race of fields
UNREADABLE = "unreadable.txt"
CHECKPOINTS = ("checkpoint-0.safetensors", "checkpoint-1.safetensors")
STAGES, CACHED = "stages", "cache"  # folders: finished stages, values worth keeping
PRETRAIN, SIMCLR = "pretrain", "simclr-"  # the folder of pre-trainings, and of one: SIMCLR + hash
ENCODER = "encoder.safetensors"  # of a pre-training

_EXACT = (
    CONFIG, LOCK, METRICS, SUMMARY, MODEL, TEXT, PREDICTIONS, ISSUES, REPORT, LABELS, AUDIT, FOLDS,
    ANNOTATORS, VOTES, SAMPLE, *(f"{REVIEW}{end}" for end in ("", "-wal", "-shm", "-journal")),
    METHODS, RACE, ROWS, REGIONS,
)  # fmt: skip
_STATE = (  # what a trainer leaves, in a run or in the folder of a pre-training
    "|".join(map(re.escape, (UNREADABLE, *CHECKPOINTS)))
    + rf"|({STAGES}|{CACHED})/[^/]+\.safetensors"
)
_PRETRAINING = rf"{PRETRAIN}/{SIMCLR}[0-9a-f]+"
_TRAINING = rf"{_STATE}|{_PRETRAINING}/(lock|{re.escape(ENCODER)}|{_STATE})"
_FOLD = rf"{FOLDING}/[0-9a-f]+-[0-9]+"
_FILE = re.compile(
    "|".join(map(re.escape, _EXACT))
    + rf"|{_TRAINING}|{_FOLD}\.safetensors|{_FOLD}/({_TRAINING}|{re.escape(RACE)})"
    # left by a process that was killed
    + rf"|{re.escape(TEMPORARY)}([a-z0-9_]{{8}}|[0-9a-f]{{16}}(-journal)?)"
    + rf"|.+/{re.escape(TEMPORARY)}[a-z0-9_]+"
)
_FOLDER = re.compile(
    rf"{FOLDING}|{_FOLD}"
    rf"|({_FOLD}/)?({PRETRAIN}|{_PRETRAINING}|({_PRETRAINING}/)?({STAGES}|{CACHED}))"
)
_KEYS = {"source", "method", "fields", "backbone", "recipe", "fingerprint", "versions"}  # of 0.1


class RunFolder:
    """The folder of a run, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def is_run(self) -> bool:
        """Did ytilde make it? Its config has ytilde's digest; without one, as 0.1 wrote it, it has
        0.1's keys and nothing foreign lies beside it."""
        path = self / CONFIG
        if path.is_symlink() or not path.is_file():
            return False
        try:
            config = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(config, dict):
            return False
        if config.get(DIGEST) is not None:
            with suppress(ValueError):
                return bool(verify(config))
            return False
        return config.keys() >= _KEYS and (self / METRICS).is_file() and not self.foreign()

    def owns(self, path: Path) -> bool:
        """Is this the name of a run's file or folder here, or of something in such a folder?"""
        try:
            inside = Path(os.path.realpath(path)).relative_to(os.path.realpath(self.path))
        except ValueError:
            return False
        names = ["/".join(inside.parts[: k + 1]) for k in range(len(inside.parts))]
        return any(_FILE.fullmatch(name) or _FOLDER.fullmatch(name) for name in names)

    def foreign(self) -> list[str]:
        """What lies here under names that no run gives."""
        own = {name.partition("/")[0] for name, _ in self._entries()}
        return sorted(set(os.listdir(self.path)) - own)

    def check(self, inputs: Iterable[Path] = ()) -> None:
        """Refuse links, and folders in the place of files, that would lead writing astray."""
        for name, entry in self._entries():
            is_folder = _FOLDER.fullmatch(name)
            fits = entry.is_dir if is_folder else entry.is_file
            if not fits(follow_symlinks=False):
                kind = "folder" if is_folder else "file"
                raise BadInput(
                    f"{self / name} is no plain {kind}, as a run has it under this name; move it "
                    "away, or give --out another folder"
                )
        for path in filter(Path.exists, inputs):
            if self.owns(path) or any(path.samefile(entry) for _, entry in self._entries()):
                raise BadInput(
                    f"{path} is an input, and the run would overwrite it; give --out another folder"
                )

    def clear(self, keep: Iterable[str] = (LOCK,), below: str = "") -> None:
        """Remove the files of a run, its config last; nothing where one of them is not plain.

        below: of this folder in it alone, the folder too.
        """
        self.check()
        entries = [
            (name, entry)
            for name, entry in self._entries()
            if name not in keep and (not below or f"{name}/".startswith(f"{below}/"))
        ]
        for name, entry in sorted(entries, key=lambda item: item[0] == CONFIG):
            if not _FOLDER.fullmatch(name):
                os.unlink(entry)
        folders = [name for name, _ in entries if _FOLDER.fullmatch(name)]
        for name in sorted(folders, key=len, reverse=True):
            with suppress(OSError):  # something of the user's is in it
                (self / name).rmdir()

    def remove(self) -> None:
        """The folder too, unless something else lies in it."""
        self.clear(keep=())
        with suppress(OSError):
            self.path.rmdir()

    def remove_unfinished(self) -> None:
        """Files that a process left which was killed while it wrote them."""
        for name, entry in list(self._entries()):
            if name.rpartition("/")[2].startswith(TEMPORARY):
                os.unlink(entry)

    def _entries(self, below: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Everything that has a name of ours; links are not followed."""
        if not (self.path / below).is_dir():
            return
        with os.scandir(self.path / below) as entries:
            for entry in list(entries):
                name = below + entry.name
                is_folder = _FOLDER.fullmatch(name)
                if is_folder or _FILE.fullmatch(name):
                    yield name, entry
                if is_folder and entry.is_dir(follow_symlinks=False):
                    yield from self._entries(f"{name}/")


def run_of(path: Path) -> Path | None:
    """The run folder whose own file this path would be, if any."""
    above = Path(os.path.realpath(path)).parents
    return next((f for f in above if RunFolder(f).owns(path) and RunFolder(f).is_run()), None)
