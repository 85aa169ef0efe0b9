"""DTM, its parts and its rivals on CIFAR-10: which component earns what? For one GPU.

    YTILDE_DATA=data python benchmarks/cifar_dtm.py --out results/cifar_dtm.jsonl

SimCLR once (ResNet-18 with the CIFAR stem; no labels, so one encoder serves every noise and seed),
then every row below with classifiers of 60 epochs, under one recipe (LRA: its own). "+ encoder"
rows start their network from the same encoder as DTM does: what they gain is pre-training's. One
JSON line a run; what is there is not run again, and a command that was stopped or ran out of
--minutes goes on. The work folder keeps the encoder, its features in half precision and
unfinished runs. --features takes those features in place of the images: every row is then a linear
head on a frozen encoder (no augmentation), which a CPU trains in a minute.
"""

import argparse
import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ytilde import bench
from ytilde.checkpoint import write_atomic
from ytilde.contrastive import Features, Settings
from ytilde.data import Data
from ytilde.encoder import Encoder
from ytilde.engine import Recipe, Record, Trainer
from ytilde.fitting import fit_method, load_or_pretrain, make_spec
from ytilde.method import create

ROWS: dict[str, tuple[str, dict[str, Any], bool]] = {  # method, fields, from the encoder?
    "ce": ("ce", {}, False),
    "dtm": ("dtm", {}, True),
    "volminnet": ("volminnet", {}, False),
    "volminnet, its own recipe": ("volminnet", {}, False),
    "lra": ("lra", {"retrieve": "frozen"}, True),
    "lra, neighbours of views": ("lra", {}, True),
    "dtm without pretraining": ("dtm", {"without": "pretraining"}, False),
    "dtm without clustering": ("dtm", {"without": "clustering"}, True),
    "dtm without diffusion": ("dtm", {"without": "diffusion"}, True),
    "dtm with regression": ("dtm", {"without": "denoising"}, True),
    "dtm, groups of pixels": ("dtm", {"group_features": "pixels"}, True),
    "dtm, groups of pixels and features": ("dtm", {"group_features": "both"}, True),
    "ce + encoder": ("ce", {}, True),
    "volminnet + encoder": ("volminnet", {}, True),
    "dtm, classifier from scratch": ("dtm", {"init": "scratch"}, True),
}
# on features nothing is pre-trained or starts from scratch, and there are no pixels
LEFT_OUT = ("encoder", "pretraining", "scratch", "pixels")
FROZEN = [row for row in ROWS if not any(word in row for word in LEFT_OUT)]
NOISES = {
    "instance40": ("cifar10", "instance:0.4,features=raw255"),
    "worst": ("cifar10n-worst", None),
    "instance20": ("cifar10", "instance:0.2,features=raw255"),
}
RECIPE = Recipe(
    lr=0.05, weight_decay=5e-4, batch_size=128, schedule="cosine", augment="crop4+flip", val=0.1
)

_LRA = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "clip": 1.0}
OWN: dict[str, dict[str, Any]] = {  # as published; SGD hardly moves a network under LRA's loss
    "lra": _LRA,
    "lra, neighbours of views": _LRA,
    "volminnet, its own recipe": {
        "lr": 0.01, "weight_decay": 1e-4, "schedule": "step:0.375,0.75", "nesterov": False,
    },  # and 80 epochs: --epochs 80
}  # fmt: skip


