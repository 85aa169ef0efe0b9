"""How well wrong labels are found, beside cleanlab in the same run.

    PYTHONPATH=src python benchmarks/audit_quality.py                          # digits, 5 seeds
    PYTHONPATH=src python benchmarks/audit_quality.py --set fashion-mnist --rows 6000 --seeds 2

Ours: `Classifier()` as it is, audited out of fold. cleanlab: its label issues
and quality scores from out-of-fold probabilities of scikit-learn's MLPClassifier of 128 units (of
several numbers of epochs the best for its F1, which a user could not know), CleanLearning around
the same; and its label issues from our probabilities, which tells the network's share from the
rule's. Each seed has its own split, noise and initialisation; both sides see the same rows. F1 of
the flags, AUROC of the ranking, calibration error of p_wrong (ours alone has one), whether the
interval of the noise rate covers the truth, accuracy on clean test rows. Needs the extra `bench`.
"boundary": labels flip to the runner-up of a model of the clean labels, more often near the border.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cleanlab.classification import CleanLearning
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from audit_sets import wrong_at_borders
from common import read_lines
from ytilde import Classifier, Data, audit, datasets, noise
from ytilde.auditing.crossfit import out_of_fold
from ytilde.estimator.audits import _fold_fit
from ytilde.metrics import auroc, calibration_error, f1
from ytilde.stats import mean_sd, paired_t
from ytilde.versions import versions

NOISES = ("instance:0.2", "instance:0.4", "symmetric:0.2", "symmetric:0.4", "boundary:0.2")


def corrupt(text: str, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    if not text.startswith("boundary"):
        made = noise.corrupt(text, torch.from_numpy(x), torch.from_numpy(y), int(y.max()) + 1,
                             generator=generator)  # fmt: skip
        return made.y.numpy()
    return wrong_at_borders(x, y, float(text.partition(":")[2]), generator)


def ours(x: np.ndarray, y: np.ndarray, wrong: np.ndarray, test: Any, seed: int) -> dict:
    clf = Classifier(random_state=seed)
    data = Data(torch.from_numpy(x), torch.from_numpy(y), int(y.max()) + 1)
    # what clf.audit(x, y) judges by: its folds' answers and the inputs themselves
    probs = out_of_fold(data, 5, seed, _fold_fit(clf, data, None))
    found = audit(probs, y, features=x)
    flags, quality = find_label_issues(y, probs, n_jobs=1), get_label_quality_scores(y, probs)
    p_wrong, rate = found.issues.p_wrong.to_numpy(), found.noise_rate
    return {
        "f1": f1(found.issues.is_label_issue, wrong),
        "auroc": auroc(p_wrong, wrong),
        "ece": calibration_error(p_wrong, wrong),
        "rate": [float(rate), rate.low, rate.high],
        "accuracy": float(clf.fit(x, y).score(*test)),
        "cleanlab_on_ours": {"f1": f1(flags, wrong), "auroc": auroc(1 - quality, wrong)},
    }


def theirs(x: np.ndarray, y: np.ndarray, wrong: np.ndarray, test: Any, seed: int) -> dict:
    def mlp(epochs: int) -> Any:
        return make_pipeline(
            StandardScaler(), MLPClassifier((128,), random_state=seed, max_iter=epochs)
        )

    folds, best = StratifiedKFold(5, shuffle=True, random_state=seed), {"f1": -1.0}
    for epochs in (10, 20, 40, 200):
        p = cross_val_predict(mlp(epochs), x, y, cv=folds, method="predict_proba")
        quality = get_label_quality_scores(y, p)
        found = {"f1": f1(find_label_issues(y, p, n_jobs=1), wrong), "epochs": epochs}
        best = max(best, found | {"auroc": auroc(1 - quality, wrong)}, key=lambda f: f["f1"])
    network = mlp(int(best["epochs"]))
    cleaned = CleanLearning(network, seed=seed, find_label_issues_kwargs={"n_jobs": 1}).fit(x, y)
    return best | {"accuracy": float((cleaned.predict(test[0]) == test[1]).mean())}


def report(lines: list[dict]) -> None:
    cells = defaultdict(list)
    for line in lines:
        cells[line["set"], line["noise"]].append(line)
    for (name, text), some in sorted(cells.items()):
        print(f"{name} {text}: n = {len(some)}, wrong {np.mean([s['wrong'] for s in some]):.3f}")
        for figure in ("f1", "auroc", "accuracy"):
            a, b = ([s[side][figure] for s in some] for side in ("ours", "cleanlab"))
            p = f"p {paired_t(a, b).p:.2g}" if len(a) > 1 else ""
            print(f"  {figure}: ours {mean_sd(a)[0]:.3f}, cleanlab {mean_sd(b)[0]:.3f} {p}")
        same = [s["ours"]["cleanlab_on_ours"]["f1"] for s in some]
        print(f"  cleanlab's F1 on our probabilities: {np.mean(same):.3f}")
        ece = np.mean([s["ours"]["ece"] for s in some])
        kept = sum(s["ours"]["rate"][1] <= s["wrong"] <= s["ours"]["rate"][2] for s in some)
        print(f"  calibration error {ece:.3f}, interval covers {kept} of {len(some)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", default="digits")
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noises", nargs="+", default=NOISES)
    parser.add_argument("--out", type=Path, default=Path("results/audit_quality.jsonl"))
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--again", action="store_true", help="our side of the lines that are there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # scikit-learn's mlp says that it has not converged
    lines = read_lines(options.out)
    have = {(line["set"], line["noise"], line["seed"], line["n"]) for line in lines}
    train, test = datasets.load(options.set), datasets.load(options.set, split="test")
    both = [
        (d.x[torch.arange(len(d))].flatten(1).float().numpy(), d.y.numpy()) for d in (train, test)
    ]
    x, y = (np.concatenate([both[0][k], both[1][k]])[: 2 * options.rows] for k in (0, 1))
    for seed in range(options.seeds) if not options.report else ():
        order = np.random.default_rng(seed).permutation(len(x))
        n = min(options.rows, int(0.7 * len(x)))
        rows, held = order[:n], order[n : n + max(500, n // 2)]
        for kind in options.noises:
            key = (options.set, kind, seed, n)
            if (key in have) != options.again:
                continue
            given, began = corrupt(kind, x[rows], y[rows], 1000 + seed), time.perf_counter()
            wrong, clean = given != y[rows], (x[held], y[held])
            line: dict[str, Any] = {"set": options.set, "noise": kind, "seed": seed, "n": n}
            line |= {"wrong": float(wrong.mean())}
            line |= {"ours": ours(x[rows], given, wrong, clean, seed)}
            if options.again:
                place = [(at["set"], at["noise"], at["seed"], at["n"]) for at in lines].index(key)
                lines[place] |= line | {"versions": versions()}
                text = "".join(json.dumps(line) + "\n" for line in lines)
                options.out.write_text(text)
                continue
            line |= {"cleanlab": theirs(x[rows], given, wrong, clean, seed)}
            line |= {"seconds": round(time.perf_counter() - began), "versions": versions()}
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    report(lines)


if __name__ == "__main__":
    main()
