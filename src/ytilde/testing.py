"""check_method: the checks that every method must pass; public, so that outsiders can test theirs.

from ytilde.testing import check_method
check_method("my_method")
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data import BadInput, Batch, Data
from .data.splits import split
from .engine import Recipe, Trainer
from .fitting import fit_method, make_spec
from .method import Method, create, unseen

RECIPE = Recipe(epochs=8, batch_size=32, optimizer="adam", lr=5e-3, weight_decay=0.0, val=0.2)
BACKBONE = "mlp:width=32,depth=1"


def blobs(n: int = 240, num_classes: int = 3, dim: int = 6, rate: float = 0.0) -> Data:
    """Separable Gaussian classes; a fraction `rate` of the labels moves to the next class."""
    generator = torch.Generator().manual_seed(7)
    clean = torch.arange(n) % num_classes
    centres = 4 * torch.randn(num_classes, dim, generator=generator)
    x = centres[clean] + torch.randn(n, dim, generator=generator)
    flip = torch.rand(n, generator=generator) < rate
    y = torch.where(flip, (clean + 1) % num_classes, clean)
    return Data(x, y, num_classes, clean=clean)


class Runs:
    """Fits of one method that several checks look at; each is made when first asked for."""

    def __init__(self, make: Callable[[], Method]) -> None:
        self.make = make
        self.data = blobs(rate=0.2)

    @cached_property
    def first(self) -> Fitted:
        return fitted(self.make, self.data, epochs=3)

    @cached_property
    def second(self) -> Fitted:
        """The same again, but for garbage in the place of the clean labels."""
        garbage = replace(self.data, clean=torch.full_like(self.data.y, 99))
        return fitted(self.make, garbage, epochs=3)


@dataclass
class Fitted:
    method: Method
    trainer: Trainer

    def proba(self, data: Data) -> Tensor:
        return self.trainer.map(lambda batch: self.method.predict_proba(batch.x), data)

    def accuracy(self, data: Data) -> float:
        truth = data.y if data.clean is None else data.clean
        return float((self.proba(data).argmax(-1) == truth).float().mean())


def fitted(make: Callable[[], Method], data: Data, **own: Any) -> Fitted:
    method = make()
    trainer = fit_method(method, data, replace(RECIPE, **own), backbone=BACKBONE)
    return Fitted(method, trainer)


def check_method(name: str, **fields: Any) -> None:
    """Run every check over one method; raises AssertionError naming the first that fails.

    Args:
        name: of a registered method.
        fields: its hyper-parameters, where they are not the defaults.

    Returns:
        Nothing.

    Example:
        >>> check_method("ce")
    """
    runs = Runs(lambda: create(name, **fields))
    for check in CHECKS:
        try:
            check(runs)
        except AssertionError as error:
            raise AssertionError(f"{name}: {check.__name__}: {error}") from error


def check_defaults_construct(runs: Runs) -> None:
    method = runs.make()
    again = type(method)(**method.get_params())
    assert again.get_params() == method.get_params(), "fields do not survive get_params"
    assert not list(method.parameters()), "state exists before build"


def check_documented(runs: Runs) -> None:
    module = __import__(type(runs.make()).__module__, fromlist=["_"])
    assert "Fidelity:" in (module.__doc__ or ""), "the file has no `Fidelity:` paragraph"


def check_global_random_state_untouched(runs: Runs) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    runs.first.proba(runs.data)
    assert torch.equal(before, torch.get_rng_state()), "the global random state was moved"


def check_state_is_born_in_build(runs: Runs) -> None:
    before = runs.make()
    kept, _ = split(runs.data.y, RECIPE.val, RECIPE.generator("split"))
    before.build(make_spec(runs.data.rows(kept), BACKBONE, RECIPE))
    after = runs.first.method.state_dict()
    assert set(before.state_dict()) == set(after), "fit made or dropped state"
    shapes = {k: v.shape for k, v in before.state_dict().items()}
    assert shapes == {k: v.shape for k, v in after.items()}, "fit changed a shape"


def check_same_seed_same_bits_whatever_is_clean(runs: Runs) -> None:
    first, second = runs.first.method.state_dict(), runs.second.method.state_dict()
    for key in first:
        same = torch.equal(first[key], second[key])
        assert same, f"two equal runs, but for garbage in clean, differ in {key}"


def check_probabilities(runs: Runs) -> None:
    data, run = runs.data, runs.first
    p = run.proba(data)
    assert p.shape == (len(data), data.num_classes), f"predict_proba has shape {tuple(p.shape)}"
    assert torch.isfinite(p).all() and (p >= 0).all(), "probabilities are not finite and >= 0"
    assert torch.allclose(p.sum(-1), torch.ones(len(data)), atol=1e-5), "rows do not sum to 1"
    noisy = run.trainer.map(lambda batch: run.method.noisy_proba(batch.x), data)
    assert torch.allclose(noisy.sum(-1), torch.ones(len(data)), atol=1e-5), "noisy rows: not 1"
    assert torch.equal(p, run.proba(data)), "predictions are not deterministic"
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    shuffled = run.proba(replace(data, x=data.x[order]))
    assert torch.allclose(p[order], shuffled, atol=1e-5), "predictions depend on the row order"
    alone = run.proba(replace(data, x=data.x[torch.arange(3)], y=data.y[:3]))
    assert torch.allclose(p[:3], alone, atol=1e-5), "predictions depend on the other rows"


def check_transition(runs: Runs) -> None:
    data, run, some = runs.data, runs.first, torch.arange(8)
    k, x = data.num_classes, run.trainer.batch(data, some).x
    for batch in (Batch(x, data.y[some], some), unseen(x)):
        with torch.no_grad():
            T = run.method.transition(batch)
        if T is None:
            return
        assert T.shape in ((k, k), (8, k, k)), f"transition has shape {tuple(T.shape)}"
        ones = torch.ones(T.shape[:-1])
        assert torch.allclose(T.sum(-1).float(), ones, atol=1e-6), "rows of T do not sum to 1"
        assert (T >= 0).all(), "T has negative entries"


def check_pixel_labels(runs: Runs) -> None:
    """They are learnt from, or refused in one sentence before anything is trained."""
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    data, method = Data(x, (x[:, 0] > 0.5).long(), 2), runs.make()
    recipe = replace(RECIPE, epochs=1, batch_size=3)
    try:
        trainer = fit_method(method, data, recipe, backbone="unet:width=4,depth=1")
    except BadInput:
        return
    assert method.pixels, "it learns from pixel labels, so it should not say `pixels = False`"
    p = trainer.map(lambda batch: method.predict_proba(batch.x), data)
    assert p.shape == (6, 8, 8, 2), f"predict_proba of pixels has shape {tuple(p.shape)}"


def check_save_and_load(runs: Runs) -> None:
    from .estimator import Classifier

    clf = Classifier(runs.make(), backbone=BACKBONE, epochs=2, batch_size=32)
    x, y = runs.data.x[torch.arange(len(runs.data))].numpy(), runs.data.y.numpy()
    clf.fit(x, y)
    with tempfile.TemporaryDirectory() as folder:
        clf.save(Path(folder) / "model.safetensors")
        again = Classifier.load(Path(folder) / "model.safetensors")
    assert (clf.predict_proba(x) == again.predict_proba(x)).all(), "a loaded model differs"


def check_huge_inputs_stay_finite(runs: Runs) -> None:
    x = torch.full((4, *runs.data.shape), 1e4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        p = runs.first.method.predict_proba(x)
    assert torch.isfinite(p).all(), "probabilities are not finite for huge inputs in bfloat16"


def check_learns(runs: Runs) -> None:
    data = blobs(n=600)
    accuracy = fitted(runs.make, data, epochs=20).accuracy(data)
    assert accuracy > 0.95, f"accuracy {accuracy:.3f} on a separable task"


def check_beats_chance_under_noise(runs: Runs) -> None:
    data = blobs(n=600, rate=0.3)
    accuracy = fitted(runs.make, data, epochs=20).accuracy(data)
    assert accuracy > 0.6, f"accuracy {accuracy:.3f} with 30 % wrong labels"


CHECKS: list[Callable[[Runs], None]] = [
    check_defaults_construct,
    check_documented,
    check_global_random_state_untouched,  # makes the first fit
    check_state_is_born_in_build,
    check_same_seed_same_bits_whatever_is_clean,
    check_probabilities,
    check_transition,
    check_pixel_labels,
    check_save_and_load,
    check_huge_inputs_stay_finite,
    check_learns,
    check_beats_chance_under_noise,
]
