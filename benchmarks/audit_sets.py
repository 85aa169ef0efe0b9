"""Sets to audit whose truth is known: strong and weak models, over- and under-trained, all noises.

    python benchmarks/audit_sets.py make --folder sets       # about 20 minutes on one core
    python benchmarks/audit_sets.py score --folder sets      # audits those that --out has not

A set is a source (real pictures, tables and texts at hand), a number of rows, a noise and a model
that somebody might use. `make` keeps the model's out-of-fold probabilities [N, K], the given labels
and the true ones, which `score` alone reads. Of the sets of each kind of noise every other one is
reported only (`held_out`); the audit's constants were chosen on the rest, and on MORE.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pkgutil
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from common import read_lines
from ytilde import Classifier, audit, datasets, noise
from ytilde.auditing.report.advice import fix_threshold
from ytilde.metrics import average_precision, calibration_error, f1
from ytilde.versions import versions

# source, rows, model, noise: several models may share the labels
SETS = [
    tuple(line.split())
    for line in """
digits 1797 elr instance:0.4
digits 1797 elr boundary:0.2
digits 1797 mlp_long symmetric:0.2
digits 1797 mlp_long pair:0.1
digits 1797 mlp_short symmetric:0.2
digits 1797 mlp_short boundary:0.1
digits 300 lr symmetric:0.2
digits 100 lr symmetric:0.1
digits 1797 nb symmetric:0.1
digits 1797 nb instance:0.2
digits 1797 tree symmetric:0.2
digits 1797 tree pair:0.3
digits 1797 knn symmetric:0.4
digits 1797 knn boundary:0.2
fashion 10000 lr symmetric:0.2
fashion 10000 lr instance:0.3
fashion 3000 mlp_long instance:0.2
fashion 3000 mlp_long symmetric:0.1
fashion 2000 elr pair:0.2
fashion 2000 elr boundary:0.2
fashion 10000 forest instance:0.4
fashion 10000 forest symmetric:0.3
fashion 1000 boost symmetric:0.2
fashion 1000 boost instance:0.2
fashion 30000 lr pair:0.4
fashion 30000 lr symmetric:0.05
fashion 500 mlp_short symmetric:0.2
fashion 500 mlp_short boundary:0.2
mnist 5000 lr symmetric:0.4
mnist 5000 lr boundary:0.1
mnist 1000 mlp_long instance:0.3
mnist 1000 mlp_long pair:0.05
mnist 3000 nb symmetric:0.2
mnist 3000 nb pair:0.2
cifar 10000 lr human:worst
cifar 10000 lr human:aggre
cifar 10000 mlp_short human:random1
cifar 10000 mlp_short human:worst
cifar 5000 mlp_long human:aggre
cifar 5000 mlp_long human:worst
cifar_patches 10000 lr human:worst
cifar_patches 10000 lr human:aggre
cifar_patches 10000 elr human:aggre
cifar_patches 10000 elr human:worst
cifar_patches 3000 lr_over symmetric:0.2
cifar_patches 3000 lr_over instance:0.2
cifar_patches 10000 forest human:random1
cifar_patches 10000 forest symmetric:0.4
cifar100 10000 lr human:fine
cifar100 10000 lr human:coarse
cancer 569 lr symmetric:0.1
cancer 569 forest symmetric:0.2
cancer 569 boost symmetric:0.1
cancer 569 mlp_long boundary:0.1
wine 178 lr symmetric:0.2
wine 178 forest symmetric:0.1
table_weak 4000 lr symmetric:0.1
table_weak 4000 forest symmetric:0.2
table_weak 4000 mlp_long symmetric:0.2
table_weak 4000 elr symmetric:0.1
table_hard 3000 lr symmetric:0.15
table_hard 3000 boost instance:0.15
table_hard 3000 elr pair:0.2
table_hard 3000 mlp_long pair:0.1
text 3000 lr symmetric:0.2
text 3000 lr boundary:0.2
text 3000 lr_over pair:0.2
text 3000 forest symmetric:0.1
text_many 4000 lr symmetric:0.2
text_many 4000 lr boundary:0.15
text_many 4000 lr_over symmetric:0.4
text_many 4000 elr pair:0.2
""".strip().splitlines()
]

# sets to choose on that came later: strong models beside which the panel has little to add
MORE = [
    tuple(line.split())
    for line in """
