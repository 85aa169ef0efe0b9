"""`ytilde methods`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from .console import make_table, say, show
from .flags import docstring, field_rows


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="a method, recipe or backbones; without one, all methods are listed"),
    ] = None,
) -> None:
    """List the methods, or show one with its paper and options.

    `methods recipe` shows the training options of all methods, `methods backbones` the networks.
    """
    from ..backbones import about_backbone, list_backbones
    from ..method import list_methods, lookup

    if name is None:
        rows = [(each, _first_line(each)) for each in list_methods()]
        show(make_table(("method", "what it is"), rows))
    elif name == "backbones":
        about = {each: about_backbone(each) for each in list_backbones()}
        lines = [(each, what, _settings(given)) for each, (what, given) in about.items()]
        show(make_table(("backbone", "what it is", "options"), lines))
    elif name == "recipe":
        _show_recipe()
    else:
        entry = lookup(name)
        say(docstring(sys.modules[entry.cls.__module__]))
        _show_fields(entry.cls, entry.preset)


def _first_line(name: str) -> str:
    """What a method is; of those that one file holds, also what tells them apart."""
    from ..method import list_methods, lookup

    entry = lookup(name)
    text = docstring(sys.modules[entry.cls.__module__]).partition("\n")[0]
    if entry.preset:
        return f"{text} Here {_settings(entry.preset)}."
    others = {lookup(each).cls for each in list_methods()} - {entry.cls}
    beside = any(other.__module__ == entry.cls.__module__ for other in others)
    return f"{text} {docstring(entry.cls)}" if beside else text


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _show_recipe() -> None:
    from ..engine import Recipe

    _show_fields(Recipe, {})
    chosen = ", ".join(name.replace("_", "-") for name in _chosen_by_data())
    say(f"`fit` chooses these by the data unless you give them: {chosen}.")
    say("A run's config.json says what was chosen.")


def _chosen_by_data() -> list[str]:
    """The recipe's fields whose defaults are not the same for all kinds of data."""
    from ..engine import Recipe, default_recipe

    kinds: tuple[tuple[tuple[int, ...], bool], ...] = (
        ((8,), False), ((3, 32, 32), False), ((3, 224, 224), False), ((3, 224, 224), True),
    )  # fmt: skip
    recipes = [default_recipe(shape, n, pixels) for shape, pixels in kinds for n in (500, 50_000)]
    recipes.append(Recipe())
    names = [field.name for field in dataclasses.fields(Recipe)]
    return [name for name in names if len({getattr(r, name) for r in recipes}) > 1]


def _show_fields(cls: type, preset: dict[str, Any]) -> None:
    show(make_table(("option", "default", "meaning"), field_rows(cls, preset)))
