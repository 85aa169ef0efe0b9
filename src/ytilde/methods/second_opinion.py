"""Second opinion: each network learns a label as far as its peer finds the label plausible.

Ours. Two networks train side by side; the weight average of each remembers, row by row, what it
thinks of the training set. With m the peer's opinion of a row and c its mean opinion, the lift of a
class is m / c: how much likelier it is for this row than for any. A label of lift l[y] counts by

    w = (l[y] / max l)^exponent,    q = w onehot(y) + (1 - w) normalised((m S[., y])^2),

so that a plausible label is believed and one that the opinion excludes is replaced by the opinion,
given that it was wrong: S[i, y] is how much oftener class i is labelled y than other classes are
(`sources`), 1 where all wrong labels are alike.
Both networks learn q on a weak and a strong view of an image, mixed up, or on one of the two of any
other input. Labels are taken at their word for the first part of training (`warm_up`), and opinions
then gain their weight over `ramp`: all of it, unless the labels of the surest rows are nearly all
right when the warm-up ends (`floor`); labels then keep some of theirs.

Fidelity: no paper. Weight averages that teach the other network are ELR+'s (Liu et al., 2020),
mixing views and the balance term DivideMix's (Li et al., 2020), the strong view FixMatch's (Sohn et
al., 2020), dividing by the mean prediction DSS's (2026). benchmarks/second_opinion.py has the rungs
that led here, docs/findings.md what they brought: targets by Bayes' rule with one T were tried
first, and believe labels of unclear pictures too much. S keeps of that rule what it is good for:
which class a wrong label stands for.

Memory: two opinions a row, 2 N K numbers; `dtype` and `top_k` make them smaller, as in `elr`. Small
tables hold as many again, for speed (see `build`).
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
from ..losses.labels import log_softmax
from ..method import Method, register
from ..mixing import random_order, symmetric_beta
from ._shared import Memory

MOST = 2**24  # numbers that are worked out at once


@register("second_opinion")
@dataclass(eq=False, repr=False)
class SecondOpinion(Method):
    warm_up: float | str = "auto"  # share of training that believes labels; images .3, else .1
    ramp: float = 0.1  # share of training in which the opinions gain their full weight
    exponent: float = 3.0  # how fast a label loses its weight with its lift
    confusion: float = 1.0  # weight of which class is labelled as which, where a label is replaced
    memory: float = 0.8  # of a row's past opinions, from epoch to epoch
    decay: float = 0.999  # of the weight averages that have the opinions and predict
    alpha: float = 1.0  # mixup's Beta(alpha, alpha)
    floor: float | str = "auto"  # labels keep weight if fewer of the surest look wrong; vectors .05
    prior: float | str = "auto"  # late weight of predictions as frequent as the labels; images 1
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"  # of the opinions
    top_k: int = 0  # remember only this many classes of an opinion; 0: all

    pixels = False
    early_stopping = False  # what it learns last is best: see docs/decisions/0023
    ranges = (
        "0 <= warm_up <= 1, 0 <= ramp <= 1, exponent >= 0, confusion >= 0, "
        "0 <= memory < 1, 0 <= decay < 1, alpha > 0, 0 <= floor <= 1, prior >= 0, top_k >= 0"
    )

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.peer_average = copy.deepcopy(self.peer).requires_grad_(False)
        # looked up once, not in every step: small networks notice
        self.slow: list[Tensor] = [*self.average.parameters(), *self.peer_average.parameters()]
        self.fast: list[Tensor] = [*self.net.parameters(), *self.peer.parameters()]
        n, k = spec.num_train, spec.num_classes
        self.opinions = Memory(2 * n, k, self.top_k, self.dtype)  # of both averages, one by one
        self.T: Tensor
        self.means: Tensor  # each average's mean opinion [2, 1, K]
        self.frequency: Tensor  # of the labels' classes [K]
        self.steps: Tensor
        self.told: Tensor  # of the true class, by a label that is not believed, or none [K + 1, K]
        self.register_buffer("T", 0.5 * torch.eye(k) + 0.5 / k)
        self.register_buffer("told", torch.ones(k + 1, k))
        self.register_buffer("means", torch.full((2, 1, k), 1 / k))
        self.register_buffer("frequency", torch.full((k,), 1 / k))
        self.register_buffer("steps", torch.zeros(()))
        self.doubt: Tensor  # of labels: what share of their weight goes to opinions, mostly 1
        self.register_buffer("doubt", torch.ones(()))
        # Of tables, what is learnt is worked out for all rows between epochs: steps are faster so.
        # Images are asked about views, in the step; large tables too, for the sake of memory.
        self.taught: Tensor  # by each network, of each row [2, N, K]; N is 0 where a step does it
        small = 2 * n * k <= MOST and not self.top_k and self.dtype == "float32"
        rows = n if small and not self.images else 0
        self.register_buffer("taught", torch.zeros(2, rows, k))

    def param_groups(self) -> list[Any]:
        return list(self.fast)

    def fit(self, data: Data, trainer: Trainer) -> None:
        self.prepare(data, trainer)
        for record in trainer.epochs("main", self.loss, self.param_groups(), data):
            self.look_back(data, trainer, record["epoch"] / record["epochs"])

    def prepare(self, data: Data, trainer: Trainer) -> None:
        """Before the first epoch: the labels' frequency, and labels as what is taught."""
        y = data.y.to(trainer.device)
        count = torch.bincount(y[y != IGNORE], minlength=data.num_classes)
        self.frequency.copy_((count + 1) / (count + 1).sum())
        self.take(self.T)
        if len(self.taught[0]):
            self.taught.copy_(one_hot(y, self.taught[0]))

    def look_back(self, data: Data, trainer: Trainer, progress: float) -> None:
        """After an epoch: mean opinions, T, `doubt` and, of a small table, what rows are taught.

        progress: the share of training that is done.
        """
        y = data.y.to(trainer.device)
        between = len(self.taught[0]) > 0
        if between:
            trainer.map(lambda batch: self.ask(batch.x, batch.index)[0], data)
        opinions = self.opinions.all().view(2, len(y), -1)
        known = opinions[0].sum(1) > 0
        if known.any():
            self.means.copy_(opinions[:, known].mean(1, keepdim=True))
        rows = known & (y != IGNORE)
        if rows.any():
            mean = opinions.mean(0)[rows]
            self.take(count_T(mean, y[rows], self.frequency))
            if progress <= self.believes() and (floor := self.least_wrong()):
                self.doubt.fill_(min(1.0, wrong_of_surest(mean, y[rows]) / floor))
        if between:
            self.taught.copy_(self.target(opinions, y, 1.0).flip(0))

    def take(self, T: Tensor) -> None:
        """Take over T [K, K], and what labels tell by it that are not believed."""
        self.T.copy_(T)
        self.told.copy_(self.tells(T, self.frequency))

    def tells(self, T: Tensor, frequency: Tensor) -> Tensor:
        """What `told` is for this T: row y is S[., y]^(2 confusion); the last row is all ones."""
        S = sources(T, frequency * self.spec.num_train / 2)
        return torch.cat([S.T ** (2 * self.confusion), torch.ones_like(S[:1])])

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        """Runs that were made before `told` was kept like this hold what it follows from."""
        if prefix + "T" in state:
            state = {prefix + "doubt": torch.ones_like(self.doubt)} | state
            if len(state.get(prefix + "told", ())) != len(self.told):
                kept = self.tells(state[prefix + "T"], state[prefix + "frequency"])
                state = state | {prefix + "told": kept, prefix + "taught": self.taught}
        super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[no-untyped-call]

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        self.move_averages()
        weak = step.augment(batch.x)
        strong = strong_view(self.spec.shape, self.net.std)(batch.x, generator=step.generator)
        targets, views = self.teach(weak, batch, step), [weak, strong.to(weak.dtype)]
        if self.images:
            return self.learn([torch.cat(views)], torch.cat([targets, targets], 1), step)
        # Of a vector one view is enough (docs/decisions/0023): each network learns the weak views
        # of one half of the rows and the strong views of the other half.
        half = len(weak) // 2
        halves = [(views[k][:half], views[1 - k][half:]) for k in range(2)]
        return self.learn([torch.cat(pair) for pair in halves], targets, step)

    @torch.no_grad()
    def teach(self, weak: Tensor, batch: Batch, step: StepInfo) -> Tensor:
        """What each network learns of these rows [2, B, K]: by the opinion of the other."""
        # without a label there is none that might be better than the opinion
        labelled = (batch.y != IGNORE).unsqueeze(-1)
        weight = self.trust(step) * torch.where(labelled, self.doubt, 1.0)
        if not len(self.taught[0]):
            return self.target(self.ask(weak, batch.index), batch.y, weight).flip(0)
        taught = self.taught.index_select(1, batch.index)
        return one_hot(batch.y, taught[0]).lerp(taught, weight)

    def learn(self, xs: list[Tensor], targets: Tensor, step: StepInfo) -> Tensor:
        """The loss of both networks, the first of xs for one and the last for its peer, mixed up.

        xs: inputs [B, ...] that both learn, or those of each; targets: [2, B, K], whose rows may
        sum up to less than 1.
        """
        share = symmetric_beta(self.alpha, step.generator)
        share = torch.maximum(share, 1 - share)
        order = random_order(len(xs[0]), step.generator)
        xs = [x.lerp(x.index_select(0, order), (1 - share).to(x.dtype)) for x in xs]
        targets = targets.lerp(targets.index_select(1, order), 1 - share)
        logits = torch.stack([self.net(xs[0]), self.peer(xs[-1])])
        fit = soft_ce(logits, targets).sum(1) / targets.sum((1, 2)).clamp_min(1)
        return fit.sum() + self.imbalance(logits, step)

    def ask(self, x: Tensor, index: Tensor) -> Tensor:
        """Both running opinions [2, B, K] of these rows, moved towards what the averages think."""
        fresh = log_softmax(torch.stack([self.average(x), self.peer_average(x)]).float()).exp()
        places = torch.cat([index, index + self.spec.num_train])
        old = self.opinions.read(places).view_as(fresh)
        part = torch.where(old.sum(-1, keepdim=True) > 0, 1 - self.memory, 1.0)
        new = old.lerp(fresh, part)
        self.opinions.write(places, new.flatten(0, 1))
        return new

    def trust(self, step: StepInfo) -> Tensor:
        """Of opinions: 0 takes labels at their word, 1 after warm-up and ramp."""
        return ((step.progress - self.believes()) / max(self.ramp, 1e-6)).clamp(0, 1)

    def believes(self) -> float:
        """The share of training that takes labels at their word."""
        return (0.3 if self.images else 0.1) if self.warm_up == "auto" else float(self.warm_up)

    def least_wrong(self) -> float:
        """Of the surest opinions' labels: as many wrong ones let opinions count fully."""
        return (0.0 if self.images else 0.05) if self.floor == "auto" else float(self.floor)

    def target(self, opinions: Tensor, y: Tensor, trust: Tensor | float) -> Tensor:
        """(1 - trust) onehot(y) + trust q [2, B, K]; without a label, trust times the opinion."""
        label = one_hot(y, opinions[0])
        lift = opinions / self.means.clamp_min(1e-8)
        w = (label * lift).sum(-1, keepdim=True) / lift.amax(-1, keepdim=True).clamp_min(1e-8)
        w = w**self.exponent * (y != IGNORE).unsqueeze(-1)  # 0 without a label, 0^0 too
        sharp = opinions.clamp_min(1e-8).square() * self.told[y]  # -1, no label: the last row
        sharp = sharp / sharp.sum(-1, keepdim=True)
        return label.lerp(sharp.lerp(label, w), trust)

    def imbalance(self, logits: Tensor, step: StepInfo) -> Tensor | float:
        """KL(classes' frequency || mean prediction) of both networks, by its weight.

        It rises with the trust in opinions: labels need no such help, and learn slower with it.
        """
        weight: Tensor | float = float(self.images if self.prior == "auto" else self.prior)
        if not weight:
            return 0.0
        predicted = logits.float().softmax(-1).mean(1).clamp_min(1e-8)
        weight = weight * self.trust(step)
        return weight * (self.frequency * (self.frequency / predicted).log()).sum()

    @property
    def images(self) -> bool:
        return len(self.spec.shape) == 3

    @torch.no_grad()
    def move_averages(self) -> None:
        """The averages follow the weights that the last step left.

        They look back on a tenth of the steps at most: a mean of all early steps knows nothing.
        """
        self.steps += 1
        part = (10 / (self.steps + 9)).clamp(min=1 - self.decay)
        torch._foreach_lerp_(self.slow, self.fast, [part] * len(self.slow))  # type: ignore[arg-type]

    def predict_proba(self, x: Tensor) -> Tensor:
        return self.log_mean(x).softmax(-1)

    def log_mean(self, x: Tensor) -> Tensor:
        """Of what both averages say of x, the mean of log-probabilities [B, K]: not normalised."""
        return (self.average.log_probs(x) + self.peer_average.log_probs(x)) / 2

    def transition(self, batch: Batch) -> Tensor | None:
        return self.T


def sources(T: Tensor, count: Tensor, prior: float = 5.0) -> Tensor:
    """S [K, K]: how much oftener rows of class i have label j than those of other classes have.

    By T [K, K], as if counted on count [K] rows of each class, with `prior` labels more of every
    pair, so that few rows tell little. 1 on the diagonal: whether a label is right is not asked.
    """
    eye = torch.eye(len(T), device=T.device)
    found = T * count[:, None] * (1 - eye)
    share = found.sum(0) / (count.sum() - count).clamp_min(1)
    return (found + prior) / (share * count[:, None] + prior) * (1 - eye) + eye


def wrong_of_surest(opinions: Tensor, y: Tensor, share: float = 0.2) -> float:
    """The share of wrong labels among the rows whose opinions [N, K] are surest.

    A model's own errors vanish there, wrong labels do not (unless they all lie at classes' borders,
    and then not quite): few of them mean that the labels y [N] are better than the opinions.
    """
    sure, guess = opinions.max(1)
    surest = sure.argsort(descending=True, stable=True)[: max(1, int(share * len(y)))]
    return float((guess[surest] != y[surest]).float().mean())


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
