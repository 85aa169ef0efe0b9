"""What the parameters of a Classifier ask for: its method, its recipe and its encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from ..data import BadInput, Data
from ..encoders.encoder import Encoder
from ..engine import REFIT_FIELDS, Recipe, default_recipe
from ..engine.recipe import HELD_OUT
from ..fitting import of_texts
from ..method import Method, create

if TYPE_CHECKING:
    from .classifier import Classifier


def load_encoder(clf: Classifier) -> Encoder | None:
    """What the file of the parameter `encoder` holds."""
    return None if clf.encoder is None else Encoder.load(clf.encoder)


def is_auto(clf: Classifier) -> bool:
    """Is the method chosen by a race?"""
    return isinstance(clf.method, str) and clf.method == "auto"


def method_name(clf: Classifier) -> str:
    """The method's name; of "auto" the winner's, once there is one."""
    if is_auto(clf) and hasattr(clf, "method_"):
        return clf.method_.name
    return clf.method.name if isinstance(clf.method, Method) else clf.method


def new_method(clf: Classifier) -> Method:
    """The method with its fields, not built yet."""
    if isinstance(clf.method, Method):
        return type(clf.method)(**clf.method.get_params())
    if not isinstance(clf.method, str):
        raise BadInput(f"method must be a name or what create(name) made, not {clf.method!r}")
    return create(clf.method)


def recipe_for(clf: Classifier, data: Data) -> Recipe:
    """The recipe that the parameters make for such data."""
    own = {name: getattr(clf, name) for name in REFIT_FIELDS}
    seed = clf.random_state
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    elif isinstance(seed, np.random.RandomState):
        seed = seed.randint(2**31 - 1)
    elif not isinstance(seed, (int, np.integer)):
        raise BadInput(f"random_state must be a whole number or None, not {seed!r}")
    kind = {"pixels": data.y.dim() > 1, "texts": of_texts(data)}
    kind["early_stopping"] = is_auto(clf) or new_method(clf).early_stopping
    return default_recipe(data.shape, len(data), **kind, seed=int(seed), **own)


def as_chosen(clf: Classifier) -> Classifier:
    """An estimator of the same parameters; of a fitted "auto", what it chose: once is enough."""
    like = clone(clf)
    if is_auto(clf) and hasattr(clf, "method_"):
        like.set_params(method=clf.method_.name, val=clf.recipe_.val, keep=clf.recipe_.keep)
    return like


def recipe_of(method: Method, recipe: Recipe) -> Recipe:
    """What a method among those of "auto" gets: the recipe that it has by its own name.

    A tenth held out, which is what nobody asked for, is not for one without early stopping.
    """
    if method.early_stopping or recipe.val != HELD_OUT or recipe.patience:
        return recipe
    return replace(recipe, val=0.0, keep="last")
