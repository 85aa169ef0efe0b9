"""CausalNL: a causal VAE that learns the labels from P(X) too. Yao et al., NeurIPS 2021, eq. 6.

Two branches, each a classifier q(Y|X) with its causal model (see `generative`), are trained on
their weighted negative bounds, and a rule teaches the two classifiers beside it: co-teaching in
the paper, or another one ("a general framework", section 3.1). The prediction is branch 1's.

Fidelity: appendix B's objective and weights, with means over the batch; its KL of Z is printed with
the wrong sign and without its 1/2, algorithm 1's indices of what is updated are mixed up. The
paper's Y is deterministic or one-hot; the authors' code draws it by soft Gumbel, which is the
default here. As there, the noisy label's loss reaches all networks through the reconstruction.
variant="official" is what that code does instead: (1) squared error, not L1; (2) uniform noise in
[0, 1) for Z; (3) the prior of Y on the drawn label, which sums to 1, so that the term is a constant
without gradient; (4) KL of Z summed over the batch and without its 1/2, which is 256 times the
weight for 128 rows; (5) the co-teaching loss divided by the number kept once more. Not followed:
its odd 31-pixel decoder for 28x28 images (see `generative`), its classifiers' inputs, [0, 1] pixels
as they are (here every classifier standardises them; the causal models do see [0, 1]), and its draw
of Y in evaluation, which no prediction reads. Rows labelled -1 take part in all terms that need no
label.

Rules: gce, elr with their files' defaults; decoupling; ce; t_revision: forward correction with
T + dT (T from anchor points of classifier 1, trained plainly and afresh for the warm-up).
exact=True drops the approximation q(Y|Y~,X) = q(Y|X) (footnote 2): the classifiers become q(Y~|X),
a network more a branch gives q(Y|Y~,X), and q(Y|X) is their marginal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..data.precision import as_weights
from ..engine import Trainer
from ..generative import CausalModel, elbo_terms, exact_posterior, expected_terms
from ..heads import Softmax
from ..losses import ce, elr, gce, mean, weighted_mean
from ..method import Method, Net, register
from ..selection import co_teaching, disagreement, keep_schedule
from ..transition import anchor, forward_nll, revised
from ._shared import Memory, auto_rate, slack_rate, stage_epochs
from .elr import ELR
from .gce import GCE
from .t_revision import TRevision

RuleName = Literal["co_teaching", "decoupling", "t_revision", "ce", "gce", "elr"]
Sampling = Literal["gumbel", "st", "softmax", "sum"]


@register("causal_nl")
@dataclass(eq=False, repr=False)
class CausalNL(Method):
    rule: RuleName = "co_teaching"  # what teaches q(Y|X)
    rate: float | str = "auto"  # share of wrong labels, for co-teaching; auto: from the noisy data
    warm_up: float = 0.05  # share of training until the rule is in full force
    variant: Literal["paper", "official"] = "paper"  # official: the authors' code with its quirks
    b0: float = 0.1  # weight of the reconstruction
    b1: float = 0.1  # weight of the noisy label
    b2: float = 1e-5  # weight of the negative entropy of q(Y|X)
    b3: float = 0.01  # weight of the KL divergence of Z
    z_dim: int = 25  # dimensions of Z
    sampling: Sampling = "gumbel"  # of Y: gumbel is soft, st one-hot; sum: all K, no draw
    tau: float = 1.0  # temperature of the drawn Y
    hold: float = 0.0  # share of training in which the causal models do not move the classifiers
    detach_recon_for_t: bool = False  # keep the noisy label's gradient from the reconstruction
    exact: bool = False  # q(Y|Y~,X) instead of its approximation by q(Y|X)

    ranges = (
        "0 <= rate < 1, 0 <= warm_up <= 1, b0 >= 0, b1 >= 0, b2 >= 0, b3 >= 0, z_dim >= 1, "
        "tau > 0, 0 <= hold <= 1"
    )
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.model, self.peer_model = self.new_model(), self.new_model()
        self.table, self.peer_table = self.new_table(), self.new_table()
        k = spec.num_classes
        self.noise_rate: Tensor
        self.matrix: Tensor
        if self.rule == "co_teaching":
            self.register_buffer("noise_rate", torch.zeros(()))
        elif self.rule == "elr":
            self.memory = Memory(spec.num_train, k)
            self.peer_memory = Memory(spec.num_train, k)
        elif self.rule == "t_revision":
            self.register_buffer("matrix", torch.eye(k))
            self.slack = nn.Parameter(torch.zeros(k, k))

    def new_model(self) -> CausalModel:
        """q(Z|X,Y), p(X|Y,Z) and p(Y~|X,Y) of a branch."""
        return CausalModel(
            self.spec.shape,
            self.spec.num_classes,
            self.z_dim,
            sampling=self.sampling,
            tau=self.tau,
            noise="uniform" if self.variant == "official" else "normal",
            detach=self.detach_recon_for_t,
        )

    def new_table(self) -> Net | None:
        """x -> the K x K logits of q(Y|Y~,X)."""
        head = Softmax(self.spec.dim, self.spec.num_classes**2)
        return Net(self.spec, head) if self.exact else None

    def param_groups(self) -> list[Any]:
        return [p for name, p in self.named_parameters() if name != "slack"]

    # ---- training -------------------------------------------------------------------------------

    def fit(self, data: Data, trainer: Trainer) -> None:
        params, epochs = self.param_groups(), trainer.recipe.epochs
        if self.rule == "co_teaching":
            self.noise_rate.fill_(auto_rate(self.rate, self.net, data, trainer))
        elif self.rule == "t_revision":
            epochs = max(1, epochs - self.estimate(data, trainer))
            rate = slack_rate(TRevision.reach, data, trainer, epochs)
            own = {"params": [self.slack], "lr": rate, "optimizer": "adam", "weight_decay": 0.0}
            params.append(own)
        trainer.train("main", self.loss, params, data, epochs=epochs)

    def estimate(self, data: Data, trainer: Trainer) -> int:
        """Put T of anchor points into `matrix`; returns the epochs spent."""
        start = {name: value.clone() for name, value in self.net.state_dict().items()}
        plain, params = partial(Method.loss, self), self.net.parameters()
        epochs = stage_epochs(trainer.recipe.epochs, self.warm_up)
        # No validation: its noisy posterior would be that of the causal model, still untrained.
        trainer.train("warm_up", plain, params, data, epochs=epochs, validate=False)
        probs = trainer.map(lambda batch: self.net.log_probs(batch.x).float().exp(), data)
        self.matrix.copy_(anchor(probs))
        self.net.load_state_dict(start)
        return epochs

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = step.augment(batch.x), batch.y
        bound, logits = self.branch(x, y, step, self.net, self.model, self.table)
        peer_bound, peer = self.branch(x, y, step, self.peer, self.peer_model, self.peer_table)
        return bound + peer_bound + RULES[self.rule](self, logits, peer, batch, step)

    def branch(
        self, x: Tensor, y: Tensor, step: StepInfo, net: Net, model: CausalModel, table: Net | None
    ) -> tuple[Tensor, Tensor]:
        """One branch's weighted negative bound, a scalar, and its logits of q(Y|x) [B, K]."""
        logits, scaled = net(x), self.scaled(x)
        if table is None:
            return self.bound(model, scaled, y, logits, step), logits
        posterior = exact_posterior(table(x), logits)
        bound = self.bound(model, scaled, y, posterior.given(y), step)
        return bound + mean(ce(logits, y), y), posterior.log_clean

    def bound(
        self, model: CausalModel, x: Tensor, y: Tensor, logits: Tensor, step: StepInfo
    ) -> Tensor:
        """b0 reconstruction + b1 noisy NLL + b2 negative entropy + b3 KL, means over the batch."""
        if self.hold:
            # Hard labels: mixtures of both would teach the decoder one manifold for all classes.
            sure = 1e3 * (logits == logits.amax(-1, keepdim=True)).to(logits.dtype)
            logits = torch.where(step.progress < self.hold, sure, logits)
        official = self.variant == "official"
        distance = "mse" if official else "l1"
        if self.sampling == "sum":
            terms = expected_terms(model, x, y, logits, step.generator, distance)
        else:
            terms = elbo_terms(model(x, logits, step.generator), x, y, logits, distance)
        prior, kl = terms.negative_entropy.mean(), terms.kl.mean()
        if official:
            # Cross-entropy of a label that sums to 1 with the uniform distribution: always log K.
            prior = -math.log(logits.shape[-1]) * logits.softmax(-1).sum(-1).mean()
            kl = 2 * terms.kl.sum()
        labelled = self.b0 * terms.reconstruction.mean() + self.b1 * mean(terms.noisy_nll, y)
        return labelled + self.b2 * prior + self.b3 * kl

    # ---- answers --------------------------------------------------------------------------------

    def predict_proba(self, x: Tensor) -> Tensor:
        return self.clean_logits(x).softmax(-1)

    def clean_logits(self, x: Tensor) -> Tensor:
        """Branch 1's logits of q(Y|x), [B, K]."""
        logits = self.net(x)
        return logits if self.table is None else exact_posterior(self.table(x), logits).log_clean

    def transition(self, batch: Batch) -> Tensor:
        """T(x) [B, K, K] of branch 1, all K labels decoded; x may be unseen."""
        return self.model.transition(self.scaled(batch.x))

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """x as branch 1 sees it, without chance."""
        return self.unscaled(self.model.reconstruct(self.scaled(x), self.clean_logits(x)))

    @torch.no_grad()
    def generate(self, y: int, n: int, seed: int = 0) -> Tensor:
        """n inputs of class y, drawn from branch 1's p(X|y,Z), [n, *shape]."""
        generator = torch.Generator(self.net.mean.device).manual_seed(seed)
        return self.unscaled(self.model.generate(y, n, generator))

    def scaled(self, x: Tensor) -> Tensor:
        """What the causal model sees: features standardised, images as they are, in [0, 1]."""
        return x if x.dim() > 2 else as_weights((x - self.net.mean) / self.net.std, self.net)

    def unscaled(self, x: Tensor) -> Tensor:
        return x if x.dim() > 2 else x * self.net.std + self.net.mean


