"""PGDF: training histories tell hard examples from noisy ones, then DivideMix. Chen et al., 2021.

Fidelity: "Sample prior guided robust model learning to suppress noisy labels", written from a
description of its public code. A plain network is trained on all labels, and each row's history is
the probability of its label, epoch by epoch. With noise rate r, the rows of the highest mean
history, a share of 1/2 - r/2, are easy; the lowest r/2 are noisy. Labels of the easy rows are made
wrong at rate r, a fresh network is trained on them, and a small 1-D CNN learns from the histories
of those between easy and noisy now which labels were made wrong and which are merely hard. It gives
the other rows of the first run the prior P(right). In `dividemix` the prior takes the place of the
mixture of losses until `until` of training, then their mean does. Targets are not sharpened;
networks learn from AutoAugment's views and guess on weak ones. From `enhance` on the loss of a
labelled row is divided by P(right)^2, which favours hard ones; from `correct` on guesses are
multiplied by the inverse of the confusion on easy rows. Constants are the authors' for 300 epochs,
as fractions; lam_u is 0 for little noise. The length of the two first runs is our choice, and they
come on top of the recipe's epochs. Made wrong is a label by a uniform draw of another class.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..augment import Augment, make_augment, strong_view
from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import RandomState, Trainer
from ..losses import ce, mean, of_label
from ..method import Net, register, view
from ._shared import auto_rate, probs, stage_epochs
from .dividemix import DivideMix

POINTS = 16  # of a history


@register("pgdf")
@dataclass(eq=False, repr=False)
class PGDF(DivideMix):
    """DivideMix whose division is guided by histories of training."""

    temperature: float = 1.0  # of the sharpening of refined and guessed labels; 1: none
    rate: float | str = "auto"  # share of wrong labels; auto: from the noisy data
    history: float = 0.1  # epochs of each of the two first runs, as a share of the recipe's
    until: float = 0.6667  # share of training in which the histories alone divide
    enhance: float = 0.3333  # share of training after which hard rows count more
    correct: float = 0.5  # share of training after which guesses are corrected
    strong: str = "auto"  # what is learnt from: auto fits the input; or a recipe: autoaugment+crop

    ranges = (
        "0 <= rate < 1, 0 <= history <= 1, 0 <= until <= 1, 0 <= enhance <= 1, 0 <= correct <= 1"
    )
    helper_stages = (*DivideMix.helper_stages, "history", "made_noise")

    def build(self, spec: Spec) -> None:
        super().build(spec)
        n, k = spec.num_train, spec.num_classes
        self.histories: Tensor  # P(label) of the rows, with their labels and with those made wrong
        self.register_buffer("histories", torch.zeros(2, n, POINTS))
        self.made: Tensor  # labels of the second run
        self.register_buffer("made", torch.full((n,), IGNORE))
        self.prior: Tensor  # P(label is right) by its history
        self.register_buffer("prior", torch.ones(n))
        self.easy: Tensor
        self.register_buffer("easy", torch.zeros(n, dtype=torch.bool))
        self.inverse: Tensor  # of the confusion on easy rows
        self.register_buffer("inverse", torch.eye(k))
        self.strong_augment()  # refused before training

    def strong_augment(self) -> Augment:
        shape = self.spec.shape
        if self.strong != "auto":
            return make_augment(self.strong, shape)
        if len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= 16:
            return make_augment("autoaugment+crop+flip", shape)
        return strong_view(shape, self.net.std)

    def fit(self, data: Data, trainer: Trainer) -> None:
        self.learn_prior(data, trainer)
        super().fit(data, trainer)

    # ---- the prior ----------------------------------------------------------------------------

    def learn_prior(self, data: Data, trainer: Trainer) -> None:
        start = {name: value.clone() for name, value in self.net.state_dict().items()}
        rate = auto_rate(self.rate, self.net, data, trainer)
        y = data.y.to(self.made.device)
        self.record("history", 0, y, data, trainer)
        easy, noisy = parted(self.histories[0].mean(1), y != IGNORE, rate)
        self.easy.copy_(easy)
        generator = trainer.recipe.generator("noise", "pgdf")
        wrong = (torch.rand(len(y), generator=generator) < rate).to(easy.device) & easy
        shift = torch.randint(1, data.num_classes, (len(y),), generator=generator).to(y)
        made = torch.where(wrong, (y + shift) % data.num_classes, y)
        self.made.copy_(torch.where(easy, made, IGNORE))
        self.net.load_state_dict(start)
        self.record("made_noise", 1, self.made, data, trainer)
        self.net.load_state_dict(start)
        still, last = parted(self.histories[1].mean(1), easy, rate)
        seen = easy & ~still & ~last  # between these, as the rows that will be asked about
        seed = trainer.recipe.seed_of("init", "pgdf")
        told = [self.histories, seen, wrong, seed]
        right = trainer.cached(
            "judge",
            told,
            lambda: judged(self.histories[1, seen], wrong[seen], self.histories[0], seed),
        )
        right = torch.where(easy, 1.0, torch.where(noisy | (y == IGNORE), 0.0, right))
        self.prior.copy_(right)

    def record(self, stage: str, k: int, y: Tensor, data: Data, trainer: Trainer) -> None:
        """Train the network on these labels [N], and write down the histories."""

        def loss(batch: Batch, step: StepInfo) -> Tensor:
            x, _ = view(batch, step)
            own = y[batch.index]
            return mean(ce(self.net(x), own), own)

        epochs = stage_epochs(trainer.recipe.epochs, self.history)
        plain = replace(trainer.recipe, schedule="constant", keep="last", patience=0)
        options: Any = {"epochs": epochs, "validate": False, "recipe": plain}
        rows = (y != IGNORE).nonzero().flatten().cpu()
        params = list(self.net.parameters())
        for each in trainer.epochs(stage, loss, params, data, rows=rows, **options):
            p = of_label(trainer.map(lambda batch: probs(self.net(batch.x)), data), y)
            first = (each["epoch"] - 1) * POINTS // epochs
            last = max(first + 1, each["epoch"] * POINTS // epochs)
            self.histories[k, :, first:last] = p[:, None]

    # ---- what differs from DivideMix ------------------------------------------------------------

    def divide(self, net: Net, data: Data, trainer: Trainer) -> Tensor:
        epochs = trainer.recipe.epochs
        done = sum(record["stage"] == "main" for record in trainer.history)
        if stage_epochs(epochs, self.warm_up) + done < self.until * epochs:
            return self.prior
        return (self.prior + super().divide(net, data, trainer)) / 2

    def streams(self, data: Data, trainer: Trainer) -> dict[str, Tensor]:
        p = trainer.map(lambda batch: self.predict_proba(batch.x).float(), data)
        self.inverse.copy_(inverse_confusion(p, data.y.to(p.device), self.easy))
        return super().streams(data, trainer)

    def guessed(self, p: Tensor, step: StepInfo) -> Tensor:
        found = (p @ self.inverse.to(p.dtype)).clamp_min(1e-6)
        found = found / found.sum(-1, keepdim=True)
        return self.sharpened(torch.where(self.done(step) >= self.correct, found, p))

    def done(self, step: StepInfo) -> Tensor:
        """The share of training that is behind, the warm-up's epochs with it."""
        return self.warm_up + (1 - self.warm_up) * step.progress

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
        weak = self.views(labelled, unlabelled, step.augment)
        targets = self.targets(net, other, weak, labelled, right, step)
        strong = self.strong_augment()
        x = self.views(labelled, unlabelled, lambda x: strong(x, generator=step.generator))
        x, targets = self.mixed(x, targets, step)
        weight = right[labelled.index].clamp_min(0.1) ** -2  # the loss is linear in its targets
        weight = torch.where(self.done(step) >= self.enhance, weight, torch.ones_like(weight))
        weight = torch.cat([weight, weight, torch.ones(len(unlabelled.x) * 2).to(weight)])
        return x, targets * weight[:, None]


