"""The fields of the recipe and of the methods, read from the source without loading torch.

Help and the messages for mistyped names use it, so that they appear at once.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import tokenize
from importlib.metadata import entry_points
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def comments_of(source: str) -> dict[str, str]:
    """The comments behind `name: type = value  # comment` in the source of a class."""
    source = inspect.cleandoc(source)
    lines: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] = token.string.lstrip("# ")
    found = {}
    for number, line in enumerate(source.splitlines(), 1):
        name = line.strip().partition(":")[0]
        if number in lines and name.isidentifier():
            found[name] = lines[number]
    return found


def recipe_fields() -> list[tuple[str, ast.expr, str]]:
    """Name, annotation and comment of each field of the recipe."""
    source = (PACKAGE / "engine" / "recipe.py").read_text(encoding="utf-8")
    cls = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "Recipe"
    )
    comments = comments_of(ast.get_source_segment(source, cls) or "")
    return [(name, kind, comments.get(name, "")) for name, kind in _annotated(cls).items()]


def method_fields() -> dict[str, set[str]] | None:
    """Every method's fields, under their old names too; None: importing alone would tell.

    That is so where plugins are, or where a file of `methods/` shows no name or an unknown base.
    """
    if os.environ.get("YTILDE_METHODS") or entry_points(group="ytilde.methods"):
        return None
    classes: dict[str, ast.ClassDef] = {}
    names: dict[str, str] = {}  # of a method -> of its class
    for path in sorted((PACKAGE / "methods").glob("*.py")):
        tree = ast.parse(path.read_bytes())
        here = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        shown = {name: cls for cls in here for name in _registered(here[cls])}
        if not shown and not path.name.startswith("_"):
            return None
        classes |= here
        names |= shown
    try:
        return {name: _fields(cls, classes) for name, cls in names.items()}
    except KeyError:
        return None


def _fields(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The fields of a class and of its bases; KeyError: a base is defined elsewhere."""
    if name == "Method":
        return set()
    cls = classes[name]
    found = set(_annotated(cls))
    for node in cls.body:  # renamed = {"old": "new"}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "renamed":
            found |= ast.literal_eval(node.value).keys()
    return found.union(*(_fields(ast.unparse(base), classes) for base in cls.bases))


def _annotated(cls: ast.ClassDef) -> dict[str, ast.expr]:
    """`name: type` in a class, which makes a field of a dataclass."""
    return {
        node.target.id: node.annotation
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }


def _registered(cls: ast.ClassDef) -> list[str]:
    """The names in `@register("name")` above a class."""
    calls = [each for each in cls.decorator_list if isinstance(each, ast.Call)]
    return [
        ast.literal_eval(call.args[0])
        for call in calls
        if call.args and ast.unparse(call.func).startswith("register")
    ]
