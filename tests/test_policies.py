"""RandAugment and AutoAugment, picture by picture against Pillow."""

import math
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image

from ytilde.augment import Augment, AutoAugment, RandAugment, make_augment, strong_view
from ytilde.augment.operations import OPERATIONS
from ytilde.augment.policies import FOURTEEN
from ytilde.data import BadInput

STRENGTHS = [0.0, 0.0625, 0.3, 0.5, 0.71875, 0.9, 1.0]


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def photographs():
    """Small pieces of a photograph, and made ones: noise, a ramp, one value, two values."""
    china = load_sample_image("china.jpg")
    pieces = [china[r : r + 32, c : c + 28] for r, c in ((40, 60), (150, 300), (220, 10), (300, 420))]
    pieces.append(china[::11, ::16][:32, :28])
    random = np.random.default_rng(0)
    pieces.append(random.integers(0, 256, (32, 28, 3), dtype=np.uint8))
    pieces.append(np.arange(32 * 28 * 3).reshape(32, 28, 3).astype(np.uint8))
    pieces.append(np.full((32, 28, 3), 90, np.uint8))
    pieces.append(np.where(random.random((32, 28, 3)) < 0.02, 30, 200).astype(np.uint8))
    return np.stack(pieces).transpose(0, 3, 1, 2)


def clothes():
    with np.load(str(files("ytilde") / "embedded" / "fashion_mnist.npz")) as stored:
        x = next(stored[name] for name in stored.files if stored[name].ndim == 3)
    return x[:8, None]


PICTURES = {"photographs": photographs, "clothes": clothes}


def to_pillow(x):
    return Image.fromarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))


def pillow(name, image, strength, fill):
    """What Pillow makes of one picture; a strength's sign is its side."""
    width, height = image.size
    fill = fill if image.mode == "L" else (fill,) * 3
    shift = 10 / 32 * strength
    matrix = {
        "shear_x": (1, 0.3 * strength, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, 0.3 * strength, 1, 0),
        "translate_x": (1, 0, shift * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift * height),
    }
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in matrix:
        return image.transform(image.size, Image.Transform.AFFINE, matrix[name], fillcolor=fill)
    if name in enhance:
        return enhance[name](image).enhance(1 + 0.9 * strength)
    return {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "invert": lambda: ImageOps.invert(image),
        "rotate": lambda: image.rotate(30 * strength, fillcolor=fill),
        "solarize": lambda: ImageOps.solarize(image, 256 - 256 * abs(strength)),
        "posterize": lambda: ImageOps.posterize(image, 8 - round(4 * abs(strength))),
    }[name]()


def expected(name, x, strength, fill):
    made = np.asarray(pillow(name, to_pillow(x), strength, fill))
    return made[None] if made.ndim == 2 else made.transpose(2, 0, 1)


@pytest.mark.parametrize("pictures", PICTURES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_pillows(name, pictures):
    """Every value of every picture, for every strength on both sides."""
    stored = PICTURES[pictures]()
    x = torch.from_numpy(stored).float() / 255
    fill = 128 if x.shape[1] == 3 else 0
    changed = 0
    for strength in STRENGTHS if name != "invert" else [1.0]:
        operation = RandAugment(1, 10 * strength, fill=fill, operations=(name,))
        for side in (0.25, 0.75):  # below a half: to the negative side
            u = torch.tensor([[0.0], [0.5], [side]]).expand(3, len(x))
            out, _ = operation(x, None, u)
            got = (out * 255).round().numpy().astype(int)
            assert np.abs(out.numpy() * 255 - got).max() < 1e-4
            for i, picture in enumerate(stored):
                want = expected(name, picture, -strength if side < 0.5 else strength, fill)
                assert np.array_equal(got[i], want), (strength, side, i)
                changed += (want != picture).any()
    grey = pictures == "clothes" and name in ("color", "autocontrast")
    assert (changed == 0) == (name == "identity" or grey)
