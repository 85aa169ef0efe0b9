"""ProMix: use as many clean labels as can be found, two networks at once. Xiao et al., IJCAI 2023.

Fidelity: "ProMix: Combating Label Noise via Maximizing Clean Sample Utility", written from its text
and its constants. After a warm-up on all labels a network keeps, epoch by epoch, the
ceil(quota N / K) smallest losses of each given class, and in a batch every label of which it is
surer than `threshold` (matched high confidence). Late in training come rows on which both networks
are that sure and agree: their label is the debiased guess, the surest come first, and they fill at
most `limit` of a batch. The running means of the predictions on chosen and on other rows, pi,
debias: delta log(pi) is added to the logits in every loss and subtracted where guesses are made.
Chosen rows: CE(weak) + w (CE(strong) + mixup + FMix), w rising from 0 to 1. The paper's auxiliary
pseudo head is read thus: the other rows, those without a label too, teach their guess on the strong
view with weight w to a second linear head, whose errors reach the backbone but neither the main
head nor any guess, selection or prediction. Networks choose for themselves; the mean of both
predicts.

The defaults are the paper's for CIFAR-10 as fractions of its 600 epochs, but for the warm-up, which
is CIFAR-100's (30 epochs; 10 on CIFAR-10, whose epochs are many steps); CIFAR-100 has
threshold = 0.95 and delta = 0.5. Selection reads networks in eval mode, so that batch norm sees one
batch of all four views. Mixing fills a batch with chosen rows, each as often as the others, so that
shapes are static. pi starts as a plain mean, that a short run may have one.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..augment import Augment, make_augment, strong_view
from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import ce, fmix, mixup, weighted_mean
from ..method import Method, register
from ..selection import small_loss_by_class
from ._shared import stage_epochs
from .dividemix import guesses


@register("promix")
@dataclass(eq=False, repr=False)
class ProMix(Method):
    warm_up: float = 0.05  # share of training on all labels
    quota: float = 0.5  # labels of small loss kept of each class, as a share of a class's mean size
    threshold: float = 0.99  # probability from which a label, or a guess of both, is believed
    late: float = 0.4167  # the last share of training, in which guesses of both are added
    limit: float = 0.9  # share of a batch that chosen rows may fill by added guesses
    delta: float = 0.8  # strength of the debiasing by the predictions' running mean
    decay: float = 0.9999  # of that mean, a step
    ramp: float = 0.0833  # share of training in which all but CE(weak) rises to full weight
    alpha: float = 4.0  # mixup's Beta(alpha, alpha)
    strong: str = "auto"  # the strong view: auto fits the input; or a recipe, as randaugment3+crop

    pixels = False
    ranges = (
        "0 <= warm_up <= 1, 0 <= quota <= 1, 0 <= threshold <= 1, 0 <= late <= 1, 0 <= limit <= 1, "
        "delta >= 0, 0 <= decay < 1, 0 <= ramp <= 1, alpha > 0"
    )

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        heads = (self.head(spec.dim, spec.num_classes) for _ in range(2))
        self.second = nn.ModuleList(heads)  # of net and of peer: they learn the guesses
        self.small: Tensor  # labels of small loss: row 0 by net, 1 by peer
        self.register_buffer("small", torch.zeros(2, spec.num_train, dtype=torch.bool))
        self.pi: Tensor  # mean prediction [network, (chosen, other), K]
        self.register_buffer("pi", torch.full((2, 2, spec.num_classes), 1 / spec.num_classes))
        self.steps: Tensor  # that pi has seen
        self.register_buffer("steps", torch.ones(2, 2))
        self.strong_augment()  # refused before training

    def strong_augment(self) -> Augment:
        shape = self.spec.shape
        if self.strong != "auto":
            return make_augment(self.strong, shape)
        if len(shape) == 3 and min(shape[1:]) >= 16:
            flip = "+flip" if shape[0] == 3 else ""
            return make_augment(f"randaugment3+randomcutout+crop{flip}", shape)
        return strong_view(shape, self.net.std)

    def fit(self, data: Data, trainer: Trainer) -> None:

        def rows() -> Tensor:
            self.select(data, trainer)
            return torch.arange(len(data))

        trainer.train("main", self.loss, self.param_groups(), data, rows=rows)

    # ---- what is chosen -----------------------------------------------------------------------

    def select(self, data: Data, trainer: Trainer) -> None:
        """Before every epoch: the smallest losses of each class, by each network."""

        def losses(batch: Batch) -> Tensor:
            return torch.stack([ce(net(batch.x), batch.y) for net in (self.net, self.peer)], 1)

        both = trainer.map(losses, data)
        y = data.y.to(both.device)
        for kept, own in zip(self.small, both.T, strict=True):
            kept.copy_(small_loss_by_class(own, y, data.num_classes, self.quota))

    @torch.no_grad()
    def choose(self, p: Tensor, batch: Batch, step: StepInfo) -> tuple[Tensor, Tensor]:
        """From both networks' p [2, B, K]: labels [2, B], and where they are chosen [2, B].

        Guesses are debiased, by the mean prediction on chosen rows where they are added to these
        and else by that on the others; how sure the networks are, and whether they agree, is not.
        """
        known, n = batch.y != IGNORE, len(batch.y)
        given = batch.y.clamp_min(0).expand(2, n)
        believed = p.gather(-1, given.unsqueeze(-1)).squeeze(-1) > self.threshold
        warming = step.epoch < stage_epochs(step.epochs, self.warm_up)
        kept = (warming | self.small[:, batch.index] | believed) & known
        sure, own = p.max(-1)
        agreed = (sure > self.threshold).all(0) & (own[0] == own[1])
        agreed = agreed & ~warming & (step.epoch >= (1 - self.late) * step.epochs)
        score = torch.where(agreed & ~kept, sure.amin(0), -1.0)
        place = score.argsort(dim=1, descending=True, stable=True).argsort(1)
        room = math.floor(self.limit * n + 1e-6) - kept.sum(1, keepdim=True)
        chosen = kept | (agreed & (place < room))
        log_p = p.clamp_min(1e-30).log()
        added, other = ((log_p - self.bias()[:, k, None]).argmax(-1) for k in (0, 1))
        return torch.where(kept, given, torch.where(chosen, added, other)), chosen

    def bias(self) -> Tensor:
        """What is added to the logits in a loss, [2, 2, K] as pi."""
        return self.delta * self.pi.clamp_min(1e-8).log()

    @torch.no_grad()
    def move_pi(self, p: Tensor, chosen: Tensor) -> None:
        """Towards the mean predictions of this batch's chosen and other rows, if it has any."""
        sides = torch.stack([chosen, ~chosen], 1)
        count = sides.sum(-1)
        total = torch.where(sides.unsqueeze(-1), p.unsqueeze(1), 0.0).sum(2)
        self.steps += count > 0
        part = (1 / self.steps).clamp(min=1 - self.decay) * (count > 0)
        self.pi.lerp_(total / count.clamp(min=1).unsqueeze(-1), part.unsqueeze(-1))

    # ---- what is learnt -----------------------------------------------------------------------

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        weak = step.augment(batch.x)
        strong = self.strong_augment()(batch.x, generator=step.generator)
        with torch.no_grad():
            p = torch.stack([guesses(self.net, weak), guesses(self.peer, weak)])
        labels, chosen = self.choose(p, batch, step)
        self.move_pi(p, chosen)
        first = self.one_loss(0, weak, strong, labels[0], chosen[0], step)
        return first + self.one_loss(1, weak, strong, labels[1], chosen[1], step)

    def one_loss(
        self, k: int, weak: Tensor, strong: Tensor, y: Tensor, chosen: Tensor, step: StepInfo
    ) -> Tensor:
        """Of network k on labels y [B], which are chosen or guessed."""
        net, bias = (self.net, self.peer)[k], self.bias()[k]
        x, labels = fill(weak, y, chosen, step.generator)
        mixed, *mixup_labels = mixup(x, labels, self.alpha, generator=step.generator)
        masked, *fmix_labels = fmix(x, labels, generator=step.generator)
        h = net.features(torch.cat([weak, strong, mixed, masked]))
        logits = (net.head(h) + bias[0]).chunk(4)
        kept = chosen.to(logits[0].dtype)
        of_weak, of_strong = (weighted_mean(ce(each, y), kept) for each in logits[:2])
        mixing = pair_ce(logits[2], *mixup_labels) + pair_ce(logits[3], *fmix_labels)
        others = weighted_mean(ce(self.second[k](h.chunk(4)[1]) + bias[1], y), 1 - kept)
        begun = step.epoch + 1 - stage_epochs(step.epochs, self.warm_up)
        w = (begun / max(1.0, self.ramp * step.epochs)).clamp(0, 1)
        return of_weak + w * (of_strong + kept.amax() * mixing + others)

    def predict_proba(self, x: Tensor) -> Tensor:
        return (self.net.log_probs(x).exp() + self.peer.log_probs(x).exp()) / 2


def fill(x: Tensor, y: Tensor, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of chosen rows alone, in random order, each as often as the others, give or take one.

    Where none is chosen it holds one row only, to be given no weight.
    """
    order = torch.rand(len(x), generator=generator, device=x.device)
    first = (order + ~chosen).argsort()
    rows = first[torch.arange(len(x), device=x.device) % chosen.sum().clamp(min=1)]
    return x[rows], y[rows]


def pair_ce(logits: Tensor, y: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """Cross-entropy of examples made of two, of which the first has the share lam."""
    return (lam * ce(logits, y) + (1 - lam) * ce(logits, other)).mean()
