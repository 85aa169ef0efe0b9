"""What separates our LN from paper 001's on MNIST under strong symmetric noise (77.6 and 90.9)?

The paper trained in TensorFlow: Keras draws initial weights by Glorot's rule with biases of zero,
and its Adam has an epsilon of 1e-7; whether pixels were standardised is not said. 45,000 rows, the
fields of its Table 4, LeNet-5, 100 epochs:

    YTILDE_DATA=data python benchmarks/ln_start.py keras keras,raw --out results/ln_start.jsonl

plain: as `bench run logistic_normal_t1`; keras: initial values and epsilon; raw: pixels in [0, 1].
One line a run, with test accuracy every three epochs (the last is what the paper reports).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from ytilde import datasets, noise
from ytilde.data import Data
from ytilde.engine import Recipe, Record, Trainer
from ytilde.method import fit_method
from ytilde.methods.ln import LN
from ytilde.versions import versions

FIELDS = {0.2: (1.0, 1.0), 0.4: (1.0, 0.5), 0.6: (0.5, 0.1), 0.8: (1.0, 0.1)}  # tau, lam
ROWS = 45_000


def run(variant: str, options: Any) -> dict[str, Any]:
    tau, lam = FIELDS[options.rate]
    parts = variant.split(",")
    train, test = (datasets.load("mnist", split=split) for split in ("train", "test"))
    generator = torch.Generator().manual_seed(options.seed)
    chosen = torch.randperm(len(train), generator=generator)[: options.rows]
    x, y = train.x[chosen], train.y[chosen]
    kind = f"symmetric:{options.rate},exact=true"
    noisy = noise.corrupt(kind, x, y, 10, generator=generator)
    recipe = Recipe(
        optimizer="adam",
        lr=1e-3,
        weight_decay=0.0,
        schedule="constant",
        epochs=options.epochs,
        batch_size=256,
        val=0.0,
        init="keras" if "keras" in parts else "own",
        eps=1e-7 if "keras" in parts else 1e-8,
        standardise="raw" not in parts,
        seed=options.seed,
        device=options.device,
    )
    curve: list[tuple[int, float]] = []

    def monitor(trainer: Trainer) -> Record:
        epoch = len(trainer.history) + 1
        if epoch % 3 == 0 or epoch == options.epochs:
            curve.append((epoch, round(trainer.score(test)["accuracy"], 4)))
        return {}

    method = LN(tau=tau, lam=lam)
    began = time.perf_counter()
    data = Data(x, noisy.y, 10)
    fit_method(method, data, recipe, backbone="lenet5:variant=same", monitor=monitor)
    return {
        "benchmark": "ln_start",
        "variant": variant,
        "noise": kind,
        "tau": tau,
        "lam": lam,
        "rows": len(data),
        "epochs": options.epochs,
        "seed": options.seed,
        "test_accuracy": curve[-1][1],
        "curve": curve,
        "seconds": round(time.perf_counter() - began),
        "device": options.device,
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variants", nargs="+", help="plain, keras, raw, or two joined by a comma")
    parser.add_argument("--rate", type=float, default=0.6, choices=sorted(FIELDS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/ln_start.jsonl"))
    options = parser.parse_args()
    for variant in options.variants:
        line = run(variant, options)
        print(variant, line["curve"], flush=True)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