digits 1797 elr instance:0.2
digits 1797 elr instance:0.3
digits 1797 elr boundary:0.1
digits 1797 elr pair:0.3
digits 1797 lr boundary:0.2
digits 1797 lr instance:0.4
digits 1797 knn instance:0.3
mnist 2000 elr instance:0.3
""".strip().splitlines()
]


# ---- sources ---------------------------------------------------------------------------------


def _pictures(name: str, n: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    data = datasets.load(name)
    x = data.x[torch.arange(n)].float()
    x = torch.nn.functional.adaptive_avg_pool2d(x, side).flatten(1)
    return x.numpy(), data.y[:n].numpy()


def _patches(n: int, filters: int = 300) -> np.ndarray:
    """Features of random patches (after Coates and Ng): better than pixels, worse than a network"""
    x = datasets.load("cifar10").x[torch.arange(n)].float()
    x = (x - x.mean()) / x.std()
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(0, 27, (filters, 2), generator=generator)
    rows = torch.randint(0, n, (filters,), generator=generator)
    weight = torch.stack(
        [x[r, :, i : i + 6, j : j + 6] for r, (i, j) in zip(rows, at, strict=True)]
    )
    weight = weight - weight.mean((1, 2, 3), keepdim=True)
    weight /= weight.flatten(1).norm(dim=1)[:, None, None, None] + 1
    out = []
    for part in x.split(500):
        z = torch.nn.functional.conv2d(part, weight)
        z = torch.cat([torch.relu(z - 0.5), torch.relu(-z - 0.5)], 1)
        out.append(torch.nn.functional.adaptive_avg_pool2d(z, 2).flatten(1))
    return PCA(200, random_state=0).fit_transform(torch.cat(out).numpy())


def _docstrings(packages: list[str], n: int) -> tuple[list[str], np.ndarray]:
    """Paragraphs of the docstrings of packages that are installed; the class is the package."""
    texts, labels = [], []
    for label, package in enumerate(packages):
        found: set[str] = set()
        root = import_module(package)
        modules = [root.__name__]
        if hasattr(root, "__path__"):
            found_in = pkgutil.iter_modules(root.__path__, f"{package}.")
            modules += [m.name for m in found_in if not m.name.endswith("__main__")]
        for name in modules:
            try:
                module = import_module(name)
            except Exception:
                continue
            for _, thing in inspect.getmembers(module):
                doc = inspect.getdoc(thing) if callable(thing) else None
                for part in (doc or "").split("\n\n"):
                    text = " ".join(part.split())
                    if 60 < len(text) < 600 and ">>>" not in text and package not in text:
                        found.add(text)
        chosen = np.random.default_rng(0).permutation(sorted(found))[: n // len(packages)]
        texts += list(chosen)
        labels += [label] * len(chosen)
    order = np.random.default_rng(1).permutation(len(texts))
    return [texts[i] for i in order], np.array(labels)[order]


def _tfidf(texts: list[str]) -> np.ndarray:
    return TruncatedSVD(200, random_state=0).fit_transform(
        TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(texts)
    )


@cache
def source(name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    if name == "digits":
        x, y = load_digits(return_X_y=True)
    elif name == "cancer":
        x, y = load_breast_cancer(return_X_y=True)
    elif name == "wine":
        x, y = load_wine(return_X_y=True)
    elif name == "fashion":
        x, y = _pictures("fashion-mnist", n, 14)
    elif name == "mnist":
        x, y = _pictures("mnist", n, 14)
    elif name == "cifar":
        x, y = _pictures("cifar10", n, 8)
    elif name == "cifar_patches":
        x, y = _patches(n), datasets.load("cifar10").y[:n].numpy()
    elif name == "cifar100":
        x, y = _pictures("cifar100", n, 8)
    elif name == "table_weak":  # ten useful columns among noise: no model gets far
        x, y = make_classification(n, 30, n_informative=10, n_classes=4, class_sep=0.7,
                                   n_clusters_per_class=4, flip_y=0, random_state=0)  # fmt: skip
    elif name == "table_hard":  # two thirds of the table are of a class: unequal, and overlapping
        x, y = make_classification(n, 20, n_informative=8, n_classes=3, class_sep=1.0, flip_y=0,
                                   weights=[0.65, 0.25], random_state=1)  # fmt: skip
    elif name == "text":
        texts, y = _docstrings(["numpy", "pandas", "scipy", "torch"], n)
        x = _tfidf(texts)
    elif name == "text_many":
        texts, y = _docstrings(
            ["numpy", "pandas", "scipy.stats", "torch", "matplotlib", "sklearn", "PIL", "email",
             "asyncio", "http", "unittest", "xml"], n,
        )  # fmt: skip
        x = _tfidf(texts)
    else:
        raise SystemExit(f"no source {name}")
    if len(y) > n:
        rows = np.random.default_rng(0).permutation(len(y))[:n]
        x, y = x[rows], y[rows]
    return np.asarray(x, np.float32), np.asarray(y, np.int64)


@cache
def labels(name: str, n: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The given labels [N] and the true ones [N]."""
    x, y = source(name, n)
    (kind, _, rate), n = kind.partition(":"), len(y)
    if kind == "human" and name == "cifar100":
        data = datasets.load("cifar100n")
        given, clean = data.y[:n].numpy(), data.clean[:n].numpy()
        if rate == "coarse":
            coarse = np.asarray(datasets.CIFAR100_COARSE)
            given, clean = coarse[given], coarse[clean]
        return given, clean
    if kind == "human":
        data = datasets.load(f"cifar10n-{rate}")
        return data.y[:n].numpy(), data.clean[:n].numpy()
    generator, k = torch.Generator().manual_seed(len(name) + n), int(y.max()) + 1
    if kind != "boundary":
        made = noise.corrupt(f"{kind}:{rate}", torch.from_numpy(x), torch.from_numpy(y), k,
                             generator=generator)  # fmt: skip
        return made.y.numpy(), y
    return wrong_at_borders(x, y, float(rate), generator), y


