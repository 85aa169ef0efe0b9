"""How well is T(x) found under 40 % instance noise? Squared error of the true class's row.

    PYTHONPATH=src python benchmarks/digits_transition.py --out results/digits_transition.jsonl
    ... --set fashion-mnist --rows 20000 --out results/fashion_transition.jsonl

Every method with a T, default fields, mlp, the recipe that ytilde chooses for such data but for its
last epoch; 5 seeds of noise and training. Beside them, on the same labels: cleanlab's noise matrix
from 5-fold predictions of the same network trained by cross-entropy (extra `bench`; the epoch with
the lowest noisy validation loss), the class-level floor (the class means of the true rows: no
class-level T is lower) and the identity. Training sees no clean label; but the defaults of bltm and
meidtm were set with an eye on these errors for seeds 0 and 1, and early averaging on seeds 0 to 3,
so that seeds from 4 on are the fair ones; those of dtm on seeds 0, 5 and 6, so that 1 to 4 are fair
to it. Nothing was set on Fashion-MNIST, of which the methods see 64 principal components. One JSON
line a run; the table is printed.
"""

import argparse
import json
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

import ytilde
from ytilde import datasets, noise
from ytilde.data import Batch, Data
from ytilde.engine import Trainer, default_recipe
from ytilde.fitting import fit_method
from ytilde.method import Method, create
from ytilde.transition import class_floor, from_cleanlab, row_error

METHODS = ["ce", "forward", "backward", "reweight", "t_revision", "dual_t", "volminnet"]
METHODS += ["ptd", "bltm", "meidtm", "dtm", "dtm:without=clustering", "dtm:without=diffusion"]
METHODS += ["dtm:without=denoising"]
RATE = 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="digits_transition.jsonl")
    parser.add_argument("--set", default="digits", help="or a set of images; $YTILDE_DATA")
    parser.add_argument("--rows", type=int, help="of the training images; default: all")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, help="instead of the recipe's own number")
    parser.add_argument("--only", nargs="*", default=["references", *METHODS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    train, test = load(args.set, args.rows)
    with Path(args.out).open("a") as out:
        for seed in args.seeds:
            generator = torch.Generator().manual_seed(seed)
            made = noise.instance(train.x, train.y, 10, rate=RATE, generator=generator)
            for name in args.only:
                run = references if name == "references" else method
                for line in run(name, replace(train, y=made.y), test, made, seed, args.epochs):
                    out.write(json.dumps(line | about(args.set, seed, made)) + "\n")
                    out.flush()
    show(Path(args.out))


def load(name: str, rows: int | None) -> tuple[Data, Data]:
    """Training and test rows of features: the set's own, or the principal components of images."""
    train, test = (datasets.load(name, split=split) for split in ("train", "test"))
    if len(train.shape) == 1:
        return train, test
    train = train.rows(torch.arange(len(train) if rows is None else rows))
    images, others = (part.x[torch.arange(len(part))].flatten(1) / 255 for part in (train, test))
    pca = PCA(64, random_state=0).fit(images)
    x, x_test = (torch.from_numpy(pca.transform(part)).float() for part in (images, others))
    return Data(x, train.y, train.num_classes), Data(x_test, test.y, test.num_classes)


def about(name: str, seed: int, made: noise.Noisy) -> dict[str, Any]:
    """What a number carries with it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "data": name, "rows": len(made.y), "noise": f"instance:{RATE},features=standardized",
        "rate": made.rate, "backbone": "mlp", "seed": seed, "device": "cpu",
        "commit": head.stdout.strip(), "torch": torch.__version__, "ytilde": ytilde.__version__,
    }  # fmt: skip


def method(
    name: str, data: Data, test: Data, made: noise.Noisy, seed: int, epochs: int | None
) -> list[dict[str, Any]]:
    kind, _, text = name.partition(":")  # "dtm:without=diffusion" sets a field
    fields = dict([text.split("=")]) if text else {}
    began, found = time.perf_counter(), create(kind, **fields)
    recipe = default_recipe(data.shape, len(data), seed=seed, epochs=epochs, keep="last")
    trainer = fit_method(found, data, recipe, backbone="mlp")
    T = all_T(found, trainer, data)
    line = {"name": name, "row_error": error(T, made), "epochs": recipe.epochs}
    line |= {"test_accuracy": trainer.score(test)["accuracy"]}
    return [line | {"seconds": round(time.perf_counter() - began, 1)}]


def references(
    name: str, data: Data, test: Data, made: noise.Noisy, seed: int, epochs: int | None
) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [
        {"name": "identity", "row_error": error(torch.eye(10), made)},
        {"name": "class-level floor", "row_error": float(class_floor(made.rows, made.clean))},
    ]
    try:
        from cleanlab.count import compute_confident_joint, estimate_latent
    except ImportError:
        return lines
    probs, y = out_of_fold(data, seed, epochs).double().numpy(), data.y.numpy()
    joint = compute_confident_joint(y, probs)
    T = from_cleanlab(estimate_latent(joint, y)[1])
    return [*lines, {"name": "cleanlab", "row_error": error(T, made)}]


def out_of_fold(data: Data, seed: int, epochs: int | None) -> Tensor:
    """Noisy posteriors of each row by a network that has not seen it."""
    probs = torch.zeros(len(data), 10)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    for kept, held in folds.split(np.zeros(len(data)), data.y.numpy()):
        part, rest = (data.rows(torch.from_numpy(index)) for index in (kept, held))
        recipe = default_recipe(data.shape, len(part), seed=seed, epochs=epochs)
        plain = create("ce")
        trainer = fit_method(plain, part, replace(recipe, keep="best_nll"), backbone="mlp")
        probs[held] = noisy_posteriors(plain, trainer, rest)
    return probs


def noisy_posteriors(plain: Method, trainer: Trainer, data: Data) -> Tensor:
    return trainer.map(lambda batch: plain.predict_proba(batch.x), data)


def all_T(found: Method, trainer: Trainer, data: Data) -> Tensor:
    def of(batch: Batch) -> Tensor:
        T = found.transition(batch)
        return (torch.eye(10) if T is None else T).expand(len(batch.x), 10, 10)

    return trainer.map(of, data)


def error(T: Tensor, made: noise.Noisy) -> float:
    T = T.expand(len(made.clean), 10, 10)
    return float(row_error(T[torch.arange(len(T)), made.clean], made.rows))


def show(path: Path) -> None:
    """Mean, sd (ddof 1) and n of the row errors in the file, and the test accuracies."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        if "superseded" not in line:  # by a method that has changed
            found.setdefault(line["name"], []).append(line)
    print(f"{'':22} {'row error':>9} {'sd':>6} {'n':>3} {'test accuracy':>14}")
    for name, lines in sorted(found.items(), key=lambda item: mean(item[1], "row_error")):
        sd = statistics.stdev(line["row_error"] for line in lines) if len(lines) > 1 else 0.0
        accuracy = f"{mean(lines, 'test_accuracy'):.3f}" if "test_accuracy" in lines[0] else ""
        print(f"{name:22} {mean(lines, 'row_error'):9.4f} {sd:6.4f} {len(lines):3} {accuracy:>14}")


def mean(lines: list[dict[str, Any]], key: str) -> float:
    return statistics.mean(line[key] for line in lines)


if __name__ == "__main__":
    main()
