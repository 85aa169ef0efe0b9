"""Whole passes over data with a method as it is now: scores, features, values that are cached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data import Batch, Data
from .device import autocast, choose_device, choose_dtype, one_thread_if_small
from .feed import Feed
from .parallel import Team
from .recipe import Recipe
from .state import Checkpoints
from .validate import Record, figures, score_sums


class Passes:
    """The half of a `Trainer` that trains nothing; it owns device, precision and feed."""

    def __init__(
        self,
        method: nn.Module,
        recipe: Recipe,
        folder: Path | None,
        team: Team,
        notes: list[str],
        checkpoints: Checkpoints,
    ) -> None:
        self.method, self.recipe = method, recipe
        self.team, self.notes, self.checkpoints = team, notes, checkpoints
        self.device = choose_device(recipe.device)
        self.dtype = choose_dtype(recipe.precision, self.device)
        self.data: Data | None = None  # the rows given to fit: only theirs have an index
        self.feed = Feed(method, self.device, team, recipe.workers, notes, folder)

    def score(self, data: Data, noisy: bool = False) -> Record:
        """Accuracy and log loss of `data.y`; of pixel labels the mean IoU too.

        Summed up batch by batch: they need no [N, H, W, K].

        Args:
            data: the rows.
            noisy: under the posterior of the observed label, instead of the clean one.
        """
        method = cast(Any, self.method)
        proba = method.noisy_proba if noisy else method.predict_proba
        return figures(self.map(lambda batch: score_sums(proba(batch.x), batch.y), data))

    @torch.no_grad()
    def map(self, fn: Callable[[Batch], Tensor], data: Data) -> Tensor:
        """fn over all rows, in eval mode without gradients, in row order, on the device.

        Args:
            fn: of a Batch; rows that are not the training data's have index -1.
            data: the rows.
        """
        was_training = self.method.training
        self.method.eval()
        parts: list[Tensor] = []
        whole, filled = None, 0
        try:
            with self.threads():
                for batch in self.feed.in_order(data):
                    if data is not self.data:
                        batch = batch._replace(index=torch.full_like(batch.index, -1))
                    with self.autocast():
                        part = fn(batch)
                    if not filled and not parts and len(part) == len(batch.y) > 1:  # of each row
                        whole = part.new_empty((len(data), *part.shape[1:]))
                    if whole is None:
                        parts.append(part)
                    else:
                        whole[filled : filled + len(part)] = part
                        filled += len(part)
        finally:
            self.method.train(was_training)
        return self.team.broadcast_rows(torch.cat(parts) if whole is None else whole)

    def batch(self, data: Data, index: Tensor) -> Batch:
        """Some rows as the methods see them: x float, images in [0, 1].

        Args:
            data: where they are.
            index: which [B].
        """
        return self.feed.batch(data, index)

    def cached(self, stage: str, inputs: Any, fn: Callable[[], Tensor]) -> Tensor:
        """fn(), kept in the run folder under the hash of its inputs: resuming does not redo it.

        Args:
            stage: a name for it.
            inputs: all that it depends on.
            fn: gives a tensor.
        """
        return self.checkpoints.cached(stage, inputs, fn, self.device)

    def autocast(self) -> Any:
        """A context in which networks compute in the recipe's precision."""
        return autocast(self.device, self.dtype)

    def threads(self) -> Any:
        """A context with as many threads as the networks have use for."""
        return one_thread_if_small(self.method, self.device)
