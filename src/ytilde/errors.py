"""BadInput, Diverged, and the helpers that word what is wrong. Needs nothing but Python."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any


class BadInput(ValueError):
    """What the user gave is wrong. The message is one sentence: what is wrong and what to do.

    The command line prints it and exits with code 2; nothing is written. What the user gave may
    stand in it: line ends and characters that steer a terminal are left out, long texts cut.

    Args:
        message: the sentence.

    Example:
        >>> raise BadInput("lr must be a number, not 'a'")
        Traceback (most recent call last):
            ...
        ytilde.errors.BadInput: lr must be a number, not 'a'
    """

    def __init__(self, message: object) -> None:
        text = " ".join("".join(c if c.isprintable() else " " for c in str(message)).split())
        super().__init__(text if len(text) <= 1000 else f"{text[:700]} ... {text[-280:]}")


class Diverged(RuntimeError):
    """The loss stopped being a number. The command line prints it and exits with code 1."""


def is_out_of_memory(error: BaseException) -> bool:
    """Python's, numpy's and CUDA's errors by their names; that of torch on the CPU by its text."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def unknown_name_message(what: str, name: str, known: Sequence[str]) -> str:
    """One sentence for a name that does not exist, with the near ones, or else with all."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint if known else 'there are none'}"


def shorten_list(names: Iterable[Any], most: int = 8) -> str:
    """The first of these names."""
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (f", ... {len(names) - most} more" * (len(names) > most))


def sentence(text: str) -> str:
    """The text with a capital, as the beginning of a sentence; a file's name keeps its letters."""
    first = text.split(maxsplit=1)[:1]
    named = first and ("/" in first[0] or "." in first[0].rstrip(".,:"))
    return text if named else text[:1].upper() + text[1:]


def plural(count: int, word: str) -> str:
    """A number of things: 1 row, 2 rows, 2 classes."""
    return f"{count} {word}" + ("" if count == 1 else "es" if word.endswith("s") else "s")


def which_rows(rows: Iterable[int]) -> str:
    """How messages name rows."""
    found = sorted(set(map(int, rows)))
    if len(found) == 1:
        return f"row {found[0]} (counting from 0)"
    return f"{len(found)} rows ({shorten_list(found)}; counting from 0)"


_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def check_ranges(what: str, values: Mapping[str, Any], ranges: str) -> None:
    """Refuse a number that breaks its rule; ranges: the rules, as in "0 < q <= 1, alpha >= 0".

    What is no number ("auto", None) has no range.
    """
    for rule in filter(None, map(str.strip, re.split("[,;]", ranges))):
        words = re.findall("[<>]=?|[^<>= ]+", rule)
        name = next(word for word in words if word.isidentifier())
        value = values.get(name)
        if not isinstance(value, Real):
            continue
        numbers = [float(value if word == name else word) for word in words[::2]]
        chain = zip(words[1::2], numbers, numbers[1:], strict=False)
        if not all(_COMPARE[sign](left, right) for sign, left, right in chain):
            raise BadInput(f"{name} of {what} is {value}, but it must be in the range {rule}.")


def duration(seconds: float) -> str:
    """A time as a person says it: 40 seconds, 4 minutes, 3 hours."""
    for size, word in ((3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= 1.5 * size or size == 1:
            number = max(1, round(seconds / size))
            return f"{number} {word}{'' if number == 1 else 's'}"
    raise AssertionError
