"""Where a segmentation cannot be sure: aleatoric variance of a heteroscedastic head, per pixel.

CamVid if $YTILDE_DATA (or ./data) has it, else drawn shapes whose annotators stray at outlines.
Collier et al. 2020, Fig. 4: the variance is high at the boundaries of objects."""

import argparse

import matplotlib.pyplot as plt
import torch

from ytilde import BadInput, Classifier, create, datasets

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="camvid_uncertainty.png")
parser.add_argument("--tiny", action="store_true", help="few pictures, one epoch, for tests")
parser.add_argument(
    "--epochs", type=int, default=10, help="10 take an hour on one CPU core; use 60 on a GPU"
)
args = parser.parse_args()

try:
    name = "shapes-noisy" if args.tiny else "camvid"
    train, test = datasets.load(name), datasets.load(name, split="test")
except BadInput:
    name = "shapes-noisy"
    train, test = datasets.load(name), datasets.load(name, split="test")
if args.tiny:
    train = train.rows(torch.arange(16))
epochs = 1 if args.tiny else args.epochs

clf = Classifier(
    create("het_tau", tau=0.5, train_samples=10, eval_samples=100),
    "unet:width=16", epochs=epochs, batch_size=8, random_state=0,
)  # fmt: skip
clf.fit(train.x, train.y)
shown = test.rows(torch.arange(4) * (len(test) // 4))
predicted, maps = clf.predict(shown.x), clf.uncertainty(shown.x)

figure, axes = plt.subplots(4, 4, figsize=(11, 9), layout="constrained")
for row, x, y, p, u in zip(axes, shown.x, shown.y, predicted, maps, strict=True):
    colours = {"vmin": -1, "vmax": train.num_classes - 1, "cmap": "tab20"}
    row[0].imshow(x.permute(1, 2, 0))
    row[1].imshow(y, **colours, interpolation="nearest")
    row[2].imshow(p, **colours, interpolation="nearest")
    heat = row[3].imshow(u, vmin=0, vmax=maps.max(), cmap="inferno")
for ax, title in zip(axes[0], ("picture", "true labels", "predicted", "variance"), strict=True):
    ax.set_title(title)
for ax in axes.flat:
    ax.set(xticks=[], yticks=[])
figure.colorbar(heat, ax=axes[:, 3])
figure.savefig(args.out, dpi=110)
right, known = torch.from_numpy(predicted) == shown.y, shown.y >= 0
print(f"{name}: pixel accuracy of the pictures shown {right[known].double().mean():.3f}")
