"""The networks by name: what there is, and a new one from a spec."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from torch import nn

from ..errors import BadInput, unknown_name_message
from ..specs import format_spec, parse_spec
from .weights import load_weights

Shape = tuple[int, ...]  # of one input: (C, H, W) or (D,)
FULL = 64  # the `width` at which a published network has its published size


class Backbone(nn.Module):
    """Inputs -> features [..., dim]."""

    dim: int
    stride = 1  # of the features of a network for pixels: how much a head has to upsample
    smallest: int | None = 1  # side of the smallest image it takes; None: takes features too


_registry: dict[str, tuple[type[Backbone], dict[str, Any]]] = {}


def register(name: str, **preset: Any) -> Callable[[type[Backbone]], type[Backbone]]:
    """The class under this name, with some of its arguments fixed."""

    def add(cls: type[Backbone]) -> type[Backbone]:
        _registry[name] = (cls, preset)
        return cls

    return add


def list_backbones() -> list[str]:
    return sorted(_registry)


def about_backbone(name: str) -> tuple[str, dict[str, Any]]:
    """What a backbone is, in a line, and its options with their defaults."""
    cls, preset = _registry[name]
    own = inspect.signature(cls).parameters.values()
    options = {p.name: p.default for p in own if p.name != "shape" and p.name not in preset}
    about = inspect.getdoc(cls) or ""  # none under `python -OO`
    return about.partition("\n")[0], options


def default_backbone(shape: Shape, *, pixels: bool = False) -> str:
    """What to use when nobody says: cheap enough for a CPU, good enough to compare methods."""
    if pixels:
        return "unet"
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "mlp:width=128,depth=1"
    if max(shape[1:]) > 64:
        return "resnet18"
    return "resnet18:width=16" if shape[0] == 1 else "wide_resnet"


def create_backbone(
    name: str, shape: Shape, *, weights: str | Path | None = None, **options: Any
) -> Backbone:
    """A new network by name, or by a spec such as "resnet18:width=16,stem=imagenet".

    shape: of one input. options: override those of the spec. weights: a safetensors file.
    """
    name, _, texts = parse_spec(name, "backbone", last_wins=True)
    given = {option: _value(text) for option, text in texts.items()}
    if name not in _registry:
        raise BadInput(unknown_name_message("backbone", name, list_backbones()))
    cls, preset = _registry[name]
    options = given | options
    weights = options.pop("weights", weights)
    hints = get_type_hints(cls.__init__)
    known = list(about_backbone(name)[1])
    for option, value in list(options.items()):
        if option not in known:
            raise BadInput(unknown_name_message(f"option of {name}", option, known))
        options[option] = _checked(name, option, value, hints[option])
    _check_shape(name, shape, cls.smallest)
    backbone = cls(tuple(shape), **preset, **options)
    if weights is not None:
        load_weights(backbone, weights)
    return backbone


def without_weights(backbone: Any) -> Any:
    """The spec without its `weights=FILE`, for networks that are filled otherwise."""
    if not isinstance(backbone, str):
        return backbone
    name, _, options = parse_spec(backbone, "backbone", last_wins=True)
    return format_spec(name, {k: v for k, v in options.items() if k != "weights"})


def _value(text: str) -> Any:
    """3, 0.5, true, 256x128 (a tuple) or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float, lambda t: tuple(int(n) for n in t.split("x"))):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, option: str, value: Any, hint: Any) -> Any:
    """The value, if it is what the option's annotation says."""
    choices = get_args(hint)
    if hint is bool:
        good, wants = isinstance(value, bool), "true or false"
    elif hint is int:
        good, wants = type(value) is int and value > 0, "a positive whole number"
    elif hint is float:
        good, wants = type(value) in (int, float) and 0 <= value < 1, "a number in [0, 1)"
    elif tuple in (getattr(c, "__origin__", None) for c in choices):
        value = (value,) if type(value) is int else value
        many = isinstance(value, tuple | list) and all(type(v) is int and v > 0 for v in value)
        good, wants = value is None or many, "widths such as 256x256"
    else:
        good, wants = value in choices, " or ".join(map(str, choices))
    if not good:
        raise BadInput(f"option {option} of backbone {name} must be {wants}, not {value!r}")
    return value


def _check_shape(name: str, shape: Shape, smallest: int | None) -> None:
    if smallest is None:
        return
    if len(shape) != 3:
        raise BadInput(
            f"backbone {name} needs images (C, H, W), not inputs of shape {tuple(shape)}: use mlp"
        )
    if min(shape[1:]) < smallest:
        raise BadInput(
            f"backbone {name} needs images of at least {smallest}x{smallest} pixels, "
            f"not {shape[1]}x{shape[2]}: use {default_backbone(shape)}"
        )