def wrong_at_borders(
    x: np.ndarray, y: np.ndarray, rate: float, generator: torch.Generator
) -> np.ndarray:
    """Labels [N] of which `rate` are expected to be the runner-up of a model of the true ones.

    The nearer a row is to the border of two classes, the likelier is its label wrong.
    """
    judge = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(x, y)
    p, rows = judge.predict_proba(x), np.arange(len(y))
    own = p[rows, y].copy()
    p[rows, y] = 0
    order = np.argsort(np.argsort(own - p.max(1))) / len(y)
    draw = torch.rand(len(y), generator=generator).numpy()
    return np.where(draw < np.minimum(1, 2 * rate * (1 - order)), p.argmax(1), y)


# ---- models ----------------------------------------------------------------------------------

MODELS: dict[str, Callable[[int], Any]] = {
    "lr": lambda seed: LogisticRegression(max_iter=100),
    "lr_over": lambda seed: LogisticRegression(C=1000, max_iter=300),
    "nb": lambda seed: GaussianNB(var_smoothing=1e-3),
    "knn": lambda seed: KNeighborsClassifier(10),
    "tree": lambda seed: DecisionTreeClassifier(max_depth=10, random_state=seed),
    "forest": lambda seed: RandomForestClassifier(100, random_state=seed),
    "boost": lambda seed: HistGradientBoostingClassifier(max_iter=50, random_state=seed),
    "mlp_short": lambda seed: MLPClassifier((128,), max_iter=4, random_state=seed),
    "mlp_long": lambda seed: MLPClassifier((128,), max_iter=100, random_state=seed),
}


