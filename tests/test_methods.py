"""The common checks over the whole registry, and a golden number for each method."""

import dataclasses
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ytilde.data import BadInput, Spec, check_ranges
from ytilde.diffusion import DENOISERS
from ytilde.engine import choices
from ytilde.fitting import BackboneFactory
from ytilde.method import create, list_methods, lookup
from ytilde.methods._shared import DTYPES
from ytilde.methods.causal_nl import RULES, CausalNL
from ytilde.methods.dtm import DTM
from ytilde.methods.elr import ELR
from ytilde.testing import blobs, check_method, fitted

GOLDEN = Path(__file__).parent / "golden.json"
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
# A method is shipped once `make docs` has put it on the page. A new file is not yet, so that it
# passes with nothing else touched; what the tests then leave out for it they skip, and say so.
SHIPPED = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^## (`.*)$", PAGE.read_text(), re.M))))


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

    `python tests/test_methods.py [NAME ...]` writes the file anew; the diff is the news.
    """
    pinned, found = json.loads(GOLDEN.read_text()), golden(name)
    if name in pinned:
        assert found == pytest.approx(pinned[name], abs=5e-4)
        return
    assert abs(found - pinned["ce"]) > 1e-4, f"{name} trains like plain cross-entropy"
    pytest.skip(f"{name} has no golden number yet: python tests/test_methods.py {name}")


def test_goldens_differ_from_plain_cross_entropy():
    pinned = json.loads(GOLDEN.read_text())
    assert set(pinned) == SHIPPED, "on docs/methods.md or among the golden numbers, but not both"
    same = [n for n in pinned if n != "ce" and abs(pinned[n] - pinned["ce"]) < 1e-4]
    assert not same, f"{same} train like plain cross-entropy"


def rules(cls: type) -> dict[str, str]:
    """The rule of each field that has one."""
    texts = [vars(base)["ranges"] for base in cls.__mro__ if vars(base).get("ranges")]
    found = [rule for text in texts for rule in text.split(", ")]
    return {next(w for w in rule.split() if w.isidentifier()): rule for rule in found}


@pytest.mark.parametrize("name", list_methods())
def test_every_number_of_a_method_has_a_range(name):
    cls = lookup(name).cls
    numbers = {
        field.name
        for field in dataclasses.fields(cls)
        if ("float" in str(field.type) or "int" in str(field.type))
        and field.name not in choices(cls)
    }
    numbers -= {"encoder_seed"}
    assert set(rules(cls)) <= numbers
    for field, rule in rules(cls).items():
        for value in (-1, math.nan):
            with pytest.raises(BadInput, match=f"^{field} of [a-z_0-9]+ is {value}, .*{rule}.$"):
                create(name, **{field: value})
            with pytest.raises(BadInput, match=rule):
                cls(**{field: value})
            method = create(name)
            with pytest.raises(BadInput, match=rule):
                method.set_params(**{field: value})
            assert getattr(method, field) == getattr(create(name), field)
    if missing := numbers - set(rules(cls)):
        assert name not in SHIPPED, missing
        pytest.skip(f"{name} is not shipped yet, and says no range of {missing}")


@pytest.mark.parametrize(
    ("name", "field"), [(n, f) for n in list_methods() for f in choices(lookup(n).cls)]
)
def test_a_word_that_is_no_choice_is_refused(name, field):
    """Wherever it is given, before anything is built; the sentence names the near ones."""
    words = choices(lookup(name).cls)[field]
    wrong = f"{words[-1]}_"
    said = f"unknown {field} of {name} '{wrong}'; did you mean .*{words[-1]}"
    for make in (create, lambda name, **own: create(name).set_params(**own)):
        with pytest.raises(BadInput, match=said):
            make(name, **{field: wrong})
    with pytest.raises(BadInput, match=f"unknown {field} of "):
        lookup(name).cls(**{field: wrong})
    for word in words:
        assert getattr(create(name, **{field: word}), field) == word


def test_the_words_are_those_that_are_implemented():
    assert choices(CausalNL)["rule"] == tuple(RULES)
    assert choices(DTM)["denoiser"] == tuple(DENOISERS)
    assert choices(ELR)["dtype"] == tuple(DTYPES)


@pytest.mark.parametrize(
    ("name", "old"), [(n, old) for n in list_methods() for old in lookup(n).cls.renamed]
)
def test_old_names_of_fields_are_still_taken(name, old):
    new = lookup(name).cls.renamed[old]
    with pytest.warns(DeprecationWarning, match=f"{old} of {name} is called {new} now"):
        method = create(name, **{old: 0.25})
    assert getattr(method, new) == 0.25
    assert old not in method.get_params()
    with pytest.warns(DeprecationWarning, match=old):
        assert getattr(create(name).set_params(**{old: 0.5}), new) == 0.5
    with pytest.raises(BadInput, match=f"{new} of {name} is 2"):
        create(name, **{old: 2.0})
    with pytest.raises(BadInput, match=f"given {new} twice"):
        create(name, **{old: 0.1, new: 0.1})


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("0 < q <= 1", (1e-9, 0.5, 1), (0, -1, 1.0001, math.inf, np.float32(2))),
        ("0 <= q < 1", (0, 0.5, 0.9999), (1, -1e-9)),
        ("q >= 1", (1, 5, np.int64(3)), (0.999, 0)),
        ("a > 0, q > 0", (0.1, "auto", None), (0, np.nan)),
    ],
)
def test_ranges(rule, inside, outside):
    for value in inside:
        check_ranges("method", {"q": value}, rule)
    for value in outside:
        with pytest.raises(BadInput, match="q of method is"):
            check_ranges("method", {"q": value}, rule)


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
    numbers = {} if not sys.argv[1:] else json.loads(GOLDEN.read_text())
    numbers |= {name: round(golden(name), 6) for name in sys.argv[1:] or list_methods()}
    GOLDEN.write_text(json.dumps(dict(sorted(numbers.items())), indent=1) + "\n")
