"""The one training loop. `Trainer.epochs` reads top to bottom.

Rows are shuffled (feed.py), gathered on the device and handed to the method's loss as a Batch; one
optimiser step follows (stage.py), on CUDA as one captured graph (graph.py). Every epoch leaves a
record, is compared with the best one (validate.py) and, in a run folder, saved (state.py). What a
trainer does besides training (`map`, `score`) is in passes.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data import Data
from .feed import Index
from .parallel import Team
from .passes import Passes
from .recipe import Recipe
from .stage import Diverged, Loss, Stage
from .state import Checkpoints, snapshot
from .validate import Best, History, Record


class Trainer(Passes):
    """Trains a built method; owns device, precision, random streams, records and checkpoints.

    Args:
        method: what is trained; the networks and all state are made.
        recipe: how.
        val: rows with NOISY labels held out for selection.
        weights: how often each row is drawn, relative to the others.
        folder: where checkpoints go; none are written without it.
        resume: continue from what the folder holds.
        monitor: called after each validated epoch for figures that are only recorded (test
            accuracy), never used.
        on_record: called with the record of every epoch.
        on_step: called within an epoch, now and then, with its "share" that is done.
        checkpoint_every: minimum seconds between two checkpoints.
        team: the processes that train this method together.
        notes: what the user should know already; more is added, such as a fall-back.

    Example:
        >>> import torch
        >>> from ytilde import create
        >>> from ytilde.fitting import fit_method
        >>> data = Data(torch.randn(40, 3), torch.arange(40) % 2, 2)
        >>> method = create("ce")
        >>> trainer = fit_method(method, data, Recipe(epochs=2), backbone="mlp:width=8,depth=1")
        >>> len(trainer.history), sorted(trainer.score(data))
        (2, ['accuracy', 'nll'])
    """

    def __init__(
        self,
        method: nn.Module,
        recipe: Recipe,
        *,
        val: Data | None = None,
        weights: Tensor | None = None,
        folder: Path | None = None,
        resume: bool = False,
        monitor: Callable[[Trainer], Record] | None = None,
        on_record: Callable[[Record], None] = lambda record: None,
        on_step: Callable[[Record], None] | None = None,
        checkpoint_every: float = 0.0,
        team: Team | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        team, notes = team or Team(), list(notes)
        checkpoints = Checkpoints(method, folder, resume, checkpoint_every, team, notes)
        super().__init__(method, recipe, folder, team, notes, checkpoints)
        self.val, self.weights = val, weights
        self.monitor, self.on_record, self.on_step = monitor, on_record, on_step
        self.history: History = []

    def train(self, stage: str, loss: Loss, params: Any, data: Data, **options: Any) -> History:
        """Run all epochs of a stage; keeps the last, or the best by noisy validation.

        Args as of `epochs`. Returns the records.
        """
        return list(self.epochs(stage, loss, params, data, **options))

    def epochs(
        self,
        stage: str,
        loss: Loss,
        params: Any,
        data: Data,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        rows: Index | None = None,
        validate: bool = True,
        recipe: Recipe | None = None,
    ) -> Iterator[Record]:
        """Train, and yield a record after every epoch; code between two epochs may change state.

        Args:
            stage: its name, in records and checkpoints.
            loss: loss(batch, step) -> scalar.
            params: parameters, or groups of them as in `Method.param_groups`.
            data: the rows.
            epochs: of the stage; None: the recipe's.
            lr: of groups that have none of their own; None: the recipe's.
            rows: an index of `data`, a dict of named streams (then `loss` gets a dict of batches,
                and the first stream sets the length of an epoch), or a function asked before every
                epoch.
            validate: look at the noisy validation rows after every epoch.
            recipe: of the stage, where it is not the trainer's.
        """
        recipe = recipe or self.recipe
        recipe = replace(recipe, epochs=epochs or recipe.epochs, lr=recipe.lr if lr is None else lr)
        finished = self.checkpoints.restore_finished_stage(stage)
        if finished is not None:  # by this run, before it was stopped
            self.history = finished
            return
        run = Stage(self, stage, loss, params, data, recipe, rows)
        best = Best(recipe, self.val is not None and validate)
        start, self.history = self.checkpoints.restore(run, best) or (0, self.history)
        last_good = snapshot(self.method)  # of the last whole epoch
        for epoch in range(start, recipe.epochs):
            if best.stale:
                break
            began = time.perf_counter()
            try:
                with run.random(), run.fused(), self.threads():
                    step = run.begin(epoch)
                    for inputs in run.inputs():
                        step(inputs)
                        run.show_share()
                    mean_loss = run.mean_loss()
                record: Record = {"stage": stage, "epoch": epoch + 1, "epochs": recipe.epochs}
                record |= {"loss": mean_loss, "lr": recipe.lr * run.factor}
                record["train_seconds"] = round(time.perf_counter() - began, 4)
                if validate:
                    with run.average.in_use():
                        record |= self._validate()
                        best.see(record, lambda: snapshot(self.method))
            except (KeyboardInterrupt, Diverged):
                self.method.load_state_dict(last_good)
                raise
            record["seconds"] = round(time.perf_counter() - began, 4)
            self.history.append(record)
            self.on_record(record)
            yield record  # the caller may change state here; all processes go on with the leader's
            self.team.broadcast_(self.method.state_dict().values())
            last_good = snapshot(self.method)
            if epoch + 1 < recipe.epochs:
                self.checkpoints.save(run, best, epoch + 1, self.history)
        run.average.adopt()
        if recipe.keep != "last" and best.state is not None:
            self.method.load_state_dict(best.state)  # in place: captured steps keep their addresses
        self.checkpoints.save_finished_stage(stage, self.history)

    def _validate(self) -> Record:
        record = self.score(self.val, noisy=True) if self.val is not None else {}
        record = {f"val_{name}": value for name, value in record.items()}
        if self.monitor and self.team.rank == 0:
            with self.team.alone():
                record |= self.monitor(self)
        return record
