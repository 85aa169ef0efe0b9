"""Images per second of one training step on one GPU: a DataLoader loop, a bare eager loop, ours.

    python benchmarks/gpu_throughput.py [--out FILE.jsonl] [--only ce,ln] [--models resnet18 lenet5]

(a) plain PyTorch with 4 DataLoader workers and PIL transforms, (b) a plain loop with the data on
the device, both in bf16, channels_last and a fused optimiser; (c) ytilde with the step captured
as one CUDA graph, with the networks as they are and compiled (`compile=True`), and (d) ytilde step
by step. Random images of CIFAR-10's shape: the speed does not depend on the pixels. Medians of
repeats in one run; warm-up is left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn

from ytilde.augment import make_augment
from ytilde.backbones import create_backbone
from ytilde.data import Data
from ytilde.engine import Recipe, Stage, Trainer, to_device
from ytilde.fitting import make_spec
from ytilde.method import Method, create, list_methods

N = 20_000
RECIPE = Recipe(epochs=1, lr=0.01, augment="crop+flip", val=0.0)
MODELS = {
    "resnet18": ("resnet18:stem=cifar", (3, 32, 32), 128),
    "wide_resnet": ("wide_resnet", (3, 32, 32), 128),
    "lenet5": ("lenet5", (1, 28, 28), 256),
    "resnet18, Fashion-MNIST": ("resnet18:stem=imagenet", (1, 28, 28), 128),
}
METHODS = ("ce", "ln", "het", "co_teaching", "causal_nl")


def images(shape: tuple[int, ...], rows: int = N) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, *shape), generator=generator, dtype=torch.uint8)
    return Data(x, torch.randint(0, 10, (rows,), generator=generator), 10)


def rate(step: Callable[[], int], repeats: int = 5, steps: int = 40, warm_up: int = 10) -> float:
    """Median images per second of `steps` steps; `step` returns how many images it took."""
    for _ in range(warm_up):
        step()
    rates = []
    for _ in range(repeats):
        finish_queued_work()
        began = time.perf_counter()
        seen = sum(step() for _ in range(steps))
        finish_queued_work()
        rates.append(seen / (time.perf_counter() - began))
    return statistics.median(rates)


def finish_queued_work() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ours(
    method: Method,
    backbone: str,
    data: Data,
    batch: int,
    measure: Callable[[Callable[[], int]], float] = rate,
    **how: Any,
) -> float:
    """(c) and (d); `how` replaces fields of the recipe."""
    recipe = replace(RECIPE, batch_size=batch, **how)
    method.build(make_spec(data, backbone, recipe))
    trainer = Trainer(method, recipe)
    trainer.data = data
    to_device(method, trainer.device)
    stage = Stage(trainer, "main", method.loss, method.param_groups(), data, recipe)
    step = stage.begin(0)
    rows = len(data)
    batches = torch.randperm(rows)[: rows - rows % batch].to(trainer.device).split(batch)
    position = iter(range(10**9))

    def one() -> int:
        step(batches[next(position) % len(batches)])
        return batch

    with stage.fused():
        value = measure(one)
    for note in trainer.notes:
        print("note:", note)
    return value


def plain_model(backbone: str, shape: tuple[int, ...]) -> Any:
    net = create_backbone(backbone, shape)
    model = nn.Sequential(net, nn.Linear(net.dim, 10)).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True, fused=True
    )

    def update(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return update


def eager(backbone: str, data: Data, batch: int) -> float:
    """(b): the data on the device, batch augmentation, one step at a time."""
    update = plain_model(backbone, data.shape)
    x, y = data.x.cuda(), data.y.cuda()
    augment = make_augment("crop+flip", data.shape)
    generator = torch.Generator("cuda").manual_seed(0)
    batches = torch.randperm(N).cuda()[: N - N % batch].split(batch)
    position = iter(range(10**9))

    def one() -> int:
        index = batches[next(position) % len(batches)]
        view = augment(x[index].float().div(255), generator=generator)
        update(view.contiguous(memory_format=torch.channels_last), y[index])
        return batch

    return rate(one)


class PILImages(torch.utils.data.Dataset):
    """One image at a time through PIL: pad 4, random crop, flip, to a tensor, normalise."""

    def __init__(self, data: Data, normalise: bool = True) -> None:
        self.normalise = normalise
        array = data.x.permute(0, 2, 3, 1).numpy()
        self.images = array[..., 0] if array.shape[-1] == 1 else array
        self.y = data.y.tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[k])
        side = image.size[0]
        left, top, flip = torch.randint(0, 9, (3,)).tolist()
        image = ImageOps.expand(image, 4).crop((left, top, left + side, top + side))
        image = ImageOps.mirror(image) if flip % 2 else image
        array = np.array(image, dtype=np.float32) / 255
        x = torch.from_numpy(array.reshape(side, side, -1).transpose(2, 0, 1).copy())
        return (x - 0.5) / 0.25 if self.normalise else x, self.y[k]


def pil_batches(
    data: Data, batch: int, normalise: bool = True, pin_memory: bool = True
) -> Generator[list[torch.Tensor], None, None]:
    """Epoch after epoch of (x, y) from a DataLoader with 4 workers."""
    batches = torch.utils.data.DataLoader(
        PILImages(data, normalise),
        batch,
        shuffle=True,
        num_workers=4,
        pin_memory=pin_memory,
        drop_last=True,
    )
    while True:
        yield from batches


def loader(backbone: str, data: Data, batch: int) -> float:
    """(a): what most research code does."""
    update = plain_model(backbone, data.shape)
    source = pil_batches(data, batch)

    def one() -> int:
        x, y = next(source)
        update(x.cuda(non_blocking=True).contiguous(memory_format=torch.channels_last), y.cuda())
        return batch

    return rate(one, repeats=3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(METHODS))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    options = parser.parse_args()
    known = [m for m in options.only.split(",") if m in list_methods()]
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    about |= {"python": platform.python_version()}
    lines = []
    for name in options.models:
        backbone, shape, batch = MODELS[name]
        data = images(shape)
        row: dict[str, Any] = {"model": name, "batch": batch, "unit": "images/s", **about}
        row["a_dataloader"] = loader(backbone, data, batch)
        row["b_eager"] = eager(backbone, data, batch)
        for method in known:
            row[method] = ours(create(method), backbone, data, batch)
            row[f"{method}_compiled"] = ours(create(method), backbone, data, batch, compile=True)
        row["ce_step_by_step"] = ours(create("ce"), backbone, data, batch, graph=False)
        lines.append({k: round(v) if isinstance(v, float) else v for k, v in row.items()})
        print(json.dumps(lines[-1]), flush=True)
    if options.out:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
