"""Write docs/methods.md from the registry: `make docs`. A test fails when the file is stale."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from ytilde.cli.flags import field_comments
from ytilde.method import list_methods, lookup

HERE = Path(__file__).parent


def methods_page() -> str:
    lines = ["# Methods", "", "Made by `make docs` from the method files; do not edit.", ""]
    families: dict[type, list[str]] = {}
    for name in list_methods():
        families.setdefault(lookup(name).cls, []).append(name)
    for cls, names in sorted(families.items(), key=lambda item: item[1][0]):
        lines += [f"## {', '.join(f'`{name}`' for name in names)}", ""]
        lines += [inspect.getdoc(sys.modules[cls.__module__]) or "", ""]
        comments = field_comments(cls)
        fields = dataclasses.fields(cls)
        if fields:
            lines += ["| field | default | meaning |", "|---|---|---|"]
        for field in fields:
            presets = {name: lookup(name).preset.get(field.name, field.default) for name in names}
            values = set(map(str, presets.values()))
            shown = ", ".join(f"{v} ({n})" for n, v in presets.items())
            default = values.pop() if len(values) == 1 else shown
            meaning = comments.get(field.name, "").replace("|", "\\|")
            lines.append(f"| `{field.name}` | {default} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    (HERE / "methods.md").write_text(methods_page())
    print(f"written: {HERE / 'methods.md'}")
