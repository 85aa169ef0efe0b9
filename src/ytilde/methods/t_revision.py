"""T-Revision: reweighting, then a slack dT learnt with the network. Xia et al., NeurIPS 2019.

Fidelity: the paper's three stages (section 3.2: estimate, reweight, revise T + dT). The weight
stays attached in the last one, for dT is reached through it alone: the second version of the
authors' loss detaches it, so that dT never moves, and the first adds dT once more for every
example of a batch. As there, the loss uses the bare sum T + dT; `transition` answers its absolute
values with rows summing to one. The authors' Adam with 5e-7 lets an entry move 0.04 at most in
their 200 epochs; `reach` sets that distance, so that a short run revises as much as a long one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import ce, mean
from ..method import register, view
from ..transition import revised, reweight
from ._shared import slack_rate, stage_epochs
from .reweight import Reweight


@register("t_revision")
@dataclass(eq=False, repr=False)
class TRevision(Reweight):
    """Reweight with a last stage that revises T."""

    revision: float = 0.4  # fraction of the epochs, the last ones, that learn dT too
    reach: float = 0.04  # how far an entry of dT can move in them

    ranges = "0 <= revision <= 1, reach >= 0"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.slack = nn.Parameter(torch.zeros_like(self.matrix))

    def fit(self, data: Data, trainer: Trainer) -> None:
        epochs = trainer.recipe.epochs
        spent = 0 if self.T is not None else self.estimate(data, trainer)
        last = stage_epochs(epochs, self.revision)
        rest = max(1, epochs - spent - last)
        trainer.train("reweight", self.loss, self.net.parameters(), data, epochs=rest)
        recipe = replace(trainer.recipe, optimizer="adam", schedule="constant")
        rate = slack_rate(self.reach, data, trainer, last)
        params = [*self.net.parameters(), self.slack]
        trainer.train("main", self.revise, params, data, epochs=last, lr=rate, recipe=recipe)

    def revise(self, batch: Batch, step: StepInfo) -> Tensor:
        """The weighted loss with T + dT and the weight attached."""
        x, y = view(batch, step)
        log_p = self.net.log_probs(x)
        T = revised(self.first_T(batch), self.slack, renormalise=False)
        return mean(reweight(log_p, T, y, self.clip) * ce(log_p, y), y)

    def first_T(self, batch: Batch) -> Tensor:
        """T before the revision, [K, K] or [B, K, K]."""
        return self.matrix

    def transition(self, batch: Batch) -> Tensor:
        return revised(self.first_T(batch), self.slack)
