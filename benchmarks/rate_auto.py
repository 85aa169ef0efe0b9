"""How near rate="auto" comes to the true share of wrong labels, from the noisy labels alone.

    PYTHONPATH=src python benchmarks/rate_auto.py

Digits and Fashion-MNIST (10,000 rows, as `auto_rate` takes them), uniform and instance noise at 20
and 40 %, five seeds of noise. Prints the largest error of each cell; the bar is 0.05.
"""

import argparse
import json
from pathlib import Path

import torch

from ytilde import datasets, noise
from ytilde.selection import estimate_rate, out_of_fold_knn
from ytilde.versions import versions

NOISES = ("symmetric:0.2", "symmetric:0.4", "instance:0.2", "instance:0.4")
NOISES += ("instance:0.2,features=raw255", "instance:0.4,features=raw255")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/rate_auto.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("digits", "fashion-mnist"):
        whole = datasets.load(name)
        for text in NOISES:
            errors = []
            for seed in range(options.seeds):
                generator = torch.Generator().manual_seed(seed)
                rows = torch.randperm(len(whole), generator=generator)[:10_000].sort().values
                data = whole.rows(rows)
                made = noise.corrupt(text, data.x, data.y, data.num_classes, generator=generator)
                x = data.x[torch.arange(len(data))].flatten(1).float()
                x = (x - x.mean()) / x.std()
                probs = out_of_fold_knn(x, made.y, data.num_classes, generator=generator)
                found = estimate_rate(probs, made.y)
                errors.append(found - made.rate)
                line = {"set": name, "noise": text, "seed": seed, "n": len(data)}
                line |= {"true_rate": made.rate, "rate": found, "versions": versions()}
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            worst = max(errors, key=abs)
            print(f"{name} {text}: n = {len(errors)}, largest error {worst:+.3f}", flush=True)


if __name__ == "__main__":
    main()
