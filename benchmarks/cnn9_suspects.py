"""What separates our clean accuracy from paper 002's on CIFAR-10 (.766 and .838, homoscedastic)?

The paper leaves open the padding of the last three convolutions, the kind of dropout and the batch
size, and states Adam's epsilon (1e-7, Keras' own) and pixels divided by 255; of LN on MNIST we know
that the initial values count as well. Each is changed alone, then all:

    python benchmarks/cnn9_suspects.py --seeds 2 --workers 4 --out results/cnn9_suspects.jsonl

One line a run; what the file has already is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from ytilde.bench import Job, RunPaths, cells, choose, load_table, run_cell
from ytilde.versions import commit

PLAIN = {"network": "cnn9:norm=group", "recipe": {}}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "pixels / 255": {"recipe": {"standardise": False}},
    "epsilon 1e-7": {"recipe": {"eps": 1e-7}},
    "batch 32": {"recipe": {"batch_size": 32}},
    "padded": {"network": "cnn9:norm=group,last=same"},
    "dropout of units": {"network": "cnn9:norm=group,drop=units"},
    "Keras' initial values": {"recipe": {"init": "keras"}},
    "all": {
        "network": "cnn9:norm=group,last=same,drop=units",
        "recipe": {"standardise": False, "eps": 1e-7, "init": "keras", "batch_size": 32},
    },
    "all, batch 128": {
        "network": "cnn9:norm=group,last=same,drop=units",
        "recipe": {"standardise": False, "eps": 1e-7, "init": "keras"},
    },
}


def one(variant: str, seed: int, group: str, small: bool, data_root: Path | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    changed = PLAIN | VARIANTS[variant]
    found = cells(load_table("softmax_temperature_t1"))
    cell = choose(found, ["Homoscedastic"], [group])[0]
    recipe = cell.recipe | changed["recipe"] | ({"epochs": 1} if small else {})
    network = changed["network"] + (",width=4" if small else "")
    cell = dataclasses.replace(
        cell, backbone=network, recipe=recipe, rows=300 if small else cell.rows
    )
    line = run_cell(Job(cell, "full", seed), RunPaths(data_root=data_root, commit=commit()))
    kept = ("noise_rate", "last", "chosen", "seconds", "device", "versions", "commit")
    return {
        "variant": variant,
        "group": group,
        "seed": seed,
        "small": small,
        "network": network,
        "recipe": recipe,
        **{name: line[name] for name in kept if name in line},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--group", default="CIFAR-10")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--small", action="store_true", help="300 rows, one epoch: does it run?")
    parser.add_argument("--out", type=Path, default=Path("results/cnn9_suspects.jsonl"))
    args = parser.parse_args()
    texts = args.out.read_text().splitlines() if args.out.exists() else []
    lines = [json.loads(text) for text in texts]
    have = {(each["variant"], each["group"], each["seed"], each["small"]) for each in lines}
    todo = [
        (variant, seed)
        for seed in range(args.seeds)
        for variant in args.variants
        if (variant, args.group, seed, args.small) not in have
    ]
    context = get_context("spawn")
    with ProcessPoolExecutor(args.workers, mp_context=context) as pool:
        asked = [pool.submit(one, v, s, args.group, args.small, args.data_root) for v, s in todo]
        for made in as_completed(asked):
            line = made.result()
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line["variant"], line["seed"], line["chosen"], line["seconds"], flush=True)


if __name__ == "__main__":
    main()
