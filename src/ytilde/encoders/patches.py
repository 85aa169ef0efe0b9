"""Pictures as features of patches: learnt from the pictures alone, computed once, then a table.

Labels play no part in them, so that all folds of an audit may share them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..backbones import Patches, create_backbone
from ..data.images import row_name
from ..data.types import IGNORE, Data
from ..engine import Recipe, Record, Trainer, choose_device, to_device
from ..errors import BadInput

LEARNT_FROM = 2000  # pictures
HEAD = "identity"  # the network that learns from features: none, only a head


def is_patches(backbone: Any) -> bool:
    """Is this the backbone that learns from the inputs alone, before the fit?"""
    return isinstance(backbone, str) and backbone.partition(":")[0].strip() == "patches"


def seen_shape(backbone: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what a method gets to see of inputs of this shape."""
    return (create_backbone(backbone, shape).dim,) if is_patches(backbone) else shape


def learn_patches(backbone: str, data: Data) -> Patches:
    """The patches of this data's pictures, drawn at random but always alike."""
    if data.y.dim() > 1:
        raise BadInput("patches give one vector per picture, and these are labels of pixels")
    module = create_backbone(backbone, data.shape)
    assert isinstance(module, Patches)
    generator = torch.Generator().manual_seed(0)
    index = torch.randperm(len(data), generator=generator)[:LEARNT_FROM].sort().values
    small = []
    for part in index.split(64):
        x = data.x[part]
        small.append(module.scaled(x.float().div(255) if x.dtype == torch.uint8 else x.float()))
    module.learn(torch.cat(small), generator)
    return module.eval()


def encode(
    module: Patches,
    data: Data,
    recipe: Recipe,
    *,
    notes: list[str] | None = None,
    folder: Path | None = None,
    on_step: Callable[[Record], None] | None = None,
) -> Data:
    """The same rows as features [N, dim]; pictures that cannot be read lose their labels.

    notes: hears of those; folder: gets a list of them. on_step: called with how far it has come.
    """
    to_device(module, choose_device(recipe.device))
    trainer = Trainer(module, recipe)
    trainer.feed.folder = folder
    parts, done = [], 0
    with torch.no_grad():
        for batch in trainer.feed.in_order(data):
            parts.append(module(batch.x).cpu())
            done += len(parts[-1])
            if on_step:
                how_far = {"epoch": 1, "epochs": 1, "share": done / len(data)}
                on_step({"stage": "features", **how_far})
    y, lost = data.y, trainer.feed.unreadable
    if lost:
        unread = torch.tensor([row_name(data.x, row) in lost for row in range(len(data))])
        y = y.masked_fill(unread, IGNORE)
    if notes is not None:
        notes += trainer.notes
    return replace(data, x=torch.cat(parts), y=y)
