"""Noisy validation: the figures of an epoch, and the best epoch by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..metrics import Confusion
from .recipe import Recipe

Record = dict[str, Any]
History = list[Record]
SIGN = {"accuracy": 1.0, "nll": -1.0}  # what validation may go by, and the direction of better
KEEP = {"best": "accuracy", "best_nll": "nll"}  # what a recipe's `keep` goes by


def score_sums(probs: Tensor, y: Tensor) -> Tensor:
    """[1, 3]: how many labels are right, their log losses, how many count.

    Of pixels [1, 3 + K * K]: the counts [given, predicted] too.
    """
    probs, known = probs.float(), y >= 0
    given, predicted, K = y.clamp(min=0), probs.argmax(-1), probs.shape[-1]
    chosen = probs.gather(-1, given.unsqueeze(-1)).squeeze(-1)
    losses = -chosen.clamp(min=1e-12).log() * known
    right = (predicted == y) & known
    sums = torch.stack([t.double().sum() for t in (right, losses, known)])
    if y.dim() > 1:
        cell = (given * K + predicted).flatten()
        counts = sums.new_zeros(K * K).scatter_add_(0, cell, known.double().flatten())
        sums = torch.cat([sums, counts])
    return sums.unsqueeze(0)


def figures(sums: Tensor) -> Record:
    """Accuracy and log loss by what `score_sums` counted; of pixels the mean IoU too."""
    right, loss, count, *counts = sums.sum(0).tolist()
    record = {"accuracy": right / max(count, 1), "nll": loss / max(count, 1)}
    return record | ({"miou": Confusion.of(counts).miou()} if counts else {})


def validation_score(record: Mapping[str, Any], by: str = "accuracy") -> float:
    """How good noisy validation finds an epoch; higher is better, whatever it goes by."""
    return SIGN[by] * record[f"val_{by}"]


def best_epoch(history: Sequence[Record], by: str = "accuracy") -> Record | None:
    """The epoch of the last stage that noisy validation finds best; the first of equals.

    Epochs of an earlier stage (a warm-up) are not chosen. None: nothing was validated.
    """
    stage = history[-1].get("stage") if history else None
    rivals = [r for r in history if r.get("stage") == stage and f"val_{by}" in r]
    return max(rivals, key=lambda record: validation_score(record, by), default=None)


class Best:
    """The best epoch of a stage so far, its state, and how long ago it was."""

    def __init__(self, recipe: Recipe, active: bool) -> None:
        self.recipe, self.active = recipe, active
        self.value: float | None = None
        self.since = 0
        self.state: dict[str, Tensor] | None = None

    def see(self, record: Record, state: Callable[[], dict[str, Tensor]]) -> None:
        """Look at one more epoch; `state` is asked for where it is the best."""
        if not self.active or (self.recipe.keep == "last" and not self.recipe.patience):
            return
        value = validation_score(record, KEEP.get(self.recipe.keep, "accuracy"))
        if self.value is None or value > self.value:
            self.value, self.since, self.state = value, 0, state()
        else:
            self.since += 1

    @property
    def stale(self) -> bool:
        """Is it time to stop?"""
        return bool(self.recipe.patience) and self.since >= self.recipe.patience
