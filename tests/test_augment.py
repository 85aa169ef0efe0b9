"""Augmentation against slow per-sample versions; the draws are replayed from the same seed."""

import colorsys
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ytilde.augment import (
    Augment,
    ColorJitter,
    CropFlip,
    Cutout,
    Grey,
    ResizedCrop,
    make_augment,
    two_views,
)
from ytilde.data import BadInput

IMAGE_RECIPES = [
    "none", "flip", "crop", "crop4+flip", "crop+flip", "crop+flip+cutout", "reflect2+flip",
    "simclr", "scale", "scale:1.5+flip", "color+grey", "cutout5", "resize0.5",
    "crop+flip+randaugment2+cutout", "randaugment", "autoaugment", "randomcutout0.3",
]  # fmt: skip
TINY_RECIPES = [
    "crop1+flip", "reflect1", "cutout3", "simclr", "scale", "color1+grey", "randaugment3",
    "autoaugment", "randomcutout",
]  # fmt: skip


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def images(b=6, c=3, h=11, w=8, seed=1):
    return torch.rand(b, c, h, w, generator=gen(seed))


def draws(n, b, seed=0):
    return torch.rand(n, b, generator=gen(seed))


def slow_crop(x, u, pad, flip, reflect, fill):
    """Pad one image [C, H, W] (Python loops), cut a window out of it, maybe flip it."""
    _, h, w = x.shape
    down = math.floor(float(u[0]) * (2 * pad + 1)) - pad
    right = math.floor(float(u[1]) * (2 * pad + 1)) - pad
    out = torch.full_like(x, fill)
    for i in range(h):
        for j in range(w):
            r, s = i + down, j + right
            if reflect:
                r = -r if r < 0 else (2 * (h - 1) - r if r >= h else r)
                s = -s if s < 0 else (2 * (w - 1) - s if s >= w else s)
            if 0 <= r < h and 0 <= s < w:
                out[:, i, j] = x[:, r, s]
    return out.flip(-1) if flip and u[2] < 0.5 else out


@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("reflect", [False, True])
def test_crop_flip_is_the_slow_loop(pad, flip, reflect):
    x, u = images(), draws(3, 6)
    y = torch.randint(0, 5, (6, 11, 8), generator=gen(2))
    moved, labels = Augment(CropFlip(pad, flip, reflect))(x, y, generator=gen())
    for i in range(6):
        assert torch.equal(moved[i], slow_crop(x[i], u[:, i], pad, flip, reflect, 0))
        assert torch.equal(labels[i], slow_crop(y[i][None], u[:, i], pad, flip, reflect, -1)[0])


def test_crops_and_flips_are_uniform():
    x = torch.zeros(4000, 1, 9, 9)
    x[:, :, 4, 4] = 1
    out = Augment(CropFlip(2))(x, generator=gen())
    count = out[:, 0].sum(0)[2:7, 2:7]
    assert count.sum() == 4000
    assert (count - 160).abs().max() < 5 * 160**0.5
    x = torch.zeros(4000, 1, 1, 2)
    x[..., 0] = 1
    left = make_augment("flip", (1, 1, 2))(x, generator=gen())[..., 0].sum()
    assert abs(left - 2000) < 5 * 1000**0.5


def test_half_of_all_draws_flip():
    x = torch.arange(8.0).expand(8, 1, 4, 8).contiguous()
    u = torch.stack([torch.full((8,), 0.5), torch.full((8,), 0.5), torch.arange(8) / 8])
    flipped = CropFlip(0, flip=True)(x, None, u)[0]
    assert [torch.equal(a, b.flip(-1)) for a, b in zip(flipped, x, strict=True)] == (
        [True] * 4 + [False] * 4
    )


def test_a_probability_of_zero_changes_no_picture():
    x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    for part in (ColorJitter(p=0.0), Grey(p=0.0)):
        assert torch.equal(part(x, None, torch.zeros(part.draws, 5))[0], x)


