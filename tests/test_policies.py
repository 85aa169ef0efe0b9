"""RandAugment and AutoAugment, picture by picture against Pillow."""

from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image
from torch.utils._python_dispatch import TorchDispatchMode

from ytilde.augment import Augment, AutoAugment, RandAugment, make_augment, strong_view
from ytilde.augment.operations import OPERATIONS
from ytilde.data import BadInput

STRENGTHS = [0.0, 0.0625, 0.3, 0.5, 0.71875, 0.9, 1.0]


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def photographs():
    """Small pieces of a photograph, and made ones: noise, a ramp, one value, two values."""
    china = load_sample_image("china.jpg")
    pieces = [
        china[r : r + 32, c : c + 28] for r, c in ((40, 60), (150, 300), (220, 10), (300, 420))
    ]
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


def as_bytes(x):
    got = (x * 255).round()
    assert (x * 255 - got).abs().max() < 1e-4
    return got.numpy().astype(int)


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
        for side in (-1, 1):
            u = torch.tensor([[0.5], [0.5 + side / 4]]).expand(2, len(x))
            got = as_bytes(operation(x, None, u)[0])
            for i, picture in enumerate(stored):
                want = expected(name, picture, side * strength, fill)
                assert np.array_equal(got[i], want), (side * strength, i)
                changed += (want != picture).any()
    grey = pictures == "clothes" and name in ("color", "autocontrast")
    assert (changed == 0) == (name == "identity" or grey)


def test_the_grey_of_two_channels_is_their_rounded_mean():
    """Pillow has no such pictures; `color` goes nine tenths of the way to the grey one."""
    stored = np.random.default_rng(0).integers(0, 256, (3, 2, 20, 20))
    operation = RandAugment(1, 10.0, fill=0, operations=("color",))
    u = torch.tensor([[0.5], [0.25]]).expand(2, 3)
    got = as_bytes(operation(torch.from_numpy(stored).float() / 255, None, u)[0])
    grey = np.floor(stored.mean(1, keepdims=True) + 0.5)
    assert np.abs(got - (grey + 0.1 * (stored - grey))).max() < 1.0


def replayed(policy, u):
    """The operations and strengths of one image, from its draws, in plain Python."""
    u = [float(v) for v in u]
    if isinstance(policy, AutoAugment):
        pair = CIFAR10[int(u[0] * 25)]
        for (name, p, level), gate, side in zip(pair, u[1:3], u[3:], strict=True):
            if gate < p:
                strength = level / 10
                if name in ("brightness", "color", "contrast", "sharpness"):
                    strength = (0.1 + 0.18 * level - 1) / 0.9
                elif name == "invert":
                    strength = 1.0
                elif side < 0.5 and name.startswith(("rotate", "shear", "translate")):
                    strength = -strength
                yield name, strength
        return
    for which, draw in zip(u[: policy.n], u[policy.n :], strict=True):
        if which < policy.p:
            yield policy.operations[int(which / policy.p * len(policy.operations))], 2 * draw - 1


# AutoAugment's table 7 (arXiv 1805.09501)
CIFAR10 = [
    [(name, float(p), int(level)) for name, p, level in map(str.split, line.split(","))]
    for line in """
    invert .1 7, contrast .2 6
    rotate .7 2, translate_x .3 9
    sharpness .8 1, sharpness .9 3
    shear_y .5 8, translate_y .7 9
    autocontrast .5 8, equalize .9 2
    shear_y .2 7, posterize .3 7
    color .4 3, brightness .6 7
    sharpness .3 9, brightness .7 9
    equalize .6 5, equalize .5 1
    contrast .6 7, sharpness .6 5
    color .7 7, translate_x .5 8
    equalize .3 7, autocontrast .4 8
    translate_y .4 3, sharpness .2 6
    brightness .9 6, color .2 8
    solarize .5 2, invert .0 3
    equalize .2 0, autocontrast .6 0
    equalize .2 8, equalize .6 4
    color .9 9, equalize .6 6
    autocontrast .8 4, solarize .2 8
    brightness .1 3, color .7 0
    solarize .4 5, autocontrast .9 3
    translate_y .9 9, translate_y .7 9
    autocontrast .9 2, solarize .8 3
    equalize .8 8, invert .1 3
    translate_y .7 9, autocontrast .9 1
    """.strip().splitlines()
]  # fmt: skip


@pytest.mark.parametrize(
    "policy",
    [
        RandAugment(),
        RandAugment(3, p=0.5),
        RandAugment(1, operations=("rotate", "color")),
        AutoAugment(),
    ],
)
@pytest.mark.parametrize("pictures", PICTURES)
def test_policies_are_pillows(policy, pictures):
    """Each image gets its own operations one after another, of the draws that it was given."""
    stored = np.tile(PICTURES[pictures](), (30, 1, 1, 1))
    x = torch.from_numpy(stored).float() / 255
    u = torch.rand(policy.draws, len(x), generator=gen(3))
    got, seen, off = as_bytes(policy(x, None, u)[0]), set(), []
    for i, picture in enumerate(stored):
        want = picture
        for name, strength in replayed(policy, u[:, i]):
            want = expected(name, want, strength, policy.fill)
            seen.add(name)
        off.append(np.abs(got[i] - want).max())
    assert max(off) == 0, np.nonzero(off)
    wanted = (
        {name for pair in CIFAR10 for name, p, _ in pair if p}
        if policy.draws == 5
        else set(policy.operations)
    )
    assert seen == wanted


