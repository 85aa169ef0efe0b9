"""Recipe: how to train. `default_recipe` is the one place that chooses it by the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from ..data import BadInput
from .rng import stream_seed


@dataclass(frozen=True)
class Recipe:
    """How to train. One seed gives separate streams; each stream's own seed can be set instead.

    What each field means stands behind it, and `ytilde methods recipe` prints it.
    `default_recipe` chooses by the data.

    Example:
        >>> recipe = Recipe(epochs=30, lr=0.1, keep="best")
        >>> recipe.optimizer, recipe.schedule
        ('sgd', 'cosine')
    """

    epochs: int = 30  # passes over the training rows
    batch_size: int = 128  # rows per step
    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"  # sgd: with momentum
    lr: float = 0.05  # initial learning rate
    pretrained_lr: float = 1.0  # rate of pre-trained weights as a fraction of lr; 0 freezes them
    momentum: float = 0.9  # of SGD; beta1 of Adam
    nesterov: bool = True  # is SGD's momentum Nesterov's?
    eps: float = 1e-8  # Adam's epsilon
    weight_decay: float = 5e-4  # how strongly weights shrink towards 0
    schedule: str = "cosine"  # constant, cosine, step:0.5,0.75, linear:0.4, trapezoid:0.1,0.4
    init: Literal["own", "keras"] = "own"  # first weights: a network's own rule, or as Keras draws
    augment: str = "none"  # none, or parts joined by +: crop2+flip+cutout8; features: jitter0.1
    standardise: bool = True  # inputs to mean 0 and sd 1; false: as they are, images in [0, 1]
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on CUDA only
    ema: float = 0.0  # decay of the moving average of the weights; 0: no average
    clip: float = 0.0  # maximum gradient norm of a parameter group; 0: no clipping
    val: float = 0.1  # fraction of rows held out as noisy validation; 10: so many of each class
    keep: Literal["last", "best", "best_nll"] = "last"  # best: by noisy validation accuracy
    patience: int = 0  # stop after this many epochs without better noisy validation; 0: never
    balance: bool = False  # draw every observed class equally often
    workers: int = 2  # processes that read data too large for memory
    seed: int = 0  # for every random draw that has no seed of its own
    noise_seed: int | None = None  # for the wrong labels that --noise makes
    split_seed: int | None = None  # for the choice of the validation rows
    init_seed: int | None = None  # for the initial weights
    order_seed: int | None = None  # for the order of the rows and every other draw in training
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    graph: bool = True  # on CUDA, capture the step as one CUDA graph
    compile: bool = False  # fuse the networks with torch.compile: slower to start, then faster

    def __post_init__(self) -> None:
        for name, kind in _hints(Recipe).items():
            _check_type(name, getattr(self, name), kind)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}")
        if not (0 <= self.val < 1 or (self.val >= 1 and self.val == int(self.val))):
            raise BadInput(
                f"val must be a fraction in [0, 1), or a whole number of rows of each observed "
                f"class, not {self.val}"
            )
        for name in ("momentum", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name} must be a fraction in [0, 1), not {getattr(self, name)}")
        for name in ("lr", "pretrained_lr", "weight_decay", "eps", "clip", "patience", "workers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(
                    f"{name} must be a finite number, 0 or more, not {getattr(self, name)}"
                )
        learning_rate(self.schedule, 0, 1)

    def seed_of(self, stream: str, stage: str = "") -> int:
        """A seed for one stream that no other stream shares.

        Args:
            stream: "noise", "split", "init" or "order".
            stage: of training; another one has another seed.
        """
        own = getattr(self, f"{stream}_seed", None)
        return stream_seed(self.seed if own is None else own, stream, stage)

    def generator(self, stream: str, stage: str = "", device: Any = "cpu") -> torch.Generator:
        """A generator for one stream.

        Args:
            stream: as in `seed_of`.
            stage: as in `seed_of`.
            device: that it draws on.
        """
        return torch.Generator(device).manual_seed(self.seed_of(stream, stage))


# What another fit of the same kind must be given (a fold of an audit, a model loaded from a file):
# all but the seed, which estimators call random_state, and that of the noise, which is made.
REFIT_FIELDS = tuple(f.name for f in fields(Recipe) if f.name not in ("seed", "noise_seed"))


# ---- what the fields may be ----------------------------------------------------------------------

_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    bool: (bool, "true or false"),
}


def choices(cls: type) -> dict[str, tuple[str, ...]]:
    """The words that each field of a dataclass may be, of those fields that are `Literal`."""
    try:
        kinds = _hints(cls).items()
    except NameError:  # a type that its file imports for checkers alone
        return {}
    return {name: get_args(kind) for name, kind in kinds if get_origin(kind) is Literal}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _check_type(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of the field's annotated type."""
    if get_origin(kind) is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            raise BadInput(f"unknown {name} {value!r}; known: {', '.join(get_args(kind))}")
        return
    inner = get_args(kind)  # of `int | None`
    if value is None and type(None) in inner:
        return
    of, what = _KINDS[inner[0] if inner else kind]
    if not isinstance(value, of) or (isinstance(value, bool) and of is not bool):
        raise BadInput(f"{name} must be {what}, not {value!r}")


