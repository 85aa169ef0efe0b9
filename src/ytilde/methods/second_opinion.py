"""Second opinion: each network learns labels as its peer, weighing them, believes them to be.

Ours. Two networks train side by side; the weight average of each remembers, row by row, what it
thinks of the training set. A label is not dropped for disagreeing with that opinion: the two are
weighed as evidence. With m the peer's opinion of a row, y its given label and T[i, j] = P(given j |
true i), the target is q ~ m^a T[:, y]^b; for an opinion that does not know the label, a = b = 1 is
Bayes' rule. Every number in it is estimated from labels that one of the networks is never shown
(`hidden`, a tenth for each): T is counted on the rows of which its opinion is surest, a power of
its opinions (mixup makes them timid) by the likelihood of those labels, and a and b so that the
other network, which has learnt these labels, comes to the same verdict. The more a network has
learnt by heart, the smaller b. Both networks learn q on a weak and a strong view, mixed up. Labels
are taken at their word until the hidden ones are no longer predicted better and better.

Fidelity: no paper. Weight averages that teach the other network are ELR+'s (Liu et al., 2020),
mixing views and the balance term DivideMix's (Li et al., 2020), the strong view FixMatch's (Sohn et
al., 2020). benchmarks/second_opinion.py has the rungs that led here, docs/findings.md what they
brought.

Memory: two opinions a row, 2 N K numbers; `dtype` and `top_k` make them smaller, as in `elr`.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..augment import strong_view
from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import one_hot, soft_ce
from ..method import Method, Net, register
from ..mixing import symmetric_beta
from ._shared import Memory


@register("second_opinion")
@dataclass(eq=False, repr=False)
class SecondOpinion(Method):
    warm_up: float | str = "auto"  # share of training that believes labels; auto: see weigh
    ramp: float = 0.1  # share of training in which the opinions gain their full weight
    memory: float = 0.8  # of a row's past opinions, from epoch to epoch
    decay: float = 0.999  # of the weight averages that have the opinions and predict
    hidden: float = 0.1  # share of the labels that each network is not shown; 0: none
    alpha: float = 1.0  # mixup's Beta(alpha, alpha)
    balance: float = 1.0  # weight of predictions as frequent as the labels' classes
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"  # of the opinions
    top_k: int = 0  # remember only this many classes of an opinion; 0: all

    pixels = False
    ranges = (
        "0 <= warm_up <= 1, 0 <= ramp <= 1, 0 <= memory < 1, 0 <= decay < 1, 0 <= hidden < 0.5, "
        "alpha > 0, balance >= 0, top_k >= 0"
    )

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.peer_average = copy.deepcopy(self.peer).requires_grad_(False)
        n, k = spec.num_train, spec.num_classes
        self.opinions = Memory(n, k, self.top_k, self.dtype)  # of `average`, for the peer
        self.peer_opinions = Memory(n, k, self.top_k, self.dtype)
        self.T: Tensor
        self.powers: Tensor  # (a, b) of opinions and of T in the targets
        self.trust: Tensor  # of opinions: 0 takes labels at their word
        self.began: Tensor  # the epoch in which trust began to rise
        self.record: Tensor  # the best agreement of opinions and hidden labels, and its epoch
        self.frequency: Tensor  # of the labels' classes [K]
        self.shown: Tensor  # which labels each network learns from [2, N]
        self.steps: Tensor
        place = torch.rand(n, generator=spec.generator).argsort()
        cut = int(self.hidden * n)
        self.register_buffer("shown", torch.stack([place >= cut, place < n - cut]))
        self.register_buffer("frequency", torch.full((k,), 1 / k))
        self.register_buffer("T", 0.5 * torch.eye(k) + 0.5 / k)
        self.register_buffer("powers", torch.ones(2))
        self.register_buffer("trust", torch.zeros(()))
        self.register_buffer("began", torch.full((), torch.inf))
        self.register_buffer("record", torch.zeros(2))
        self.register_buffer("steps", torch.zeros(()))

    def param_groups(self) -> list[Any]:
        return [*self.net.parameters(), *self.peer.parameters()]

    def fit(self, data: Data, trainer: Trainer) -> None:
        y = data.y.to(trainer.device)
        count = torch.bincount(y[y != IGNORE], minlength=data.num_classes)
        self.frequency.copy_((count + 1) / (count + 1).sum())
        for record in trainer.epochs("main", self.loss, self.param_groups(), data):
            self.weigh(y, record["epoch"], record["epochs"])

    # ---- after every epoch ----------------------------------------------------------------------

    @torch.no_grad()
    def weigh(self, y: Tensor, epoch: int, epochs: int) -> None:
        """Estimate T and the powers of the target; decide how far opinions are trusted."""
        unaware, aware, y = self.witnesses(y)
        if not len(y):
            return
        self.T.copy_(count_T(unaware, y, self.frequency))
        power = likeliest_power(unaware, self.T, y)
        verdict = (power * safe_log(unaware) + safe_log(self.T).T[y]).softmax(1)
        own = torch.stack([power, torch.ones_like(power)])
        self.powers.copy_(fit_powers(aware, self.T, y, verdict) if self.hidden else own)
        agreement = (unaware.argmax(1) == y).float().mean()
        if agreement > 1.02 * self.record[0]:
            self.record.copy_(torch.stack([agreement, torch.full_like(agreement, epoch)]))
        if self.began.isinf() and self.warm_up_ends(epoch, epochs):
            self.began.fill_(epoch)
        span = max(1.0, self.ramp * epochs)
        self.trust.copy_(((epoch + 1 - self.began) / span).clamp(0, 1))

    def witnesses(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Opinions [n, K] of rows by the network that was not shown the label, by the other, y [n].

        Without hidden labels: all rows, and twice the mean of both networks.
        """
        first, second = self.opinions.all(), self.peer_opinions.all()
        shown = self.shown[0].unsqueeze(1)
        pair = (torch.where(shown, second, first), torch.where(shown, first, second))
        rows = (y != IGNORE) & (first.sum(1) > 0) & (second.sum(1) > 0)
        if self.hidden:
            rows &= ~self.shown.all(0)
        else:
            pair = ((first + second) / 2,) * 2
        return pair[0][rows], pair[1][rows], y[rows]

    def warm_up_ends(self, epoch: int, epochs: int) -> bool:
        """auto: for a twentieth of training the agreement has not risen by a fiftieth."""
        if self.warm_up != "auto":
            return epoch >= float(self.warm_up) * epochs
        return epoch - float(self.record[1]) >= 0.05 * epochs or 2 * epoch >= epochs

    # ---- the loss -------------------------------------------------------------------------------

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        self.move_averages()
        weak = step.augment(batch.x)
        strong = strong_view(self.spec.shape, self.net.std)(batch.x, generator=step.generator)
        with torch.no_grad():
            opinions = self.ask(self.average, self.opinions, weak, batch.index)
            peers = self.ask(self.peer_average, self.peer_opinions, weak, batch.index)
        views = torch.cat([weak, strong.to(weak.dtype)])
        shown = self.shown[:, batch.index].unsqueeze(-1).to(peers.dtype)
        first = self.one_loss(self.net, views, shown[0] * self.target(peers, batch.y), step)
        second = self.one_loss(self.peer, views, shown[1] * self.target(opinions, batch.y), step)
        return first + second

    def ask(self, average: Net, opinions: Memory, x: Tensor, index: Tensor) -> Tensor:
        """The running opinion [B, K] of these rows, moved towards what the average thinks now."""
        fresh = average(x).float().softmax(-1)
        old = opinions.read(index)
        part = torch.where(old.sum(1, keepdim=True) > 0, 1 - self.memory, 1.0)
        new = old.lerp(fresh, part)
        opinions.write(index, new)
        return new

    def target(self, opinion: Tensor, y: Tensor) -> Tensor:
        """(1 - trust) onehot(y) + trust q [B, K]; without a label, trust times the opinion."""
        a, b = self.powers
        label = b * safe_log(self.T).T[y.clamp_min(0)] * (y != IGNORE).unsqueeze(1)
        q = (a * safe_log(opinion) + label).softmax(-1)
        return (1 - self.trust) * one_hot(y, q) + self.trust * q

    def one_loss(self, net: Net, views: Tensor, target: Tensor, step: StepInfo) -> Tensor:
        """Cross-entropy of mixed views, and KL(classes' frequency || mean prediction)."""
        targets = torch.cat([target, target])
        share = symmetric_beta(self.alpha, step.generator)
        share = torch.maximum(share, 1 - share)
        order = torch.rand(len(views), generator=step.generator, device=views.device).argsort()
        logits = net(views.lerp(views[order], (1 - share).to(views.dtype)))
        targets = targets.lerp(targets[order], 1 - share)
        fit = soft_ce(logits, targets).sum() / targets.sum().clamp_min(1)
        predicted = logits.float().softmax(-1).mean(0).clamp_min(1e-8)
        kl = (self.frequency * (self.frequency / predicted).log()).sum()
        return fit + self.balance * kl

    @torch.no_grad()
    def move_averages(self) -> None:
        """The averages follow the weights that the last step left.

        They look back on a tenth of the steps at most: a mean of all early steps knows nothing.
        """
        self.steps += 1
        part = (10 / (self.steps + 9)).clamp(min=1 - self.decay)
        for average, net in ((self.average, self.net), (self.peer_average, self.peer)):
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, part)

    def predict_proba(self, x: Tensor) -> Tensor:
        return ((self.average.log_probs(x) + self.peer_average.log_probs(x)) / 2).softmax(-1)

    def transition(self, batch: Batch) -> Tensor | None:
        return self.T


