"""Which network and optimiser should images get without asking? For one GPU.

    YTILDE_DATA=data python benchmarks/image_defaults.py --workers 8 --seeds 1

Small images with made and with human noise, five methods, each in as many epochs as the default
recipe gives: the recipe as it is; with a rate that rises first; with Muon; with Muon and ResNet-9.
What chooses is the accuracy on a tenth of the noisy rows, held out here; test accuracy stands
beside it. One JSON line a run; those that are there already are not run again. `report` at the end
prints the mean of each recipe over sets, and how often it is ahead of the recipe as it is.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from common import read_lines
from ytilde import datasets, noise
from ytilde.backbones import default_backbone
from ytilde.data import Data
from ytilde.engine import default_recipe
from ytilde.method import create, fit_method
from ytilde.versions import versions

SETS = {  # name -> data, test data, noise
    "cifar10n-worst": ("cifar10n-worst", "cifar10", None),
    "cifar10n-random1": ("cifar10n-random1", "cifar10", None),
    "cifar10": ("cifar10", "cifar10", None),
    "cifar10 instance": ("cifar10", "cifar10", "instance:0.4,features=raw255"),
    "cifar100 symmetric": ("cifar100", "cifar100", "symmetric:0.4"),
    "fashion": ("fashion-mnist", "fashion-mnist", None),
    "fashion instance": ("fashion-mnist", "fashion-mnist", "instance:0.45,features=raw255"),
}
METHODS = ("ce", "elr", "gce", "co_teaching", "second_opinion")
RISING = {"schedule": "trapezoid:0.05,0.4"}
MUON = RISING | {"optimizer": "muon", "lr": 0.01, "weight_decay": 0.05}
RECIPES: dict[str, tuple[dict[str, Any], str]] = {  # name -> fields, network
    "now": ({}, "auto"),
    "rising": (RISING, "auto"),
    "muon": (MUON, "auto"),
    "muon, resnet9": (MUON, "resnet9:width=32"),
}
KEY = ("set", "method", "recipe", "seed", "rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0, help="the first so many; 0: all")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/image_defaults.jsonl"))
    options = parser.parse_args()
    done = {tuple(line[part] for part in KEY) for line in read_lines(options.out)}
    jobs = [
        (name, method, recipe, seed, options.rows)
        for seed in range(options.seeds)
        for name in options.sets
        for method in options.methods
        for recipe in options.recipes
    ]
    left = [job for job in jobs if job not in done]
    print(f"{len(left)} runs to go", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for finished in as_completed(pool.submit(run, *job, options.device) for job in left):
            line = finished.result()
            print({k: v for k, v in line.items() if k not in ("versions", "fields")}, flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    report(read_lines(options.out))


def run(name: str, method: str, recipe: str, seed: int, rows: int, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    train, held_out, test = load(name, seed, rows)
    fields, backbone = RECIPES[recipe]
    made = create(method)
    own = {"early_stopping": made.early_stopping, "seed": seed, "device": device, **fields}
    chosen = default_recipe(train.shape, len(train), **own)
    network = default_backbone(train.shape) if backbone == "auto" else backbone
    began = time.perf_counter()
    trainer = fit_method(made, train, chosen, backbone=network)
    return {
        **dict(zip(KEY, (name, method, recipe, seed, rows), strict=True)),
        "backbone": network,
        "epochs": chosen.epochs,
        "fields": fields,
        "trained_on": len(train),
        "val_accuracy": trainer.score(held_out)["accuracy"],
        "test_accuracy": trainer.score(test)["accuracy"],
        "seconds": round(time.perf_counter() - began, 1),
        "device": torch.cuda.get_device_name() if trainer.device.type == "cuda" else "cpu",
        "versions": versions(),
    }


def load(name: str, seed: int, rows: int) -> tuple[Data, Data, Data]:
    """Training rows and held-out ones with noisy labels, and the test set."""
    source, test, kind = SETS[name]
    train = datasets.load(source, split="train")
    if rows:
        train = train.rows(torch.arange(rows))
    if kind:
        generator = torch.Generator().manual_seed(seed)
        noisy = noise.corrupt(kind, train.x, train.y, train.num_classes, generator=generator)
        train = replace(train, y=noisy.y)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    kept, held_out = order[len(train) // 10 :], order[: len(train) // 10]
    return (
        train.rows(kept).without_clean(),
        train.rows(held_out).without_clean(),
        datasets.load(test, split="test"),
    )


def report(lines: list[dict[str, Any]]) -> None:
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        cell = tuple(line[part] for part in KEY if part != "recipe")
        found[line["recipe"]][cell] = line
    for method in sorted({line["method"] for line in lines}):
        for recipe, rows in found.items():
            both = [c for c in rows if c[1] == method and c in found["now"]]
            if both:
                means = [
                    100 * sum(rows[c][score] for c in both) / len(both)
                    for score in ("val_accuracy", "test_accuracy")
                ]
                ahead = sum(rows[c]["val_accuracy"] > found["now"][c]["val_accuracy"] for c in both)
                seconds = sum(rows[c]["seconds"] for c in both) / len(both)
                print(
                    f"{method:16s}{recipe:16s}held-out {means[0]:5.1f}  test {means[1]:5.1f}"
                    f"  ahead in {ahead} of {len(both)}  {seconds:5.0f} s"
                )


if __name__ == "__main__":
    main()
