"""Imports go one way, those inside functions too, and no private name crosses a package."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import ytilde

ROOT = Path(ytilde.__file__).parent
LAYERS = """
errors
files archives hashing signing specs outputs runfolder checkpoint versions
data datasets noise augment
losses mixing heads transition selection generative diffusion metrics backbones annotators
engine encoders
method fitting tuning budget
methods
auditing
estimator export plotting testing uncertainty
bench
cli __main__ __init__
"""  # what a module imports stands in its own layer or before it
RANK = {name: rank for rank, names in enumerate(LAYERS.split("\n")) for name in names.split()}
# old places, for users' imports: they lead anywhere, and nothing of ours imports them
MOVED = [
    "contrastive", "demo", "diagnosis", "encoder", "flags", "images", "labelling", "parallel",
    "pictures", "protocols", "readers", "relabel", "report", "review", "runs", "stats",
]  # fmt: skip
ALLOWED = {
    ("auditing.result", "auditing.report"),  # Audit.to_html
    ("auditing.result", "auditing.exporters"),  # Audit.to_label_studio, Audit.to_argilla
    ("selection", "methods._shared"),  # the old place of auto_rate
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


@cache
def imports(module: str, types: bool = True) -> set[tuple[str, str]]:
    """What this module takes of ytilde, wherever in it: (module, name).

    types: what only annotations need, too.
    """
    path, found = MODULES[module], set()
    inside = ["ytilde", *path.relative_to(ROOT).parent.parts]  # the package that . means in it
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    checks = (node for node in nodes if isinstance(node, ast.If))
    unread = {e for c in checks if ast.unparse(c.test) == "TYPE_CHECKING" for e in ast.walk(c)}
    for node in nodes:
        if node in unread and not types:
            continue
        if isinstance(node, ast.Import):
            full = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = inside[: len(inside) - node.level + 1] if node.level else []
            home = [*home, *(node.module.split(".") if node.module else [])]
            full = [".".join([*home, each.name]) for each in node.names]
        else:
            continue
        for name in full:
            own = name.removeprefix("ytilde.")
            if own in (name, "__version__"):
                continue
            source = own if own in MODULES else own.rpartition(".")[0] or "__init__"
            if source != module and (module, source) not in ALLOWED:
                found.add((source, own.rpartition(".")[2]))
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


def test_imports_go_one_way():
    assert set(map(top, MODULES)) == {*RANK, *MOVED}, "give the new module a layer"
    upwards = [
        f"{module} imports {source}"
        for module in MODULES
        for source, _ in imports(module)
        if module not in MOVED and RANK.get(top(source), len(RANK)) > RANK[top(module)]
    ]
    assert not upwards


def test_imports_have_no_circle():
    graph = {module: {source for source, _ in imports(module, types=False)} for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_no_private_name_crosses_a_package():
    crossing = [
        f"{module} takes {name} of {source}"
        for module in MODULES
        for source, name in imports(module)
        if top(source) != top(module) and "._" in f".{source}.{name}".replace(".__init__", "")
    ]
    assert not crossing
