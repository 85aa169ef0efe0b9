"""DTM on digits whose noise depends on the image: the true T(x), the sampled one, and its spread.

Draws three images of one class, from different groups: above the T(x) that made the noise, then
the mean of DTM's samples, then their standard deviation. Prints the squared error of the true
class's row for T(x), for the matrix of the image's group, and for the best class-level T.
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
from ytilde.transition import class_floor, row_error, sigmoid_rows

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="dtm.png")
parser.add_argument("--tiny", action="store_true", help="a few epochs, for tests")
args = parser.parse_args()
torch.set_num_threads(1)

digits = datasets.load("digits", root=Path(), split="train")
K, rows = digits.num_classes, torch.arange(len(digits))
made = noise.instance(digits.x, digits.y, K, rate=0.4, generator=torch.Generator().manual_seed(1))
data = replace(digits, y=made.y)  # no clean labels: nothing below can learn from them
recipe = default_recipe(data.shape, len(data), val=0.0, epochs=3 if args.tiny else None)
dtm = create("dtm")
trainer = fit_method(dtm, data, recipe, backbone="mlp")
T = trainer.map(dtm.transition, data)
spread = trainer.map(lambda batch: dtm.spread(batch.x), data)
found = {"DTM, T(x)": T, "DTM, T of the group": sigmoid_rows(dtm.W[dtm.group])}
for name, matrices in found.items():
    print(f"{name:22} {row_error(matrices[rows, digits.y], made.rows):.4f}")
print(f"{'class-level floor':22} {class_floor(made.rows, digits.y):.4f}")

own = (digits.y == 3).nonzero().flatten()
three = torch.stack([own[dtm.group[own] == g][0] for g in dtm.group[own].unique()[:3]])
panels = torch.cat([made.transition(three), T[three], spread[three]])
kinds = ("true", "DTM", "spread")
titles = [f"{kind}, group {int(dtm.group[i])}" for kind in kinds for i in three]
figure = plot_instances(panels, list(data.names or map(str, range(K))), titles)
figure.savefig(args.out)
print(f"drawn: {args.out}")
