"""Texts: the TF-IDF route against scikit-learn's own TF-IDF + logistic regression.

    PYTHONPATH=src python benchmarks/text.py --out results/text.jsonl

Two sets that any machine has: `inflected` is made here (every class has its own distribution over
stems, and each stem takes one of eight endings, as words of many languages do), `docstrings` are
the docstrings of the packages of Python's standard library, the package being the class. A third,
`diffuse`, is where components lose: made words without endings, and classes that differ a little in
thousands of them. A third of the texts is the test set; the labels of the others are made wrong at
random.

`ytilde` is `Classifier()` with nothing said: TF-IDF of words and pieces, a linear model. `elr` is
the cheaper method on the same input; docs/decisions/0019 says how the network was chosen. One JSON
line a run; what is there is not run again, and the table is printed.
"""

import argparse
import ast
import json
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from ytilde import Classifier, bench
from ytilde.stats import mean_sd, paired_t

PACKAGES = (
    *("asyncio", "email", "tkinter", "unittest", "xml", "multiprocessing"),
    *("ctypes", "logging", "importlib", "http", "json", "concurrent"),
)
SHORTEST = 40  # characters of a docstring that says something
ROUTES = ("logistic regression", "ytilde", "elr")


def inflected(n: int = 2000, classes: int = 6, stems: int = 500, seed: int = 0) -> Any:
    """Texts of made words, and their classes."""
    rng = np.random.default_rng(seed)
    vowels, consonants = list("aeiouy"), list("bcdfghklmnprstvz")

    def word(syllables: int) -> str:
        return "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(syllables))

    names = [word(rng.integers(2, 4)) for _ in range(stems)]
    endings = ["", *(rng.choice(vowels) + rng.choice(consonants) for _ in range(7))]
    common = 1 / np.arange(1, stems + 1)
    common /= common.sum()
    y = rng.integers(0, classes, n)
    own = np.sqrt(common) * rng.gamma(0.08, 1, (classes, stems))
    chance = 0.65 * common + 0.35 * own / own.sum(1, keepdims=True)
    texts = []
    for label in y:
        length = rng.integers(10, 60)
        drawn = rng.choice(stems, length, p=chance[label])
        texts.append(" ".join(names[i] + rng.choice(endings) for i in drawn))
    return np.array(texts, dtype=object), y


def diffuse(n: int = 2000, classes: int = 6, words: int = 3000, seed: int = 0) -> Any:
    """Texts of words that have nothing in common, and of which each tells a little."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    names = np.array(["".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(words)])
    common = 1 / np.arange(1, words + 1)
    common /= common.sum()
    own = common * rng.gamma(0.15, 1, (classes, words))
    chance = 0.7 * common + 0.3 * own / own.sum(1, keepdims=True)
    y = rng.integers(0, classes, n)
    drawn = (rng.choice(words, rng.integers(8, 60), p=chance[label]) for label in y)
    return np.array([" ".join(names[each]) for each in drawn], dtype=object), y


def docstrings() -> Any:
    """The docstrings of the standard library, and the number of their package."""
    root = Path(sysconfig.get_paths()["stdlib"])
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts: dict[str, int] = {}
    for label, package in enumerate(PACKAGES):
        for path in sorted((root / package).rglob("*.py")):
            nodes = ast.walk(ast.parse(path.read_bytes())) if "test" not in path.parts else ()
            found = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
            for text in found:
                if text and len(text) >= SHORTEST:
                    texts.setdefault(text, label)  # one that is copied stands there once
    return np.array(list(texts), dtype=object), np.array(list(texts.values()))


SETS = {"inflected": inflected, "docstrings": docstrings, "diffuse": diffuse}


def corrupt(y: np.ndarray, rate: float, seed: int) -> np.ndarray:
    """Labels of which this share is one of the other classes."""
    rng = np.random.default_rng([seed, 7])
    wrong = rng.random(len(y)) < rate
    classes = int(y.max()) + 1
    return np.where(wrong, (y + rng.integers(1, classes, len(y))) % classes, y)


def run(texts: Any, y: np.ndarray, rate: float, seed: int) -> dict[str, Any]:
    """Test accuracy of every route."""
    old, new, known, truth = train_test_split(
        texts, y, test_size=1 / 3, random_state=seed, stratify=y
    )
    given = corrupt(known, rate, seed)
    plain = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(old, given)
    line: dict[str, Any] = {"train": len(old), "test": len(new)}
    line["logistic regression"] = float(plain.score(new, truth))
    for name, options in (("ytilde", {}), ("elr", {"method": "elr"})):
        clf = Classifier(**options, random_state=seed, device="cpu")
        clf.fit(pd.DataFrame({"text": old}), given)
        line[name] = float(clf.score(pd.DataFrame({"text": new}), truth))
        line[f"{name}_backbone"] = clf.backbone_
    return line


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def show(found: list[dict[str, Any]]) -> None:
    """Accuracies in points, and what ytilde adds to logistic regression."""
    for data, rate in sorted({(line["data"], line["rate"]) for line in found}):
        of = [line for line in found if (line["data"], line["rate"]) == (data, rate)]
        points = {route: [100 * line[route] for line in of] for route in ROUTES}
        told = "  ".join(f"{route} {mean_sd(points[route])[0]:.1f}" for route in ROUTES)
        ours, theirs = points["ytilde"], points["logistic regression"]
        gain = mean_sd([a - b for a, b in zip(ours, theirs, strict=True)])
        p = paired_t(ours, theirs).p if len(of) > 1 else float("nan")
        print(
            f"{data:10} {rate:.1f}  {told}  ytilde adds {gain[0]:+.1f} ± {gain[1]:.1f} "
            f"(n {len(of)}, p {p:.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/text.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="*", default=[0.0, 0.2, 0.4])
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    made = {name: SETS[name]() for name in args.sets}
    for seed in args.seeds:
        for name, (texts, y) in made.items():
            for rate in args.rates:
                key = {"data": name, "rate": rate, "seed": seed}
                if any(key.items() <= line.items() for line in lines(args.out)):
                    continue
                line = key | run(texts, y, rate, seed)
                line |= {"versions": bench.versions(), "commit": bench.commit()}
                args.out.parent.mkdir(parents=True, exist_ok=True)
                with args.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
    show(lines(args.out))


if __name__ == "__main__":
    main()