def answers(model: str, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """Out-of-fold probabilities [N, K]."""
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    if model == "elr":
        p = np.zeros((len(y), int(y.max()) + 1))
        for train, held in folds.split(x, y):
            net = Classifier("elr", val=0.0, epochs=20, random_state=seed).fit(x[train], y[train])
            p[np.ix_(held, net.classes_)] = net.predict_proba(x[held])
        return p
    pipe = make_pipeline(StandardScaler(), MODELS[model](seed))
    return cross_val_predict(pipe, x, y, cv=folds, method="predict_proba")


def held_out(entry: tuple[str, ...]) -> bool:
    if entry in MORE:
        return False
    kind = entry[3].partition(":")[0]
    return [e for e in SETS if e[3].partition(":")[0] == kind].index(entry) % 2 == 1


def name_of(entry: tuple[str, ...]) -> str:
    return "-".join(entry).replace(":", "_")


def make(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    for entry in [*SETS, *MORE][options.start :: options.step]:
        path = options.folder / f"{name_of(entry)}.npz"
        if path.exists():
            continue
        where, n, model, kind = entry[0], int(entry[1]), entry[2], entry[3]
        x, _ = source(where, n)
        given, clean = labels(where, n, kind)
        p = answers(model, x, given, 0)
        np.savez(path, y=given, clean=clean, p=p.astype(np.float32))
        right = (p.argmax(1) == clean).mean()
        print(
            f"{name_of(entry)}: wrong {(given != clean).mean():.3f}, model {right:.3f}", flush=True
        )


def figures(found: Any, wrong: np.ndarray) -> dict[str, Any]:
    """What the bars are about; the flags' F1, and the average precision of the order."""
    p_wrong, quality = found.issues.p_wrong.to_numpy(), found.issues.label_quality.to_numpy()
    sure, rate = p_wrong > 0.95, found.noise_rate
    advised = fix_threshold(found)
    fixed = found.issues.predicted_label.to_numpy()
    line = {
        "ece": calibration_error(p_wrong, wrong),
        "ap": average_precision(-quality, wrong),
        "f1": f1(found.issues.is_label_issue.to_numpy(), wrong),
        "sure": int(sure.sum()),
        "sure_wrong": float(wrong[sure].mean()) if sure.any() else None,
        "rate": [float(rate), rate.low, rate.high],
        "covered": bool(rate.low <= wrong.mean() <= rate.high),
    }
    return line | {"advised": advised, "fixed": fixed}


def cleanlab(p: np.ndarray, y: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """The best average precision of its scores, and the F1 of its rule."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    scores = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
    best = [get_label_quality_scores(y, p, method=score) for score in scores]
    ap = max(average_precision(-quality, wrong) for quality in best)
    return {"ap": ap, "f1": f1(find_label_issues(y, p, n_jobs=1), wrong)}


def score(options: argparse.Namespace) -> None:
    lines = read_lines(options.out)
    done = {line["set"] for line in lines}
    for entry in [*SETS, *MORE]:
        path = options.folder / f"{name_of(entry)}.npz"
        if not path.exists() or name_of(entry) in done:
            continue
        if options.half and held_out(entry) != (options.half == "held"):
            continue
        arrays = np.load(path)
        p, y, clean = arrays["p"].astype(np.float64), arrays["y"], arrays["clean"]
        p, wrong = p / p.sum(1, keepdims=True), y != clean
        line: dict[str, Any] = {
            "set": name_of(entry),
            "half": ("chosen on", "held out")[held_out(entry)],
        }
        line |= {
            "n": len(y),
            "wrong": float(wrong.mean()),
            "model": float((p.argmax(1) == clean).mean()),
        }
        x, _ = source(entry[0], int(entry[1]))
        for name, features in (("panel", x), ("alone", None)):
            found = audit(p, y, features=features)
            line[name] = figures(found, wrong)
            advised, fixed = line[name].pop("advised"), line[name].pop("fixed")
            if advised is not None:
                take = found.issues.p_wrong.to_numpy() > advised
                after = np.where(take, fixed, y)
                line[name] |= {"advised": advised, "after": float((after == clean).mean())}
        line |= {"cleanlab": cleanlab(p, y, wrong), "versions": versions()}
        lines.append(line)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(told(line), flush=True)
    summary(lines)


def told(line: dict[str, Any]) -> str:
    own, other = line["panel"], line["cleanlab"]
    low, high = own["rate"][1:]
    sure = f"{own['sure_wrong']:.2f}" if own["sure"] else "-"
    after = f" fixed at {own['advised']}: {own['after']:.3f}" if "after" in own else ""
    return (
        f"{line['set']:44} {line['half'][0]} model {line['model']:.2f} wrong {line['wrong']:.3f} "
        f"told {own['rate'][0]:.3f} [{low:.3f} {high:.3f}]{'' if own['covered'] else ' MISSED'} "
        f"ece {own['ece']:.3f} ({line['alone']['ece']:.3f}) sure {own['sure']} {sure} "
        f"ap {own['ap']:.3f} / {other['ap']:.3f} f1 {own['f1']:.3f} / {other['f1']:.3f}{after}"
    )


def summary(lines: list[dict[str, Any]]) -> None:
    for half in sorted({line["half"] for line in lines}):
        some = [line for line in lines if line["half"] == half]
        for name in ("panel", "alone"):
            own = [line[name] for line in some]
            ece = [f["ece"] for f in own]
            sure = [f["sure_wrong"] for f in own if f["sure"] >= 30]
            covered = np.mean([f["covered"] for f in own])
            print(
                f"{half}, {name}: {len(own)} sets, ece {np.mean(ece):.3f}, worst {max(ece):.3f}, "
            )
            print(f"  sure: {min(sure, default=1):.2f} at worst, {sum(s < 0.9 for s in sure)} of ")
            print(f"  {len(sure)} below .9; interval covers {covered:.2f}")
            for figure in ("ap", "f1"):
                ahead = [line[name][figure] - line["cleanlab"][figure] for line in some]
                behind = sum(a < -5e-4 for a in ahead)
                print(f"  {figure} {np.mean(ahead):+.3f}, behind in {behind}, by {-min(ahead):.3f}")
            fixed = [(line[name]["after"], line) for line in some if "after" in line[name]]
            harm = sum(after < 1 - line["wrong"] for after, line in fixed)
            print(f"  fixing advised in {len(fixed)}, harmful in {harm}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("make", "score"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--half", choices=("chosen", "held"))
    parser.add_argument("--out", type=Path, default=Path("results/audit_sets.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    (make if options.task == "make" else score)(options)


if __name__ == "__main__":
    main()
