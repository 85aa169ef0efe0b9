"""What users should get without asking: every method at its defaults, over data and noises.

    python benchmarks/defaults.py sources --file sources.npz       # the inputs, once
    python benchmarks/defaults.py run --file sources.npz --workers 2
    python benchmarks/defaults.py report

A setting is a source (digits, components of pictures, tables, texts as TF-IDF components, features
of many dimensions), a noise and its rate. A run is `Classifier(method, backbone)` with everything
else left at its default, fitted on the noisy labels of 70 % of the rows and scored on the true
labels of the rest. Split, noise and initialisation follow the seed and are shared by all methods.
Each run appends a JSON line; what is there is not run again. `report` gives accuracies, average
ranks and costs. (Lines of `second_opinion:views=1` are of a field that was tried and dropped, those
of `auto:networks=0` are from before `auto` tried a larger network; `second_opinion:confusion=0` is
the method as it was before that field, `second_opinion:between=0` as it was when its targets were
made in every step, and `auto:between=0` is of then. `second_opinion:views=2` learnt both views of a
row, `auto:ensemble=0` is of then and chose one network; `floor=0` is of before that field.)
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audit_sets import source, wrong_at_borders
from common import read_lines
from ytilde import Classifier, datasets, noise
from ytilde.method import Method, create, list_methods
from ytilde.versions import versions

# source, rows, noise:rate
SETTINGS = [
    tuple(line.split())
    for line in """
digits 1797 none
digits 1797 symmetric:0.2
digits 1797 instance:0.4
digits 1797 boundary:0.4
fashion 3000 none
fashion 3000 instance:0.2
fashion 3000 boundary:0.2
fashion 3000 asymmetric:0.4
cancer 569 symmetric:0.2
cancer 569 boundary:0.1
table_hard 2500 none
table_hard 2500 asymmetric:0.2
table_weak 2500 symmetric:0.1
text 2500 symmetric:0.4
text 2500 boundary:0.1
text_many 2500 instance:0.2
cifar_patches 4000 human:worst
cifar_patches 4000 symmetric:0.1
embeddings 2500 instance:0.4
embeddings 2500 none
""".strip().splitlines()
]
DEFAULT = "auto"  # the network that `fit` and Classifier choose
NETWORKS = ("identity", "mlp:width=128,depth=1", "mlp:width=256,depth=2")
LEADING = ("ce", "elr", "gce", "dividemix", "second_opinion", "elr_plus", "sop", "ln", "mixup",
           "co_teaching", "volminnet")  # with each of the networks  # fmt: skip
LEFT_OUT = ("crowd",)  # needs votes


def embeddings(n: int, dims: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Fashion-MNIST as random convolutions see it: hundreds of dimensions, linear classes."""
    data = datasets.load("fashion-mnist")
    x, generator = data.x[torch.arange(n)].float(), torch.Generator().manual_seed(0)
    weight = torch.randn(128, 1, 5, 5, generator=generator)
    z = torch.cat([torch.nn.functional.conv2d(part, weight).relu() for part in x.split(500)])
    z = torch.nn.functional.adaptive_avg_pool2d(z, 2).flatten(1)[:, :dims]
    return z.numpy().astype(np.float32), data.y[:n].numpy()


def save_sources(options: argparse.Namespace) -> None:
    arrays = {}
    for name, n in sorted({(name, int(n)) for name, n, _ in SETTINGS}):
        x, y = embeddings(n) if name == "embeddings" else source(name, n)
        arrays |= {f"{name}.x": x.astype(np.float32), f"{name}.y": y}
        if name == "cifar_patches":
            arrays[f"{name}.worst"] = datasets.load("cifar10n-worst").y[:n].numpy()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(options.file, **arrays)


