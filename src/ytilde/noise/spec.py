"""Noise as the command line writes it: "instance:0.4,features=raw255"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..data import Rows
from ..errors import BadInput
from ..specs import parse_spec
from .class_dependent import asymmetric, classwise, pair, symmetric
from .instance_dependent import instance
from .noisy import Noisy, _known, _rate


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{text!r} in the noise is not a number; write e.g. instance:0.4.") from None


def _share(text: str) -> float:
    return _rate(_number(text))


def _truth(text: str) -> bool:
    return _known("yes or no", text.lower(), ("true", "false")) == "true"


# kind: what may stand in its text, with the reader of each value; the first needs no name.
_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "symmetric": {"rate": _share, "inclusive": _truth, "exact": _truth},
    "asymmetric": {"rate": _share, "mapping": str, "exact": _truth},
    "pair": {"rate": _share, "exact": _truth},
    "instance": {"rate": _share, "features": str, "temperature": _number},
    "classwise": {"setting": str},
}
KINDS = tuple(_OPTIONS)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Read a noise as the command line writes it.

    Args:
        text: the kind, its rate (of classwise noise its setting) and options.

    Returns:
        The kind and the keyword arguments of its function.

    Example:
        >>> parse("instance:0.4,features=raw255")
        ('instance', {'rate': 0.4, 'features': 'raw255'})
    """
    kind, values, options = parse_spec(text, "the noise", values=1)
    readers = _OPTIONS[_known("kind of noise", kind, KINDS)]
    if values:
        first = next(iter(readers))
        if first in options:
            raise BadInput(f"the noise {text!r} gives {first} twice; give it once.")
        options = {first: values[0]} | options
    for name in options:
        _known(f"option of {kind} noise", name, readers)
    return kind, {name: readers[name](value) for name, value in options.items()}


def corrupt(
    text: str, x: Rows, y: Tensor, num_classes: int, *, generator: torch.Generator, **options: Any
) -> Noisy:
    """The noise of this kind or text.

    Args:
        text: as in `parse`.
        x: inputs, for noise that depends on them.
        y: true labels; -1 stays -1.
        num_classes: K.
        generator: where all draws come from; results lie on the CPU.
        options: of the kind's function; they replace those of the text.

    Returns:
        The labels and the truth about them.

    Example:
        >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, -1])
        >>> corrupt("pair", x, y, 3, rate=1.0, generator=torch.Generator().manual_seed(0)).y
        tensor([ 1,  2,  0, -1])
    """
    kind, read = parse(text)
    known = [*_OPTIONS[kind], *(["rates"] if kind == "classwise" else [])]
    for name in options:
        _known(f"option of {kind} noise", name, known)
    options = read | options
    needed = {"asymmetric": ("rate", "mapping"), "classwise": ()}.get(kind, ("rate",))
    for name in needed:
        if name not in options:
            example = ",mapping=cifar10" if kind == "asymmetric" else ""
            raise BadInput(f"{kind} noise needs a {name}; write e.g. {kind}:0.4{example}.")
    if kind == "instance":
        return instance(x, y, num_classes, generator=generator, **options)
    of_class: dict[str, Callable[..., Noisy]] = {
        "symmetric": symmetric,
        "asymmetric": asymmetric,
        "pair": pair,
        "classwise": classwise,
    }
    return of_class[kind](y, num_classes, generator=generator, **options)
