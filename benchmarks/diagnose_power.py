"""Does `diagnose` find noise that depends on the input, and only that? Size, power and cost.

    PYTHONPATH=src python benchmarks/diagnose_power.py            # runs what is missing
    PYTHONPATH=src python benchmarks/diagnose_power.py --report

4,000 rows each (digits: all there are). Size: noise of the class alone, uniform, to the next class
or another rate for each class, with strong models and weak ones (classes that overlap, truths that
features tell by chance only, three components of Fashion-MNIST): how often is the 5 % level
reached? Power: labels six times likelier wrong in a region (a half-space along a feature or any
direction, a corner of two features, a ball) than elsewhere. Fashion-MNIST is read from
$YTILDE_DATA; seconds are the processor's, of one core, for 99 draws, without the comparison of
heads. "blurred" has a truth that is blurred in one category alone: nobody can tell that from noise
in the category, and it stands apart.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons

from common import read_lines
from ytilde import datasets
from ytilde.auditing.diagnosis import LEVEL, diagnose
from ytilde.versions import versions

ROWS = 4000
NULL = [
    ("blobs:3,5,4", "uniform:0.2"), ("blobs:2,10,2", "classwise"), ("blobs:5,20,3", "uniform:0.3"),
    ("blobs:2,6,1.5", "next:0.2"), ("tree", "uniform:0.1"), ("xor", "uniform:0.2"),
    ("logistic", "uniform:0.1"), ("moons", "classwise"), ("rare", "uniform:0.1"),
    ("fashion:20", "uniform:0.2"), ("fashion:20", "classwise"), ("fashion:3", "uniform:0.1"),
    ("digits", "uniform:0.3"), ("digits", "next:0.2"),
]  # fmt: skip
REGION = [  # outside, share of the rows inside, where labels are six times likelier wrong
    ("blobs:3,5,4", "half:0.04,0.2"), ("blobs:2,10,2", "ball:0.05,0.2"),
    ("blobs:5,20,3", "direction:0.04,0.2"), ("tree", "corner:0.04,0.15"),
    ("moons", "ball:0.03,0.2"), ("rare", "direction:0.05,0.2"), ("fashion:20", "half:0.03,0.2"),
    ("fashion:20", "ball:0.05,0.1"), ("fashion:3", "half:0.04,0.2"), ("logistic", "half:0.05,0.2"),
]  # fmt: skip
PLAN = [("size", *each) for each in NULL] + [("power", *each) for each in REGION]
PLAN += [("blurred", "blurred", "uniform:0.1")]


def make(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Features, true labels, classes."""
    kind, _, numbers = name.partition(":")
    if kind == "blobs":
        k, d, apart = (float(each) for each in numbers.split(","))
        centres = rng.normal(size=(int(k), int(d)))
        centres *= apart / np.linalg.norm(centres, axis=1, keepdims=True)
        y = rng.integers(0, int(k), ROWS)
        return rng.normal(size=(ROWS, int(d))) + centres[y], y, int(k)
    if kind == "fashion":
        data = datasets.load("fashion-mnist")
        data = data.rows(torch.from_numpy(rng.permutation(len(data))[:ROWS]))
        x = data.x[torch.arange(ROWS)].flatten(1).float() / 255
        x = x - x.mean(0)
        first = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, : int(numbers)]
        return (x @ first).numpy(), data.y.numpy(), 10
    if kind == "digits":
        x, y = load_digits(return_X_y=True)
        return x, y, 10
    x = rng.normal(size=(ROWS, 6))
    if kind == "tree":
        x = rng.uniform(-1, 1, size=(ROWS, 8))
        return x, ((x[:, 0] > 0) ^ (x[:, 1] > 0.3)).astype(int) + (x[:, 2] > 0.5), 3
    if kind == "xor":
        return x, ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype(int), 2
    if kind == "moons":
        x, y = make_moons(ROWS, noise=0.2, random_state=int(rng.integers(10**9)))
        return np.c_[x, rng.normal(size=(ROWS, 3))], y, 2
    if kind == "rare":
        y = (rng.random(ROWS) < 0.15).astype(int)
        x[:, :2] += 2.2 * y[:, None]
        return x, y, 2
    x[:, 5] = rng.integers(0, 2, ROWS)
    slope = 1 + 4 * x[:, 5] if kind == "blurred" else 1.5
    p = 1 / (1 + np.exp(-slope * (x[:, 0] + 0.6 * x[:, 1])))
    return x, (rng.random(ROWS) < p).astype(int), 2


