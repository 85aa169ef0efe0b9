"""What a class-level T cannot show: on digits whose noise depends on the image, T differs by row.

Draws the true T(x) of three images of one class above what BLTM finds, and prints the squared
error of the true class's row for BLTM, for forward correction and for no T at all.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from ytilde import datasets, noise
from ytilde.engine import default_recipe
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.plotting import plot_instances
from ytilde.transition import class_floor, row_error

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="transition.png")
parser.add_argument("--tiny", action="store_true", help="a few epochs, for tests")
args = parser.parse_args()
torch.set_num_threads(1)

digits = datasets.load("digits", root=Path(), split="train")
K, rows = digits.num_classes, torch.arange(len(digits))
made = noise.instance(digits.x, digits.y, K, rate=0.4, generator=torch.Generator().manual_seed(0))
data = replace(digits, y=made.y)  # no clean labels: nothing below can learn from them
recipe = default_recipe(data.shape, len(data), epochs=3 if args.tiny else None)


def find_T(name: str) -> torch.Tensor:
    method = create(name)
    trainer = fit_method(method, data, recipe, backbone="mlp")
    return trainer.map(lambda batch: method.transition(batch).expand(len(batch.x), K, K), data)


found = {name: find_T(name) for name in ("forward", "bltm")}
print(f"{'no T (identity)':22} {row_error(torch.eye(K)[digits.y], made.rows):.3f}")
print(f"{'class-level floor':22} {class_floor(made.rows, digits.y):.3f}")
for name, T in found.items():
    print(f"{name:22} {row_error(T[rows, digits.y], made.rows):.3f}")

three = (digits.y == 3).nonzero().flatten()[[0, 5, 9]]
panels = torch.cat([made.transition(three), found["bltm"][three]])
titles = [f"{what}, image {int(i)}" for what in ("true", "BLTM") for i in three]
names = list(data.names or map(str, range(K)))
figure = plot_instances(panels, names, titles)
figure.savefig(args.out)
print(f"drawn: {args.out}")
