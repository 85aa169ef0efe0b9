"""Weights that were trained before: from a file, and the mark they carry."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import BadInput


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Pre-trained weights from a safetensors file, by torchvision's names; `fc.*` is ignored.

    All or nothing: a file that does not fit leaves the network as it was.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot read weights from {path}: {error}") from error
    weights = {k: v for k, v in weights.items() if not k.startswith("fc.")}
    here = module.state_dict()
    # Counters of batches are missing in files made before torch had them.
    missing = [k for k in here if k not in weights and not k.endswith("num_batches_tracked")]
    extra = [k for k in weights if k not in here]
    other = [k for k in weights if k in here and weights[k].shape != here[k].shape]
    if missing or extra or other:
        if other:
            sizes = f"{list(weights[other[0]].shape)} there, {list(here[other[0]].shape)} here"
            what = f"{other[0]} is {sizes}"
        elif missing:
            what = f"it has no {missing[0]}"
        else:
            what = f"the network has no {extra[0]}"
        raise BadInput(
            f"the weights in {path} do not fit this network ({what}; "
            f"{len(missing) + len(extra) + len(other)} names in all): "
            "give the backbone the options of the one that was trained, such as stem=imagenet"
        )
    module.load_state_dict(weights, strict=False)
    mark_pretrained(module)


def mark_pretrained(module: nn.Module) -> None:
    """Its weights learn at the recipe's `pretrained_lr` from here on."""
    for p in module.parameters():
        p.pretrained = True  # type: ignore[attr-defined]


def is_pretrained(p: Tensor) -> bool:
    return getattr(p, "pretrained", False)