def test_operations_of_autoaugment_have_the_papers_probabilities():
    """Each of a pair with a draw right below its probability, and right above it."""
    draws = [
        [
            (k + 0.5) / 25,
            *(max(p + step, 0.0) for (_, p, _), step in zip(pair, steps, strict=True)),
            0.2,
            0.7,
        ]
        for k, pair in enumerate(CIFAR10)
        for steps in ((-0.02, -0.02), (-0.02, 0.02), (0.02, -0.02), (0.02, 0.02))
    ]
    stored = np.tile(photographs()[:1], (len(draws), 1, 1, 1))
    policy, u = AutoAugment(), torch.tensor(draws).T
    got = as_bytes(policy(torch.from_numpy(stored).float() / 255, None, u)[0])
    for i, picture in enumerate(stored):
        want = picture
        for name, strength in replayed(policy, u[:, i]):
            want = expected(name, want, strength, policy.fill)
        assert np.array_equal(got[i], want), CIFAR10[i // 4]


def test_a_draw_that_was_rounded_to_one_is_of_the_last_pair():
    x = torch.rand(4, 3, 16, 16, generator=gen())
    u = torch.rand(5, 4, generator=gen())
    u[0] = torch.tensor([0.97, 1.0, 0.97, 1.0])
    last = u.clone()
    last[0] = 0.97
    assert torch.equal(AutoAugment()(x, None, u)[0], AutoAugment()(x, None, last)[0])


def test_operations_are_drawn_fairly():
    """All but identity and color change a grey image of noise; half of them with p = 0.5."""
    x = torch.rand(2000, 1, 20, 20, generator=gen(1))
    for policy, share in ((RandAugment(1, 10), 12 / 14), (RandAugment(1, 10, p=0.5), 6 / 14)):
        changed = (
            (Augment(policy)(x, generator=gen()) != (x * 255).round() / 255).any(3).any(2).any(1)
        )
        assert abs(changed.float().mean() - share) < 5 * (share * (1 - share) / 2000) ** 0.5 + 0.01
    # a strength drawn at random is uniform: so are the angles of a bright pixel far from the centre
    x = torch.zeros(1500, 1, 101, 101)
    x[:, :, 50, 98:101] = 1
    turned = Augment(RandAugment(1, fill=0, operations=("rotate",)))(x, generator=gen())
    row = (turned[:, 0].sum(2) * torch.arange(101)).sum(1) / turned[:, 0].sum((1, 2))
    angle = torch.rad2deg(torch.asin((50 - row) / 49))
    edges = torch.histc(angle, 6, -30, 30)
    assert (edges - 1500 / 6).abs().max() < 5 * (1500 / 6) ** 0.5


@pytest.mark.parametrize("recipe", ["randaugment", "autoaugment"])
def test_labels_move_with_their_pixels(recipe):
    """Operations that only change colours keep the order of the four grey quarters."""
    y = torch.zeros(300, 24, 24, dtype=torch.int64)
    y[:, 12:], y[:, :, 12:] = 2, y[:, :, 12:] + 1
    y[:, 12:, 12:] = 3
    policy = make_augment(recipe, (3, 24, 24)).transforms[0]
    if recipe == "randaugment":
        moves = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
        policy = RandAugment(2, operations=moves, fill=255)
    x = (50 * (y + 1) / 255)[:, None].expand(-1, 3, -1, -1)
    moved, labels = Augment(policy)(x, y, generator=gen())
    assert (labels == -1).any() and (labels != y).flatten(1).any(1).float().mean() > 0.15
    if recipe == "randaugment":
        decoded = (moved[:, 0] * 255 / 50).round().long() - 1
        assert torch.equal(torch.where(decoded > 3, -1, decoded), labels)


@pytest.mark.parametrize(
    "shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 9, 20), (4, 16, 16), (2, 2, 3)]
)
@pytest.mark.parametrize(
    "recipe", ["crop+flip+randaugment2+cutout", "autoaugment", "randomcutout", "strong"]
)
def test_recipes(recipe, shape):
    x = torch.rand(40, *shape, generator=gen(1))
    augment = strong_view(shape) if recipe == "strong" else make_augment(recipe, shape)
    before, kept = torch.random.get_rng_state(), x.clone()
    out = augment(x, generator=gen(5))
    assert torch.equal(torch.random.get_rng_state(), before) and torch.equal(x, kept)
    assert out.shape == x.shape and out.dtype == x.dtype and out.min() >= 0 and out.max() <= 1
    assert torch.equal(out, augment(x, generator=gen(5)))
    assert not torch.equal(out, augment(x, generator=gen(6)))
    other = x.clone()
    other[1:] = 0.3
    assert torch.equal(augment(other, generator=gen(5))[0], out[0])  # nothing of the neighbours
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(augment(x, generator=gen(5)), out)
    assert augment(x.to(torch.bfloat16), generator=gen(5)).dtype == torch.bfloat16
    channels_last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(augment(channels_last, generator=gen(5)), out)


def test_one_operation_at_random_is_the_fewest():
    x = torch.rand(8, 3, 16, 16, generator=gen())
    assert not torch.equal(make_augment("randaugment1", (3, 16, 16))(x, generator=gen()), x)


def test_a_random_cutout():
    x = torch.ones(6000, 1, 20, 30)
    hole = (make_augment("randomcutout", (1, 20, 30))(x, generator=gen()) == 0)[:, 0]
    height, width = hole.any(2).sum(1), hole.any(1).sum(1)
    assert torch.equal(hole.sum((1, 2)), height * width) and max(height.max(), width.max()) == 10
    inside = ~(
        hole[:, 0].any(1) | hole[:, -1].any(1) | hole[:, :, 0].any(1) | hole[:, :, -1].any(1)
    )
    assert torch.equal(height[inside], width[inside])
    assert abs((height == 0).float().mean() - 1 / 11) < 0.02  # sides 0 to 10, equally often


def test_strong_view_fits_the_input():
    weak, strong, hole = strong_view((3, 32, 32)).transforms
    assert weak.flip and weak.pad == 4 and strong == RandAugment(2) and hole.largest == 0.5
    weak, strong, _ = strong_view((1, 28, 28)).transforms
    assert not weak.flip and strong == RandAugment(2, fill=0)  # clothes and digits lie on black
    assert strong_view((1, 8, 8)).transforms[1].n == 1
    std = torch.tensor([0.1, 1.0, 50.0])
    noise = strong_view((3,), std)(torch.zeros(4000, 3), generator=gen())
    assert ((noise.std(0) / (0.6 * std)) - 1).abs().max() < 0.05
    noise = strong_view((3,))(torch.zeros(4000, 3), generator=gen())
    assert (noise.std(0) - 0.6).abs().max() < 0.03


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_augment("randaugment", (5,)), "does not work on features"),
        (lambda: make_augment("autoaugment", (5,)), "does not work on features"),
        (lambda: make_augment("autoaugment3", (3, 8, 8)), "unknown augmentation 'autoaugment3'"),
        (lambda: make_augment("randaugment1.5", (3, 8, 8)), "whole and at least 1"),
        (lambda: make_augment("randaugment0", (3, 8, 8)), "whole and at least 1"),
        (lambda: make_augment("randomcutout2", (3, 8, 8)), "between 0.01 and 1"),
        (lambda: RandAugment(2, 11), "from 0 to 10"),
        (lambda: RandAugment(0), "n must be 1 or more"),
        (lambda: RandAugment(operations=("turn",)), "unknown operation 'turn'"),
    ],
)
def test_refusals(make, says):
    with pytest.raises(BadInput, match=says):
        make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("recipe", ["crop+flip+randaugment2+cutout", "autoaugment", "strong"])
