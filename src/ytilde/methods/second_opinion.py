"""Second opinion (draft)."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..augment import Augment, strong_view
from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import soft_ce, symmetric_beta
from ..method import Method, Net, register
from .elr import one_label_a_row


@register("second_opinion")
@dataclass(eq=False, repr=False)
class SecondOpinion(Method):
    warm_up: float = 0.15  # share of training before any label is doubted
    ramp: float = 0.1
    memory: float = 0.8  # of a row's past opinions, from epoch to epoch
    temperature: float = 0.5  # of the sharpening of opinions
    alpha: float = 1.0  # mixup's Beta(alpha, alpha)
    decay: float = 0.999  # of the weight averages that give the opinions and predict
    balance: float = 1.0
    jitter: float = 0.6
    rule: str = "bayes"  # bayes, ratio
    exponent: float = 3.0
    strict: bool = True
    unlabelled: float = 1.0
    closing: float = 1.0  # from here on both networks learn all labels, as corrected so far

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.peer_average = copy.deepcopy(self.peer).requires_grad_(False)
        k = spec.num_classes
        for name, value in {
            "steps": torch.zeros(()),
            "opinion": torch.zeros(1 if self.strict else 2, spec.num_train, k),
            "mass": torch.zeros(spec.num_train),
            "T": torch.eye(k) * 0.5 + 0.5 / k,
            "sharp": torch.ones(()),
            "trust": torch.zeros(()),
            "close": torch.zeros(()),
            "prior": torch.full((k,), 1 / k),
            "agree": torch.zeros(2),
        }.items():
            self.register_buffer(name, value)
        self.strong = strong_view(spec.shape)
        half = torch.rand(spec.num_train, generator=spec.generator).argsort() % 2
        self.register_buffer("side", half)

    def param_groups(self) -> list[Any]:
        return [*self.net.parameters(), *self.peer.parameters()]

    def fit(self, data: Data, trainer: Trainer) -> None:
        one_label_a_row(data, self.name)
        half = self.side.cpu()
        every = torch.arange(len(data))
        epochs = trainer.recipe.epochs
        y = data.y.to(trainer.device)
        count = torch.bincount(y[y != IGNORE], minlength=data.num_classes).float()
        self.prior.copy_((count + 1) / (count + 1).sum())
        self.given = y
        state = {"epoch": 0}

        def rows() -> dict[str, Tensor]:
            e = state["epoch"]
            if e == 0:
                self.agree.zero_()
            if not self.close:
                self.estimate(y)
            self.trust.fill_(min(1.0, max(0.0, (e / epochs - self.warm_up) / max(self.ramp, 1e-9))))
            self.agree.zero_()
            self.close.fill_(float(e >= self.closing * epochs))
            state["epoch"] += 1
            return {"a": every[half == 0], "b": every[half == 1]}

        trainer.train("main", self.both_loss, self.param_groups(), data, rows=rows)

    @torch.no_grad()
    def estimate(self, y: Tensor) -> None:
        """T by the given labels of the rows that the opinions are surest of; then how sharp they are."""
        m = self.opinion.mean(0)
        known = (y != IGNORE) & (self.mass > 0)
        if not known.any():
            return
        m, y = m[known], y[known]
        k = m.shape[1]
        sure, guess = m.max(1)
        order = sure.argsort(descending=True)
        order = order[guess[order].argsort(stable=True)]
        size = guess.bincount(minlength=k)
        start = size.cumsum(0) - size
        place = torch.empty_like(sure)
        place[order] = (torch.arange(len(order), device=y.device) - start[guess[order]]).float() / size[guess[order]]
        top = place < 0.5
        counts = torch.zeros(k * k, device=y.device).scatter_add_(0, guess[top] * k + y[top], torch.ones(int(top.sum()), device=y.device)).view(k, k)
        prior = self.prior[None] * 0.5 + torch.eye(k, device=y.device) * 0.5
        T = counts + 4 * prior
        self.T.copy_(T / T.sum(1, keepdim=True))
        best = None
        log_m = m.clamp_min(1e-8).log()
        like = self.T.T[y]  # [n, K]
        for s in torch.linspace(0.5, 2.5, 17):
            p = (s * log_m).softmax(-1)
            value = float((p * like).sum(1).clamp_min(1e-12).log().mean())
            if best is None or value > best[0]:
                best = (value, float(s))
        self.sharp.fill_(best[1])
        self.stats = {"agree": float((guess == y).float().mean()), "now": float(self.agree[0] / self.agree[1].clamp_min(1)), "Tdiag": float(self.T.diagonal().mean()), "sharp": best[1]}

    def view(self, x: Tensor, step: StepInfo) -> Tensor:
        if max(x.shape[1:]) < 16 or x.dim() == 2:
            noise = torch.randn(x.shape, generator=step.generator, device=x.device)
            return x + self.jitter * self.net.std * noise
        return self.strong(x, generator=step.generator).contiguous(memory_format=torch.channels_last if x.is_cuda else torch.contiguous_format)

    def both_loss(self, batches: Mapping[str, Batch], step: StepInfo) -> Tensor:
        a, b = batches["a"], batches["b"]
        self.move_averages()
        n = len(a.x)
        x, y, index = (torch.cat([getattr(a, f), getattr(b, f)]) for f in ("x", "y", "index"))
        weak, strong = step.augment(x), self.view(x, step)
        with torch.no_grad():
            if self.strict:
                fresh = torch.cat([probs(self.peer_average(weak[:n])), probs(self.average(weak[n:]))])
                self.remember(0, index, fresh, y)
                own = other = self.read(0, index)
            else:
                self.remember(0, index, probs(self.average(weak)), y)
                self.remember(1, index, probs(self.peer_average(weak)), y)
                own, other = self.read(0, index), self.read(1, index)
            if self.strict:
                q = self.judged(own, y)
                u = self.unjudged(own)
                in_a = torch.arange(len(x), device=x.device) < n
                known = (y != IGNORE).float()
                uw = self.unlabelled * self.trust
                lw = torch.maximum(known, uw)
                sees1, sees2 = in_a | (self.close > 0), ~in_a | (self.close > 0)
                first, w1 = torch.where(sees1[:, None], q, u), torch.where(sees1, lw, uw)
                second, w2 = torch.where(sees2[:, None], q, u), torch.where(sees2, lw, uw)
            else:
                first, second = self.judged(other, y), self.judged(own, y)
                w1 = w2 = torch.maximum((y != IGNORE).float(), self.trust)
        return self.one_loss(self.net, weak, strong, first, w1, step) + self.one_loss(
            self.peer, weak, strong, second, w2, step
        )

    def judged(self, m: Tensor, y: Tensor) -> Tensor:
        """The target of a label that is seen [B, K]."""
        given = (y[:, None] == torch.arange(m.shape[1], device=m.device)).float()
        known = (y != IGNORE)[:, None]
        if self.rule == "bayes":
            like = torch.where(known, self.T.T[y.clamp_min(0)], 1.0)
            q = (self.sharp * m.clamp_min(1e-8).log() + like.clamp_min(1e-8).log()).softmax(-1)
        else:
            w = (m * given).sum(-1, keepdim=True) / m.amax(-1, keepdim=True).clamp_min(1e-8)
            w = w**self.exponent
            q = w * given + (1 - w) * self.unjudged(m)
        return torch.where(known, (1 - self.trust) * given + self.trust * q, q)

    def unjudged(self, m: Tensor) -> Tensor:
        return (m.clamp_min(1e-8).log() / self.temperature).softmax(-1)

    def remember(self, k: int, index: Tensor, fresh: Tensor, y: Tensor) -> None:
        self.agree += torch.stack([(fresh.argmax(-1) == y).float().sum(), (y != IGNORE).float().sum()])
        part = (1 - self.memory) * (1 - self.close)
        self.opinion[k, index] = self.opinion[k, index].lerp(fresh, part)
        if k == 0:
            self.mass[index] = self.mass[index].lerp(torch.ones_like(self.mass[index]), part)

    def read(self, k: int, index: Tensor) -> Tensor:
        return self.opinion[k, index] / self.mass[index, None].clamp_min(1e-8)

    def one_loss(
        self, net: Net, weak: Tensor, strong: Tensor, q: Tensor, w: Tensor, step: StepInfo
    ) -> Tensor:
        x = torch.cat([weak, strong])
        targets = torch.cat([q, q]) * torch.cat([w, w])[:, None]
        lam = symmetric_beta(self.alpha, step.generator)
        lam = torch.maximum(lam, 1 - lam)
        order = torch.rand(len(x), generator=step.generator, device=x.device).argsort()
        logits = net(lam.to(x.dtype) * x + (1 - lam).to(x.dtype) * x[order])
        targets = lam * targets + (1 - lam) * targets[order]
        fit = soft_ce(logits, targets).sum() / targets.sum().clamp_min(1.0)
        frequency = probs(logits).mean(0).clamp_min(1e-8)
        kl = (self.prior * (self.prior.log() - frequency.log())).sum()
        return fit + self.balance * kl

    @torch.no_grad()
    def move_averages(self) -> None:
        self.steps += 1
        part = (10 / (self.steps + 9)).clamp(min=1 - self.decay)  # of a tenth of the steps so far
        for average, net in ((self.average, self.net), (self.peer_average, self.peer)):
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, part)

    @torch.no_grad()
    def corrected(self) -> Tensor:
        """The likeliest label of every training row [N], by the opinions and the given labels."""
        m = self.opinion.mean(0) / self.mass[:, None].clamp_min(1e-8)
        return self.judged(m, self.given).argmax(-1)

    def predict_proba(self, x: Tensor) -> Tensor:
        return (self.average.log_probs(x) + self.peer_average.log_probs(x)).div(2).softmax(-1)

    def transition(self, batch: Batch) -> Tensor | None:
        return self.T


def probs(logits: Tensor) -> Tensor:
    return logits.float().softmax(-1)
