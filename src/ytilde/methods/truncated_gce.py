"""Truncated GCE: GCE that prunes the labels it fits badly. Zhang and Sabuncu 2018.

Fidelity: NeurIPS 2018, eq. 10 and algorithm 1: the loss of examples with p_y < k is the constant
(1 - k^q) / q, so they are pruned. Weights [N] are refreshed by a pass over the training set without
augmentation from epoch 40 of 120 on and every 10 epochs after: here fractions of training. The
authors' code returns to the best epoch before each refresh; algorithm 1 does not, nor do we.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import mean, truncated_gce, truncation_weights
from ..method import Method, register


@register("truncated_gce")
@dataclass(eq=False, repr=False)
class TruncatedGCE(Method):
    q: float = 0.7  # in (0, 1]: towards 0 cross-entropy, at 1 half the absolute error
    k: float = 0.5  # an example whose label has less probability is pruned
    start: float = 1 / 3  # share of training before the first pruning
    every: float = 1 / 12  # share of training between two prunings

    ranges = "0 < q <= 1, 0 < k < 1, 0 <= start <= 1, 0 < every <= 1"
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.weights: Tensor
        self.register_buffer("weights", torch.ones(spec.num_train))

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        logits, weights = self.net(step.augment(batch.x)), self.weights[batch.index]
        return mean(truncated_gce(logits, batch.y, weights, self.q, self.k), batch.y)

    def fit(self, data: Data, trainer: Trainer) -> None:
        epochs = trainer.recipe.epochs
        start, every = max(1, round(self.start * epochs)), max(1, round(self.every * epochs))
        for record in trainer.epochs("main", self.loss, self.param_groups(), data):
            if record["epoch"] >= start and (record["epoch"] - start) % every == 0:
                self.weights.copy_(trainer.map(self.keeps, data))

    def keeps(self, batch: Batch) -> Tensor:
        return truncation_weights(self.net(batch.x), batch.y, self.k)