def corrupt(
    text: str, x: np.ndarray, y: np.ndarray, k: int, rng: np.random.Generator
) -> np.ndarray:
    kind, _, words = text.partition(":")
    numbers = [float(each) for each in words.split(",") if each]
    n, d = x.shape
    other = (y + (1 if kind == "next" else rng.integers(1, k, n))) % k
    if kind == "classwise":
        rates, into = rng.uniform(0, 0.4, k), rng.dirichlet(np.full(k - 1, 0.5), k)
        other = np.array([(c + 1 + rng.choice(k - 1, p=into[c])) % k for c in y])
        return np.where(rng.random(n) < rates[y], other, y)
    if len(numbers) == 1:
        return np.where(rng.random(n) < numbers[0], other, y)
    outside, share = numbers
    z = (x - x.mean(0)) / (x.std(0) + 1e-9)
    if kind == "half":
        along = z[:, rng.integers(d)]
    elif kind == "direction":
        along = z @ rng.normal(size=d)
    elif kind == "corner":
        along = z[:, rng.permutation(d)[:2]].min(1)
    else:
        along = -np.square(z - z[rng.integers(n)]).sum(1)
    rate = np.where(along > np.quantile(along, 1 - share), 6 * outside, outside)
    return np.where(rng.random(n) < rate, other, y)


def one(what: str, name: str, text: str, seed: int) -> dict:
    rng = np.random.default_rng([seed, len(name), *text.encode()])
    x, clean, k = make(name, rng)
    y = corrupt(text, x, clean, k, rng)
    began = time.process_time()
    found = diagnose(x, y, heads=False, seed=seed)
    seconds, test, rate = time.process_time() - began, found.dependence, found.audit.noise_rate
    best = found.audit.issues.predicted_label.to_numpy()
    return {
        "what": what, "set": name, "noise": text, "seed": seed, "n": len(y), "draws": test.draws,
        "p_value": test.p_value, "p_neighbours": test.p_neighbours, "p_place": test.p_place,
        "score": round(test.score, 2), "conclusive": test.conclusive,
        "model_right": round(float((best == clean).mean()), 3), "advice": found.method,
        "true_rate": float((y != clean).mean()), "rate": [float(rate), rate.low, rate.high],
        "seconds": round(seconds, 1), "versions": versions(),
    }  # fmt: skip


def report(lines: list[dict]) -> None:
    cells = defaultdict(list)
    for line in lines:
        cells[line["what"], line["set"], line["noise"]].append(line)
    total = defaultdict(lambda: [0, 0])
    print("| | set | noise | model right | found | seconds |\n|---|---|---|---|---|---|")
    for (what, name, text), some in sorted(cells.items()):
        hits = sum(line["p_value"] <= LEVEL and line["conclusive"] for line in some)
        right, cost = (np.mean([line[key] for line in some]) for key in ("model_right", "seconds"))
        print(f"| {what} | {name} | {text} | {right:.2f} | {hits} of {len(some)} | {cost:.0f} |")
        total[what][0] += hits
        total[what][1] += len(some)
    for what, (hits, count) in total.items():
        print(f"{what}: {hits} of {count} ({100 * hits / count:.1f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--out", type=Path, default=Path("results/diagnose_power.jsonl"))
    parser.add_argument("--what", choices=("size", "power", "blurred"), help="of these sets alone")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = read_lines(options.out)
    have = {(line["set"], line["noise"], line["seed"]) for line in lines}
    for seed in range(options.first, 0 if options.report else options.first + options.seeds):
        for what, name, kind in PLAN:
            if (name, kind, seed) not in have and options.what in (None, what):
                lines.append(one(what, name, kind, seed))
                with options.out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    report(lines)


if __name__ == "__main__":
    main()
