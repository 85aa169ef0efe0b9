"""A folder of 2,000 JPEGs with wrong labels, fitted and audited on a CPU: minutes, and F1.

    YTILDE_DATA=data python benchmarks/pictures.py --sets fashion cifar --seeds 0 1 2

The pictures are of Fashion-MNIST and CIFAR-10, scaled up to squares of 64 to 512 pixels, a third of
them darker or brighter; 20 % of the labels are wrong, symmetrically. `ytilde audit FOLDER` is run
as a user runs it, in a process of its own, and what it flags is compared with the truth. Beside it
is what anybody can do in ten lines: logistic regression on small pixels, its out-of-fold
probabilities, and `ytilde.audit`. One JSON line a set, a seed and a way.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ytilde import audit, datasets, noise
from ytilde.data.images import read_images
from ytilde.versions import versions

SETS = {"fashion": "fashion-mnist", "cifar": "cifar10"}
SIDES = (64, 512)
WRONG = 0.2
SMALL = 14  # pixels a side for logistic regression


def write_folder(folder: Path, name: str, rows: int, seed: int) -> np.ndarray:
    """FOLDER/LABEL/ROW.jpg; the true class of each row [rows]. A row's label is its folder."""
    data = datasets.load(SETS[name])
    rng = np.random.default_rng(seed)
    chosen = torch.from_numpy(rng.permutation(len(data))[:rows])
    clean = data.y[chosen]
    how: Any = {"rate": WRONG, "inclusive": False, "exact": True}
    generator = torch.Generator().manual_seed(seed)
    given = noise.symmetric(clean, data.num_classes, **how, generator=generator).y
    for row, (pixels, label) in enumerate(zip(data.x[chosen], given.tolist(), strict=True)):
        array = pixels.permute(1, 2, 0).squeeze(-1).numpy()
        if rng.random() < 1 / 3:
            array = np.clip(array * rng.uniform(0.6, 1.4), 0, 255).astype(np.uint8)
        side = int(rng.integers(SIDES[0], SIDES[1] + 1))
        path = folder / f"{label}" / f"{row:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).resize((side, side), Image.Resampling.BICUBIC).save(path, quality=88)
    return clean.numpy()


def by_pixels(folder: Path, clean: np.ndarray) -> dict[str, Any]:
    """Logistic regression on small pixels, judged out of fold by `ytilde.audit`."""
    began = time.perf_counter()
    paths = sorted(folder.glob("*/*.jpg"))
    x = np.asarray(read_images([str(path) for path in paths], SMALL)).reshape(len(paths), -1)
    y = np.array([int(path.parent.name) for path in paths])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    probs = cross_val_predict(model, x.astype(np.float32), y, cv=5, method="predict_proba")
    found = audit(probs, y)
    truth = clean[[int(path.stem) for path in paths]]
    seconds = {"seconds": round(time.perf_counter() - began, 1)}
    return _scores(found.issues, y != truth) | seconds


def by_command(folder: Path, clean: np.ndarray, options: list[str]) -> dict[str, Any]:
    """`ytilde audit FOLDER`, as a user types it."""
    run = folder.parent / "run"
    began, busy = time.perf_counter(), _children()
    words = [sys.executable, "-m", "ytilde", "audit", str(folder), "--out", str(run), *options]
    said = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds = time.perf_counter() - began
    print(said.stdout, flush=True)
    if said.returncode:
        raise SystemExit(said.returncode)
    issues = pd.read_csv(run / "issues.csv")
    path = issues["path" if "path" in issues else "file"].map(Path)
    truth = clean[path.map(lambda p: int(p.stem))]
    summary = json.loads((run / "summary.json").read_text())
    given = path.map(lambda p: int(p.parent.name)).to_numpy()
    found = _scores(issues, given != truth) | {"seconds": round(seconds, 1)}
    found["cpu_seconds"] = round(_children() - busy, 1)
    return found | {"backbone": summary["backbone"], "options": options}


def _children() -> float:
    """Seconds of processors that commands have used so far."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _scores(issues: pd.DataFrame, wrong: np.ndarray) -> dict[str, Any]:
    flagged = issues.is_label_issue.to_numpy(bool)
    right = int((flagged & wrong).sum())
    precision, recall = right / max(1, flagged.sum()), right / wrong.sum()
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    scores = {"precision": precision, "recall": recall, "f1": f1}
    return {k: round(float(v), 4) for k, v in scores.items()} | {"flagged": int(flagged.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--only-write", type=Path, help="write the folders here, and stop")
    parser.add_argument("--out", type=Path, default=Path("results/pictures.jsonl"))
    parser.add_argument("options", nargs="*", help="of `ytilde audit`, after --")
    asked = parser.parse_args()
    for name in asked.sets:
        for seed in asked.seeds:
            if asked.only_write:
                folder = asked.only_write / f"{name}-{seed}"
                clean = write_folder(folder, name, asked.rows, seed)
                np.save(folder.with_suffix(".npy"), clean)
                continue
            with tempfile.TemporaryDirectory() as room:
                folder = Path(room) / "pictures"
                clean = write_folder(folder, name, asked.rows, seed)
                ways = {"ytilde audit": by_command(folder, clean, asked.options)}
                ways["logistic regression on pixels"] = by_pixels(folder, clean)
            for way, scores in ways.items():
                line = {"set": name, "rows": asked.rows, "seed": seed, "way": way, **scores}
                line |= {"cores": os.cpu_count(), "versions": versions()}
                print({key: line[key] for key in ("set", "seed", "way", "f1", "seconds")})
                with asked.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
