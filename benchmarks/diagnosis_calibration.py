"""Is the diagnosis honest? Error rate and power of its test, coverage of its interval.

    PYTHONPATH=src python benchmarks/diagnosis_calibration.py            # runs what is missing
    PYTHONPATH=src python benchmarks/diagnosis_calibration.py --report

200 sets of digits with noise that depends on the class alone (uniform, pair, asymmetric, by class;
rates 0.1 to 0.4): how often is dependence on the input found at the 5 % level? 40 sets of digits
and 40 of Fashion-MNIST (2000 rows) with instance noise at 30 %: how often is it missed? In all of
them: does the 95 % interval of the noise rate cover the true share of wrong labels?
"""

import argparse
import json
import time
from pathlib import Path

import torch

from common import read_lines
from ytilde import datasets, noise
from ytilde.auditing.diagnosis import LEVEL, diagnose
from ytilde.versions import versions

NULL = (
    "symmetric:0.1", "symmetric:0.2", "symmetric:0.4", "pair:0.1", "pair:0.2", "pair:0.3",
    "asymmetric:0.2,mapping=mnist", "asymmetric:0.3,mapping=mnist", "classwise:main",
    "classwise:reduced",
)  # fmt: skip
PLAN = [("digits", NULL[k % len(NULL)], k) for k in range(200)]
PLAN += [("digits", "instance:0.3", k) for k in range(40)]
PLAN += [("fashion-mnist", "instance:0.3", k) for k in range(40)]
PLAN += [("fashion-mnist", NULL[k % len(NULL)], k) for k in range(40)]


def one(name: str, text: str, seed: int, draws: int) -> dict:
    generator = torch.Generator().manual_seed(10_000 + seed)
    data = datasets.load(name)
    rows = torch.randperm(len(data), generator=generator)[:2000]
    data = data.rows(rows)
    made = noise.corrupt(text, data.x, data.y, data.num_classes, generator=generator)
    began = time.perf_counter()
    x = data.x[torch.arange(len(data))].flatten(1).float()
    found = diagnose(x, made.y, draws=draws, heads=False, seed=seed)
    rate, test = found.audit.noise_rate, found.dependence
    return {
        "set": name, "noise": text, "seed": seed, "n": len(data), "draws": draws,
        "p_value": test.p_value, "gain": test.gain, "expected": test.expected,
        "conclusive": test.conclusive, "true_rate": made.rate,
        "rate": [float(rate), rate.low, rate.high], "method": found.method,
        "seconds": round(time.perf_counter() - began, 1), "versions": versions(),
    }  # fmt: skip


def report(lines: list[dict]) -> None:
    kinds = {(line["set"], line["noise"].startswith("instance")) for line in lines}
    for name, instance in sorted(kinds):
        some = [
            line for line in lines
            if (line["set"], line["noise"].startswith("instance")) == (name, instance)
        ]  # fmt: skip
        found = sum(line["p_value"] <= LEVEL and line["conclusive"] for line in some)
        alone = sum(line["p_value"] <= LEVEL for line in some)
        kept = sum(line["rate"][1] <= line["true_rate"] <= line["rate"][2] for line in some)
        width = sum(line["rate"][2] - line["rate"][1] for line in some) / len(some)
        kind = "instance" if instance else "class-level"
        print(
            f"{name}, {kind}: n = {len(some)}, dependence found in {found} (p alone: {alone}), "
            f"interval covers in {kept}, mean width {width:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=59)
    parser.add_argument("--out", type=Path, default=Path("results/diagnosis_calibration.jsonl"))
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = read_lines(options.out)
    have = {(line["set"], line["noise"], line["seed"]) for line in lines}
    for name, text, seed in PLAN if not options.report else ():
        if (name, text, seed) not in have:
            lines.append(one(name, text, seed, options.draws))
            with options.out.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    report(lines)


if __name__ == "__main__":
    main()