class OutOfTime(Exception):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/cifar_dtm.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("runs/cifar_dtm"))
    parser.add_argument("--noise", nargs="*", default=["instance40", "worst"], choices=NOISES)
    parser.add_argument("--rows", nargs="*", choices=ROWS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--pretrain-epochs", type=int, default=200)
    parser.add_argument("--pretrained-lr", type=float, default=1.0, help="share of the rate")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--encoder", type=Path, help="instead of pre-training here")
    parser.add_argument("--features", type=Path, help="features.npz of a work folder, not images")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--compile", action="store_true", help="the networks, by torch.compile")
    parser.add_argument("--table", action="store_true", help="run nothing; --out as Markdown")
    parser.add_argument("--tiny", action="store_true", help="made images and a tiny network")
    args = parser.parse_args()
    if args.table:
        return print(table(lines(args.out)))
    if args.tiny:
        args.backbone, args.epochs, args.pretrain_epochs = "resnet18:width=8", 2, 1
    if args.features:
        args.backbone = "identity"
    if args.rows is None:
        args.rows = FROZEN if args.features else list(ROWS)
    if args.features and (other := set(args.rows) - set(FROZEN)):
        parser.error(f"on features there is no {', '.join(sorted(other))}")
    deadline = time.monotonic() + 60 * args.minutes

    def tick(record: Record) -> None:
        shown = {k: round(v, 4) for k, v in record.items() if isinstance(v, float)}
        print(record["stage"], f"{record['epoch']}/{record['epochs']}", shown, flush=True)
        if time.monotonic() > deadline:
            raise OutOfTime

    try:
        # rows from scratch need not wait for an encoder; no rows at all: pre-training alone
        wanted = not args.features and any(ROWS[row][2] for row in args.rows or ["dtm"])
        encoder = get_encoder(args, tick) if wanted else None
        for seed in args.seeds:
            for noise in args.noise:
                for row in args.rows:
                    run(args, encoder, row, noise, seed, tick)
    except OutOfTime:
        print("out of time: the same command goes on")


def get_encoder(args: argparse.Namespace, tick: Any) -> Encoder:
    """SimCLR's; kept with the features of the training and test images."""
    path = args.encoder or args.work / "encoder.safetensors"
    if path.exists():
        return Encoder.load(path)
    data = bench.load_set("cifar10", "train", None, args.tiny)
    text = f"simclr:epochs={args.pretrain_epochs}" + (",batch_size=100" if args.tiny else "")
    began = time.perf_counter()
    recipe = replace(RECIPE, compile=args.compile)
    found = load_or_pretrain(data, args.backbone, recipe, text, args.work / "pretrain", tick)
    half = {k: v.half() if v.is_floating_point() else v for k, v in found.weights.items()}
    found = replace(found, weights=half)  # what a later session is given, from the first run on
    found.save(path)
    save_features(args, found)
    line = {"name": "simclr", "backbone": args.backbone, **asdict(Settings.parse(text))}
    line |= {k: found.about[k] for k in ("lr", "knn_accuracy", "linear_accuracy")}
    line["seconds"] = round(time.perf_counter() - began, 1)
    write(args.out, line | about())
    shutil.rmtree(args.work / "pretrain", ignore_errors=True)
    return found


def save_features(args: argparse.Namespace, encoder: Encoder) -> None:
    arrays = {}
    for split in ("train", "test"):
        data = bench.load_set("cifar10", split, None, args.tiny)
        model = Features(make_spec(data, args.backbone, RECIPE, encoder), raw=False)
        trainer = Trainer(model, RECIPE)
        model.to(trainer.device)
        h: Tensor = trainer.map(lambda batch, model=model: model(batch.x), data)  # type: ignore
        arrays[split] = h.half().cpu().numpy()

    def save(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    write_atomic(args.work / "features.npz", save)


def run(
    args: argparse.Namespace, found: Encoder | None, row: str, noise: str, seed: int, tick: Any
) -> None:
    name, fields, from_encoder = ROWS[row]
    from_encoder &= not args.features
    encoder = found if from_encoder else None
    key = {"row": row, "noise": noise, "seed": seed, "classifier_epochs": args.epochs}
    key |= {"backbone": args.backbone, "tiny": args.tiny}
    key["pretrained_lr"] = args.pretrained_lr if from_encoder else 1.0
    if any(key.items() <= line.items() for line in lines(args.out)):
        return
    print(key, flush=True)
    own: dict[str, Any] = {"epochs": args.epochs, "compile": args.compile, **OWN.get(row, {})}
    if args.features:
        own["augment"] = "none"
    recipe = replace(RECIPE, seed=seed, pretrained_lr=key["pretrained_lr"], **own)
    data, test, rate, made = noisy_data(args, noise, recipe)
    method = create(name, **fields)
    parts = [row, noise, seed, args.epochs, key["pretrained_lr"], args.backbone]
    folder = args.work / "-".join(map(str, parts)).replace(" ", "_")
    trainer = fit_method(
        method,
        data,
        recipe,
        backbone=args.backbone,
        encoder=encoder,
        folder=folder,
        resume=True,
        monitor=lambda trainer: bench.measure(trainer, {"test_": test}),
        on_record=tick,
        checkpoint_every=30.0,
    )
    line = {**key, "method": name, "fields": fields, "from_encoder": from_encoder, "rate": rate}
    line |= {"pretrain": encoder.about if encoder else None, "recipe": asdict(recipe)}
    line |= bench.protocols(trainer.history) | bench.transition_errors(trainer, data, made)
    line |= {"notes": trainer.notes, "seconds": round(sum(r["seconds"] for r in trainer.history))}
    write(args.out, line | about())
    shutil.rmtree(folder, ignore_errors=True)


def noisy_data(
    args: argparse.Namespace, noise: str, recipe: Recipe
) -> tuple[Data, Data, float | None, Any]:
    source, text = NOISES[noise]
    run_inputs = {"data": source, "noise": text, "tests": ["cifar10"], "rows": None}
    run_inputs |= {"stand_in": args.tiny, "noisy_test": False}
    data, tests, rate, made = bench.prepare(run_inputs, recipe, None)
    test = tests["test_"]
    if args.features:  # the labels, wrong ones included, are those of the runs on images
        with np.load(args.features) as arrays:
            h = {name: torch.from_numpy(arrays[name]).float() for name in ("train", "test")}
        data, test = replace(data, x=h["train"]), replace(test, x=h["test"])
    return data, test, rate, made


def table(runs: list[dict[str, Any]]) -> str:
    """Test accuracy: mean of the last ten epochs, (chosen by noisy validation), [number of seeds].

    One sd (ddof 1) behind each mean of several seeds.
    """
    cells: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        if "row" in run and not run["tiny"]:
            frozen, share = run["backbone"] == "identity", run["pretrained_lr"]
            part = "frozen, linear head" if frozen else f"{share:g}" if run["from_encoder"] else ""
            cells.setdefault((part, run["row"]), {}).setdefault(run["noise"], []).append(run)

    def shown(runs: list[dict[str, Any]]) -> str:
        if not runs:
            return ""
        texts = []
        for protocol in ("mean_of_last_ten", "chosen"):
            values = [100 * run[protocol]["test_accuracy"] for run in runs]
            sd = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            texts.append(f"{np.mean(values):.1f}{sd}")
        return f"{texts[0]} ({texts[1]}) [{len(runs)}]"

    noises = sorted({noise for cell in cells.values() for noise in cell})
    head = ["encoder's rate", "", *noises]
    text = [head, ["---"] * len(head)]
    order = {row: number for number, row in enumerate(ROWS)}
    for part, row in sorted(cells, key=lambda key: (key[0], order[key[1]])):
        text.append([part, row, *(shown(cells[part, row].get(noise, [])) for noise in noises)])
    return "\n".join(f"| {' | '.join(line)} |" for line in text)


def about() -> dict[str, Any]:
    """What a number carries with it."""
    return {"versions": bench.versions(), "commit": bench.commit()}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def write(path: Path, line: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
