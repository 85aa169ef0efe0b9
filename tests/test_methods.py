"""The common checks over the whole registry, and a golden number for each method."""

import json
from pathlib import Path

import pytest
import torch

from ytilde.data import Spec
from ytilde.method import BackboneFactory, create, list_methods, lookup
from ytilde.testing import blobs, check_method, fitted

GOLDEN = Path(__file__).parent / "golden.json"


@pytest.mark.parametrize("name", list_methods())
def test_check(name):
    check_method(name)


def golden(name: str) -> float:
    """Mean log-probability of the true label after a few epochs on a small noisy task."""
    data = blobs(n=300, num_classes=4, rate=0.3)
    p = fitted(lambda: create(name), data, epochs=16).proba(data)
    return float(p.gather(1, data.clean[:, None]).clamp(min=1e-12).log().mean())


@pytest.mark.parametrize("name", list_methods())
def test_golden(name):
    """One pinned number a method: a change of its mathematics or its random stream shows here.

    `python tests/test_methods.py` writes the file anew; the diff is the news.
    """
    pinned = json.loads(GOLDEN.read_text())
    assert golden(name) == pytest.approx(pinned[name], abs=5e-4)


def test_goldens_differ_from_plain_cross_entropy():
    pinned = json.loads(GOLDEN.read_text())
    assert set(pinned) == set(list_methods())
    same = [n for n in pinned if n != "ce" and abs(pinned[n] - pinned["ce"]) < 1e-4]
    assert not same, f"{same} train like plain cross-entropy"


def test_names_are_file_names():
    for name in list_methods():
        file = lookup(name).cls.__module__.rsplit(".", 1)[-1]
        assert name.startswith(file), f"{name} is in {file}.py"


def test_a_spec_needs_no_moments_of_the_inputs():
    """The six fields of the contract are enough; inputs are then taken as they are."""
    backbone = BackboneFactory("mlp:width=8,depth=1", (6,))
    generator = torch.Generator().manual_seed(0)
    spec = Spec(3, 240, (6,), backbone, backbone().dim, generator)
    method, x = create("ce"), blobs().x[:5]
    method.build(spec)
    assert torch.equal(method.net.features(x), method.net.backbone(x))


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = {name: round(golden(name), 6) for name in list_methods()}
    GOLDEN.write_text(json.dumps(numbers, indent=1) + "\n")
