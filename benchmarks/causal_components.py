"""Which part of CausalNL helps on Fashion-MNIST? `causal_ablation`'s rows, with small networks.

    YTILDE_DATA=data python benchmarks/causal_components.py --out results/causal_components.jsonl

That table's settings (Adam, constant rate, instance noise made on the pixels), but 40 epochs, and
the methods see 10,000 images as 64 principal components, with mlps for networks: hours on one core,
where the images take a GPU. One JSON line a run; what is there is not run again. The table is
printed: mean of the last ten epochs, and paired t-tests against co-teaching alone.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from digits_transition import load
from ytilde import bench, datasets, noise
from ytilde.bench.tables import Row, load_table
from ytilde.data import Data
from ytilde.engine import Recipe
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.stats import mean_sd, paired_t

RATES = (0.45, 0.5)
RECIPE = Recipe(
    optimizer="adam", lr=1e-3, weight_decay=0.0, batch_size=128, schedule="constant", val=0.02
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/causal_components.jsonl"))
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--seeds", type=int, nargs="*", default=range(5))
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = load_table("causal_ablation").rows
    train, test = load("fashion-mnist", args.images)
    images = datasets.load("fashion-mnist", split="train").rows(torch.arange(args.images))
    for seed in args.seeds:
        for rate in args.rates:
            for row in rows:
                run(args, row, train, test, images, rate, seed)
    show(lines(args.out), [row.name for row in rows])


def run(
    args: argparse.Namespace,
    row: Row,
    train: Data,
    test: Data,
    images: Data,
    rate: float,
    seed: int,
) -> None:
    text = f"instance:{rate},features=raw255"
    key = {"row": row.name, "noise": text, "seed": seed}
    key |= {"images": args.images, "epochs": args.epochs}
    if any(key.items() <= line.items() for line in lines(args.out)):
        return
    recipe = Recipe(**{**vars(RECIPE), "seed": seed, "epochs": args.epochs})
    generator = recipe.generator("noise")
    made = noise.corrupt(text, images.x, images.y, 10, generator=generator)
    fields = {**row.fields, "rate": made.rate}
    began = time.perf_counter()
    trainer = fit_method(
        create(row.method, **fields),
        Data(train.x, made.y, 10),
        recipe,
        monitor=lambda trainer: bench.measure(trainer, {"test_": test}),
    )
    line: dict[str, Any] = {**key, "method": row.method, "fields": fields, "rate": made.rate}
    line |= bench.protocols(trainer.history)
    line |= {"seconds": round(time.perf_counter() - began, 1), "versions": bench.versions()}
    with args.out.open("a") as file:
        file.write(json.dumps(line | {"commit": bench.commit()}) + "\n")
    print(key, round(line["mean_of_last_ten"]["test_accuracy"], 4), line["seconds"], flush=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def show(found: list[dict[str, Any]], names: list[str]) -> None:
    for kind in sorted({line["noise"] for line in found}):
        print(kind)
        figures = {
            name: {
                line["seed"]: 100 * line["mean_of_last_ten"]["test_accuracy"]
                for line in found
                if line["row"] == name and line["noise"] == kind
            }
            for name in names
        }
        base = figures[names[0]]
        for name, ours in figures.items():
            both = sorted(ours.keys() & base.keys())
            a, b = ([part[seed] for seed in both] for part in (ours, base))
            if len(both) < 2:
                continue
            mean, sd = mean_sd(a)
            gain = np.mean(np.subtract(a, b))
            text = f"{name:32}{mean:7.2f} ± {sd:.2f}  n = {len(a)}  {gain:+.2f}"
            print(text + (f"  p = {paired_t(a, b).p:.3f}" if name != names[0] else ""))


if __name__ == "__main__":
    main()
