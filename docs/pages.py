"""Write the reference pages that are made from the code: methods, API, command line, examples.

`make docs` runs it; so does any build of the site (conf.py). What it writes is not in git.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import typer
from equations import equation
from measured import Measured

from ytilde.cli.commands import app
from ytilde.method import Method, list_methods, lookup

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = DOCS / "reference"
GALLERY = ROOT / "build" / "gallery"  # the examples as sphinx-gallery wants them

# What a method changes; one that is not named here stands under "Others" until it is.
FAMILIES = {
    "Plain training": "ce label_smoothing mixup noise_against_noise",
    "Losses that bound what a wrong label can do": "gce truncated_gce mae symmetric_ce bi_tempered "
    "bootstrap_hard bootstrap_soft peer_loss cores",
    "Memory of what was learnt early": "elr elr_plus sop sop_plus",
    "Heads that say how sure a label is": "ln het het_tau het_tau_full het_xl",
    "Choice of rows": "co_teaching decoupling mentornet cc dividemix promix pgdf second_opinion "
    "ensemble",
    "One transition matrix T": "forward backward reweight t_revision dual_t volminnet",
    "A transition matrix for each input, T(x)": "ptd bltm meidtm causal_nl dtm",
    "Neighbours and diffusion over labels": "lra",
    "Several annotators": "crowd",
}
API = {
    "ytilde": "What `from ytilde import ...` gives.",
    "ytilde.heads": None,
    "ytilde.losses": None,
    "ytilde.noise": None,
    "ytilde.transition": None,
    "ytilde.annotators": None,
    "ytilde.metrics": None,
    "ytilde.uncertainty": None,
    "ytilde.plotting": None,
    "ytilde.datasets": None,
    "ytilde.fitting": None,
    "ytilde.export": None,
    "ytilde.testing": None,
}


def main() -> None:
    for folder in (REFERENCE / "api", REFERENCE / "methods", GALLERY):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name, text in {**method_pages(), **api_pages()}.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    (REFERENCE / "cli.md").write_text(cli_page(), encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.py")):
        (GALLERY / path.name).write_text(example(path), encoding="utf-8")
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        text = re.sub(r"\]\(([A-Z]+\.md)", lambda found: f"]({found[1].lower()}", text)
        (DOCS / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    (GALLERY / "GALLERY_HEADER.rst").write_text(GALLERY_HEADER, encoding="utf-8")


# ---- a page a method -----------------------------------------------------------------------------


def families() -> dict[str, list[str]]:
    """The methods that there are, by family, in the order of FAMILIES."""
    known = {name: family for family, names in FAMILIES.items() for name in names.split()}
    found: dict[str, list[str]] = {family: [] for family in (*FAMILIES, "Others")}
    for name in list_methods():
        found[known.get(name, "Others")].append(name)
    return {family: names for family, names in found.items() if names}


def method_pages() -> dict[str, str]:
    from make import sections

    measured = Measured(ROOT / "results")
    texts = {tuple(re.findall(r"`(\w+)`", heading)): text for heading, text in sections().items()}
    page_of = {name: names[0] for names in texts for name in names}
    pages = {}
    for names, text in texts.items():
        cls = lookup(names[0]).cls
        heading, about, *rest = text.removeprefix("## ").rstrip().split("\n\n")
        parts = [f"# {heading}", about, equation(names[0]), *rest, *_in_use(names, cls)]
        parts += ["## Measured", *measured.about(names)]
        pages[f"methods/{names[0]}.md"] = "\n\n".join(parts) + "\n"
    index = ["# Methods", "Each method has a page with its paper and equation, its differences "
             "from the authors' code, its fields, and our measurements. "
             "[The same text on one page](../../methods.md). "
             "Which one to use: [choose a method](../../howto/choose_method.md).",
             "![The families of methods](../../pictures/families.svg)"]  # fmt: skip
    for family, members in families().items():
        files = sorted({page_of[name] for name in members}, key=[*page_of].index)
        rows = "\n".join(_row(names) for names in texts if names[0] in files)
        toc = "\n".join(files)
        index.append(f"## {family}\n\n| method | idea and source |\n|---|---|\n{rows}\n\n"
                     f"```{{toctree}}\n:hidden:\n\n{toc}\n```")  # fmt: skip
    return pages | {"methods/index.md": "\n\n".join(index) + "\n"}


def _row(names: tuple[str, ...]) -> str:
    """A line of the index: the method's names, and the first line of its file."""
    about = (inspect.getdoc(sys.modules[lookup(names[0]).cls.__module__]) or "").split("\n")[0]
    shown = ", ".join(f"[`{name}`]({names[0]}.md)" for name in names)
    return f"| {shown} | {about.replace('|', chr(92) + '|')} |"


