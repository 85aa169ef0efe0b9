"""From a Data to a fitted Classifier, on one device or several; Ctrl-C keeps what there is."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..backbones import Patches, default_backbone
from ..budget import Plan, plan_fit
from ..data import IGNORE, BadInput, Batch, Data
from ..data.readers import Schema
from ..data.splits import folds
from ..encoders.encoder import Encoder
from ..encoders.patches import HEAD, encode, is_patches, learn_patches
from ..engine import REFIT_FIELDS, Diverged, Recipe, Record, Trainer, choose_device, parallel
from ..fitting import backbone_name, fit_method
from ..method import Method, create
from ..tuning import (
    ENOUGH,
    FOLDS,
    MOST,
    PIXEL_LIST,
    RIVALS,
    choose_method,
    tag_trial,
)
from .params import is_auto, load_encoder, method_name, new_method, recipe_for, recipe_of

if TYPE_CHECKING:
    from .classifier import Classifier


def train(
    clf: Classifier,
    data: Data,
    *,
    weights: Tensor | None = None,
    recipe: Recipe | None = None,
    schema: Schema | None = None,
    encoder: Encoder | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
    **options: Any,
) -> Trainer | None:
    """Fit clf; the arguments are those of `Classifier.fit_data`."""
    if not isinstance(clf.devices, int | np.integer) or clf.devices < 1:
        raise BadInput(f"devices must be a whole number, at least 1, not {clf.devices!r}")
    encoder = encoder or load_encoder(clf)
    plan = plan_for(clf, data, encoder) if recipe is None else None
    if plan and plan.chosen:
        warnings.warn(plan.sentence, stacklevel=4)
    network = plan.backbone if plan else clf.backbone
    clf.encoder_ = learn_patches_of(clf, data, network, encoder)
    clf._backbone_ = backbone_name(data, network, encoder)
    clf.classes_ = np.asarray(data.names or range(data.num_classes))
    clf.shape_, clf.n_features_in_ = data.shape, math.prod(data.shape)
    clf.schema_, clf.annotators_ = schema, np.asarray(data.annotators, dtype=object)
    first = data.x[torch.arange(1)] if len(data.shape) == 1 else None
    clf.double_ = first is not None and first.dtype == torch.float64
    notes: list[str] = []
    if clf.encoder_ is not None:
        how = {name: options.get(name) for name in ("folder", "on_step")}
        like = recipe or Recipe(device=clf.device, workers=clf.workers)
        data = encode(clf.encoder_, data, like, notes=notes, **how)  # type: ignore[arg-type]
    recipe = recipe or recipe_for(clf, data)
    if plan and plan.chosen:
        recipe = replace(recipe, precision=plan.precision)
    parallel.check_devices(int(clf.devices), choose_device(recipe.device))
    clf.recipe_, clf.history_ = recipe, []

    def record(line: Record) -> None:
        if "race" not in line:
            clf.history_.append(line)
        on_record(line)

    trained = clf._backbone_ if clf.encoder_ is None else HEAD
    options |= {"backbone": trained, "weights": weights, "on_record": record}
    options |= {"encoder": encoder, "pretrain": clf.pretrain}
    clf.method_ = _auto_method(clf, data, options) if is_auto(clf) else new_method(clf)
    if is_auto(clf):
        clf.recipe_ = recipe = recipe_of(clf.method_, recipe)
    alike = {k: v for k, v in options.items() if k not in ("on_record", "on_step", "monitor")}
    trainer = None
    try:
        fresh = type(clf.method_)(**clf.method_.get_params())
        beside = (_fit_beside, fresh, _sent(data), recipe, alike)
        with parallel.spawn_workers(clf.devices, *beside):
            trainer = fit_method(clf.method_, data, recipe, **options)
        clf.history_ = trainer.history
        trainer.notes[:0] = notes
    except KeyboardInterrupt:
        stages = {line["stage"] for line in clf.history_} - set(clf.method_.helper_stages)
        if not hasattr(clf.method_, "spec") or not stages:
            raise  # nothing to keep: no classifier has been trained
        warnings.warn("fit was interrupted: the model of the last whole epoch is kept")
    clf.interrupted_ = trainer is None
    clf.method_.eval()
    return trainer


def plan_for(clf: Classifier, data: Data, encoder: Encoder | None = None) -> Plan | None:
    """What this processor can train in time, where the estimator leaves the choice."""
    if not isinstance(clf.backbone, str) or clf.backbone != "auto" or encoder or clf.pretrain:
        return None
    defaults = inspect.signature(type(clf)).parameters
    own = {name: getattr(clf, name) for name in REFIT_FIELDS}
    given = {k: v for k, v in own.items() if k not in defaults or v != defaults[k].default}
    method = method_name(clf) if isinstance(clf.method, str) else new_method(clf)
    return plan_fit(data, method, clf.backbone, given)


def learn_patches_of(
    clf: Classifier, data: Data, network: Any, encoder: Encoder | None
) -> Patches | None:
    """The patches of these pictures, where the network is made of them."""
    if not is_patches(network):
        return None
    if encoder or clf.pretrain:
        raise BadInput("patches are learnt from the pictures; leave out encoder and pretrain")
    return learn_patches(network, data)


def _auto_method(clf: Classifier, data: Data, options: dict[str, Any]) -> Method:
    """The best of a short list; the options are those of the fit that follows."""
    left = ("folder", "on_record", "on_step", "monitor", "weights")
    own = {k: v for k, v in options.items() if k not in left}
    own["resume"] = False
    weights, whole = options["weights"], data.without_clean()
    recipe = clf.recipe_
    count = min(FOLDS, math.ceil(ENOUGH / (len(data) / FOLDS)))
    fold = folds(data.y, FOLDS, recipe.generator("split", "search"), data.groups)
    # with an initialisation and order that the fit that follows has not
    seeds: dict[str, Any] = {
        f"{name}_seed": recipe.seed_of(name, "search") for name in ("init", "order")
    }

    def right(name: str, number: int) -> list[float]:
        """Of each held-out row, whether its noisy label is what this method predicts."""
        method = create(name)
        learnt, held = ((fold == number) == side for side in (False, True))
        held = held.nonzero()[:, 0][:: math.ceil(len(data) / FOLDS / MOST)]
        shown = tag_trial(f"{name} ({number + 1} of {count})", options["on_record"])
        how = replace(recipe_of(method, recipe), **seeds)
        drawn = None if weights is None else weights[learnt]
        try:
            trainer = fit_method(
                method,
                whole.rows(learnt.nonzero()[:, 0]),
                how,
                **own,
                weights=drawn,
                on_record=shown,
            )
        except Diverged:
            return []
        return trainer.map(lambda batch: _agrees(method, batch), whole.rows(held)).tolist()

    folder, resume = options.get("folder"), options.get("resume", False)
    vectors = isinstance(clf.backbone, str) and clf.backbone == "auto" and len(data.shape) == 1
    ours = vectors and own["backbone"] == default_backbone(data.shape)  # nobody chose a network
    names = ("ensemble" if ours else "second_opinion", *RIVALS)
    names = names if data.y.dim() == 1 else PIXEL_LIST
    best, clf.race_ = choose_method(names, right, count, folder, resume)
    return create(best)


def _agrees(method: Method, batch: Batch) -> Tensor:
    """Whether the noisy label of each row [B] is predicted; of pixels, for which share of them."""
    known = (batch.y != IGNORE).flatten(1) if batch.y.dim() > 1 else (batch.y != IGNORE)[:, None]
    hits = (method.noisy_proba(batch.x).argmax(-1) == batch.y).view_as(known)
    return (hits & known).sum(1) / known.sum(1).clamp_min(1)


def _fit_beside(method: Method, data: Data, recipe: Recipe, options: dict[str, Any]) -> None:
    """The fit as the processes beside the leader run it."""
    arrays = {"x": data.x, "y": data.y, "votes": data.votes, "groups": data.groups}
    here: Any = {k: torch.from_numpy(a) for k, a in arrays.items() if isinstance(a, np.ndarray)}
    fit_method(method, replace(data, **here), recipe, **options)


def _sent(data: Data) -> Any:
    """The data for another process: arrays go through a pipe, tensors through shared memory, of
    which containers have little."""
    tensors = {"x": data.x, "y": data.y, "votes": data.votes, "groups": data.groups}
    arrays: Any = {k: t.numpy() for k, t in tensors.items() if isinstance(t, Tensor)}
    return replace(data.without_clean(), **arrays)