# ---- the rules: both classifiers' logits [B, K] -> a scalar --------------------------------------

Rule = Callable[[CausalNL, Tensor, Tensor, Batch, StepInfo], Tensor]


def _co_teaching(m: CausalNL, logits: Tensor, peer: Tensor, batch: Batch, step: StepInfo) -> Tensor:
    nll, peer_nll = ce(logits, batch.y), ce(peer, batch.y)
    keep = keep_schedule(step.epoch, step.epochs, m.noise_rate, m.warm_up)
    weights, peer_weights = co_teaching(nll, peer_nll, keep, batch.y)
    total = weighted_mean(nll, weights) + weighted_mean(peer_nll, peer_weights)
    return total / weights.sum().clamp_min(1) if m.variant == "official" else total


def _decoupling(m: CausalNL, logits: Tensor, peer: Tensor, batch: Batch, step: StepInfo) -> Tensor:
    differ = disagreement(logits, peer)
    weights = torch.where(step.progress < m.warm_up, torch.ones_like(differ), differ)
    weights = weights * (batch.y != IGNORE)
    return weighted_mean(ce(logits, batch.y), weights) + weighted_mean(ce(peer, batch.y), weights)


def _t_revision(m: CausalNL, logits: Tensor, peer: Tensor, batch: Batch, step: StepInfo) -> Tensor:
    T, y = revised(m.matrix, m.slack), batch.y
    nll, peer_nll = (forward_nll(q.log_softmax(-1), T, y) for q in (logits, peer))
    return mean(nll, y) + mean(peer_nll, y)


def _ce(m: CausalNL, logits: Tensor, peer: Tensor, batch: Batch, step: StepInfo) -> Tensor:
    return mean(ce(logits, batch.y), batch.y) + mean(ce(peer, batch.y), batch.y)


def _gce(m: CausalNL, logits: Tensor, peer: Tensor, batch: Batch, step: StepInfo) -> Tensor:
    y, q = batch.y, float(GCE.q)
    return mean(gce(logits, y, q), y) + mean(gce(peer, y, q), y)


def _elr(m: CausalNL, logits: Tensor, peer: Tensor, batch: Batch, step: StepInfo) -> Tensor:
    total = _ce(m, logits, peer, batch, step)
    for q, memory in ((logits, m.memory), (peer, m.peer_memory)):
        targets = memory.update(batch.index, q, ELR.beta)
        total = total + ELR.lam * mean(elr(q, targets), batch.y)
    return total


RULES: dict[str, Rule] = {
    "co_teaching": _co_teaching,
    "decoupling": _decoupling,
    "t_revision": _t_revision,
    "ce": _ce,
    "gce": _gce,
    "elr": _elr,
}
