"""Every method on scikit-learn's digits with 40 % wrong labels: last-epoch accuracy beside CE's.

    PYTHONPATH=src python benchmarks/digits_methods.py                 # all registered methods
    PYTHONPATH=src python benchmarks/digits_methods.py gce elr --seeds 5

1257 rows for training and 540 for testing, an mlp of 128 units, Adam at a constant 4e-3 for 100
epochs of batches of 256: enough for plain cross-entropy to learn most wrong labels by heart. Each
seed has its own split, noise, initialisation and order, which all methods share, so the t-test is
paired. Each run appends a JSON line to --out; what is there with the same fields and recipe is not
run again.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from common import load_pixels, read_lines
from ytilde import noise
from ytilde.data import Data
from ytilde.engine import Recipe
from ytilde.fitting import fit_method
from ytilde.method import create, list_methods
from ytilde.stats import mean_sd, paired_t
from ytilde.versions import versions

NOISES = ("symmetric:0.4,inclusive=false", "instance:0.4,features=raw255", "instance:0.4")
NAMES = ("symmetric", "raw255", "standardized")  # of the columns
BACKBONE, TEST = "mlp:width=128,depth=1", 540
RECIPE = Recipe(
    epochs=100,
    batch_size=256,
    optimizer="adam",
    lr=4e-3,
    weight_decay=0.0,
    schedule="constant",
    val=0.0,
    device="cpu",
)


def digits(seed: int, kind: str) -> tuple[Data, Data]:
    """Training rows with noisy labels and test rows with clean ones."""
    x, y = load_pixels()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    # [N, 1, 8, 8], as pixels in [0, 1]: raw255 noise reads pixels
    x, y = x.view(-1, 1, 8, 8)[order], y[order]
    noisy = noise.corrupt(kind, x[TEST:], y[TEST:], 10, generator=generator)
    return Data(x[TEST:], noisy.y, 10, clean=y[TEST:]), Data(x[:TEST], y[:TEST], 10)


def run(name: str, kind: str, seed: int) -> dict[str, Any]:
    train, test = digits(seed, kind)
    method, began = create(name), time.perf_counter()
    recipe = Recipe(**(asdict(RECIPE) | {"seed": seed}))
    trainer = fit_method(method, train, recipe, backbone=BACKBONE)
    return {
        **key(name, kind, seed),
        "accuracy": trainer.score(test)["accuracy"],
        "wrong_labels": float((train.y != train.clean).float().mean()),
        "seconds": round(time.perf_counter() - began, 2),
        "versions": versions() | {"commit": commit()},
    }


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip()


def key(name: str, kind: str, seed: int) -> dict[str, Any]:
    """What makes a run this run; a run whose fields or recipe have changed is another one."""
    recipe = {k: v for k, v in asdict(RECIPE).items() if v != getattr(Recipe(), k)}
    fields = create(name).get_params()
    return {"method": name, "noise": kind, "seed": seed, "fields": fields, "recipe": recipe}


def load(path: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for line in read_lines(path):
        part = {k: line[k] for k in ("method", "noise", "seed", "fields", "recipe")}
        found[json.dumps(part, sort_keys=True)] = line
    return found


def accuracies(done: dict[str, Any], name: str, kind: str, seeds: int) -> list[float]:
    keys = (json.dumps(key(name, kind, seed), sort_keys=True) for seed in range(seeds))
    return [100 * done[k]["accuracy"] for k in keys if k in done]


def report(done: dict[str, Any], names: Sequence[str], seeds: int) -> None:
    """Mean, sd and, in brackets, the paired t-test's p of the difference to CE; * if p < 0.05."""
    print(f"{'last epoch, %':21s}" + "".join(f"{column:>28s}" for column in NAMES))
    for name in names:
        cells = ""
        for kind in NOISES:
            base = accuracies(done, "ce", kind, seeds)
            ours = accuracies(done, name, kind, seeds)
            if not ours:
                cells += f"{'-':>28s}"
                continue
            mean, sd = mean_sd(ours)
            cell = f"{mean:.1f} ± {sd:.1f}"
            if name != "ce" and 1 < len(ours) == len(base):
                test = paired_t(ours, base)
                star = "*" if test.p < 0.05 else " "
                cell += f" ({test.difference:+.1f} p={test.p:.3f}){star}"
            cells += f"{cell:>28s}"
        print(f"{name:21s}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="default: all registered")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/digits_methods.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = ["ce", *(n for n in options.methods or list_methods() if n != "ce")]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = load(options.out)
    for name in names:
        for kind in NOISES:
            for seed in range(options.seeds):
                this = json.dumps(key(name, kind, seed), sort_keys=True)
                if this not in done:
                    done[this] = run(name, kind, seed)
                    with options.out.open("a") as file:
                        file.write(json.dumps(done[this]) + "\n")
    report(done, names, options.seeds)


if __name__ == "__main__":
    main()
