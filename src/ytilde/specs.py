"""Options written as one text: "mlp:width=128,depth=1", "instance:0.4,features=raw255"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .errors import BadInput


class ParsedSpec(NamedTuple):
    """name:value,...,option=value,... as texts."""

    name: str
    values: list[str]  # without a name; they come first
    options: dict[str, str]


def parse_spec(text: str, what: str, *, values: int = 0, last_wins: bool = False) -> ParsedSpec:
    """Take a spec apart.

    Args:
        text: the spec, such as "instance:0.4,features=raw255".
        what: what it is, for messages: "noise", "backbone".
        values: how many values may stand without a name, in front of the options.
        last_wins: an option that is given twice has its last value; else it is refused.

    Example:
        >>> parse_spec("instance:0.4,features=raw255", "noise", values=1)
        ParsedSpec(name='instance', values=['0.4'], options={'features': 'raw255'})
    """
    name, _, rest = text.partition(":")
    found = ParsedSpec(name.strip(), [], {})
    for item in filter(None, (part.strip() for part in rest.split(","))):
        option, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            if found.options or len(found.values) == values:
                raise BadInput(f"cannot read {item!r} in {what} {text!r}: write option=value")
            found.values.append(item)
        elif option in found.options and not last_wins:
            raise BadInput(f"{what} {text!r} gives {option} twice; give it once.")
        else:
            found.options[option] = value
    return found


def format_spec(name: str, options: Mapping[str, str], values: Sequence[str] = ()) -> str:
    """The text that `parse_spec` takes apart."""
    items = [*values, *(f"{option}={value}" for option, value in options.items())]
    return f"{name}:{','.join(items)}" if items else name
