"""What can be trained on this processor in time: a forecast, and a choice that keeps to it.

A network that needs hours on a CPU is of no use to somebody who wants to know which labels are
wrong. So where nobody named one, and a step of it, measured here, says that a fit would take more
than a minute, pictures become features of patches (backbones/patches.py) and a linear model learns
from those. Every way to fit asks `plan_fit`; docs/decisions/0022 has the figures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from .backbones import create_backbone, without_weights
from .data import Data
from .encoders import Encoder
from .encoders.patches import is_patches
from .engine import RandomState, Recipe, choose_device, default_recipe, parallel
from .engine.device import autocast
from .errors import duration
from .fitting import backbone_name, make_spec
from .method import Method, Net, create

BUDGET = 60.0  # seconds of one fit on a CPU; with the five folds of an audit some five minutes
SURE = 2_000_000  # pixels seen in training that any default network gets through in the budget
ROOM = 2**30  # bytes of features
FORECAST = 10.0  # seconds from which on a forecast is worth a line
SMALLER = 64  # pixels a side, what --image-size is advised
STEP = 2e-3  # seconds of a step of a linear model
NETWORK_FIELDS = (  # of the recipe: who gives one of them means a network
    "augment", "lr", "optimizer", "momentum", "nesterov", "eps", "weight_decay", "init",
    "standardise", "pretrained_lr", "schedule", "ema", "compile",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How pictures will be fitted on this processor, and how long that will take.

    backbone: as it was asked for, or what was chosen. precision: as it was asked for, or chosen.
    seconds: of the fit, about. chosen: it is not what would be trained without a limit.
    """

    backbone: Any
    precision: Literal["auto", "float32", "bfloat16"]
    seconds: float
    sentence: str
    chosen: bool = False


def plan_fit(
    data: Data,
    method: str | Method,
    backbone: Any,
    settings: Mapping[str, Any],
    encoder: Encoder | None = None,
    pretrain: str | None = None,
) -> Plan | None:
    """The plan for pictures on a CPU; None where there is nothing to plan or to say.

    A choice is made only where nobody made one: the backbone is "auto", no encoder is given, and
    none of the recipe's fields that are for networks.

    Args:
        data: the training rows.
        method: its name, or unbuilt.
        backbone: as in `fit_method`.
        settings: fields of the recipe as they were given; None: not given.
        encoder: what the networks start from.
        pretrain: a pre-training, which takes a time of its own.
    """
    given = {name for name, value in settings.items() if value is not None}
    recipe = default_recipe(data.shape, len(data), data.y.dim() > 1, **settings)
    if len(data.shape) != 3 or data.y.dim() > 1 or not isinstance(backbone, str):
        return None
    if choose_device(recipe.device).type != "cpu" or parallel.team().size > 1:
        return None
    own = method if isinstance(method, Method) else create("ce" if method == "auto" else method)
    network = without_weights(backbone_name(data, backbone, encoder))
    if pretrain or is_patches(network) or own.pretraining(data.shape) or network == "mlp":
        return None
    passes = len(data) * recipe.epochs
    if passes * data.shape[1] * data.shape[2] <= SURE:
        return None
    passes *= _networks(own, data, network, recipe)
    dtype = torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    seconds = passes * seconds_a_row(network, data.shape, recipe, dtype)
    free = backbone == "auto" and encoder is None and not given.intersection(NETWORK_FIELDS)
    what = f"{network} at {data.shape[1]} x {data.shape[2]} pixels, {recipe.epochs} epochs"
    if seconds <= BUDGET or not free:
        sentence = f"about {duration(seconds)}: {what}"
        if seconds > BUDGET:
            sentence += _otherwise(data, network, backbone, recipe, passes, seconds)
        return Plan(backbone, recipe.precision, seconds, sentence)
    if "precision" not in given and has_bfloat16():
        low = passes * seconds_a_row(network, data.shape, recipe, torch.bfloat16)
        if low <= BUDGET:
            why = f"in float32 it would take {duration(seconds)}"
            sentence = f"about {duration(low)}: {what}, in bfloat16, for {why}"
            return Plan(backbone, "bfloat16", low, sentence, chosen=True)
    name = patches_for(len(data))
    short = _patches_seconds(data, name)
    sentence = (
        f"about {duration(short)}: {name}, features of patches and a linear model, because {what}, "
        f"would take about {duration(seconds)} on this processor (--backbone {network} trains it)"
    )
    return Plan(name, recipe.precision, short, sentence, chosen=True)


def patches_for(rows: int) -> str:
    """The spec of the patches whose features of so many rows have room in memory."""
    dim = create_backbone("patches", (1, 32, 32)).dim
    return "patches" if 4 * rows * dim <= ROOM else "patches:pool=2"


def seconds_a_row(
    backbone: str, shape: tuple[int, ...], recipe: Recipe, dtype: torch.dtype = torch.float32
) -> float:
    """Forward and backward through the network, measured; the second of two passes counts."""
    rows = max(4, min(recipe.batch_size, 2**18 // (shape[1] * shape[2])))
    cpu = torch.device("cpu")
    with RandomState(0, cpu)():
        network = create_backbone(backbone, shape).train()
        x = torch.rand(rows, *shape)
        for _ in range(2):
            began = time.perf_counter()
            with autocast(cpu, dtype):
                out = network(x)
            out.float().square().mean().backward()
            took = time.perf_counter() - began
    return took / rows


def has_bfloat16() -> bool:
    """Does this processor multiply bfloat16, rather than emulate it?"""
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return ask is not None and bool(ask())


def _networks(method: Method, data: Data, network: str, recipe: Recipe) -> int:
    """How many networks a step of the method trains, about."""
    copy = type(method)(**method.get_params())
    with RandomState(0, torch.device("cpu"))():
        copy.build(make_spec(data.rows(torch.arange(1)), network, recipe))
    learning = [net for net in copy.modules() if isinstance(net, Net) and _learns(net)]
    return max(1, len(learning))


def _learns(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _otherwise(
    data: Data, network: str, asked: str, recipe: Recipe, passes: int, seconds: float
) -> str:
    """What would be faster."""
    ways = []
    if max(data.shape[1:]) > SMALLER:
        small = (data.shape[0], SMALLER, SMALLER)
        other = backbone_name(Data(torch.zeros(1, *small), torch.zeros(1).long(), 2), asked)
        took = passes * seconds_a_row(without_weights(other), small, recipe)
        if took < 0.7 * seconds:
            ways.append(f"--image-size {SMALLER} would take {duration(took)}")
    name = patches_for(len(data))
    ways.append(f"--backbone {name} would take {duration(_patches_seconds(data, name))}")
    return f"; {', '.join(ways)}"


def _patches_seconds(data: Data, name: str) -> float:
    """The features, measured on a few pictures, and a linear model's steps."""
    module = create_backbone(name, data.shape)
    x = torch.rand(16, *data.shape)
    for _ in range(2):
        began = time.perf_counter()
        module(x)
        took = time.perf_counter() - began
    table = default_recipe((module.dim,), len(data))
    steps = table.epochs * max(1, len(data) // table.batch_size)
    return len(data) * took / len(x) + steps * STEP
