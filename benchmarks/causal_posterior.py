"""Does Z say anything? CausalNL's posterior on Fashion-MNIST, at several weights of the KL of Z.

    PYTHONPATH=src python benchmarks/causal_posterior.py                       # minutes on a CPU
    PYTHONPATH=src python benchmarks/causal_posterior.py --set fashion-mnist --backbone resnet18

For each b3: the mean KL of Z in nats a sample; how many dimensions of Z are in use (variance of
their mean over the images above 0.01); the L1 error a pixel of the reconstruction, of the one with
Z of another image and of the one with Z = 0, beside that of the mean image of the true class. The
picture has images, their reconstructions, samples of every class and T(x). Test images throughout.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ytilde import noise
from ytilde.data import Batch, Data
from ytilde.datasets import load
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.methods.causal_nl import CausalNL
from ytilde.plotting import plot_images
from ytilde.versions import versions


def posterior(trainer: Trainer, method: CausalNL, train: Data, test: Data) -> dict[str, float]:
    """What Z carries, measured on the test images."""

    def encode(batch: Batch) -> Tensor:
        y = method.predict_proba(batch.x)
        return torch.cat([y, *method.model.encode(batch.x, y)], -1)

    k, j = method.spec.num_classes, method.z_dim
    y, mu, logvar = trainer.map(encode, test).split((k, j, j), -1)
    x = pixels(test)
    shift = mu.roll(1, 0)
    images = pixels(train)
    clean, true = labels(train), labels(test)
    means = torch.stack([images[clean == c].mean(0) for c in range(k)])
    kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar)
    with torch.no_grad():
        decoded = {name: method.model.decode(y, z).cpu() for name, z in
                   {"own": mu, "other": shift, "zero": 0 * mu}.items()}  # fmt: skip
    return {
        "accuracy": float((y.argmax(-1).cpu() == true).float().mean()),
        "kl": float(kl.sum(-1).mean()),
        "active": int((mu.var(0) > 0.01).sum()),
        "l1_class_mean": float((means[true] - x).abs().mean()),
        **{f"l1_{name}_z": float((x_hat - x).abs().mean()) for name, x_hat in decoded.items()},
    }


def pixels(data: Data) -> Tensor:
    return data.x[torch.arange(len(data))].float() / 255


def labels(data: Data) -> Tensor:
    return data.y if data.clean is None else data.clean


def draw(method: CausalNL, test: Data, path: Path, shown: int = 10) -> None:
    """Images, reconstructions, four samples of each class, T(x) of the images."""
    k, x = method.spec.num_classes, pixels(test)[:shown].to(method.net.mean.device)
    with torch.no_grad():
        T = method.transition(Batch(x, test.y[:shown], torch.full((shown,), -1)))
    samples = torch.stack([method.generate(c, 4) for c in range(k)], 1)
    rows = {"x": x, "its reconstruction": method.reconstruct(x), "T(x), white = 1": T[:, None]}
    rows |= {f"sample {i} of each class": images for i, images in enumerate(samples)}
    plot_images(rows).savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", default="fashion-mnist-small")
    parser.add_argument("--b3", type=float, nargs="+", default=[1e-4, 1e-2])
    parser.add_argument("--rate", type=float, default=0.45)
    parser.add_argument("--backbone", default="lenet5")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=6000, help="of the training set")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/causal_posterior.jsonl"))
    parser.add_argument("--pictures", type=Path, help="a folder for one picture for each b3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, test = load(options.set), load(options.set, split="test")
    train = train.rows(torch.arange(min(options.rows, len(train))))
    generator = torch.Generator().manual_seed(0)
    noisy = noise.instance(train.x, train.y, train.num_classes, rate=options.rate,
                           features="raw255", generator=generator)  # fmt: skip
    train = Data(train.x, noisy.y, train.num_classes, clean=train.y, names=train.names)
    recipe = Recipe(epochs=options.epochs, optimizer="adam", lr=1e-3, weight_decay=0.0,
                    schedule="constant", val=0.0, device=options.device)  # fmt: skip
    for b3 in options.b3:
        method, began = create("causal_nl", rate=options.rate, b3=b3), time.perf_counter()
        assert isinstance(method, CausalNL)
        trainer = fit_method(method, train, recipe, backbone=options.backbone)
        line: dict[str, Any] = {"set": options.set, "rows": len(train), "rate": options.rate}
        line |= {"b3": b3, "epochs": options.epochs, "backbone": options.backbone, "seed": 0}
        line |= posterior(trainer, method, train, test)
        line |= {"seconds": round(time.perf_counter() - began), "versions": versions()}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({k: v for k, v in line.items() if k != "versions"}), flush=True)
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            draw(method, test, options.pictures / f"causal_nl_b3_{b3:g}.png")


if __name__ == "__main__":
    main()
