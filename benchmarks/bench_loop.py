"""What the training loop costs: ours against a bare PyTorch loop, and against a DataLoader loop.

LeNet-5 on MNIST-shaped images on the CPU, one thread; the same model, batches and optimiser.
Ratios of medians measured in one run, the loops taking turns so that a busy machine hits all alike.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn

from ytilde.augment import make_augment
from ytilde.backbones import create_backbone
from ytilde.data import Data
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import make_spec
from ytilde.method import create

N, BATCH, ROUNDS = 8192, 128, 7
SHAPE = (1, 28, 28)


def images() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (N, *SHAPE), generator=generator, dtype=torch.uint8)
    return Data(x, torch.randint(0, 10, (N,), generator=generator), 10)


class Bare:
    """The same work by hand: gather, crop, normalise, forward, backward, step."""

    def __init__(self, data: Data, augment: str) -> None:
        net = create_backbone("lenet5", SHAPE)
        self.data, self.model = data, nn.Sequential(net, nn.Linear(net.dim, 10))
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True, fused=True
        )
        self.augment = make_augment(augment, SHAPE)
        self.generator = torch.Generator().manual_seed(0)

    def update(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def epoch(self) -> None:
        for index in torch.randperm(N).split(BATCH):
            x = self.augment(self.data.x[index].float().div(255), generator=self.generator)
            self.update((x - 0.3) / 0.3, self.data.y[index])


class Loader(Bare):
    """A DataLoader with PIL transforms: crop, flip, to tensor, normalise, image by image."""

    def __init__(self, data: Data) -> None:
        super().__init__(data, "none")
        self.batches = torch.utils.data.DataLoader(self, BATCH, shuffle=True)  # type: ignore
        self.images = data.x[:, 0].numpy()

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[k]), 2)
        left, top = int(torch.randint(0, 5, ())), int(torch.randint(0, 5, ()))
        image = image.crop((left, top, left + 28, top + 28))
        image = ImageOps.mirror(image) if torch.rand(()) < 0.5 else image
        x = torch.from_numpy(np.array(image)[None]).float().div(255)
        return (x - 0.3) / 0.3, int(self.data.y[k])

    def epoch(self) -> None:
        for x, y in self.batches:
            self.update(x, y)


class Ours:
    def __init__(self, data: Data, augment: str) -> None:
        self.data, self.method = data, create("ce")
        self.recipe = Recipe(
            epochs=1, batch_size=BATCH, lr=0.01, augment=augment, val=0.0, device="cpu"
        )
        self.method.build(make_spec(data, "lenet5", self.recipe))

    def epoch(self) -> None:
        trainer = Trainer(self.method, self.recipe)
        trainer.train("main", self.method.loss, self.method.param_groups(), self.data)


def main() -> None:
    torch.set_num_threads(1)
    data = images()
    loops = {
        "ours": Ours(data, "crop2+flip"),
        "bare": Bare(data, "crop2+flip"),
        "loader": Loader(data),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop.epoch()
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            began = time.process_time()
            loop.epoch()
            seconds[name].append(time.process_time() - began)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in middle.items():
        print(f"{name:8} {value:.3f} s an epoch of {N} images (CPU time, median of {ROUNDS})")
    print(f"ours / bare loop       {middle['ours'] / middle['bare']:.3f}   (bar: at most 1.10)")
    print(f"ours / DataLoader loop {middle['ours'] / middle['loader']:.3f}   (bar: at most 0.50)")


if __name__ == "__main__":
    main()
