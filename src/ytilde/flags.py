"""Options of the command line that are the fields of a dataclass: a method's and the recipe's."""

from __future__ import annotations

import dataclasses
import inspect
import io
import tokenize
from typing import Any

from .data import BadInput, few, unknown
from .engine import Recipe
from .method import list_methods, lookup


def parse_flags(words: list[str], method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`--tau 0.5 --epochs 30` as (fields of the method, fields of the recipe)."""
    cls = lookup(method).cls
    own = {f.name: f for f in dataclasses.fields(cls)}
    own |= {old: own[new] for old, new in cls.renamed.items()}
    known = {f.name: f for f in dataclasses.fields(Recipe)} | own
    for word in words:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        others = [m for m in list_methods() if name in lookup(m).cls.field_names()]
        if word.startswith("--") and name not in known and others:
            raise BadInput(f"{method} has no {word.partition('=')[0]}; {few(others)} have it")
    found = read_flags(words, known)
    fields = {name: value for name, value in found.items() if name in own}
    return fields, {name: value for name, value in found.items() if name not in own}


def read_flags(words: list[str], known: dict[str, dataclasses.Field[Any]]) -> dict[str, Any]:
    """The options among these fields, each as its field's type."""
    found: dict[str, Any] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise BadInput(f"unexpected argument {word!r}; options look like --epochs 30")
        flag, _, value = word[2:].partition("=")
        name = flag.replace("-", "_")
        if name not in known:
            raise BadInput(unknown("option", flag, sorted(known)))
        field = known[name]
        if not value:
            is_switch = isinstance(field.default, bool)
            value = "true" if is_switch and (not words or words[0].startswith("--")) else ""
            if not value:
                if not words:
                    raise BadInput(f"option --{flag} needs a value")
                value = words.pop(0)
        found[name] = convert(flag, value, field)
    return found


def convert(flag: str, text: str, field: dataclasses.Field[Any]) -> Any:
    """A flag's text as the field's type, told by its annotation."""
    kinds = str(field.type)
    if "Literal[" in kinds:
        return text  # who takes it knows the words
    for kind, read in (("bool", _boolean), ("int", int), ("float", float)):
        if kind in kinds:
            try:
                return read(text)
            except ValueError:
                continue
    if "str" in kinds or "Any" in kinds or "Path" in kinds:
        return text
    raise BadInput(f"option --{flag} takes {kinds}, not {text!r}")


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise ValueError(text)


def field_comments(cls: type) -> dict[str, str]:
    """The comment behind each field of a dataclass: its documentation."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        lines: dict[int, str] = {}
        source = inspect.getsource(base)
        for token in tokenize.generate_tokens(io.StringIO(inspect.cleandoc(source)).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0]] = token.string.lstrip("# ")
        for number, line in enumerate(inspect.cleandoc(source).splitlines(), 1):
            name = line.strip().partition(":")[0]
            if number in lines and name.isidentifier():
                found[name] = lines[number]
    return found
