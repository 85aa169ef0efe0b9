"""BLTM: a network for T(x), learnt from distilled labels. Yang et al., ICML 2022, eq. 5.

Fidelity: the paper's stages: noisy posterior, distilled Bayes labels (its argmax), a network whose
row for that label fits the observed one (eq. 5), then forward correction with T(x) + dT.
Different: (1) the paper keeps examples whose posterior exceeds (1 + rho_max) / 2. A network's
confidence in its own training rows is highest where the label is right, which pulls T to the
identity; on digits with 40 % instance noise (2 seeds) all rows gave a squared row error of .09 to
.10, the surest 60 % gave .11 to .13. So `distil` is 1. (2) The T network is the warmed-up one with
frozen features and a linear head around the class-level T, with a Gaussian prior of sd `spread` on
its residual; a network trained in all its layers, as published, learns the labels by heart (.18 to
.19). The authors' code steps the optimiser once an epoch and selects by test accuracy; neither is
followed. (3) Row i is learnt where the distilled label is i, so T(x) has that one row of its own
and the class-level T in the others: rows that were never trained made a wrong class explain the
true label better for a fifth of the inputs and more. For the same reason no class may explain a
label better than that label's own class does on average. dT moves `reach` at most (see
`t_revision`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import mean
from ..method import Method, register, view
from ..transition import ResidualT, forward_nll, revised, safe_log
from ._shared import early_labels, slack_rate, stage_epochs


def bounded(T: Tensor, own: Tensor) -> Tensor:
    """T [B, K, K] with T[i, j] at most own[j], i not j; what is taken away goes to the diagonal."""
    eye = torch.eye(len(own), dtype=torch.bool, device=T.device)
    away = T.minimum(own).masked_fill(eye, 0.0)
    return away + torch.diag_embed(1 - away.sum(-1))


@register("bltm")
@dataclass(eq=False, repr=False)
class BLTM(Method):
    """Forward correction with a T for each instance, from a second network."""

    warm_up: float = 0.2  # fraction of the epochs for the noisy posterior
    t_epochs: float = 0.15  # fraction of the epochs for the T network
    distil: float = 1.0  # share of every predicted class, the surest ones, that T is learnt from
    spread: float = 1.5  # prior sd of the logits of T(x) around those of the class-level T
    reach: float = 0.004  # how far an entry of the slack dT can move

    ranges = "0 <= warm_up <= 1, 0 <= t_epochs <= 1, 0 < distil <= 1, spread > 0, reach >= 0"
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        k = spec.num_classes
        self.t_net = self.new_net()
        self.rows = ResidualT(spec.dim, k)
        self.slack = nn.Parameter(torch.zeros(k, k))
        self.early: Tensor
        self.bayes: Tensor
        self.register_buffer("early", torch.zeros(spec.num_train, k))
        self.register_buffer("bayes", torch.full((spec.num_train,), IGNORE))

    def train(self, mode: bool = True) -> "BLTM":
        super().train(mode)
        if hasattr(self, "t_net"):
            self.t_net.eval()  # frozen: its batch statistics stay as they are
        return self

    def fit(self, data: Data, trainer: Trainer) -> None:
        epochs = trainer.recipe.epochs
        first, second = stage_epochs(epochs, self.warm_up), stage_epochs(epochs, self.t_epochs)
        plain = super().loss
        self.bayes.copy_(early_labels(self, plain, data, trainer, first, self.distil))
        self.learn_T(data, trainer, second)
        rest = max(1, epochs - first - second)
        rate = slack_rate(self.reach, data, trainer, rest)
        slack = {"params": [self.slack], "lr": rate, "optimizer": "adam", "weight_decay": 0.0}
        trainer.train("main", self.loss, [*self.net.parameters(), slack], data, epochs=rest)

    def learn_T(self, data: Data, trainer: Trainer, epochs: int) -> None:
        self.t_net.load_state_dict(self.net.state_dict())
        self.rows.start(self.bayes, data.y.to(self.bayes.device))
        rows = (self.bayes != IGNORE).nonzero().flatten().cpu()
        head = {"params": list(self.rows.parameters()), "lr": 0.01, "optimizer": "adam"}
        params = [head | {"weight_decay": 0.0}]  # the prior is part of the loss
        trainer.train(
            "transition", self.t_loss, params, data, epochs=epochs, rows=rows, validate=False
        )

    def t_loss(self, batch: Batch, step: StepInfo) -> Tensor:
        """-log T(x)[bayes, y], and the prior of the residual."""
        x, y = view(batch, step)
        with torch.no_grad():
            h = self.t_net.features(x)
        sure = nn.functional.one_hot(self.bayes[batch.index].clamp_min(0), self.spec.num_classes)
        nll = forward_nll(safe_log(sure.float()), self.rows(h), y)
        return mean(nll, y) + self.rows.penalty(self.spread) / self.spec.num_train

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(forward_nll(self.net.log_probs(x), self.transition(batch), y), y)

    def transition(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            h = self.t_net.features(batch.x)
            T = bounded(self.rows(h, self.supposed(batch, h)), self.rows.stay.sigmoid())
        return revised(T, self.slack)

    def supposed(self, batch: Batch, h: Tensor) -> Tensor:
        """The classes [B] whose rows of T(x) were learnt: the distilled labels, else predicted."""
        known = self.bayes[batch.index.clamp_min(0)]
        guess = self.t_net.head(h).argmax(-1)
        return torch.where((batch.index >= 0) & (known != IGNORE), known, guess)