def test_crop_then_flip_is_one_gather():
    assert make_augment("crop2+flip", (3, 16, 16)).transforms == (CropFlip(2, flip=True),)
    assert make_augment("flip+crop2", (3, 16, 16)).transforms == (
        CropFlip(0, flip=True),
        CropFlip(2),
    )
    assert make_augment("crop+cutout", (3, 32, 32)).transforms == (CropFlip(4), Cutout(16))


@pytest.mark.parametrize("size", [1, 4, 5, 30])
def test_cutout_hole(size):
    x, u = torch.ones(200, 2, 12, 9), draws(2, 200)
    out = Augment(Cutout(size))(x, generator=gen())
    for i in range(200):
        top = int(u[0, i] * 12) - size // 2
        left = int(u[1, i] * 9) - size // 2
        expect = torch.ones(2, 12, 9)
        expect[:, max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)] = 0
        assert torch.equal(out[i], expect)
    area = (out[:, 0] == 0).sum((1, 2))
    assert area.max() == min(size, 12) * min(size, 9)


def slow_jitter(x, u, jitter):
    """One RGB image in float64, pixel by pixel, hue by the standard library's colorsys."""
    if not u[4] < jitter.p:
        return x
    strengths = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    b, c, s, h = (k * (2 * float(v) - 1) for k, v in zip(strengths, u, strict=False))
    clip = lambda v: min(max(v, 0.0), 1.0)  # noqa: E731
    luma = lambda p: 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]  # noqa: E731
    pixels = [[clip(float(v) * (1 + b)) for v in p] for p in x.flatten(1).T]
    mean = sum(map(luma, pixels)) / len(pixels)
    pixels = [[clip(mean + (1 + c) * (v - mean)) for v in p] for p in pixels]
    pixels = [[clip(luma(p) + (1 + s) * (v - luma(p))) for v in p] for p in pixels]
    turned = []
    for p in pixels:
        hue, sat, val = colorsys.rgb_to_hsv(*p)
        turned.append(colorsys.hsv_to_rgb((hue + h) % 1, sat, val))
    return torch.tensor(turned, dtype=torch.float64).T.view(x.shape)


@pytest.mark.parametrize(
    "jitter",
    [
        ColorJitter(),
        ColorJitter(0, 0, 0, 0.5, p=1),
        ColorJitter(0.9, 0, 0, 0, p=1),
        ColorJitter(0, 0.9, 0, 0, p=1),
        ColorJitter(0, 0, 0.9, 0, p=1),
    ],
)
def test_color_jitter_is_the_slow_loop(jitter):
    x, u = images(b=12), draws(5, 12)
    x[:, :, 0, 0] = 0.5  # a grey pixel has no hue
    x[:, :, 0, 1] = 0
    out = Augment(jitter)(x, generator=gen())
    for i in range(12):
        expect = slow_jitter(x[i], u[:, i], jitter)
        assert (out[i] - expect).abs().max() < 2e-5
    assert jitter.p == 1 or 0 < (out == x).all((1, 2, 3)).sum() < 12


def test_jitter_of_one_channel_and_grey():
    x = images(c=1)
    out = Augment(ColorJitter(0.4, 0.4, 0.4, 0.1, p=1))(x, generator=gen())
    assert out.shape == x.shape and (out != x).any()
    x, u = images(b=40), draws(1, 40)
    out = Augment(Grey(0.3))(x, generator=gen())
    for i in range(40):
        luma = 0.299 * x[i, 0] + 0.587 * x[i, 1] + 0.114 * x[i, 2]
        expect = torch.stack([luma] * 3) if u[0, i] < 0.3 else x[i]
        assert torch.allclose(out[i], expect, atol=1e-6)


