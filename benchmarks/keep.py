"""Which epoch to keep: the last, or the one that noisy validation chooses?

    PYTHONPATH=src python benchmarks/keep.py --out results/keep.jsonl
    ... --set fashion-mnist --rows 20000

Every method below as `ytilde fit` trains it (default fields, the recipe for such data, mlp, a tenth
of the rows held out), once with keep="last" and once with keep="best", under symmetric and instance
noise of 40 % (or --noises); of images 64 principal components. One JSON line a pair; what is there
is not run again, and the table is printed.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from digits_transition import all_T, error, load
from ytilde import bench, noise
from ytilde.engine import default_recipe
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.stats import mean_sd, paired_t

WITH_T = ["forward", "reweight", "t_revision", "dual_t", "volminnet", "causal_nl", "bltm", "ptd"]
METHODS = ["ce", "gce", "elr", "sop", "mixup", "bootstrap_hard", "ln", "het_tau", "co_teaching"]
METHODS += WITH_T
NOISES = ("symmetric:0.4", "instance:0.4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/keep.jsonl"))
    parser.add_argument("--set", default="digits", help="or a set of images; $YTILDE_DATA")
    parser.add_argument("--rows", type=int, help="of the training images; default: all")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--noises", nargs="*", default=NOISES)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train, test = load(args.set, args.rows)
    there = lines(args.out)
    for seed in args.seeds:
        for text in args.noises:
            kind, options = noise.parse(text)
            generator = torch.Generator().manual_seed(seed)
            made = noise.corrupt(kind, train.x, train.y, 10, generator=generator, **options)
            data = replace(train, y=made.y)
            for name in args.methods:
                key: dict[str, Any] = {"data": args.set, "rows": len(train), "noise": text}
                key |= {"method": name, "seed": seed}
                if any(key.items() <= line.items() for line in there):
                    continue
                line = key | {"rate": made.rate}
                for keep in ("last", "best"):
                    recipe = default_recipe(data.shape, len(data), seed=seed, val=0.1, keep=keep)
                    method = create(name)
                    trainer = fit_method(method, data, recipe, backbone="mlp")
                    line |= {keep: trainer.score(test)["accuracy"], "epochs": recipe.epochs}
                    if name in WITH_T:
                        line[f"row_error_{keep}"] = error(all_T(method, trainer, data), made)
                line |= {"versions": bench.versions(), "commit": bench.commit()}
                args.out.parent.mkdir(parents=True, exist_ok=True)
                with args.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
    show(lines(args.out))


def lines(path: Path) -> list[dict[str, Any]]:
    texts = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(text) for text in texts]
    return [line for line in found if "superseded" not in line]  # by a method that has changed


def show(found: list[dict[str, Any]]) -> None:
    """What keep="best" adds to the test accuracy, in points: mean, sd, worst, n, paired p.

    Behind them the squared error of T(x)'s row of the true class with the last and the best epoch.
    """
    parts = sorted({(line["data"], line["rows"], line["noise"]) for line in found})
    for part in parts:
        print(*part)
        here = [line for line in found if (line["data"], line["rows"], line["noise"]) == part]
        for name in [*dict.fromkeys(line["method"] for line in here), "all"]:
            of = [line for line in here if name in ("all", line["method"])]
            last, best = ([100 * line[keep] for line in of] for keep in ("last", "best"))
            gain = [b - a for a, b in zip(last, best, strict=True)]
            mean, sd = mean_sd(gain)
            p = paired_t(best, last).p if len(of) > 1 else float("nan")
            text = f"{name:16} {mean:+6.2f} ± {sd:.2f} worst {min(gain):+.2f} n {len(of)} p {p:.3f}"
            if name in WITH_T:
                errors = [[line[f"row_error_{keep}"] for line in of] for keep in ("last", "best")]
                text += "  T: {:.3f} {:.3f}".format(*(mean_sd(part)[0] for part in errors))
            print(text)


if __name__ == "__main__":
    main()