# ---- histories ----------------------------------------------------------------------------------


def parted(score: Tensor, among: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Easy and noisy rows [N] of `among` [N]: the highest 1/2 - rate/2 and the lowest rate/2."""
    order = torch.where(among, score, torch.inf).argsort()
    n = int(among.sum())
    few = round(rate / 2 * n)
    many = min(n - few, max(1, round((1 - rate) / 2 * n)))
    easy, noisy = torch.zeros_like(among), torch.zeros_like(among)
    easy[order[n - many : n]] = True
    noisy[order[:few]] = True
    return easy, noisy


def judged(seen: Tensor, wrong: Tensor, asked: Tensor, seed: int) -> Tensor:
    """P(right) [N] of the histories `asked` [N, POINTS], learnt from those of which it is known.

    With fewer than ten of either kind nothing is learnt: then it is the mean history.
    """
    if min(int(wrong.sum()), int((~wrong).sum())) < 10:
        return asked.mean(1)
    with RandomState(seed, seen.device)(), torch.enable_grad():
        layers: list[nn.Module] = []
        for a, b in ((1, 16), (16, 32), (32, 32)):
            layers += [nn.Conv1d(a, b, 3, padding=1), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * seen.shape[1], 1))
        net.to(seen.device)
        optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
        slower = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        for _ in range(14):
            for rows in torch.randperm(len(seen)).to(seen.device).split(256):
                logits = net(seen[rows, None])[:, 0]
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(logits, (~wrong[rows]).float()).backward()
                optimizer.step()
            slower.step()
        return torch.cat(
            [net(part[:, None])[:, 0].detach().sigmoid() for part in asked.split(8192)]
        )


def inverse_confusion(p: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """The inverse of C [K, K], C[i] the mean prediction p [N, K] over these rows of class i.

    A class without rows is its own; C is drawn a little to the identity, so that it has an inverse.
    """
    k = p.shape[-1]
    one_hot = F.one_hot(y.clamp_min(0), k).double() * rows[:, None]
    count = one_hot.sum(0)
    eye = torch.eye(k, dtype=torch.float64, device=p.device)
    C = (one_hot.T @ p.double() + eye) / (count + 1)[:, None]
    return torch.linalg.solve(0.95 * C + 0.05 * eye, eye).to(p)
