"""MEIDTM: T(x) linear in p(x), alike for alike instances. Cheng et al., CVPR 2022, eq. 6-8.

Fidelity: the paper's manifold term over the pairs of a batch (see `manifold_penalty`) and forward
correction on the most confident `keep` of the rows, chosen anew up to five times. The authors' code
sorts the other way round and keeps the least confident; the paper wants the confident ones. T(x)
is the clamped, row-normalised linear map of their code, of p detached. Different, for T goes to
the identity once the network knows the labels by heart: T starts as the class-level one that the
early labels imply (theirs: 0.9 on the diagonal), and is learnt slowly for `t_epochs` only, then
fixed. The code warms up with the entropy maximised (`entropy` = 1), which on digits made those
labels worse; it reports the best test epoch, here nothing is selected.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import ce, mean, weighted_mean
from ..method import Method, register, view
from ..transition import PosteriorT, forward_nll, manifold_penalty
from ._shared import early_labels, stage_epochs


@register("meidtm")
@dataclass(eq=False, repr=False)
class MEIDTM(Method):
    """Forward correction with a T that depends on the instance through its posterior."""

    warm_up: float = 0.2  # fraction of the epochs before T is learnt
    t_epochs: float = 0.2  # fraction of the epochs that learn T and the classifier together
    entropy: float = 0.0  # weight of the posterior's entropy, maximised in the warm-up
    lam: float = 0.3  # weight of the manifold term
    sigma: float = 1.1  # width of the similarity of two posteriors
    keep: float = 0.8  # share of the rows, the most confident ones, that train
    t_lr: float = 0.001  # the rate for T, by SGD

    ranges = (
        "0 <= warm_up <= 1, 0 <= t_epochs <= 1, entropy >= 0, lam >= 0, sigma > 0, "
        "0 < keep <= 1, t_lr >= 0"
    )
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.rows = PosteriorT(spec.num_classes)
        self.early: Tensor
        self.chosen: Tensor
        self.register_buffer("early", torch.zeros(spec.num_train, spec.num_classes))
        self.register_buffer("chosen", torch.ones(spec.num_train))

    def fit(self, data: Data, trainer: Trainer) -> None:
        epochs = trainer.recipe.epochs
        first, second = stage_epochs(epochs, self.warm_up), stage_epochs(epochs, self.t_epochs)
        labels = early_labels(self, self.first_loss, data, trainer, first)
        self.rows.start(labels, data.y.to(labels.device))
        own = {"lr": self.t_lr, "optimizer": "sgd", "weight_decay": 0.0}
        net, T = list(self.net.parameters()), {"params": list(self.rows.parameters())} | own
        self.train_chosen("transition", [*net, T], data, trainer, second)
        self.train_chosen("main", net, data, trainer, max(1, epochs - first - second))

    def train_chosen(
        self, stage: str, params: list[Any], data: Data, trainer: Trainer, epochs: int
    ) -> None:
        """Train on the rows that are the most confident ones now, and again every so often."""
        again = stage_epochs(trainer.recipe.epochs, 0.2)
        self.choose(data, trainer)
        for record in trainer.epochs(stage, self.loss, params, data, epochs=epochs):
            if record["epoch"] % again == 0 and record["epoch"] < epochs:
                self.choose(data, trainer)

    def choose(self, data: Data, trainer: Trainer) -> None:
        sure = trainer.map(lambda batch: self.predict_proba(batch.x).float().amax(-1), data)
        kept = sure.argsort(descending=True)[: max(1, round(self.keep * len(sure)))]
        self.chosen.zero_().index_fill_(0, kept, 1.0)

    def first_loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        log_p = self.net.log_probs(x)
        return mean(ce(log_p, y) + self.entropy * (log_p.exp() * log_p).sum(-1), y)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        log_p = self.net.log_probs(x)
        p = log_p.detach().float().exp()
        T = self.rows(p)
        weight = self.chosen[batch.index] * (y >= 0)
        fit = weighted_mean(forward_nll(log_p, T, y), weight)
        return fit + self.lam * manifold_penalty(T, p, self.sigma)

    def transition(self, batch: Batch) -> Tensor:
        return self.rows(self.predict_proba(batch.x).detach())
