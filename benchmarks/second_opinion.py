"""Rungs of `second_opinion` on CIFAR-10N: what each part of the method earns. For one GPU.

    YTILDE_DATA=data python benchmarks/second_opinion.py --labels random1 --extra 0.28 --val 0.1

Each rung is the method with some of its fields changed, or a variant of it that is written down
here. With --val the rungs are compared on held-out noisy labels; test accuracy is recorded beside
that and chooses nothing. --extra adds noise to a label set with little, so that what suits heavy
noise can be chosen on another set than the one that is reported: wrong labels such as one annotator
gives where another differs (--extra-kind votes), or any others (symmetric). One JSON line a run,
with its curve. (Lines of results/second_opinion.jsonl with other rungs, or with the fields `hidden`
or `powers`, are of earlier drafts, whose targets followed Bayes' rule: docs/findings.md.)
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
from ytilde.data import Data
from ytilde.engine import Recipe, Record, Trainer
from ytilde.losses import one_hot
from ytilde.method import create, fit_method
from ytilde.methods.second_opinion import SecondOpinion
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


VARIANTS: dict[str, type[SecondOpinion]] = {"no lift": NoLift, "joint": Joint, "agreed": Agreed}
RUNGS: dict[str, dict[str, Any]] = {
    "all": {},
    "no lift": {},
    "joint": {},
    "agreed": {},
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
    parser.add_argument("--val", type=float, default=0.0)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--augment", default="crop4+flip")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--every", type=int, default=5, help="epochs between two looks at the test")
    parser.add_argument("--method", default="second_opinion")
    parser.add_argument("--set", action="append", default=[], help="field=value of the method")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--extra", type=float, default=0.0, help="symmetric noise on top, a share")
    parser.add_argument("--extra-kind", choices=["symmetric", "votes"], default="symmetric")
    parser.add_argument("--rows", type=int, default=0, help="use only so many rows (a trial)")
    parser.add_argument("--out", type=Path, default=Path("results/second_opinion.jsonl"))
    options = parser.parse_args()
    train = datasets.load(SETS.get(options.labels, options.labels), split="train")
    test = datasets.load("cifar100" if "100" in options.labels else "cifar10", split="test")
    if options.rows:
        train, test = train.rows(torch.arange(options.rows)), test.rows(torch.arange(options.rows))
    if options.extra:
        train = replace(train, y=with_extra_noise(train, options))
    own = {k: json.loads(v) for k, v in (text.split("=") for text in options.set)}
    for seed in options.seeds:
        for rung in options.rungs:
            line = run(rung, RUNGS[rung] | own, seed, train, test, options)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


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
    q = method.target(opinions, y, 1.0)[0].argmax(1)
    assert train.clean is not None
    return float((q.cpu() == train.clean).float().mean())


def run(
    rung: str, fields: dict[str, Any], seed: int, train: Data, test: Data, options: Any
) -> dict[str, Any]:
    recipe = Recipe(
        epochs=options.epochs,
        batch_size=options.batch,
        lr=options.lr,
        weight_decay=5e-4,
        schedule="cosine",
        augment=options.augment,
        val=options.val,
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
        if epoch % options.every == 0 or epoch == options.epochs or epoch == 1:
            record["test_accuracy"] = trainer.score(test)["accuracy"]
            if isinstance(method, SecondOpinion):
                record["T_diagonal"] = float(method.T.diagonal().mean())
                if train.clean is not None and not options.val:  # looked at, used for nothing
                    record["targets_right"] = targets_right(method, train)
        return record

    def show(record: Record) -> None:
        keep = ("epoch", "loss", "val_accuracy", "test_accuracy", "T_diagonal",
                "targets_right", "train_seconds", "seconds")  # fmt: skip
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
        "labels": options.labels,
        "extra": options.extra,
        "extra_kind": options.extra_kind,
        "fields": fields,
        "seed": seed,
        "rows": len(train),
        "recipe": {k: getattr(recipe, k) for k in ("epochs", "batch_size", "lr", "val", "augment")},
        "backbone": options.backbone,
        "val_accuracy": last.get("val_accuracy"),
        "test_accuracy": last.get("test_accuracy"),
        "seconds": round(time.perf_counter() - began, 1),
        "curve": curve,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": versions(),
    }


if __name__ == "__main__":
    main()
