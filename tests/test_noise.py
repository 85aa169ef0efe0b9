"""Noise: rates, maps and rows of T against slow versions written from the papers' text."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import truncnorm

from ytilde import noise
from ytilde.data import BadInput
from ytilde.noise import instance_dependent

N, K = 20_000, 10


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def labels(n=N, k=K, seed=1):
    return torch.randint(k, (n,), generator=gen(seed))


def within(share, p, n, sigmas=4.5):
    return abs(share - p) <= sigmas * math.sqrt(max(p * (1 - p), 1e-12) / n) + 1e-12


def empirical(clean, noisy, k):
    """Count matrix normalised by rows, with plain loops over classes."""
    T = torch.zeros(k, k, dtype=torch.float64)
    for i in range(k):
        for j in range(k):
            T[i, j] = ((clean == i) & (noisy == j)).sum() / max(1, int((clean == i).sum()))
    return T


def images(n=1500, k=K, seed=3):
    """Smooth images about one shared mean, as photographs are: uint8 [n, 3, 12, 12]."""
    coarse = torch.rand(n, 3, 4, 4, generator=gen(seed))
    shared = torch.rand(1, 3, 4, 4, generator=gen(seed + 1))
    mixed = torch.nn.functional.interpolate(0.45 * coarse + 0.55 * shared, size=12, mode="bilinear")
    return (mixed * 255).to(torch.uint8), labels(n, k)


class Lazy:
    """A reader that counts what it reads."""

    def __init__(self, x):
        self.x, self.reads = x, 0

    @property
    def shape(self):
        return tuple(self.x.shape)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += len(index)
        return self.x[index]


# ---------------------------------------------------------------- noise of the class alone


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.8, 1.0])
@pytest.mark.parametrize("inclusive", [True, False])
def test_symmetric_rate_and_matrix(rate, inclusive):
    y = labels()
    found = noise.symmetric(y, K, rate=rate, inclusive=inclusive, generator=gen())
    flips = rate * (K - 1) / K if inclusive else rate
    assert within(found.rate, flips, N)
    for i in range(K):
        for j in range(K):
            if inclusive:
                want = (1 - rate) * (i == j) + rate / K
            else:
                want = 1 - rate if i == j else rate / (K - 1)
            assert found.matrix[i, j].item() == pytest.approx(want, abs=1e-6)
    T = empirical(y, found.y, K)
    assert (T - found.matrix).abs().max() < 0.06


def test_inclusive_keeps_28_percent_and_exclusive_20_percent_at_rate_08():
    y = labels()
    kept = [
        1 - noise.symmetric(y, K, rate=0.8, inclusive=i, generator=gen()).rate
        for i in (True, False)
    ]
    assert within(kept[0], 0.28, N) and within(kept[1], 0.20, N)


def test_symmetric_exact_counts():
    y = labels(1003)
    found = noise.symmetric(y, K, rate=0.3, inclusive=False, exact=True, generator=gen())
    assert int((found.y != y).sum()) == round(0.3 * 1003)
    both = noise.symmetric(y, K, rate=0.3, inclusive=True, exact=True, generator=gen())
    assert 0 < int((both.y != y).sum()) <= round(0.3 * 1003)
    # the choice is over the whole set, not the front of it
    assert (found.y != y)[:500].any() and (found.y != y)[500:].any()
    other = noise.symmetric(y, K, rate=0.3, inclusive=False, exact=True, generator=gen(5))
    assert not torch.equal(found.y != y, other.y != y)


MNIST = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}
CIFAR10_TEXT = {2: 0, 3: 5, 5: 3, 4: 7}  # bird, cat, dog, deer
CIFAR10 = CIFAR10_TEXT | {9: 1}


@pytest.mark.parametrize(
    ("name", "mapping"), [("mnist", MNIST), ("cifar10", CIFAR10), ("cifar10_text", CIFAR10_TEXT)]
)
def test_asymmetric_maps(name, mapping):
    y = labels()
    found = noise.asymmetric(y, K, rate=0.4, mapping=name, generator=gen())
    for c in range(K):
        given_label = found.y[y == c]
        wrong = given_label[given_label != c]
        if c in mapping:
            assert (wrong == mapping[c]).all()
            assert within(len(wrong) / len(given_label), 0.4, len(given_label))
        else:
            assert len(wrong) == 0
    assert within(found.rate, 0.4 * len(mapping) / K, N, sigmas=6)
    own = noise.asymmetric(y, K, rate=0.4, mapping=mapping, generator=gen())
    assert torch.equal(own.y, found.y) and torch.equal(own.matrix, found.matrix)


def test_asymmetric_exact_counts_per_class():
    y = labels(2001)
    found = noise.asymmetric(y, K, rate=0.35, mapping="cifar10", exact=True, generator=gen())
    for c in range(K):
        n = int((y == c).sum())
        flipped = int(((y == c) & (found.y != c)).sum())
        assert flipped == (round(0.35 * n) if c in CIFAR10 else 0)


# the superclasses of the CIFAR-100 page, a line each; fine labels are in alphabetical order
SUPERCLASSES = """beaver dolphin otter seal whale
aquarium_fish flatfish ray shark trout
orchid poppy rose sunflower tulip
bottle bowl can cup plate
apple mushroom orange pear sweet_pepper
clock keyboard lamp telephone television
bed chair couch table wardrobe
bee beetle butterfly caterpillar cockroach
bear leopard lion tiger wolf
bridge castle house road skyscraper
cloud forest mountain plain sea
camel cattle chimpanzee elephant kangaroo
fox porcupine possum raccoon skunk
crab lobster snail spider worm
baby boy girl man woman
crocodile dinosaur lizard snake turtle
hamster mouse rabbit shrew squirrel
maple_tree oak_tree palm_tree pine_tree willow_tree
bicycle bus motorcycle pickup_truck train
lawn_mower rocket streetcar tank tractor"""


def test_cifar100_maps():
    y = torch.arange(100)
    fine = noise.asymmetric(y, 100, rate=1.0, mapping="cifar100", generator=gen())
    assert torch.equal(fine.y, (y + 1) % 100)
    coarse = noise.asymmetric(y, 100, rate=1.0, mapping="cifar100_coarse", generator=gen())
    fine_names = sorted(SUPERCLASSES.split())
    for line in SUPERCLASSES.splitlines():
        group = sorted(line.split())
        for at, name in enumerate(group):
            assert fine_names[coarse.y[fine_names.index(name)]] == group[(at + 1) % 5]


def test_pair():
    y = labels(k=7)
    found = noise.pair(y, 7, rate=0.45, generator=gen())
    wrong = found.y != y
    assert torch.equal(found.y[wrong], (y[wrong] + 1) % 7)
    assert within(found.rate, 0.45, N)
    exact = noise.pair(y, 7, rate=0.45, exact=True, generator=gen())
    counts = [int((y == c).sum()) for c in range(7)]
    assert int((exact.y != y).sum()) == sum(round(0.45 * n) for n in counts)


@pytest.mark.parametrize(
    ("setting", "fraction"),
    [("main", 0.18), ("uniform", 0.18), ("reduced", 0.09), ("increased", 0.288)],
)
def test_classwise_mislabelled_fraction(setting, fraction):
    y = torch.arange(N) % K
    found = noise.classwise(y, K, setting=setting, generator=gen())
    assert (1 - found.matrix.diagonal()).mean().item() == pytest.approx(fraction, abs=1e-6)
    assert within(found.rate, fraction, N)
    if setting in ("main", "reduced"):
        assert (found.y[y < 5] == y[y < 5]).all()
    own = noise.classwise(y, K, rates=noise.SETTINGS[setting], generator=gen())
    assert torch.equal(own.y, found.y)


def test_classwise_main_rates():
    found = noise.classwise(torch.arange(N) % K, K, setting="main", generator=gen())
    for c, redraw in enumerate([0, 0, 0, 0, 0, 0.2, 0.3, 0.4, 0.5, 0.6]):
        assert found.matrix[c, c].item() == pytest.approx(1 - redraw + redraw / 10)
        assert found.matrix[c, (c + 1) % 10].item() == pytest.approx(redraw / 10)


CLASS_LEVEL = ("symmetric:0.5", "asymmetric:0.5,mapping=mnist", "pair:0.5", "classwise:increased")


@pytest.mark.parametrize("text", CLASS_LEVEL)
def test_pixels_and_ignored_labels(text):
    y = torch.randint(-1, K, (6, 20, 30), generator=gen(2))
    found = noise.corrupt(text, None, y, K, generator=gen())
    assert found.y.shape == y.shape and found.y.dtype == torch.int64
    assert torch.equal(found.y == -1, y == -1)
    assert found.rate == pytest.approx(((found.y != y).sum() / (y != -1).sum()).item())
    rows = found.rows
    assert rows.shape == (6, 20, 30, K)
    assert torch.allclose(rows.sum(-1), (y != -1).float())
    assert torch.equal(rows[2, 3, 4], found.matrix[y[2, 3, 4]] * (y[2, 3, 4] != -1))
    assert found.transition(torch.tensor([5, 0])).shape == (2, K, K)


@settings(max_examples=30, deadline=None)
@given(
    k=st.integers(2, 12),
    rate=st.floats(0, 1),
    kind=st.sampled_from(["symmetric", "pair"]),
    exact=st.booleans(),
    seed=st.integers(0, 99),
)
def test_class_noise_properties(k, rate, kind, exact, seed):
    y = labels(400, k, seed)
    found = noise.corrupt(kind, None, y, k, rate=rate, exact=exact, generator=gen(seed))
    assert found.y.min() >= 0 and found.y.max() < k
    assert torch.allclose(found.rows.sum(-1), torch.ones(400))
    # no label is given that its row calls impossible
    assert (found.rows.gather(-1, found.y[:, None]) > 0).all()
    assert within(found.rate, float((1 - found.matrix.diagonal())[y].mean()), 400, sigmas=6)


# ---------------------------------------------------------------- noise of the input


@pytest.mark.parametrize(
    ("rate", "mean"), [(0.1, 0.129), (0.2, 0.2055), (0.3, 0.3004), (0.4, 0.4), (0.5, 0.5)]
)
def test_flip_rates_follow_the_truncated_normal(rate, mean):
    law = truncnorm((0 - rate) / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    assert law.mean() == pytest.approx(mean, abs=5e-4)  # the card's numbers
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    q = instance_dependent._flip_rates(rate, grid)
    assert q.mean().item() == pytest.approx(law.mean(), abs=1e-5)
    u = torch.tensor([0.0, 0.001, 0.3, 0.5, 0.9, 0.999], dtype=torch.float64)
    assert instance_dependent._flip_rates(rate, u).tolist() == pytest.approx(
        law.ppf(u.numpy()), abs=1e-9
    )
    x, y = torch.randn(N, 3, generator=gen(4)), labels()
    found = noise.instance(x, y, K, rate=rate, generator=gen())
    assert within(found.rate, mean, N)
    own = found.rows.gather(-1, y[:, None]).flatten()
    assert (1 - own).mean().item() == pytest.approx(mean, abs=4 * 0.1 / math.sqrt(N))


def test_rate_zero_is_no_noise():
    x, y = images()
    found = noise.instance(x, y, K, rate=0.0, generator=gen())
    assert torch.equal(found.y, y) and found.rate == 0
    assert found.summary()["mean_max"] is None and found.summary()["modal_share"] == [None] * K


def slow_transition(x, features, temperature, law, k):
    """T [n, k, k] in float64 with loops, from Xia et al. 2020, algorithm 2."""
    n = len(x)
    v = x.reshape(n, -1).double()
    if features == "raw255" and x.is_floating_point() and x.ndim > 2:
        v = v * 255
    if features == "standardized":
        for s in range(v.shape[1]):
            sd = (v[:, s] - v[:, s].mean()).square().mean().sqrt()
            v[:, s] = (v[:, s] - v[:, s].mean()) / sd if v[:, s].unique().numel() > 1 else 0.0
    T = torch.zeros(n, k, k, dtype=torch.float64)
    for c in range(k):
        W = law.projection(c).double()
        for i in range(n):
            q = law.q[i].double()
            a = (v[i] @ W) / temperature
            others = [j for j in range(k) if j != c]
            top = max(a[j] for j in others)
            total = sum((a[j] - top).exp() for j in others)
            for j in others:
                T[i, c, j] = q * (a[j] - top).exp() / total
            T[i, c, c] = 1 - q
    return T


@pytest.mark.parametrize("source", ["uint8", "float", "tabular"])
@pytest.mark.parametrize("features", ["standardized", "raw255"])
@pytest.mark.parametrize("softened", [{}, {"temperature": 7.0}])
def test_rows_equal_the_slow_version(source, features, softened):
    """As published where no temperature is given."""
    k, n = 4, 40
    if source == "tabular":
        x, y = 3 + 2 * torch.randn(n, 5, generator=gen(8)), labels(n, k)
        x[:, 2] = 0.1  # constant
    else:
        x, y = images(n, k)
        x[:, 0, 0, 0] = 77
        x = x if source == "uint8" else x / 255
    found = noise.instance(x, y, k, rate=0.4, features=features, generator=gen(), **softened)
    want = slow_transition(x, features, softened.get("temperature", 1.0), found.law, k)
    # logits of raw pixels are of size 10^4, so float32 leaves them an error of 10^-2
    tol = 2e-3 if features == "raw255" else 2e-5
    assert torch.allclose(found.transition(torch.arange(n)).double(), want, atol=tol)
    assert torch.allclose(found.rows.double(), want[torch.arange(n), y], atol=tol)


def test_projections_are_standard_normal_and_differ_by_class():
    x, y = images()
    law = noise.instance(x, y, K, rate=0.3, generator=gen()).law
    first, second = law.projection(0), law.projection(1)
    assert first.shape == (3 * 12 * 12, K)
    assert abs(first.mean()) < 0.1 and abs(first.std() - 1) < 0.1
    assert not torch.equal(first, second) and torch.equal(first, law.projection(0))


def test_transition_agrees_with_rows_whatever_the_order():
    x, y = images()
    found = noise.instance(x, y, K, rate=0.4, features="raw255", generator=gen())
    index = torch.tensor([1400, 3, 3, 999, 0])
    T = found.transition(index)
    assert T.shape == (5, K, K) and torch.allclose(T.sum(-1), torch.ones(5, K), atol=1e-5)
    assert torch.equal(T[torch.arange(5), y[index]], found.rows[index])
    assert torch.equal(T[1], T[2])
    # every row of one example carries that example's own flip rate on its diagonal
    assert torch.allclose(T.diagonal(dim1=-2, dim2=-1), (1 - found.law.q[index])[:, None])


def test_labels_are_drawn_from_their_rows():
    """At a high temperature the rows are smooth: sums over many examples match in every cell."""
    x, y = torch.randn(N, 4, generator=gen(6)), labels(k=3)
    found = noise.instance(x, y, 3, rate=0.45, temperature=2.0, generator=gen())
    given_label = torch.nn.functional.one_hot(found.y, 3).double()
    rows = found.rows.double()
    half = x[:, 0] > 0  # not in the mean alone: on each side of a cut of the input too
    for c in range(3):
        for side in (half, ~half):
            pick = (y == c) & side
            variance = (rows[pick] * (1 - rows[pick])).sum(0)
            error = (given_label[pick] - rows[pick]).sum(0).abs()
            assert (error < 4.5 * variance.sqrt()).all()
    assert found.rate == pytest.approx((found.y != y).double().mean().item())


def test_the_largest_draw_is_still_a_class(monkeypatch):
    """Rows in float32 may sum to a hair less than 1; no draw may fall behind their end."""
    x, y = images()
    top = 1 - 2**-53
    monkeypatch.setattr(torch, "rand", lambda *a, **k: torch.full(a, top, dtype=torch.float64))
    found = noise.instance(x, y, K, rate=0.4, generator=gen())
    assert found.y.max() < K


def test_statistics_differ_between_raw_and_standardized_as_the_card_says():
    x, y = images(3000)
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    raw = noise.instance(x, y, K, rate=0.4, features="raw255", generator=gen()).summary()
    std = noise.instance(x, y, K, rate=0.4, features="standardized", generator=gen()).summary()
    assert raw["mean_max"] > 0.99 and std["mean_max"] < raw["mean_max"]
    assert mean(raw["modal_share"]) > 0.5 and mean(std["modal_share"]) < 0.3
    assert mean(raw["effective_targets"]) < 4 and mean(std["effective_targets"]) > 6.5
    assert json.loads(json.dumps(raw)) == raw


def test_summary_by_hand():
    y = torch.tensor([0, 0, 0, 1, 2, -1])
    found = noise.asymmetric(y, 3, rate=0.5, mapping={0: 2}, generator=gen())
    assert found.summary() == {
        "kind": "asymmetric",
        "rate": found.rate,
        "mean_max": 1.0,
        "modal_share": [1.0, None, None],
        "effective_targets": [pytest.approx(1.0), None, None],
    }
    absent = noise.symmetric(y, 4, rate=0.5, generator=gen()).summary()
    assert absent["modal_share"] == [pytest.approx(1 / 3)] * 3 + [None]
    even = noise.symmetric(y, 3, rate=0.5, generator=gen()).summary()
    assert even["mean_max"] == pytest.approx(0.5) and even["effective_targets"] == pytest.approx(
        [2] * 3
    )


def test_temperature_softens():
    x, y = images()
    peak = [
        noise.instance(x, y, K, rate=0.4, temperature=t, generator=gen()).summary()["mean_max"]
        for t in (1.0, 10.0, 1e6)
    ]
    assert peak[0] > peak[1] > peak[2] and peak[2] == pytest.approx(1 / 9, abs=1e-3)


def test_ignored_labels_stay_ignored():
    x, y = images()
    y[::3] = -1
    found = noise.instance(x, y, K, rate=0.4, generator=gen())
    assert torch.equal(found.y == -1, y == -1)
    assert (found.rows[::3] == 0).all()
    assert torch.allclose(found.rows.sum(-1), (y != -1).float(), atol=1e-5)
    T = found.transition(torch.tensor([0, 1]))
    assert torch.allclose(T.sum(-1), torch.ones(2, K), atol=1e-5)
    assert within(found.rate, 0.4, int((y != -1).sum()))


def test_float_and_lazy_images_give_the_same_labels_as_uint8(monkeypatch):
    x, y = images()
    whole = noise.instance(x, y, K, rate=0.4, features="raw255", generator=gen())
    unit = noise.instance(x / 255, y, K, rate=0.4, features="raw255", generator=gen())
    assert (whole.y == unit.y).float().mean() > 0.999  # x / 255 * 255 rounds
    monkeypatch.setattr(instance_dependent, "CHUNK", 37 * 3 * 12 * 12)
    for features, most in (("raw255", 1), ("standardized", 2)):
        reader = Lazy(x)
        lazy = noise.instance(reader, y, K, rate=0.4, features=features, generator=gen())
        assert len(x) * most <= reader.reads <= len(x) * most + 64
        now = noise.instance(x, y, K, rate=0.4, features=features, generator=gen())
        assert torch.equal(lazy.y, now.y)
        index = torch.arange(0, 1500, 7)
        assert torch.equal(lazy.transition(index), now.transition(index))


def test_chunks_do_not_change_the_noise(monkeypatch):
    x, y = images()
    whole = noise.instance(x, y, K, rate=0.4, generator=gen())
    monkeypatch.setattr(instance_dependent, "CHUNK", 100 * 3 * 12 * 12)
    parts = noise.instance(x, y, K, rate=0.4, generator=gen())
    assert torch.allclose(whole.rows, parts.rows, atol=1e-3)
    assert (whole.y == parts.y).float().mean() > 0.998


def test_moments_survive_a_large_offset():
    x = torch.randn(5000, 3, generator=gen(1)) + torch.tensor([0.0, 300.0, -3e4])
    shift, scale = instance_dependent._moments(x)
    assert torch.allclose(shift.double(), x.double().mean(0), rtol=1e-6, atol=1e-6)
    assert torch.allclose(1 / scale.double(), x.double().std(0, correction=0), rtol=1e-4)


# ---------------------------------------------------------------- all kinds

ALL = (*CLASS_LEVEL, "instance:0.4", "symmetric:0.4,exact=true", "instance:0.3,features=raw255")


@pytest.mark.parametrize("text", ALL)
def test_same_seed_same_labels_and_global_state_untouched(text):
    x, y = images()
    before, x0, y0 = torch.get_rng_state(), x.clone(), y.clone()
    one, two, other = (noise.corrupt(text, x, y, K, generator=gen(s)) for s in (7, 7, 8))
    assert torch.equal(one.y, two.y) and torch.equal(one.rows, two.rows)
    assert not torch.equal(one.y, other.y)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(x, x0) and torch.equal(y, y0)
    assert one.kind == text.partition(":")[0] and one.rows.dtype == torch.float32
    index = torch.tensor([4, 9, 1000])
    assert torch.equal(one.transition(index)[torch.arange(3), y[index]], one.rows[index])


def test_parse():
    assert noise.parse("instance:0.4,features=raw255") == (
        "instance",
        {"rate": 0.4, "features": "raw255"},
    )
    assert noise.parse("symmetric:0.4,inclusive=false") == (
        "symmetric",
        {"rate": 0.4, "inclusive": False},
    )
    assert noise.parse(" classwise : main ") == ("classwise", {"setting": "main"})
    assert noise.parse("pair:exact=True, rate=.2") == ("pair", {"exact": True, "rate": 0.2})
    assert noise.parse("instance") == ("instance", {})
    assert set(noise.KINDS) == {"symmetric", "asymmetric", "pair", "instance", "classwise"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("instanse:0.4", "did you mean instance"),
        ("", "choose from"),
        ("instance:often", "not a number"),
        ("instance:1.4", r"\[0, 1\]"),
        ("instance:nan", r"\[0, 1\]"),
        ("instance:0.4,feature=raw255", "did you mean features"),
        ("instance:0.4,raw255", "option=value"),
        ("instance:0.4,rate=0.3", "twice"),
        ("symmetric:0.4,inclusive=maybe", "true, false"),
        ("pair:0.4,inclusive=true", "unknown option of pair noise"),
    ],
)
def test_parse_errors(text, says):
    with pytest.raises(BadInput, match=says):
        noise.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("instance", "needs a rate"),
        ("asymmetric:0.4", "needs a mapping"),
        ("asymmetric:0.4,mapping=cifar", "did you mean cifar10"),
        ("asymmetric:0.4,mapping=cifar100", "of 100 classes"),
        ("classwise", "setting or rates"),
        ("classwise:mian", "did you mean main"),
        ("instance:0.4,features=raw", "unknown features"),
        ("instance:0.4,temperature=0", "above 0"),
    ],
)
def test_corrupt_errors(text, says):
    x, y = images(50)
    with pytest.raises(BadInput, match=says):
        noise.corrupt(text, x, y, K, generator=gen())


@pytest.mark.parametrize("text", [*CLASS_LEVEL, "instance:0.4"])
@pytest.mark.parametrize(
    ("y", "k", "says"),
    [
        (torch.tensor([0, 1, 10]), 10, r"0\.\.9"),
        (torch.tensor([0, 1, -2]), 10, "-1 = ignore"),
        (torch.tensor([0, 0, 0]), 1, "at least 2 classes"),
        (torch.tensor([0.0, 1.0, 1.0]), 10, "whole numbers"),
        (torch.zeros(0, dtype=torch.int64), 10, "at least one"),
    ],
)
def test_bad_labels(text, y, k, says):
    with pytest.raises(BadInput, match=says):
        noise.corrupt(text, torch.rand(len(y), 2), y, k, generator=gen())


def test_bad_arguments():
    y = torch.tensor([0, 1, 2])
    for rate in (-0.1, 1.1, float("nan")):
        for kind in ("symmetric", "pair", "instance"):
            with pytest.raises(BadInput, match=r"\[0, 1\]"):
                noise.corrupt(kind, torch.rand(3, 2), y, 3, rate=rate, generator=gen())
    with pytest.raises(BadInput, match="leaves the 3 classes"):
        noise.asymmetric(y, 3, rate=0.1, mapping={0: 3}, generator=gen())
    with pytest.raises(BadInput, match="2 rates for 3 classes"):
        noise.classwise(y, 3, rates=[0.1, 0.2], generator=gen())
    with pytest.raises(BadInput, match="setting or rates"):
        noise.classwise(y, 10, rates=[0.1] * 10, setting="main", generator=gen())
    with pytest.raises(BadInput, match="one label per input"):
        noise.instance(torch.rand(4, 2), y, 3, rate=0.1, generator=gen())
    with pytest.raises(BadInput, match="one label per input"):
        noise.instance(torch.rand(3, 2), y[:, None], 3, rate=0.1, generator=gen())
    for features in noise.FEATURES:
        x = torch.tensor([[0.0], [float("nan")], [1.0]])
        with pytest.raises(BadInput, match="not finite"):
            noise.instance(x, y, 3, rate=0.1, features=features, generator=gen())


MEMORY = """
import sys, torch
from ytilde import noise
torch.set_num_threads(1)
n, used, size = int(sys.argv[1]), int(sys.argv[2]), 3 * 224 * 224
def kilobytes(name):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(name))
class Lazy:
    shape = (n, 3, 224, 224)
    store = torch.randint(0, 256, (size + 4096,), dtype=torch.uint8)
    def __len__(self):
        return n
    def __getitem__(self, index):
        starts = (index % 4096).tolist()
        return torch.stack([self.store[s : s + size].view(3, 224, 224) for s in starts])
