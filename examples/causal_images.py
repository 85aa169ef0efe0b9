"""What CausalNL's causal model has learned of images and of their labels' noise.

Fashion-MNIST (a small part, 14x14), 30 % instance noise (Yao et al., NeurIPS 2021). Images and a
reconstruction p(X | Y, Z); the true T(x) and the found p(Y~ | X, Y), white = 1, true class down,
given label across; samples of every class, the same Z of the prior along a row. Z is small, Y
one-hot and held hard at first: with 25 dimensions and b3 = 1e-4, all classes' samples look alike.
"""

import argparse
from dataclasses import replace

import torch
from torch.nn.functional import avg_pool2d

from ytilde import Recipe, create, datasets, noise
from ytilde.data import Batch
from ytilde.fitting import fit_method
from ytilde.plotting import plot_images

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="causal_images.png")
parser.add_argument("--rate", type=float, default=0.3)
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--tiny", action="store_true", help="one epoch on few images, for tests")
args = parser.parse_args()
clean, test = (datasets.load("fashion-mnist-small", split=s) for s in ("train", "test"))
clean = clean.rows(torch.arange(300 if args.tiny else 3000))
clean, test = (replace(d, x=avg_pool2d(d.x.float(), 2).to(torch.uint8)) for d in (clean, test))
K, g = clean.num_classes, torch.Generator().manual_seed(0)
law = {"rate": args.rate, "features": "raw255"}
made = noise.instance(clean.x, clean.y, K, **law, generator=g)
data = replace(clean, y=made.y)  # no clean labels: nothing below can learn from them
epochs = 1 if args.tiny else args.epochs
recipe = Recipe(epochs, optimizer="adam", lr=1e-3, schedule="constant", val=0)
weights = {"b0": 1.0, "b3": 0.01, "z_dim": 2, "sampling": "st", "hold": 0.7}
method = create("causal_nl", rate=args.rate, **weights)
trainer = fit_method(method, data, recipe, backbone="lenet5")
print(f"clean test accuracy {trainer.score(test)['accuracy']:.3f}")

first = torch.stack([(clean.y == c).nonzero()[0, 0] for c in range(K)])  # an image of each class
x = clean.x[first].float() / 255
with torch.no_grad():
    T = method.transition(Batch(x, data.y[first], first))
x_hat, T_true = method.reconstruct(x), made.transition(first)
print(f"L1 error of a reconstructed pixel {(x_hat - x).abs().mean():.3f}")
print(f"mean error of an entry of T(x) {(T - T_true).abs().mean():.3f}")
same = (T - T.mean(1, keepdim=True)).abs().mean()
print(f"mean distance of a row of T(x) to the mean of its rows, an entry: {same:.3f}")
rows = {"x": x, "reconstruction": x_hat, "true T(x)": T_true[:, None], "found T(x)": T[:, None]}
drawn = torch.stack([method.generate(c, 4) for c in range(K)], 1)  # [4, K, 1, H, W]
rows |= {f"sample {i + 1}": images for i, images in enumerate(drawn)}
plot_images(rows, [clean.class_name(c) for c in range(K)]).savefig(args.out, dpi=80)
