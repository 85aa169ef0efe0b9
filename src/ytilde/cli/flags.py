"""Options that are the fields of a dataclass: a method's, the recipe's, a pre-training's."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import BadInput, shorten_list, unknown_name_message
from .sources import comments_of, method_fields, recipe_fields

# ---- what the user typed -------------------------------------------------------------------------


def refuse_mistyped(words: list[str], method: str, params: Sequence[Any] = ()) -> None:
    """Refuse a method or an option that there is not, before torch is loaded.

    params: the command's own, which may be meant: --label by --labels. Where plugins are,
    `parse_flags` alone can tell.
    """
    methods, method = method_fields(), _with_fields(method)
    if methods is not None:
        near = [opt.removeprefix("--") for param in params for opt in getattr(param, "opts", ())]
        recipe = {name for name, *_ in recipe_fields()}
        _check_names(words, method, methods, recipe, near)


def parse_flags(words: list[str], method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`--tau 0.5 --epochs 30` as (fields of the method, fields of the recipe)."""
    from ..engine import Recipe
    from ..method import list_methods, lookup

    method = _with_fields(method)
    cls = lookup(method).cls
    own = {f.name: f for f in dataclasses.fields(cls)}
    own |= {old: own[new] for old, new in cls.renamed.items()}
    known = {f.name: f for f in dataclasses.fields(Recipe)} | own
    methods = {name: set(lookup(name).cls.field_names()) for name in list_methods()}
    _check_names(words, method, methods | {method: set(own)}, set(known))
    found = read_flags(words, known)
    fields = {name: value for name, value in found.items() if name in own}
    return fields, {name: value for name, value in found.items() if name not in own}


def _with_fields(method: str) -> str:
    return (
        "ce" if method == "auto" else method
    )  # plain training has no fields; neither has a choice


def _check_names(
    words: list[str],
    method: str,
    methods: dict[str, set[str]],
    recipe: set[str],
    near: Sequence[str] = (),
) -> None:
    """methods: the fields of each; near: other options that may be meant."""
    if method not in methods:
        raise BadInput(unknown_name_message("method", method, sorted(methods)))
    known = recipe | methods[method]
    for word in words:
        flag = word.removeprefix("--").partition("=")[0]
        name = flag.replace("-", "_")
        if not word.startswith("--") or name in known:
            continue
        if others := sorted(each for each in methods if name in methods[each]):
            verb = "has" if len(others) == 1 else "have"
            raise BadInput(f"{method} has no --{flag}; {shorten_list(others)} {verb} it")
        raise BadInput(unknown_name_message("option", flag, sorted({*known, *near})))


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
            raise BadInput(unknown_name_message("option", flag, sorted(known)))
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
    named = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    takes = " or ".join(words for kind, words in named.items() if kind in kinds)
    raise BadInput(f"option --{flag} takes {takes or kinds}, not {text!r}")


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise ValueError(text)


# ---- what the fields mean ------------------------------------------------------------------------


def field_comments(cls: type) -> dict[str, str]:
    """The comment behind each field of a dataclass: its documentation."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= comments_of(inspect.getsource(base))
    return found


def field_rows(cls: type, preset: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Flag, default and meaning of each field of a dataclass."""
    from ..engine import choices

    comments, words = field_comments(cls), choices(cls)
    rows = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        meaning = filter(None, (", ".join(words.get(field.name, ())), comments.get(field.name)))
        default = preset.get(field.name, field.default)
        rows.append((flag_of(field.name), str(default), "; ".join(meaning)))
    return rows


def _metavar(annotation: Any) -> str:
    """How help shows the kind of a value, as typer does; a switch needs none."""
    annotation = getattr(annotation, "__name__", str(annotation))
    kind = "str" if annotation.startswith("Literal") else annotation.partition(" |")[0]
    return "" if kind == "bool" else f" <{kind}>"


def method_help(name: str) -> list[tuple[str, str]]:
    """A method's own flags for `fit --help`."""
    from ..method import lookup

    entry = lookup(name)
    kinds = [_metavar(field.type) for field in dataclasses.fields(entry.cls)]
    rows = zip(field_rows(entry.cls, entry.preset), kinds, strict=True)
    return [(flag + kind, f"{what}  [default: {default}]") for (flag, default, what), kind in rows]


def recipe_help() -> list[tuple[str, str]]:
    """The recipe's flags for `fit --help`."""
    rows = []
    for name, kind, comment in recipe_fields():
        words = ""
        if isinstance(kind, ast.Subscript):  # Literal["a", "b"]
            words = ", ".join(map(str, ast.literal_eval(kind.slice)))
        flag = flag_of(name) + _metavar(ast.unparse(kind))
        rows.append((flag, "; ".join(filter(None, (words, comment)))))
    return rows


def flag_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def docstring(thing: Any) -> str:
    """The documentation of a module, class or function, also under `python -OO`."""
    if sys.flags.optimize < 2:  # above, a class has that of its parent, or none
        return inspect.getdoc(thing) or ""
    try:
        tree: Any = ast.parse(inspect.cleandoc(inspect.getsource(thing)))
    except (OSError, SyntaxError):
        return ""
    return ast.get_docstring(tree if inspect.ismodule(thing) else tree.body[0]) or ""