before = kilobytes("VmRSS")
noise.instance(Lazy(), torch.arange(n) % used, 100, rate=0.4, generator=torch.Generator())
print((kilobytes("VmHWM") - before) // 1024)
"""


def extra_megabytes(n, used):
    """Peak memory above the start's, in a fresh process; `used` of the 100 classes occur."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(n), str(used)],
        env=os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@linux
def test_memory_is_bounded_for_lazy_images():
    # held at once, the images would take 0.9 GB as float32 and W 6 GB
    assert 60 < extra_megabytes(1_500, used=2) < 700


@linux
@pytest.mark.slow
def test_memory_of_fifty_thousand_lazy_images():
    assert extra_megabytes(50_000, used=100) < 1000


def test_numpy_inputs_and_plain_lists_do_as_well():
    x, y = images(50)
    expected = noise.instance(x, y, K, rate=0.4, generator=gen())
    found = noise.instance(x.numpy(), y.tolist(), K, rate=0.4, generator=gen())
    assert torch.equal(found.y, expected.y)
    index = torch.tensor([3, 1])
    assert torch.equal(found.transition([3, 1]), expected.transition(index))


@pytest.mark.parametrize("rate", [None, "0.4"])
def test_a_rate_that_is_no_number(rate):
    with pytest.raises(BadInput, match=r"\[0, 1\]"):
        noise.pair(torch.tensor([0, 1]), 2, rate=rate, generator=gen())
