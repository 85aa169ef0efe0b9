"""Encoder: a trained backbone as a file, from which the networks of any method can start."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import checkpoint
from ..backbones.weights import mark_pretrained
from ..errors import BadInput
from ..outputs import check_replaceable


@dataclass(frozen=True)
class Encoder:
    """A backbone's weights, and what its inputs have to be.

    backbone: its name with options; None for a network of the user's own. shape: of one input.
    mean, std: of the inputs it was trained with, taken over by every Net that starts from it.
    """

    backbone: str | None
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    weights: dict[str, Tensor]
    about: dict[str, Any] = field(default_factory=dict)  # how it was trained

    def save(self, path: str | Path, force: bool = False) -> None:
        """One safetensors file with a JSON header; `backbone="NAME:weights=PATH"` reads it too."""
        check_replaceable(Path(path), "encoder", force)
        meta: dict[str, Any] = {
            "kind": "encoder",
            "backbone": self.backbone,
            "shape": list(self.shape),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "about": self.about,
        }
        if self.mean.dtype == torch.float64:
            meta["double"] = True  # features that float32 would lose: see data/precision.py
        checkpoint.save(Path(path), self.weights, meta)

    @classmethod
    def load(cls, path: str | Path) -> Encoder:
        if not isinstance(path, str | PathLike):
            raise BadInput(f"an encoder is a file written by `ytilde pretrain`, not {path!r}")
        weights, meta = checkpoint.load(Path(path))
        if meta.get("kind") != "encoder":
            raise BadInput(f"{path} holds no encoder; make one with `ytilde pretrain`")
        dtype = torch.float64 if meta.get("double") else torch.float32
        mean, std = (torch.tensor(meta[name], dtype=dtype) for name in ("mean", "std"))
        return cls(meta["backbone"], tuple(meta["shape"]), mean, std, weights, meta["about"])

    def into(self, module: nn.Module) -> None:
        """Put the weights into a network of the same kind; another one is refused."""
        here = module.state_dict()
        strange = sorted(here.keys() ^ self.weights.keys())
        other = [k for k in here if not strange and here[k].shape != self.weights[k].shape]
        if strange or other:
            found = f"only one of them has {strange[0]}" if strange else self._sizes(other[0], here)
            raise BadInput(
                f"the encoder ({self.backbone or 'a network of your own'}, inputs of shape "
                f"{self.shape}) does not fit this network: {found}; give the same backbone"
            )
        module.load_state_dict(self.weights)
        mark_pretrained(module)

    def _sizes(self, name: str, here: dict[str, Tensor]) -> str:
        return f"{name} is {list(self.weights[name].shape)} there, {list(here[name].shape)} here"

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if tuple(shape) != self.shape:
            raise BadInput(
                f"the encoder takes inputs of shape {self.shape}, these have {tuple(shape)}; "
                "pre-train one on data of this kind"
            )
