"""How many folds pay? Average precision, F1 and cost of an audit by 0, 2, 5 and 10 folds.

    PYTHONPATH=src python benchmarks/audit_folds.py              # runs what is missing
    PYTHONPATH=src python benchmarks/audit_folds.py --report

`Classifier("elr")` as `ytilde audit` trains it (pictures: LeNet-5, 10 epochs), on digits (1,438
rows), Fashion-MNIST as 64 principal components (1,500 rows) and as pictures (1,000), and a table
(breast cancer, 569 rows), with uniform and with instance noise of 20 %. 0 folds: the fitted model
judges the rows it was trained on. Average precision of label_quality, F1 of the flags against the
labels that were made wrong, seconds of the processor for all fits of the audit. Fashion-MNIST is
read from $YTILDE_DATA.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

from common import read_lines
from ytilde import Classifier, Data, datasets, noise
from ytilde.metrics import average_precision, f1
from ytilde.versions import versions

FOLDS = (0, 2, 5, 10)
SETS = ("digits", "table", "pictures", "components")
NOISES = ("symmetric:0.2", "instance:0.2")


def load(name: str, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    if name == "digits":
        return datasets.load("digits", split="train")
    if name == "table":
        x, y = load_breast_cancer(return_X_y=True)
        return Data(torch.from_numpy(x).float(), torch.from_numpy(y), 2)
    data = datasets.load("fashion-mnist")
    rows = torch.randperm(len(data), generator=generator)[: 1500 if name == "components" else 1000]
    data = data.rows(rows)
    if name == "pictures":
        return data
    x = data.x[torch.arange(len(data))].flatten(1).float() / 255
    _, _, V = torch.pca_lowrank(x, 64)
    return Data(x @ V, data.y, 10)


def one(name: str, text: str, seed: int) -> list[dict]:
    data = load(name, seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    x = data.x[torch.arange(len(data))]
    made = noise.corrupt(text, x, data.y, data.num_classes, generator=generator)
    wrong = (made.y != data.y).numpy()
    data = Data(data.x, made.y, data.num_classes)
    own = {"backbone": "lenet5", "epochs": 10} if name == "pictures" else {}
    lines = []
    for folds in FOLDS:
        clf = Classifier("elr", random_state=seed, device="cpu", **own)
        began = time.process_time()
        if folds == 0:
            clf.fit_data(data)
        found = clf.audit_data(data, folds).issues
        lines.append({
            "set": name, "noise": text, "seed": seed, "folds": folds, "rows": len(data),
            "ap": average_precision(1 - found.label_quality, wrong),
            "f1": f1(found.is_label_issue, wrong), "rate": float(wrong.mean()),
            "seconds": round(time.process_time() - began, 1), "versions": versions(),
        })  # fmt: skip
    return lines


def report(lines: list[dict]) -> None:
    cells = defaultdict(list)
    for line in lines:
        cells[line["set"], line["noise"], line["folds"]].append(line)
    print("| set | noise | " + " | ".join(f"{k} folds" for k in FOLDS) + " |")
    print("|---|---|" + "---|" * len(FOLDS))
    for name, text in sorted({key[:2] for key in cells}):
        row = []
        for folds in FOLDS:
            some = cells[name, text, folds]
            if not some:
                row.append("-")
                continue
            ap, score, cost = (np.mean([s[key] for s in some]) for key in ("ap", "f1", "seconds"))
            row.append(f"{ap:.3f} / {score:.3f} ({cost:.0f} s)")
        print(f"| {name} | {text} | {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/audit_folds.jsonl"))
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = read_lines(options.out)
    have = {(line["set"], line["noise"], line["seed"]) for line in lines}
    for seed in range(options.seeds if not options.report else 0):
        for name in SETS:
            for kind in NOISES:
                if (name, kind, seed) in have:
                    continue
                made = one(name, kind, seed)
                lines += made
                with options.out.open("a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in made)
    report(lines)


if __name__ == "__main__":
    main()
