"""Several annotators a row: one network, and a T for each annotator, shrunk to a common one.

A method of our own after Raykar et al., JMLR 2010, who learn a classifier and every annotator's
confusion matrix together. With the votes V_i of row i, pairs of an annotator a and a label j,

    L = 1/N sum_i (lam ELR_i - log sum_k p_k(x_i) prod_((a, j) in V_i) T_a[k, j])  +  R / N,
    T_a = softmax(W + s_a I + D_a),     R = sum_a s_a^2 / (2 skill^2) + |D_a|^2 / (2 spread^2).

W is what annotators have in common, s_a how much better than the others one is, D_a its own
confusions. R is the log of a Gaussian prior: who gave few votes keeps the common T, who gave many
has a T of their own. A row counts once, whether it has one vote or twenty. ELR_i is the regulariser
of Liu et al., 2020 (eq. 6): a network can learn a few votes by heart as it can a label, and with
lam = 0, maximum likelihood alone, it does.

Fidelity: the paper's likelihood (its eq. 20, for many classes) by gradient descent, as the network
is no logistic regression, instead of by EM; the hierarchical prior in the place of the paper's Beta
and Dirichlet priors on each annotator alone. T starts at Dawid and Skene's solution for the votes,
shrunk likewise. `groups` above 1 give W to each group of inputs, so that T_a(x) differs between
them. A row's consensus, `batch.y`, is not used: where there are votes, `transition` says nothing of
it. Without votes the labels are those of a single annotator.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..annotators import common_matrix, dawid_skene, expected_votes
from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..data.votes import Votes
from ..encoders.clusters import assign, kmeans
from ..encoders.features import Features
from ..engine import Trainer
from ..losses import elr, mean
from ..method import Method, register
from ..transition import safe_log
from ._shared import Memory

PRIOR = 10.0  # votes that the common T counts for in each row of an annotator's, at the start


@register("crowd")
@dataclass(eq=False, repr=False)
class Crowd(Method):
    """One network and a T for each annotator, by maximum likelihood of all votes."""

    skill: float = 1.0  # sd of an annotator's skill s_a, in logits
    spread: float = 1.0  # sd of an annotator's own confusions D_a, in logits
    lam: float = 1.0  # strength of the early-learning regulariser
    beta: float = 0.7  # its memory of past predictions
    groups: int = 1  # groups of inputs (k-means) that have a common T each
    t_lr: float = 0.01  # Adam's rate for T

    ranges = "skill > 0, spread > 0, lam >= 0, 0 <= beta < 1, groups >= 1, t_lr >= 0"
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        k, annotators = spec.num_classes, max(spec.num_annotators, 1)
        self.common = nn.Parameter(torch.zeros(self.groups, k, k))
        self.skills = nn.Parameter(torch.zeros(annotators))
        self.own = nn.Parameter(torch.zeros(annotators, k, k))
        self.memory = Memory(spec.num_train, k)
        if self.groups > 1:
            self.features = Features(spec, raw=not getattr(spec.backbone, "encoder", None))
            self.centres: Tensor
            self.register_buffer("centres", torch.zeros(self.groups, self.features.dim))

    def param_groups(self) -> list[Any]:
        own = {"lr": self.t_lr, "optimizer": "adam", "weight_decay": 0.0}
        return [*self.net.parameters(), {"params": [self.common, self.skills, self.own], **own}]

    def fit(self, data: Data, trainer: Trainer) -> None:
        self.start(data)
        if self.groups > 1:
            h = trainer.map(lambda batch: self.features(batch.x), data)
            self.centres.copy_(kmeans(h, self.groups, self.spec.generator))
        super().fit(data, trainer)

    @torch.no_grad()
    def start(self, data: Data) -> None:
        """T as Dawid and Skene find it, with skills of the annotators' own."""
        pairs = single_votes(data.y) if data.votes is None else data.votes
        names = [str(k) for k in range(data.num_classes)]
        votes = Votes.from_padded(pairs, data.annotators or ["the labels"], names)
        found = expected_votes(votes, dawid_skene(votes, shrink=PRIOR).probs)
        T = common_matrix(found)
        total = found.sum((1, 2))
        right = (found.trace(axis1=1, axis2=2) + PRIOR * T.diagonal().mean()) / (total + PRIOR)
        right, average = (torch.as_tensor(share) for share in (right, T.diagonal().mean()))
        self.common.copy_(safe_log(torch.as_tensor(T)))
        self.skills.copy_(right.logit(1e-4) - average.logit(1e-4))

    def log_T(self) -> Tensor:
        """log T_a of each group, [G, A, K, K]."""
        eye = torch.eye(self.spec.num_classes, device=self.skills.device)
        logits = self.common[:, None] + self.skills[:, None, None] * eye + self.own
        return logits.log_softmax(-1)

    def annotator_transition(self) -> Tensor:
        """T_a [A, K, K]; of several groups their mean."""
        return self.log_T().exp().mean(0)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        logits = self.net(step.augment(batch.x)).float()
        pairs = single_votes(batch.y) if batch.votes is None else batch.votes.long()
        joint = logits.log_softmax(-1) + self.votes_given_truth(batch.x, pairs)
        early = elr(logits, self.memory.update(batch.index, logits, self.beta))
        skill, spread = self.skills.square().sum(), self.own.square().sum()
        prior = skill / (2 * self.skill**2) + spread / (2 * self.spread**2)
        nll = self.lam * early - joint.logsumexp(-1)
        return mean(nll, batch.y) + prior / self.spec.num_train

    def votes_given_truth(self, x: Tensor, pairs: Tensor) -> Tensor:
        """log prod T_a[k, j] over the votes (a, j) of each row, [B, K]."""
        columns = self.log_T().transpose(-1, -2)  # [G, A, label, truth]
        annotator, label = pairs.clamp(min=0).unbind(-1)
        group = assign(self.features(x), self.centres) if self.groups > 1 else x.new_zeros(len(x))
        each = columns[group.long()[:, None], annotator, label]
        return (each * (pairs[..., :1] != IGNORE)).sum(1)

    def transition(self, batch: Batch) -> Tensor | None:
        if self.spec.num_annotators:
            return None  # the labels are a consensus, which no T_a is about
        T = self.log_T().exp()[:, 0]
        return T[0] if self.groups == 1 else T[assign(self.features(batch.x), self.centres)]


def single_votes(y: Tensor) -> Tensor:
    """Labels [N] as the votes of annotator 0, [N, 1, 2]."""
    return torch.stack([torch.where(y == IGNORE, IGNORE, 0), y], -1)[:, None]
