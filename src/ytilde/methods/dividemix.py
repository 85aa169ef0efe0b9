"""DivideMix: keep the labels of small losses, guess the others by two networks. Li et al., 2020.

Fidelity: ICLR 2020, algorithm 1. After a warm-up on all labels, each epoch fits two Gaussians to
the losses of all rows in eval mode; the division of one network serves the other (co-divide).
Labels are refined by the network's own two-view mean (eq. 3), guessed by both networks',
sharpened (eq. 4), and MixMatch with lam = max(lam, 1 - lam) trains (eq. 5-12). The
squared error is a mean over classes too, as in the authors' code, to which the values of lam_u
belong: 0, 25, 50 or 150 by the amount of noise. penalty is for the warm-up with asymmetric noise,
whose confident networks' losses do not part. Times are fractions of training: 30 warm-up epochs of
300 (CIFAR-100; 10 on CIFAR-10) and 16 of ramp. Guesses are made in eval mode, so that batch norm
does not see unmixed batches (in the authors' code the network that learns is in training mode). Not
here: averaging the losses of five epochs (90 % noise). The warm-up's learning rate is constant. The
geometric mean of both networks predicts: the class is that of the paper's sum of logits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..augment import two_views
from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import ce, mean, soft_ce, symmetric_beta
from ..method import Method, Net, register
from ..mixing import random_order
from ..selection import two_component_mixture
from ._shared import guesses, probs, ramp_up, stage_epochs


@register("dividemix")
@dataclass(eq=False, repr=False)
class DivideMix(Method):
    warm_up: float = 0.1  # share of training on all labels, before the first division
    threshold: float = 0.5  # a label is kept where it is right with more than this probability
    temperature: float = 0.5  # of the sharpening of refined and guessed labels
    alpha: float = 4.0  # mixup's Beta(alpha, alpha)
    lam_u: float = 25.0  # weight of the guessed labels; more for more noise
    ramp: float = 0.05  # share of training in which lam_u rises to its full strength
    penalty: float = 0.0  # weight of the warm-up's negative entropy; 1 for asymmetric noise

    ranges = (
        "0 <= warm_up <= 1, 0 <= threshold <= 1, temperature > 0, alpha > 0, lam_u >= 0, "
        "0 <= ramp <= 1, penalty >= 0"
    )
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.right: Tensor  # P(label is right), by the other network: row 0 for net, 1 for peer
        self.register_buffer("right", torch.ones(2, spec.num_train))

    def fit(self, data: Data, trainer: Trainer) -> None:
        epochs = trainer.recipe.epochs
        first = stage_epochs(epochs, self.warm_up)
        constant = replace(trainer.recipe, schedule="constant")
        params = self.param_groups()
        trainer.train("warm_up", self.warm_loss, params, data, epochs=first, recipe=constant)

        def rows() -> dict[str, Tensor]:
            self.right[0] = self.divide(self.peer, data, trainer)
            self.right[1] = self.divide(self.net, data, trainer)
            return self.streams(data, trainer)

        rest = max(1, epochs - first)
        trainer.train("main", self.semi_loss, params, data, epochs=rest, rows=rows)

    # ---- before every epoch -------------------------------------------------------------------

    def divide(self, net: Net, data: Data, trainer: Trainer) -> Tensor:
        """P(the label is right) [N] by this network's losses; 0 for rows without a label."""
        losses = trainer.map(lambda batch: ce(net(batch.x), batch.y), data)
        known = data.y.to(losses.device) != IGNORE
        return two_component_mixture(torch.where(known, losses, torch.nan))

    def streams(self, data: Data, trainer: Trainer) -> dict[str, Tensor]:
        """Labelled and unlabelled rows for each network, all of one length in whole batches.

        A side that would be empty is all rows. An epoch goes once through the larger labelled set.
        """
        generator = trainer.recipe.generator("order", f"streams/{len(trainer.history)}")
        every = torch.arange(len(data))
        sides = {}
        for name, right in zip(("net", "peer"), self.right.cpu(), strict=True):
            kept = right > self.threshold
            labelled = every[kept] if kept.any() else every[data.y.cpu() != IGNORE]
            sides[f"{name}_labelled"] = labelled
            sides[f"{name}_unlabelled"] = every if kept.all() else every[~kept]
        size = min(trainer.recipe.batch_size, len(data))
        longest = max(len(sides["net_labelled"]), len(sides["peer_labelled"]))
        length = size * -(-longest // size)
        return {name: fill(rows, length, generator) for name, rows in sides.items()}

    # ---- losses -------------------------------------------------------------------------------

    def warm_loss(self, batch: Batch, step: StepInfo) -> Tensor:
        """Cross-entropy of both networks, with the confidence penalty sum p log p."""
        x = step.augment(batch.x)
        return self.plain(self.net, x, batch.y) + self.plain(self.peer, x, batch.y)

    def plain(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        return self.penalised(net(x), y)

    def penalised(self, logits: Tensor, y: Tensor) -> Tensor:
        return mean(ce(logits, y), y) - self.penalty * soft_ce(logits, probs(logits)).mean()

    def semi_loss(self, batches: Mapping[str, Batch], step: StepInfo) -> Tensor:
        sides = ((self.net, self.peer, "net"), (self.peer, self.net, "peer"))
        losses = []
        for (net, other, name), right in zip(sides, self.right, strict=True):
            labelled, unlabelled = batches[f"{name}_labelled"], batches[f"{name}_unlabelled"]
            x, targets = self.mixmatch(net, other, labelled, unlabelled, right, step)
            losses.append(self.one_loss(net, x, targets, step))
        return losses[0] + losses[1]

    @torch.no_grad()
    def mixmatch(
        self,
        net: Net,
        other: Net,
        labelled: Batch,
        unlabelled: Batch,
        right: Tensor,
        step: StepInfo,
    ) -> tuple[Tensor, Tensor]:
        """Mixed inputs [4 B, ...] and targets [4 B, K]: two labelled views, two unlabelled ones."""
        x = self.views(labelled, unlabelled, step.augment)
        return self.mixed(x, self.targets(net, other, x, labelled, right, step), step)

    def views(self, labelled: Batch, unlabelled: Batch, augment: Callable[..., Tensor]) -> Tensor:
        return torch.cat([*two_views(augment, labelled.x), *two_views(augment, unlabelled.x)])

    def targets(
        self, net: Net, other: Net, x: Tensor, labelled: Batch, right: Tensor, step: StepInfo
    ) -> Tensor:
        """Of the views x [4 B, ...]: refined labels twice, guessed ones twice, [4 B, K]."""
        own = guesses(net, x).chunk(4)
        theirs = guesses(other, x[2 * len(labelled.x) :]).chunk(2)
        w = right[labelled.index].unsqueeze(1)
        given = labelled.y.unsqueeze(1) == torch.arange(own[0].shape[1], device=x.device)
        refined = self.sharpened(w * given + (1 - w) * (own[0] + own[1]) / 2)
        guessed = self.guessed((own[2] + own[3] + theirs[0] + theirs[1]) / 4, step)
        return torch.cat([refined, refined, guessed, guessed])

    def guessed(self, p: Tensor, step: StepInfo) -> Tensor:
        """The target [B, K] where both networks predict p."""
        return self.sharpened(p)

    def mixed(self, x: Tensor, targets: Tensor, step: StepInfo) -> tuple[Tensor, Tensor]:
        lam = symmetric_beta(self.alpha, step.generator)
        lam = torch.maximum(lam, 1 - lam)  # each mixed example stays nearer to its first part
        order = random_order(len(x), step.generator)
        return lam * x + (1 - lam) * x[order], lam * targets + (1 - lam) * targets[order]

    def sharpened(self, p: Tensor) -> Tensor:
        return (p.clamp_min(1e-12).log() / self.temperature).softmax(-1)

    def one_loss(self, net: Net, x: Tensor, targets: Tensor, step: StepInfo) -> Tensor:
        return self.mixed_loss(net(x), targets, step)

    def mixed_loss(self, logits: Tensor, targets: Tensor, step: StepInfo) -> Tensor:
        """Eq. 9-12: cross-entropy, squared error of the guesses, and KL(uniform || mean p)."""
        half = len(logits) // 2
        p = probs(logits)
        supervised = soft_ce(logits[:half], targets[:half]).mean()
        guessed = ((p[half:] - targets[half:]) ** 2).mean()
        imbalance = -p.mean(0).clamp_min(1e-8).log().mean() - math.log(p.shape[1])
        strength = self.lam_u * ramp_up(step, self.ramp)
        return supervised + strength * guessed + imbalance

    def predict_proba(self, x: Tensor) -> Tensor:
        return ((self.net.log_probs(x) + self.peer.log_probs(x)) / 2).softmax(-1)


def fill(rows: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """`length` rows: each as often as the others, but for a random remainder."""
    copies, rest = divmod(length, len(rows))
    extra = rows[torch.randperm(len(rows), generator=generator)[:rest]]
    return torch.cat([rows.repeat(copies), extra])
