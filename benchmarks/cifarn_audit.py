"""Finding the wrong human labels of CIFAR-10N: our audit, confident learning, nearest neighbours.

    PYTHONPATH=src python benchmarks/cifarn_audit.py probs --labels worst --method elr   # GPU
    PYTHONPATH=src python benchmarks/cifarn_audit.py score                                # anywhere

`probs` trains five folds and keeps each row's probabilities by the network that never saw it, and
the share of its 10 nearest neighbours (in that network's features, among the fold's own rows) that
carry its label. `score` judges the labels by each rule from these same files. The true labels are
read by the scores alone.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from ytilde import Classifier, audit, datasets
from ytilde.auditing import BASELINES
from ytilde.contrastive import neighbours
from ytilde.engine import Trainer
from ytilde.metrics import auroc, average_precision, calibration_error, f1
from ytilde.versions import versions


def probs(options: argparse.Namespace) -> None:
    data = datasets.load(f"cifar10n-{options.labels}")
    y, began = data.y.numpy(), time.perf_counter()
    p = np.zeros((len(data), data.num_classes), np.float16)
    vote = np.zeros(len(data), np.float16)
    folds = StratifiedKFold(5, shuffle=True, random_state=options.seed)
    for train, held in folds.split(np.zeros(len(data)), y):
        clf = Classifier(
            options.method, options.backbone, epochs=options.epochs, batch_size=128, lr=0.05,
            weight_decay=5e-4, augment="crop+flip", val=0.0, random_state=options.seed,
        )  # fmt: skip
        clf.fit_data(data.without_clean().rows(torch.from_numpy(train)))
        rest = data.without_clean().rows(torch.from_numpy(held))
        p[held] = clf.predict_proba(rest)
        net = clf.method_.net
        trainer = Trainer(clf.method_, clf.recipe_)
        features = trainer.map(lambda batch, net=net: net.features(batch.x), rest)
        vote[held] = agreement(features.float(), rest.y.to(features.device)).cpu()
        print(f"{options.labels} {options.method}: {time.perf_counter() - began:.0f} s", flush=True)
    told = {"labels": options.labels, "method": options.method, "epochs": options.epochs}
    told |= {"backbone": options.backbone, "seed": options.seed, "versions": versions()}
    told |= {"seconds": round(time.perf_counter() - began)}
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"cifarn_{options.labels}_{options.method}.npz"
    np.savez_compressed(path, p=p, vote=vote, told=json.dumps(told))


def agreement(features: Tensor, y: Tensor, k: int = 10) -> Tensor:
    """The share of the k nearest other rows (cosine) that carry the row's label [N]."""
    x = torch.nn.functional.normalize(features - features.mean(0), dim=1)
    near = neighbours(x, x, k, same=True)
    return (y[near] == y[:, None]).float().mean(1)


def score(options: argparse.Namespace) -> None:
    for path in sorted(options.folder.glob("cifarn_*.npz")):
        file = np.load(path)
        told = json.loads(str(file["told"]))
        data = datasets.load(f"cifar10n-{told['labels']}")
        y, clean = data.y.numpy(), data.clean.numpy()  # type: ignore[union-attr]
        wrong, p = y != clean, file["p"].astype(np.float64)
        p /= p.sum(1, keepdims=True)
        found = audit(p, y)
        rules = {"ytilde": (found.issues.p_wrong.to_numpy(), found.issues.is_label_issue)}
        for name, rule in BASELINES.items():
            quality = rule(p, y)
            rules[name] = (1 - quality, quality < 0.5)
        vote = file["vote"].astype(np.float64)
        rules["knn"] = (1 - vote, vote < 0.5)
        lines = {
            name: {
                "ap": average_precision(s, wrong),
                "auroc": auroc(s, wrong),
                "f1": f1(flag, wrong),
            }
            for name, (s, flag) in rules.items()
        }
        line = {**told, "n": len(y), "noise_rate": float(wrong.mean()), "rules": lines}
        rate = found.noise_rate
        line |= {"estimated": [float(rate), rate.low, rate.high]}
        line |= {"ece": calibration_error(found.issues.p_wrong, wrong)}
        line |= {"accuracy": float((p.argmax(1) == clean).mean())}
        with options.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(json.dumps({k: v for k, v in line.items() if k != "versions"}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("probs", "score"))
    parser.add_argument("--labels", choices=("worst", "aggre"), default="worst")
    parser.add_argument("--method", default="elr")
    parser.add_argument("--backbone", default="resnet18:stem=cifar")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/cifarn"))
    parser.add_argument("--out", type=Path, default=Path("results/cifarn_audit.jsonl"))
    options = parser.parse_args()
    (probs if options.task == "probs" else score)(options)


if __name__ == "__main__":
    main()