def slow_resized_crop(x, u, scale, ratio, nearest):
    """One channel [H, W] in float64: the box, then bilinear or nearest by hand."""
    height, width = x.shape
    u = [float(v) for v in u]
    area = scale[0] + u[0] * (scale[1] - scale[0])
    aspect = math.exp(math.log(ratio[0]) + u[1] * math.log(ratio[1] / ratio[0]))
    limit = max(1, scale[1] ** 0.5)
    h, w = min((area / aspect) ** 0.5, limit), min((area * aspect) ** 0.5, limit)
    top, left = (1 - h) * u[2], (1 - w) * u[3]  # of the box, as fractions of the image
    out = torch.empty(height, width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            r, s = top + h * (i + 0.5) / height, left + w * (j + 0.5) / width
            if not (0 <= r <= 1 and 0 <= s <= 1):
                out[i, j] = -1 if nearest else 0
                continue
            r = min(max(r * height - 0.5, 0), height - 1)
            s = min(max(s * width - 0.5, 0), width - 1)
            if nearest:
                out[i, j] = x[round(r), round(s)]
                continue
            a, b = min(int(r), height - 2), min(int(s), width - 2)
            e, f = r - a, s - b
            out[i, j] = (1 - e) * ((1 - f) * x[a, b] + f * x[a, b + 1])
            out[i, j] += e * ((1 - f) * x[a + 1, b] + f * x[a + 1, b + 1])
    return out


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.2, 1.0), (0.75, 4 / 3)), ((0.25, 4.0), (1.0, 1.0))]
)
def test_resized_crop_is_the_slow_loop(scale, ratio):
    x, u = images(b=12, c=2), draws(4, 12)
    y = torch.randint(0, 9, (12, 11, 8), generator=gen(3))
    moved, labels = Augment(ResizedCrop(scale, ratio))(x, y, generator=gen())
    assert labels.dtype == torch.int64
    for i in range(12):
        for c in range(2):
            expect = slow_resized_crop(x[i, c].double(), u[:, i], scale, ratio, nearest=False)
            assert (moved[i, c] - expect).abs().max() < 1e-4
        assert torch.equal(
            labels[i].double(), slow_resized_crop(y[i].double(), u[:, i], scale, ratio, True)
        )
    assert ((labels == -1).any()) == (scale[1] > 1)
    assert torch.equal(labels == -1, (moved == 0).all(1))


@pytest.mark.parametrize(
    "recipe", ["crop3+flip", "reflect3+flip", "scale", "scale+crop2+flip", "resize"]
)
def test_labels_stay_with_their_pixels(recipe):
    """Each quarter has its own value and label: where nothing is blended the two must agree."""
    y = torch.zeros(16, 24, 24, dtype=torch.int64)
    y[:, 12:], y[:, :, 12:] = 2, y[:, :, 12:] + 1
    y[:, 12:, 12:] = 3
    x = ((y + 1) / 8)[:, None].expand(-1, 3, -1, -1).clone()
    moved, labels = make_augment(recipe, (3, 24, 24))(x, y, generator=gen())
    decoded = moved[:, 0] * 8 - 1
    whole = (decoded - decoded.round()).abs() < 1e-4  # not blended between two quarters
    assert whole.float().mean() > 0.8
    assert torch.equal(decoded.round().long()[whole], labels[whole])
    assert (moved != x).any()
    if recipe.startswith(("crop", "scale")):
        assert (labels == -1).any()


@pytest.mark.parametrize("recipe", IMAGE_RECIPES)
def test_recipes(recipe):
    x = images(b=9, h=32, w=28)
    augment = make_augment(recipe, (3, 32, 28))
    before = torch.random.get_rng_state()
    kept = x.clone()
    out = augment(x, generator=gen(5))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(x, kept)
    assert out.shape == x.shape and out.dtype == x.dtype
    assert out.min() >= 0 and out.max() <= 1
    assert torch.equal(out, augment(x, generator=gen(5)))
    if recipe != "none":
        assert not torch.equal(out, augment(x, generator=gen(6)))
    # A class label passes through; a sample does not feel its neighbours.
    y = torch.arange(9)
    pair = augment(x, y, generator=gen(5))
    assert torch.equal(pair[0], out) and torch.equal(pair[1], y)
    other = x.clone()
    other[1:] = 0.3
    assert torch.equal(augment(other, generator=gen(5))[0], out[0])


