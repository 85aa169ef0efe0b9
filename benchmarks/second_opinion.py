"""Rungs of `second_opinion` on CIFAR-10N: what each part of the method earns. For one GPU.

    YTILDE_DATA=data python benchmarks/second_opinion.py --labels random1 --extra 0.28 --val 0.1

Each rung is the method with some of its fields changed, or a variant of it that is written down
here. With --val the rungs are compared on held-out noisy labels; test accuracy is recorded beside
that and chooses nothing. --extra adds noise to a label set with little, so that what suits heavy
noise can be chosen on another set than the one that is reported: wrong labels such as one annotator
gives where another differs (--extra-kind votes), or any others (symmetric). One JSON line a run,
with its curve. (The rungs "strict", "leaky" and "leaky ratio" in results/second_opinion.jsonl are
of drafts of the method that are no longer here.)
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
from ytilde.data import IGNORE, Data
from ytilde.engine import Recipe, Record, Trainer
from ytilde.losses import one_hot
from ytilde.method import create, fit_method
from ytilde.methods.second_opinion import SecondOpinion, safe_log
from ytilde.versions import versions


@dataclass(eq=False, repr=False)
class Ratio(SecondOpinion):
    """The label counts by (m[y] / max m)^3, whatever T says; otherwise the sharpened opinion."""

    def target(self, opinion: Tensor, y: Tensor) -> Tensor:
        own = opinion.gather(1, y.clamp_min(0).unsqueeze(1)) * (y != IGNORE).unsqueeze(1)
        w = (own / opinion.max(1, keepdim=True).values.clamp_min(1e-8)) ** 3
        q = w * one_hot(y, opinion) + (1 - w) * (2 * safe_log(opinion)).softmax(-1)
        return (1 - self.trust) * one_hot(y, q) + self.trust * q


@dataclass(eq=False, repr=False)
class Fading(SecondOpinion):
    """The label's power falls to 0 over training: the networks know by then what it can teach."""

    def weigh(self, y: Tensor, epoch: int, epochs: int) -> None:
        super().weigh(y, epoch, epochs)
        self.powers[1] *= 1 - epoch / epochs


VARIANTS: dict[str, type[SecondOpinion]] = {"ratio": Ratio, "fading": Fading}
RUNGS: dict[str, dict[str, Any]] = {
    "all": {},
    "no hidden labels": {"hidden": 0.0},
    "warm-up 0.3": {"warm_up": 0.3},
    "warm-up 0.3, no hidden labels": {"warm_up": 0.3, "hidden": 0.0},
    "warm-up 0.25, no hidden labels": {"warm_up": 0.25, "hidden": 0.0},
    "ratio, warm-up 0.3, no hidden labels": {"warm_up": 0.3, "hidden": 0.0},
    "fading, warm-up 0.3": {"warm_up": 0.3},
    "no balance": {"balance": 0.0},
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
    q = method.target(method.opinions.all(), y).argmax(1)
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
    variant = VARIANTS.get(rung.split(",")[0])
    method = variant(**fields) if variant else create(options.method, **fields)
    began = time.perf_counter()
    curve: list[Record] = []

    def monitor(trainer: Trainer) -> Record:
        epoch = len(trainer.history) + 1
        record: Record = {}
        if epoch % options.every == 0 or epoch == options.epochs or epoch == 1:
            record["test_accuracy"] = trainer.score(test)["accuracy"]
            if isinstance(method, SecondOpinion):
                a, b = method.powers.tolist()
                record |= {"T_diagonal": float(method.T.diagonal().mean()), "a": a, "b": b}
                record["agreement"] = float(method.record[0])
                if train.clean is not None and not options.val:  # looked at, used for nothing
                    record["targets_right"] = targets_right(method, train)
        return record

    def show(record: Record) -> None:
        keep = ("epoch", "loss", "val_accuracy", "test_accuracy", "agreement", "T_diagonal",
                "targets_right", "a", "b", "train_seconds", "seconds")  # fmt: skip
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