def _in_use(names: tuple[str, ...], cls: type[Method]) -> Iterator[str]:
    own = {name for base in cls.__mro__ if base is not Method for name in vars(base)}
    answers = ["the clean posterior"]
    if "transition" in own:
        answers.append("T")
    if "uncertainty" in own or "head" in own:
        answers.append("its own aleatoric uncertainty")
    yield "## How to use it"
    labels = "--annotations votes.csv" if "crowd" in names else "--label label"
    yield f"```bash\nytilde fit data.csv {labels} --method {names[0]} --out runs/a\n```"
    fields = ", ".join(f"{k}={v!r}" for k, v in list(_defaults(names[0]).items())[:2])
    made = f'create("{names[0]}"{", " if fields else ""}{fields})'
    yield ("```python\nfrom ytilde import Classifier, create\n\n"
           f"clf = Classifier({made})    # the defaults\n```")  # fmt: skip
    yield f"It learns {' and '.join(filter(None, (', '.join(answers[:-1]), answers[-1])))}. " + (
        "It also supports segmentation (a label per pixel)."
        if cls.pixels
        else "It does not support segmentation (a label per pixel)."
    )
    file = Path(inspect.getfile(cls))
    yield f"Source: `src/ytilde/methods/{file.name}`."


def _defaults(name: str) -> dict[str, object]:
    entry = lookup(name)
    plain = {f: getattr(entry.cls, f, None) for f in entry.cls.field_names()}
    fields = plain | entry.preset
    return {k: v for k, v in fields.items() if isinstance(v, int | float | str)}


# ---- the API, from docstrings --------------------------------------------------------------------


def api_pages() -> dict[str, str]:
    pages, names = {}, []
    for name, intro in API.items():
        module = _module(name)
        names.append(name)
        doc = inspect.getdoc(module) or ""
        about = intro or doc
        blocks = [f"# `{name}`", about]
        for public in _public(module):
            thing = getattr(module, public)
            kind = "class" if inspect.isclass(thing) else "function"
            members = _members(thing, module) if kind == "class" else ""
            blocks.append(f"```{{eval-rst}}\n.. auto{kind}:: {name}.{public}\n{members}```")
        pages[f"api/{name}.md"] = "\n\n".join(blocks) + "\n"
    toc = "\n".join(names)
    pages["api/index.md"] = (
        "# API\n\nMade from the docstrings, whose examples are run by the tests. "
        "Deeper modules are for methods of your own.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{toc}\n```\n"
    )
    return pages


def _members(cls: type, module: ModuleType) -> str:
    """All but the fields of a NamedTuple, and what scikit-learn adds for its routing.

    Where a base of ours has no entry on the page, what the class inherits too.
    """
    bases = [base for base in cls.__bases__ if base.__module__.startswith(f"{module.__name__}.")]
    hidden = any(base.__name__ not in _public(module) for base in bases)
    left_out = [*getattr(cls, "_fields", ()), *(n for n in dir(cls) if n.endswith("_request"))]
    how = "   :members:\n" + ("   :inherited-members:\n" if hidden else "")
    return how + (f"   :exclude-members: {', '.join(left_out)}\n" if left_out else "")


def _module(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]


def _public(module: ModuleType) -> list[str]:
    """Its classes and functions that are documented."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
    things = {name: getattr(module, name) for name in names}
    return [n for n, v in things.items() if inspect.isclass(v) or inspect.isfunction(v)]


# ---- the command line ----------------------------------------------------------------------------


def cli_page() -> str:
    parts = ["# Command line", "What `ytilde COMMAND --help` says. A method's fields are options "
             "of `fit` and `audit` too: [methods](methods/index.md)."]  # fmt: skip
    parts += _commands(typer.main.get_command(app), "ytilde", 2)
    return "\n\n".join(parts) + "\n"


def _commands(group: typer.core.TyperGroup, path: str, level: int) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        with command.make_context(full, [], resilient_parsing=True, max_content_width=92) as ctx:
            ctx.terminal_width = 92
            said = command.get_help(ctx)
        yield f"{'#' * level} `{full}`"
        yield f"```text\n{said.strip()}\n```"
        if hasattr(command, "commands"):
            yield from _commands(command, full, level + 1)


# ---- the examples --------------------------------------------------------------------------------

GALLERY_HEADER = """Examples
========

The scripts of the folder ``examples``; each takes ``--out FILE`` and draws a picture. Those that
run in seconds were run when this page was made; the others need data or minutes, and are shown as
they are (what they drew: :doc:`figures </figures>`).
"""
PICTURES = {path.stem: path.name for path in DOCS.glob("*.png")}
PICTURES["camvid_uncertainty"] = "camvid.png"


def example(path: Path) -> str:
    """The script with its docstring as sphinx-gallery wants it: a title, a line below it."""
    text = path.read_text(encoding="utf-8")
    node = ast.parse(text).body[0]
    said = " ".join(ast.get_docstring(ast.parse(text)).split())
    found = re.match(r"(.+?[.?])(?: (?=[A-Z(])|$)(.*)", said)
    title, rest = found[1].rstrip("."), found[2]
    code = "".join(text.splitlines(keepends=True)[node.end_lineno :])
    if path.stem in PICTURES:
        name = PICTURES[path.stem]
        code = f"\n# sphinx_gallery_thumbnail_path = '{name}'\n" + code.lstrip("\n")
    return f'"""\n{title}\n{"=" * len(title)}\n\n{rest}\n"""\n' + code


if __name__ == "__main__":
    main()