# ---- what is chosen by the data ------------------------------------------------------------------

HELD_OUT = 0.1  # of the rows, where val is "auto" ...
ENOUGH_ROWS = 1000  # ... and there are so many; of fewer none
ENOUGH_TO_CHOOSE = 100  # held-out labels; fewer choose an epoch by luck (docs/decisions/0012)


def default_recipe(
    shape: Sequence[int],
    n: int,
    pixels: bool = False,
    *,
    texts: bool = False,
    early_stopping: bool = True,
    **own: Any,
) -> Recipe:
    """A sensible recipe for tables, features, small and large images, and pixel labels.

    Every way to fit asks here, so that the same rows get the same recipe. Epochs are chosen so that
    small data sets get enough steps. `val` ("auto") is a tenth with 1,000 rows or more, and nothing
    below that unless `keep` or `patience` need it; where 100 labels or more are held out, `keep` is
    the best epoch by them. A method without early stopping learns from all rows to the last epoch.

    Args:
        shape: of one input, (D,) or (C, H, W).
        n: how many rows there are, those to be held out included.
        pixels: whether each pixel has a label.
        texts: whether texts are nearly all there is; a linear model of few needs more steps.
        early_stopping: the method's own.
        own: fields that replace what would be chosen; None (or val="auto") leaves the choice.
    """
    own = {name: value for name, value in own.items() if value is not None}
    if isinstance(val := own.get("val", "auto"), str) and val == "auto":
        asked = own.get("keep", "last") != "last" or own.get("patience")
        own["val"] = HELD_OUT if asked or (early_stopping and n >= ENOUGH_ROWS) else 0.0
    if len(shape) == 1:
        base = Recipe(optimizer="adamw", lr=2e-3, weight_decay=1e-4, batch_size=128)
        base = replace(base, batch_size=32) if texts and n < ENOUGH_ROWS else base
        steps, most = 2000, 100
    elif pixels:
        base = Recipe(optimizer="adamw", lr=1e-3, weight_decay=1e-4, batch_size=16, augment="flip")
        steps, most = 4000, 100
    elif max(shape[1:]) <= 64:
        augment = "none" if max(shape[1:]) < 16 else "crop+flip" if shape[0] == 3 else "crop2"
        base = Recipe(lr=0.05, weight_decay=5e-4, batch_size=128, augment=augment)
        steps, most = 4000, 60
    else:
        base = Recipe(lr=0.02, weight_decay=5e-4, batch_size=64, augment="crop+flip")
        steps, most = 10000, 40
    recipe = replace(base, **own)
    if (
        early_stopping
        and "keep" not in own
        and recipe.val < 1
        and recipe.val * n >= ENOUGH_TO_CHOOSE
    ):
        recipe = replace(recipe, keep="best")
    per_epoch = max(1, n // recipe.batch_size)
    epochs = max(10, min(most, steps // per_epoch))
    return recipe if "epochs" in own else replace(recipe, epochs=epochs)


def check_held_out(own: Mapping[str, Any]) -> None:
    """Refuse to go by held-out rows where none are held out.

    Args:
        own: fields of a recipe, as they were given.
    """
    for name, without in (("keep", "last"), ("patience", 0)):
        if own.get("val") == 0 and own.get(name) not in (None, without):
            raise BadInput(
                f"{name}={own[name]} goes by held-out rows, and val=0 holds none out; raise val "
                f"(0.1 holds out a tenth), or leave {name} out"
            )


# ---- the rate over time --------------------------------------------------------------------------


def learning_rate(schedule: str, epoch: int, epochs: int) -> tuple[float, float | None]:
    """(factor of the learning rate, Adam's beta1 or None to leave it) in this epoch.

    Times in a schedule are fractions of training, so that a short run goes through every phase.
    """
    kind, _, text = schedule.partition(":")
    try:
        times = [float(part) for part in text.split(",") if part]
    except ValueError:
        raise BadInput(f"the times of schedule {schedule!r} must be numbers in [0, 1]") from None
    progress = epoch / epochs
    if kind == "constant":
        return 1.0, None
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress)), None
    if kind == "step":
        return 0.1 ** sum(progress >= t for t in times or [0.5, 0.75]), None
    if kind in ("linear", "linear_beta"):
        start = times[0] if times else 0.4
        factor = min(1.0, (1 - progress) / (1 - start))
        return factor, (0.9 if progress < start else 0.1) if kind == "linear_beta" else None
    if kind == "trapezoid":  # a rise from near 0, a plateau, a fall to 0
        rise, fall = times if len(times) == 2 else (0.1, 0.4) if not times else (1.0, 0.0)
        if not 0 <= rise <= fall <= 1:
            raise BadInput(
                f"schedule {schedule!r}: give two shares of training, until when the rate rises "
                "and from when it falls, the second not below the first, as in trapezoid:0.1,0.4"
            )
        up = (epoch + 1) / (rise * epochs + 1)
        return min(1.0, up, (1 - progress) / max(1 - fall, 1 / epochs)), None
    known = "constant, cosine, step:0.5,0.75, linear:0.4, linear_beta:0.4, trapezoid:0.1,0.4"
    raise BadInput(f"unknown schedule {schedule!r}; known: {known}")
