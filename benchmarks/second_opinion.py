"""Rungs of `second_opinion` on CIFAR-10N: what each part of the method earns. For one GPU.

    YTILDE_DATA=data python benchmarks/second_opinion.py --labels random1 --extra 0.28 --val 0.1

Each rung is the method with some of its fields changed, or a variant of it that is written down
here. With --val the rungs are compared on held-out noisy labels; test accuracy is recorded beside
that and chooses nothing. --extra adds noise to a label set with little, so that what suits heavy
noise can be chosen on another set than the one that is reported: wrong labels such as one annotator
gives where another differs (--extra-kind votes), or any others (symmetric). One JSON line a run,
with its curve. (Lines of results/second_opinion.jsonl with other rungs, or with the fields `hidden`
or `powers`, are of earlier drafts, whose targets followed Bayes' rule: docs/findings.md; those
without `schedule` were run with what "no confusion" is now; `prior_from` says since when guesses
are held to the labels' frequency: now "ramp", and "start" where it is not said. "Labels alone" is
--set warm_up=1; its eleven lines were made with a draft of this script, and their `views`
and their `prior_from` have no switch here.)
"""

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ytilde import datasets, noise
from ytilde.augment import strong_view
from ytilde.data import IGNORE, Batch, Data, Spec, StepInfo
from ytilde.engine import Recipe, Record, Trainer
from ytilde.losses import one_hot, soft_ce
from ytilde.method import create, fit_method
from ytilde.methods.second_opinion import SecondOpinion, count_T
from ytilde.mixing import symmetric_beta
from ytilde.versions import versions


@dataclass(eq=False, repr=False)
class NoLift(SecondOpinion):
    """The label counts by (m[y] / max m)^exponent: often predicted classes keep their lead."""

    def target(self, opinions: Tensor, y: Tensor, trust: Tensor | float) -> Tensor:
        self.means.fill_(1 / opinions.shape[-1])
        return super().target(opinions, y, trust)


@dataclass(eq=False, repr=False)
class Joint(SecondOpinion):
    """Both networks learn from the mean of both opinions."""

    def target(self, opinions: Tensor, y: Tensor, trust: Tensor | float) -> Tensor:
        return super().target(opinions.mean(0, keepdim=True).expand_as(opinions), y, trust)


@dataclass(eq=False, repr=False)
class Agreed(SecondOpinion):
    """Where both opinions are sure of one class, that class is the target, whatever the label."""

    def target(self, opinions: Tensor, y: Tensor, trust: Tensor | float) -> Tensor:
        q = super().target(opinions, y, trust)
        sure, guess = opinions.max(-1)
        agreed = ((sure > 0.8).all(0) & (guess[0] == guess[1])).to(q.dtype)[None, :, None]
        return q + agreed * trust * (one_hot(guess[0], opinions[0]) - q)


@dataclass(eq=False, repr=False)
class OneView(SecondOpinion):
    """Each row is learnt by one of its views, drawn anew: more epochs in the same time."""

    def learn(self, xs: list[Tensor], targets: Tensor, step: StepInfo) -> Tensor:
        weak, strong = xs[0].chunk(2)
        coin = torch.rand(len(weak), generator=step.generator, device=weak.device) < 0.5
        x = torch.where(coin.view(-1, *[1] * (weak.dim() - 1)), weak, strong)
        return super().learn([x], targets[:, : len(x)], step)