def test_a_captured_view_is_the_eager_one(recipe):
    shape = (3, 32, 32)
    x = torch.rand(64, *shape, generator=gen()).cuda()
    augment = strong_view(shape) if recipe == "strong" else make_augment(recipe, shape)
    generator = torch.Generator("cuda").manual_seed(0)
    eager = [augment(x, generator=generator) for _ in range(4)]
    generator.manual_seed(0)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = augment(x, generator=generator)
    for want in eager:
        graph.replay()
        assert torch.equal(out, want)
    u = torch.rand(RandAugment(3).draws, 64, generator=gen())
    there, here = RandAugment(3)(x, None, u.cuda())[0].cpu(), RandAugment(3)(x.cpu(), None, u)[0]
    assert torch.equal(there, here)


class Launches(TorchDispatchMode):
    """Counts what would be a kernel on a GPU: all but views and empty memory."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and not name.startswith(("empty", "_unsafe_view", "scalar_tensor")):
            self.names.append(name)
        return out


def test_a_step_is_few_kernels_and_the_host_never_waits():
    x, counts = torch.rand(16, 3, 32, 32, generator=gen()), []
    for n in (1, 2):
        policy = RandAugment(n)
        u = torch.rand(policy.draws, 16, generator=gen())
        policy(x, None, u)  # the tables are made once
        with Launches() as launches:
            policy(x, None, u)
        counts.append(len(launches.names))
        waits = {"_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal"}
        assert not waits & set(launches.names)
    assert counts[1] - counts[0] <= 70  # one more operation
    assert counts[0] <= 115
