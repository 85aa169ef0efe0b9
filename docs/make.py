"""Write docs/methods.md from the registry: `make docs`. A test fails when the file is stale."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from ytilde.cli.flags import field_comments
from ytilde.engine import choices
from ytilde.method import list_methods, lookup

HERE = Path(__file__).parent


TITLE = "# Methods\n\nMade by `make docs` from the method files; do not edit.\n\n"


def sections() -> dict[str, str]:
    """The part of the page for each family of methods, by its heading."""
    families: dict[type, list[str]] = {}
    for name in list_methods():
        families.setdefault(lookup(name).cls, []).append(name)
    return dict(_section(cls, families[cls]) for cls in sorted(families, key=families.get))


def _section(cls: type, names: list[str]) -> tuple[str, str]:
    heading = f"## {', '.join(f'`{name}`' for name in names)}"
    lines = [heading, "", inspect.getdoc(sys.modules[cls.__module__]) or "", ""]
    comments, words = field_comments(cls), choices(cls)
    fields = dataclasses.fields(cls)
    if fields:
        lines += ["| field | default | meaning |", "|---|---|---|"]
    for field in fields:
        presets = {name: lookup(name).preset.get(field.name, field.default) for name in names}
        values = set(map(str, presets.values()))
        shown = ", ".join(f"{v} ({n})" for n, v in presets.items())
        default = values.pop() if len(values) == 1 else shown
        one_of = ", ".join(map(str, words.get(field.name, ())))
        told = (comments.get(field.name, ""), one_of and f"one of {one_of}")
        meaning = "; ".join(filter(None, told)).replace("|", "\\|")
        lines.append(f"| `{field.name}` | {default} | {meaning} |")
    return heading, "\n".join([*lines, ""])


def methods_page() -> str:
    return TITLE + "\n".join(sections().values())


if __name__ == "__main__":
    (HERE / "methods.md").write_text(methods_page())
    print(f"written: {HERE / 'methods.md'}")