@dataclass(eq=False, repr=False)
class Rest(SecondOpinion):
    """A network does not learn a fold of the rows for a while, and then judges it unlearnt.

    Folds take turns, and the two networks never rest from the same one. Both learn from the mean of
    both opinions, neither of which its network was taught.
    """

    folds: int = 3
    turns: int = 24  # in all of training

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        self.move_averages()
        weak = step.augment(batch.x)
        strong = strong_view(self.spec.shape, self.net.std)(batch.x, generator=step.generator)
        views = torch.cat([weak, strong.to(weak.dtype)])
        return self.learn(*self.by_turns(views, batch, step), step)

    def by_turns(self, views: Tensor, batch: Batch, step: StepInfo) -> tuple[list[Tensor], Tensor]:
        """What each network learns of the views [2 B, ...], and its targets [2, ., K].

        Each judges the fold that it rests from and learns the rest of the batch, whose size does
        not change: rows of the fold that are needed to fill it count nothing.
        """
        n, folds = len(batch.y), self.folds
        length = max(1, step.epochs // self.turns)
        turn = (step.epoch / length).floor()
        late = 2 * (step.epoch - turn * length) + 1 >= length  # it has had time to forget
        own = torch.arange(2, device=turn.device)[:, None] + turn
        resting = batch.index % folds == own.remainder(folds)  # [2, B]
        shuffle = torch.rand(2, n, generator=step.generator, device=turn.device)
        order = (shuffle + resting).argsort(1)
        learnt, judged = order.tensor_split([n - n // folds], dim=1)
        with torch.no_grad():
            for k in range(2):
                rows = judged[k]
                keep = resting[k, rows] & late
                self.judge(k, views[rows], batch.index[rows], keep)
            opinions, known = self.both(batch.index)
            trust = self.trust(step) * known
            targets = self.target(opinions, batch.y, trust)
            targets = targets * ~resting.unsqueeze(-1)
        xs = [views[torch.cat([rows, rows + n])] for rows in learnt]
        targets = torch.stack([targets[k, learnt[k]] for k in range(2)])
        return xs, targets.repeat(1, 2, 1)

    def judge(self, k: int, x: Tensor, index: Tensor, keep: Tensor) -> None:
        """Move network k's running opinion of these rows towards what its average thinks."""
        fresh = (self.average, self.peer_average)[k](x).float().softmax(-1)
        self.means[k].lerp_(fresh.mean(0, keepdim=True), 0.01)
        places = index + k * self.spec.num_train
        old = self.opinions.read(places)
        part = torch.where(old.sum(-1, keepdim=True) > 0, 1 - self.memory, 1.0)
        self.opinions.write(places, old.lerp(fresh, part * keep.unsqueeze(-1)))

    def both(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The mean opinion [2, B, K] of these rows, twice, and which rows have one [B, 1]."""
        places = torch.cat([index, index + self.spec.num_train])
        total = self.opinions.read(places).view(2, len(index), -1).sum(0)
        size = total.sum(-1, keepdim=True)
        return (total / size.clamp_min(1e-8)).expand(2, -1, -1), size > 0


@dataclass(eq=False, repr=False)
class Apart(OneView):
    """For a part of training each network is taught half of the rows; its peer judges the others.

    So the opinion that is weighed against a label is of a network that does not know the label.
    In the end both learn all rows by the opinions of then.
    """

    begin: float = 0.4  # shares of training
    end: float = 0.75
    own: float = 0.0  # what the judge learns of a row meanwhile: its own opinion, by this weight

    @torch.no_grad()
    def teach(self, weak: Tensor, batch: Batch, step: StepInfo) -> Tensor:
        late = (step.progress >= self.begin).float()
        apart = late * (step.progress < self.end)
        frozen = late * (1 - apart)
        judge = batch.index % 2  # its number, and 0 and 1 for the networks
        judges = (judge == torch.arange(2, device=judge.device)[:, None]).float().unsqueeze(-1)
        opinions = self.ask_unless(frozen, weak, batch.index)
        trust = self.trust(step)
        q = self.target(opinions, batch.y, trust)
        judged = (q * judges).sum(0, keepdim=True).expand_as(q)
        alone = trust * (2 * opinions.clamp_min(1e-8).log()).softmax(-1)
        taught = judged * (1 - judges) + self.own * alone * judges
        return (1 - late) * q.flip(0) + apart * taught + frozen * judged

    def ask_unless(self, frozen: Tensor, x: Tensor, index: Tensor) -> Tensor:
        places = torch.cat([index, index + self.spec.num_train])
        old = self.opinions.read(places).view(2, len(index), -1)
        new = old.lerp(self.ask(x, index), 1 - frozen)
        self.opinions.write(places, new.flatten(0, 1))
        return new


@dataclass(eq=False, repr=False)
class StrongAsk(OneView):
    """Opinions are asked of the strong view."""

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        self.move_averages()
        weak = step.augment(batch.x)
        view = strong_view(self.spec.shape, self.net.std)
        strong = view(batch.x, generator=step.generator).to(weak.dtype)
        with torch.no_grad():
            opinions = self.ask(strong, batch.index)
            targets = self.target(opinions, batch.y, self.trust(step)).flip(0)
        return self.learn([torch.cat([weak, strong])], targets.repeat(1, 2, 1), step)


@dataclass(eq=False, repr=False)
class Again(OneView):
    """Both networks start anew, once or more, and learn from the opinions of those before them."""

    again: tuple[float, ...] = (0.5,)  # shares of training

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.first = [{k: v.clone() for k, v in net.state_dict().items()} for net in self.nets()]

    def nets(self) -> list[torch.nn.Module]:
        return [self.net, self.peer, self.average, self.peer_average]

    def between(self, epoch: int, epochs: int) -> None:
        if epoch in [round(share * epochs) for share in self.again]:
            for net, state in zip(self.nets(), self.first[1::-1] * 2, strict=True):
                net.load_state_dict(state)  # each from where the other began
            self.steps.zero_()


@dataclass(eq=False, repr=False)
class Sure(Rest):
    """A row counts by how sure its target is."""

    power: float = 2.0

    def target(self, opinions: Tensor, y: Tensor, trust: Tensor | float) -> Tensor:
        q = super().target(opinions, y, trust)
        return q * q.amax(-1, keepdim=True) ** self.power


@dataclass(eq=False, repr=False)
class Bayes(SecondOpinion):
    """The opinion times T[., y], each to a power: Bayes' rule, tempered."""

    power: float = 1.0
    sharp: float = 1.5

    def target(self, opinions: Tensor, y: Tensor, trust: Tensor | float) -> Tensor:
        label = one_hot(y, opinions[0])
        told = self.T[:, y.clamp_min(0)].T.clamp_min(1e-4).log() * label.sum(-1, keepdim=True)
        log = self.sharp * (opinions.clamp_min(1e-8).log() + self.power * told)
        return (1 - trust) * label + trust * log.softmax(-1)


@dataclass(eq=False, repr=False)
class Chosen(SecondOpinion):
    """Only rows of which the peer is sure are learnt, by class; the rest waits.

    A row whose label is the peer's guess is learnt if the peer is as sure of it as of the surest
    `kept` of such rows of that class. Late, rows with another label join them, under the guess of
    both networks, if both are as sure as of the surest `guessed` of those rows.
    """

    first: float = 0.7
    last: float = 0.95
    late: float = 0.5  # when guesses begin to be learnt, as a share of training
    guessed: float = 0.7  # what their quantile rises to in `ramp_late` of training
    ramp_late: float = 0.3
    cut: bool = False
    views: int = 2  # of each row in the mean; 1: half of the batch is learnt weak, half strong

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.kept: Tensor
        self.classes: Tensor
        self.register_buffer("kept", torch.ones(2, spec.num_train, dtype=torch.bool))
        self.register_buffer("classes", torch.zeros(2, spec.num_train, dtype=torch.int64))

    def fit(self, data: Data, trainer: Trainer) -> None:
        y = data.y.to(trainer.device)
        self.kept.copy_((y != IGNORE).expand(2, -1))
        self.classes.copy_(y.clamp_min(0).expand(2, -1))
        count = torch.bincount(y[y != IGNORE], minlength=data.num_classes)
        self.frequency.copy_((count + 1) / (count + 1).sum())
        warm_up = self.believes()
        epochs = trainer.recipe.epochs
        for record in trainer.epochs("main", self.loss, self.param_groups(), data):
            progress = record["epoch"] / epochs
            opinions = self.opinions.all().view(2, len(y), -1)
            mean = opinions.mean(0)
            rows = (y != IGNORE) & (mean.sum(1) > 0)
            self.take(count_T(mean[rows], y[rows], self.frequency))
            if progress >= warm_up:
                part = (progress - warm_up) / max(1 - warm_up, 1e-6)
                share = self.first + (self.last - self.first) * part
                late = self.guessed * min(max((progress - self.late) / self.ramp_late, 0.0), 1.0)
                self.choose(opinions, y, share, late)

    def choose(self, opinions: Tensor, y: Tensor, share: float, late: float) -> None:
        sure, guess = opinions.max(-1)
        agreed = guess[0] == guess[1]
        k = opinions.shape[-1]
        for net in range(2):
            s, g = sure[1 - net], guess[1 - net]
            believed = g == y
            cut = torch.stack([quantiles(s[believed & (g == c)], share, late) for c in range(k)])
            keep = torch.where(believed, s >= cut[g, 0], agreed & (sure.amin(0) >= cut[g, 1]))
            self.kept[net].copy_(keep)
            self.classes[net].copy_(g)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        self.move_averages()
        with torch.no_grad():
            self.ask(step.augment(batch.x), batch.index)
        kept, classes = self.kept[:, batch.index], self.classes[:, batch.index]
        chosen, n = kept.any(0), len(batch.x)
        order = torch.rand(2, n, generator=step.generator, device=batch.x.device)
        order = (order + (~chosen).float()).argsort(1)
        turn = torch.arange(n * self.views // 2, device=batch.x.device)
        pick = order[:, turn % chosen.sum().clamp(min=1)]
        weak = step.augment(batch.x[pick[0]])
        view = strong_view(self.spec.shape, self.net.std)
        strong = view(batch.x[pick[1]], generator=step.generator)
        views, pick = torch.cat([weak, strong.to(weak.dtype)]), pick.flatten()
        targets = torch.eye(self.spec.num_classes, device=views.device)[classes[:, pick]]
        targets = targets * kept[:, pick].unsqueeze(-1)
        order = torch.rand(len(views), generator=step.generator, device=views.device).argsort()
        if self.cut:  # half of the views are mixed by a box
            boxed, share = box(views, order, step.generator)
        share_mix = symmetric_beta(self.alpha, step.generator)
        share_mix = torch.maximum(share_mix, 1 - share_mix)
        mixed = views.lerp(views[order], (1 - share_mix).to(views.dtype))
        lam = share_mix.expand(len(views))
        if self.cut:
            half = torch.arange(len(views), device=views.device) % 2 == 0
            mixed = torch.where(half.view(-1, 1, 1, 1), mixed, boxed)
            lam = torch.where(half, lam, share)
        lam = lam.view(1, -1, 1)
        targets = lam * targets + (1 - lam) * targets[:, order]
        logits = torch.stack([self.net(mixed), self.peer(mixed)])
        fit = soft_ce(logits, targets).sum(1) / targets.sum((1, 2)).clamp_min(1)
        return fit.sum() + self.imbalance(logits, step)


@dataclass(eq=False, repr=False)
class Firm(Chosen, OneView):
    """All rows are learnt by soft targets at first, and later chosen ones alone, by their class."""

    first: float = 0.8
    late: float = 0.55
    guessed: float = 0.9

    loss = SecondOpinion.loss

    @torch.no_grad()
    def teach(self, weak: Tensor, batch: Batch, step: StepInfo) -> Tensor:
        soft = super().teach(weak, batch, step)
        hard = torch.eye(soft.shape[-1], device=soft.device)[self.classes[:, batch.index]]
        hard = hard * self.kept[:, batch.index].unsqueeze(-1)
        return soft.lerp(hard, (step.progress >= self.late).float())


def box(views: Tensor, order: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """CutMix: a box of the partner; the share of each row's own pixels."""
    n, _, height, width = views.shape
    u = torch.rand(3, n, generator=generator, device=views.device)
    side = (1 - torch.maximum(u[0], 1 - u[0])).sqrt()
    rows = torch.arange(height, device=views.device) / height
    columns = torch.arange(width, device=views.device) / width
    top, left = u[1] * (1 - side), u[2] * (1 - side)
    inside = ((rows >= top[:, None]) & (rows < (top + side)[:, None]))[:, :, None] & (
        (columns >= left[:, None]) & (columns < (left + side)[:, None])
    )[:, None, :]
    mixed = torch.where(inside[:, None], views[order], views)
    return mixed, 1 - inside.float().mean((1, 2))


def quantiles(s: Tensor, *shares: float) -> Tensor:
    """The values above which lie these shares of s; above all of them for a share of 0."""
    if not len(s):
        return torch.full((len(shares),), torch.inf, device=s.device)
    s = s.sort(descending=True).values
    found = [s[min(int(share * len(s)), len(s) - 1)] if share > 0 else s[0] + 1 for share in shares]
    return torch.stack(found)


TOLD = (
    "epochs", "batch_size", "optimizer", "lr", "weight_decay", "schedule", "val", "augment",
)  # fmt: skip
VARIANTS: dict[str, type[SecondOpinion]] = {
    "no lift": NoLift, "joint": Joint, "agreed": Agreed,
    "one view": OneView, "rest": Rest, "two folds": Rest, "sure": Sure,
    "apart": Apart, "apart, taught": Apart, "apart from the start": Apart, "strong ask": StrongAsk,
    "again": Again, "again twice": Again, "bayes": Bayes, "half bayes": Bayes,
    "chosen": Chosen, "chosen, warm-up 0.15": Chosen, "chosen, boxes": Chosen,
    "chosen, all guesses": Chosen, "chosen, one view": Chosen,
    "firm": Firm,
}  # fmt: skip
RUNGS: dict[str, dict[str, Any]] = {
    "all": {},
    "no confusion": {"confusion": 0.0},  # as all rungs were before the field
    "no lift": {},
    "joint": {},
    "agreed": {},
    "one view": {},
    "rest": {},
    "two folds": {"folds": 2},
    "apart": {},
    "apart, taught": {"own": 1.0},
    "apart from the start": {"own": 1.0, "begin": 0.0, "end": 0.7},
    "strong ask": {},
    "again": {},
    "again twice": {"again": (0.34, 0.64)},
    "sure": {},
    "bayes": {},
    "half bayes": {"power": 0.5},
    "chosen": {},
    "chosen, warm-up 0.15": {"warm_up": 0.15},
    "chosen, boxes": {"cut": True},
    "chosen, all guesses": {"guessed": 0.95},
    "chosen, one view": {"views": 1},
    "firm": {},
    "exponent 1": {"exponent": 1.0},
    "exponent 6": {"exponent": 6.0},
    "warm-up 0.2": {"warm_up": 0.2},
    "warm-up 0.4": {"warm_up": 0.4},
    "no prior": {"prior": 0.0},
    "longer memory": {"memory": 0.9},
}
SETS = {
    "worst": "cifar10n-worst",
    "random1": "cifar10n-random1",
    "random2": "cifar10n-random2",
    "aggregate": "cifar10n-aggre",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--labels", default="random1")
    parser.add_argument("--rungs", nargs="*", default=["all"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--val", type=float, default=0.0)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--augment", default="crop4+flip")
    parser.add_argument("--schedule", default="cosine")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--every", type=int, default=5, help="epochs between two looks at the test")
    parser.add_argument("--method", default="second_opinion")
    parser.add_argument("--set", action="append", default=[], help="field=value of the method")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--extra", type=float, default=0.0, help="symmetric noise on top, a share")
    parser.add_argument("--extra-kind", choices=["symmetric", "votes"], default="symmetric")
    parser.add_argument("--choose-by", help="labels of the rows held out by --val; default: own")
    parser.add_argument("--rows", type=int, default=0, help="use only so many rows (a trial)")
    parser.add_argument("--out", type=Path, default=Path("results/second_opinion.jsonl"))
    options = parser.parse_args()
    train = datasets.load(SETS.get(options.labels, options.labels), split="train")
    test = datasets.load("cifar100" if "100" in options.labels else "cifar10", split="test")
    if options.rows:
        train, test = (d.rows(torch.arange(min(options.rows, len(d)))) for d in (train, test))
    if options.extra:
        train = replace(train, y=with_extra_noise(train, options))
    held_out = None
    if options.choose_by:
        train, held_out = hold_out(train, options)
    own = {k: json.loads(v) for k, v in (text.split("=") for text in options.set)}
    for seed in options.seeds:
        for rung in options.rungs:
            line = run(rung, RUNGS[rung] | own, seed, train, test, held_out, options)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


def hold_out(train: Data, options: Any) -> tuple[Data, Data]:
    """The rows to train on, and those that choose, under the labels of another set."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    held, kept = order.split(
        [round(options.val * len(train)), len(train) - round(options.val * len(train))]
    )
    other = datasets.load(SETS[options.choose_by], split="train").y[: len(train)]
    return train.rows(kept), replace(train, y=other).rows(held)


def with_extra_noise(train: Data, options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if options.extra_kind == "symmetric":
        more = noise.symmetric(train.y, train.num_classes, rate=options.extra, generator=generator)
        return more.y
    other = datasets.load(SETS["random2"], split="train").y[: len(train)]
    k = train.num_classes
    votes = torch.zeros(k, k).index_put_((train.y, other), torch.ones(len(other)), accumulate=True)
    votes.fill_diagonal_(0)
    wrong = torch.multinomial(votes[train.y], 1, generator=generator).squeeze(1)
    return torch.where(torch.rand(len(wrong), generator=generator) < options.extra, wrong, train.y)


def targets_right(method: SecondOpinion, train: Data) -> float:
    """The share of rows whose target, by the first network's opinion, is the true class."""
    y = train.y.to(method.T.device)
    opinions = method.opinions.all().view(2, len(y), -1)
    assert train.clean is not None
    if isinstance(method, Chosen):
        kept = method.kept[0].cpu()
        return float((method.classes[0].cpu() == train.clean)[kept].float().mean())
    q = method.target(opinions, y, 1.0)[0].argmax(1)
    return float((q.cpu() == train.clean).float().mean())


def mirrored_accuracy(trainer: Trainer, test: Data) -> float:
    """Of the mean prediction for a picture and its mirror image."""
    proba = trainer.method.predict_proba  # type: ignore[operator]
    guess = trainer.map(lambda b: (proba(b.x) + proba(b.x.flip(-1))).argmax(1), test)
    return float((guess.cpu() == test.y).float().mean())


def run(
    rung: str,
    fields: dict[str, Any],
    seed: int,
    train: Data,
    test: Data,
    held_out: Data | None,
    options: Any,
) -> dict[str, Any]:
    recipe = Recipe(
        epochs=options.epochs,
        batch_size=options.batch,
        lr=options.lr,
        optimizer=options.optimizer,
        weight_decay=options.weight_decay,
        schedule=options.schedule,
        augment=options.augment,
        val=0.0 if held_out else options.val,
        keep="last",
        seed=seed,
        device=options.device,
        compile=options.compile,
    )
    variant = VARIANTS.get(rung)
    method = variant(**fields) if variant else create(options.method, **fields)
    began = time.perf_counter()
    curve: list[Record] = []

    def monitor(trainer: Trainer) -> Record:
        epoch = len(trainer.history) + 1
        record: Record = {}
        if isinstance(method, Again):
            method.between(epoch, options.epochs)
        if epoch % options.every == 0 or epoch == options.epochs or epoch == 1:
            record["test_accuracy"] = trainer.score(test)["accuracy"]
            record["test_mirrored"] = mirrored_accuracy(trainer, test)
            if held_out:
                record["val_accuracy"] = trainer.score(held_out)["accuracy"]
            if isinstance(method, SecondOpinion):
                if train.clean is not None:
                    guess = method.opinions.all().view(2, len(train), -1).sum(0).argmax(1)
                    record["opinions_right"] = float((guess.cpu() == train.clean).float().mean())
                record["T_diagonal"] = float(method.T.diagonal().mean())
                if isinstance(method, Chosen):
                    record["kept"] = float(method.kept[0].float().mean())
                if train.clean is not None and not recipe.val:  # looked at, used for nothing
                    record["targets_right"] = targets_right(method, train)
        return record

    def show(record: Record) -> None:
        keep = ("epoch", "loss", "val_accuracy", "test_accuracy", "test_mirrored", "T_diagonal",
                "targets_right", "opinions_right", "kept", "train_seconds", "seconds")  # fmt: skip
        row = {k: round(v, 4) for k, v in record.items() if k in keep}
        row["clock"] = round(time.perf_counter() - began, 1)
        curve.append(row)
        if "test_accuracy" in record or record["epoch"] < 4:
            print(rung, seed, row, flush=True)

    folder = (
        options.work / f"{options.labels}-{rung}-{seed}".replace(" ", "_") if options.work else None
    )
    trainer = fit_method(
        method, train, recipe, backbone=options.backbone, monitor=monitor, on_record=show,
        folder=folder, resume=bool(folder and folder.exists()), checkpoint_every=60,
    )  # fmt: skip
    print(rung, trainer.notes, flush=True)
    last = trainer.history[-1]
    return {
        "rung": rung,
        "method": variant.name if variant else options.method,
        "labels": options.labels,
        "extra": options.extra,
        "extra_kind": options.extra_kind,
        "choose_by": options.choose_by,
        "fields": fields,
        "seed": seed,
        "rows": len(train),
        "recipe": {k: getattr(recipe, k) for k in TOLD},
        "backbone": options.backbone,
        "val_accuracy": last.get("val_accuracy"),
        "test_accuracy": last.get("test_accuracy"),
        "test_mirrored": last.get("test_mirrored"),
        "seconds": round(time.perf_counter() - began, 1),
        "curve": curve,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": versions(),
    }


if __name__ == "__main__":
    main()
