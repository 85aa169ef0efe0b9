"""What a run folder keeps of training: checkpoints, finished stages, and values that are cached.

A run that is resumed runs its code again, but nothing that is here: it comes to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import checkpoint
from ..hashing import hash_of
from ..runfolder import CACHED, CHECKPOINTS, STAGES
from .parallel import Team
from .stage import Stage, under
from .validate import Best, History, Record

State = dict[str, Tensor]


def snapshot(method: nn.Module) -> State:
    """A copy of all state of the method."""
    return {name: value.clone() for name, value in method.state_dict().items()}


class Checkpoints:
    """The files of one run; without a folder there are none.

    every: seconds between two checkpoints of a stage at least. notes: hears of files that are
    damaged or another model's; what they held is made again.
    """

    def __init__(
        self,
        method: nn.Module,
        folder: Path | None,
        resume: bool,
        every: float,
        team: Team,
        notes: list[str],
    ) -> None:
        self.method, self.folder, self.resume, self.every = method, folder, resume, every
        self.team, self.notes = team, notes
        self._saved_at, self._count = time.monotonic(), 0
        self._pending = self._newest_valid(self._paths(), self._matches_model) if resume else None
        if self._pending:
            self._count = self._pending[1]["count"]

    # ---- inside a stage -------------------------------------------------------------------------

    def save(self, stage: Stage, best: Best, epoch: int, history: History) -> None:
        """Leave what is needed to go on after so many epochs of the stage; two files take turns."""
        if not self.folder or time.monotonic() - self._saved_at < self.every:
            return
        self._count += 1
        tensors = self._method_tensors() | stage.state()
        tensors |= {f"best.{name}": value for name, value in (best.state or {}).items()}
        meta: Record = {"count": self._count, "stage": stage.name, "epoch": epoch}
        meta |= {"history": history, "best": best.value, "since": best.since}
        checkpoint.save(self._paths()[self._count % 2], tensors, meta)
        self._saved_at = time.monotonic()

    def restore(self, stage: Stage, best: Best) -> tuple[int, History] | None:
        """Put back what the checkpoint holds of this stage; the epoch to go on with, the history.

        None: there is no checkpoint of this stage, and it begins at its beginning.
        """
        if self._pending is None or self._pending[1]["stage"] != stage.name:
            return None
        (tensors, meta), self._pending = self._pending, None
        self.method.load_state_dict(under("method.", tensors))
        best.value, best.since = meta["best"], meta["since"]
        best.state = under("best.", tensors) or None
        stage.load_state(tensors)
        return meta["epoch"], meta["history"]

    # ---- between stages -------------------------------------------------------------------------

    def save_finished_stage(self, name: str, history: History) -> None:
        """The state at a stage's end: a resumed pipeline runs its code again, not its training."""
        if self.folder:
            meta = {"count": 0, "stage": name, "history": history}
            checkpoint.save(self._stage_path(name), self._method_tensors(), meta)

    def restore_finished_stage(self, name: str) -> History | None:
        """Put back the end of a stage that a run finished before it was stopped; its history."""
        if not self.resume or not self.folder:
            return None
        found = self._newest_valid([self._stage_path(name)], self._matches_model)
        if found is None:
            return None
        tensors, meta = found
        self.method.load_state_dict(under("method.", tensors))
        return meta["history"]

    def cached(self, name: str, inputs: Any, fn: Callable[[], Tensor], device: Any) -> Tensor:
        """fn(), kept in the run folder under the hash of its inputs."""
        if self.folder is None:
            return fn()
        path = self.folder / CACHED / f"{name}-{hash_of(inputs)}.safetensors"
        found = self._newest_valid([path], lambda tensors, meta: set(tensors) == {"value"})
        if found:
            return found[0]["value"].to(device)
        value = fn()
        checkpoint.save(path, {"value": value}, {"count": 0})
        return value

    # ---- files ----------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        return [self.folder / name for name in CHECKPOINTS] if self.folder else []

    def _stage_path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / STAGES / f"{name}.safetensors"

    def _method_tensors(self) -> State:
        return {f"method.{name}": value for name, value in self.method.state_dict().items()}

    def _newest_valid(self, paths: list[Path], fits: Any) -> Any:
        """The newest of these files that is whole and fits; the user hears of any other.

        What is missing or damaged is made again: the code before it has put back its beginning.
        """
        found, refused = checkpoint.newest(paths, fits)
        self.notes += [f"{sentence}; it is made again" for sentence in refused]
        return found if self.team.decide(found is not None) else None

    def _matches_model(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bool:
        """Is this a state of this very model?"""
        own = {name: value.shape for name, value in self.method.state_dict().items()}
        theirs = {name: value.shape for name, value in under("method.", tensors).items()}
        return own == theirs and {"count", "stage", "history"} <= set(meta)