def test_a_colour_part_has_the_strengths_of_simclr():
    """Chen et al. (2020), appendix A: 0.8 s each, and 0.2 s for the hue; whole at most."""
    x = images(h=16, w=16)
    for strength in (0.5, 1.25):
        wanted = Augment(ColorJitter(*3 * [0.8 * strength], 0.2 * strength))(x, generator=gen(3))
        found = make_augment(f"color{strength}", (3, 16, 16))(x, generator=gen(3))
        torch.testing.assert_close(found, wanted)


def test_one_draw_a_batch(monkeypatch):
    x, calls, rand = images(h=16, w=16), [], torch.rand
    monkeypatch.setattr(torch, "rand", lambda *a, **k: calls.append(a) or rand(*a, **k))
    make_augment("simclr", (3, 16, 16))(x, generator=gen())
    assert len(calls) == 1
    make_augment("none", (3, 16, 16))(x, generator=gen())
    assert len(calls) == 1


def test_two_views_are_independent():
    x, generator = images(b=64, h=16, w=16), gen()
    augment = make_augment("simclr", (3, 16, 16))
    first, second = two_views(lambda v: augment(v, generator=generator), x)
    assert first.shape == second.shape == x.shape
    assert (first != second).any((1, 2, 3)).all()


def test_features():
    x = torch.zeros(4000, 5)
    out = make_augment("jitter:0.1", (5,))(x, generator=gen())
    assert abs(out.std() - 0.1) < 0.002 and abs(out.mean()) < 0.002 and out.isfinite().all()
    assert torch.corrcoef(out.T).sub(torch.eye(5)).abs().max() < 0.08
    assert make_augment("none", (5,))(x, generator=gen()) is x


@pytest.mark.parametrize(
    ("recipe", "shape", "says"),
    [
        ("crop+flop", (3, 8, 8), "crop, reflect, flip"),
        ("", (3, 8, 8), "unknown"),
        ("crop", (5,), "features"),
        ("jitter", (3, 8, 8), "images"),
        ("crop8", (3, 8, 8), "leaves nothing"),
        ("crop1.5", (3, 8, 8), "whole"),
        ("grey2", (3, 8, 8), "between 0 and 1"),
        ("color1.3", (3, 8, 8), "between 0 and 1.25"),
        ("cutout0", (3, 8, 8), "whole and at least 1"),
        ("flip2", (3, 8, 8), "unknown"),
    ],
)
def test_bad_recipes(recipe, shape, says):
    with pytest.raises(BadInput, match=says):
        make_augment(recipe, shape)


def test_the_smallest_cutout_is_one_pixel():
    out = make_augment("cutout1", (3, 8, 8))(torch.ones(5, 3, 8, 8), generator=gen())
    assert (out[:, 0] == 0).sum((1, 2)).tolist() == [1] * 5


@settings(max_examples=25, deadline=None)
@given(
    b=st.integers(1, 4),
    c=st.integers(1, 4),
    h=st.integers(2, 9),
    w=st.integers(2, 9),
    recipe=st.sampled_from(TINY_RECIPES),
    seed=st.integers(0, 2**31),
)
def test_any_size_stays_in_range(b, c, h, w, recipe, seed):
    x = images(b, c, h, w, seed)
    y = torch.randint(-1, 3, (b, h, w), generator=gen(seed))
    out, labels = make_augment(recipe, (c, h, w))(x, y, generator=gen(seed))
    assert out.shape == x.shape and labels.shape == y.shape
    assert out.min() >= 0 and out.max() <= 1 and labels.min() >= -1 and labels.max() <= 2