@cache
def sources(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def noisy_labels(x: np.ndarray, y: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """Labels [N] of which some are wrong; at a border: the runner-up of a model of the truth."""
    k, generator = int(y.max()) + 1, torch.Generator().manual_seed(seed)
    kind, _, rate = kind.partition(":")
    if kind != "boundary":
        text = f"pair:{rate}" if kind == "asymmetric" else f"{kind}:{rate}"
        z = (x - x.mean(0)) / (x.std(0) + 1e-6)
        made = noise.corrupt(text, torch.from_numpy(z), torch.from_numpy(y), k, generator=generator)
        return made.y.numpy()
    return wrong_at_borders(x, y, float(rate), generator)


def split(
    setting: tuple[str, ...], seed: int, file: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, noisy and true labels of the training rows; x and true labels of the test rows."""
    name, _, kind = setting
    x, y = sources(file)[f"{name}.x"], sources(file)[f"{name}.y"]
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[: int(0.3 * len(y))], order[int(0.3 * len(y)) :]
    if kind == "none":
        given = y[train]
    elif kind.startswith("human"):
        given = sources(file)[f"{name}.worst"][train]
    else:
        given = noisy_labels(x[train], y[train], kind, seed)
    return x[train], given, y[train], x[test], y[test]


def run(
    setting: tuple[str, ...], method: str, backbone: str, seed: int, file: Path
) -> dict[str, Any]:
    torch.set_num_threads(1)
    x, given, true, x_test, y_test = split(setting, seed, file)
    line = key(setting, method, backbone, seed) | {"rows": len(given)}
    line["wrong_labels"] = float((given != true).mean())
    began = time.perf_counter()
    try:
        made = method if method == "auto" else from_text(method)
        model = Classifier(made, backbone, random_state=seed, device="cpu").fit(x, given)
    except Exception as error:
        return line | {"failed": repr(error)[:200]}
    line["seconds"] = round(time.perf_counter() - began, 2)
    held = [record["val_accuracy"] for record in model.history_ if "val_accuracy" in record]
    line["val_accuracy"] = max(held) if held else None
    line["chosen"] = getattr(model.method_, "name", method)
    line["accuracy"] = float((model.predict(x_test) == y_test).mean())
    return line | {"versions": versions()}


def from_text(text: str) -> Method:
    """A method with fields of its own: second_opinion:views=1."""
    name, _, fields = text.partition(":")
    pairs = (part.partition("=")[::2] for part in fields.split(",") if part)
    return create(name, **{field: json.loads(value) for field, value in pairs})


def key(setting: tuple[str, ...], method: str, backbone: str, seed: int) -> dict[str, Any]:
    return {"setting": " ".join(setting), "method": method, "backbone": backbone, "seed": seed}


def jobs(seeds: int, extra: list[str]) -> Iterator[tuple[tuple[str, ...], str, str, int]]:
    """Leading methods first, then the rest, seed by seed: what is there is whole settings."""
    rest = [name for name in list_methods() if name not in (*LEFT_OUT, *LEADING)]
    rest.sort(key=lambda name: name == "het_xl")  # draws a thousand samples: slow on one core
    leading = [(name, network) for name in LEADING for network in NETWORKS]
    leading += [(name, DEFAULT) for name in extra]
    for pairs in (leading, [(name, NETWORKS[-1]) for name in rest]):
        for seed in range(seeds):
            yield from ((setting, *pair, seed) for setting in SETTINGS for pair in pairs)


def run_all(options: argparse.Namespace) -> None:
    parts = ("setting", "method", "backbone", "seed")
    done = {tuple(line[part] for part in parts) for line in read_lines(options.out)}
    left = [
        job for job in jobs(options.seeds, options.auto)
        if tuple(key(*job).values()) not in done
        and (not options.only or job[1] in options.only)
        and (not options.networks or job[2] in options.networks)
    ]  # fmt: skip
    print(f"{len(left)} runs to go", flush=True)
    began = time.perf_counter()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(options.workers, mp_context=context) as pool,
        options.out.open("a") as out,
    ):
        waiting = set()
        queue = iter(left)
        for number in range(len(left) + 1):
            while len(waiting) < 2 * options.workers and (job := next(queue, None)):
                if time.perf_counter() - began > 60 * options.minutes:
                    break
                waiting.add(pool.submit(run, *job, options.file))
            if not waiting:
                break
            finished = next(as_completed(waiting))
            waiting.remove(finished)
            out.write(json.dumps(finished.result()) + "\n")
            out.flush()
            if number % 100 == 0:
                print(number, round(time.perf_counter() - began), flush=True)


# ---- the report ----------------------------------------------------------------------------------


def table(
    lines: list[dict[str, Any]],
) -> dict[tuple[str, str], dict[tuple[str, int], dict[str, Any]]]:
    """(method, network) -> (setting, seed) -> line."""
    found: dict[Any, Any] = defaultdict(dict)
    for line in lines:
        found[line["method"], line["backbone"]][line["setting"], line["seed"]] = line
    return found


def report(options: argparse.Namespace) -> None:
    lines = [x for x in read_lines(options.out) if "accuracy" in x and ":" not in x["method"]]
    found = table(lines)
    cells = sorted({(line["setting"], line["seed"]) for line in lines})
    full = {name: rows for name, rows in found.items() if len(rows) >= 0.8 * len(cells)}
    cells = [cell for cell in cells if all(cell in rows for rows in full.values())]
    accuracy = np.array([[rows[cell]["accuracy"] for cell in cells] for rows in full.values()])
    seconds = np.array([[rows[cell]["seconds"] for cell in cells] for rows in full.values()])
    ranks = (-accuracy).argsort(0).argsort(0) + 1
    best = accuracy.max(0)
    names = list(full)
    ce = names.index(("ce", NETWORKS[-1]))
    print(f"{len(cells)} cells (setting x seed), {len(names)} rows")
    heads = ("rank", "mean", "to best", "worst", "cost")
    print(f"{'method':22s}{'network':24s}" + "".join(f"{head:>9s}" for head in heads))
    for place in ranks.mean(1).argsort():
        short = best - accuracy[place]
        cost = np.median(seconds[place] / seconds[ce])
        mean = 100 * accuracy[place].mean()
        cells_of = (ranks[place].mean(), mean, 100 * short.mean(), 100 * short.max(), cost)
        name, network = names[place]
        print(f"{name:22s}{network:24s}" + "".join(f"{value:9.1f}" for value in cells_of))
    if options.settings:
        for setting in sorted({cell[0] for cell in cells}):
            own = [i for i, cell in enumerate(cells) if cell[0] == setting]
            mean = accuracy[:, own].mean(1)
            top = mean.argsort()[::-1][:6]
            print(
                setting, *(f"{'/'.join(names[i])} {100 * mean[i]:.1f}" for i in top), sep="\n    "
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["sources", "run", "report"])
    parser.add_argument("--file", type=Path, default=Path("sources.npz"))
    parser.add_argument("--out", type=Path, default=Path("results/defaults.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing later")
    parser.add_argument("--only", nargs="*", default=[], help="methods")
    parser.add_argument("--networks", nargs="*", default=[])
    parser.add_argument("--auto", nargs="*", default=[], help='with the default network: "auto"')
    parser.add_argument("--settings", action="store_true", help="the best rows of each setting")
    options = parser.parse_args()
    {"sources": save_sources, "run": run_all, "report": report}[options.action](options)


if __name__ == "__main__":
    main()