def count_T(opinions: Tensor, y: Tensor, frequency: Tensor) -> Tensor:
    """T [K, K]: the given labels of the rows whose opinions [N, K] are surest, half of each class.

    Rows of a rare class lean on all classes' common rate: K counts are added to each, of a label
    that is right at that rate and otherwise drawn by the labels' frequency [K].
    """
    k = opinions.shape[1]
    sure, guess = opinions.max(1)
    order = sure.argsort(descending=True, stable=True)
    order = order[guess[order].argsort(stable=True)]
    size = guess.bincount(minlength=k)
    place = torch.arange(len(y), device=y.device) - (size.cumsum(0) - size)[guess[order]]
    chosen = order[2 * place < size[guess[order]]]  # at least one row of a class that is there
    cells = guess[chosen] * k + y[chosen]
    counts = torch.bincount(cells, minlength=k * k).view(k, k).float()
    rate = counts.trace() / counts.sum()
    common = rate * torch.eye(k, device=y.device) + (1 - rate) * frequency
    counts = counts + k * common
    return counts / counts.sum(1, keepdim=True)


def likeliest_power(opinions: Tensor, T: Tensor, y: Tensor) -> Tensor:
    """The power a of opinions [N, K] under which the given labels are likeliest: a grid search."""
    log_m, columns = safe_log(opinions), T.T[y]
    grid = torch.linspace(0.5, 2.5, 17, device=y.device)
    likelihood = [((a * log_m).softmax(1) * columns).sum(1).log().mean() for a in grid]
    return grid[torch.stack(likelihood).argmax()]


def fit_powers(opinions: Tensor, T: Tensor, y: Tensor, verdict: Tensor) -> Tensor:
    """(a, b) for which opinions^a T[:, y]^b [N, K] comes nearest to the verdict: a grid search."""
    log_m, columns = safe_log(opinions), safe_log(T).T[y]
    steps = torch.linspace(0, 1, 11, device=y.device)
    grid = torch.cartesian_prod(0.5 + 2 * steps, steps)
    loss = [soft_ce(a * log_m + b * columns, verdict).mean() for a, b in grid]
    return grid[torch.stack(loss).argmin()]


def safe_log(p: Tensor) -> Tensor:
    return p.float().clamp_min(1e-8).log()
