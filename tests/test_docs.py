"""Generated pages are checked, not trusted; so are the links and commands of the README."""

import importlib.util
import re
from pathlib import Path

import pytest

from ytilde import cli
from ytilde.method import list_methods, lookup

ROOT = Path(__file__).parents[1]


def test_methods_page_is_fresh():
    """All that it says is what the method files say now, in their order.

    A new file that it does not know yet may be missing: to add a method nothing else is touched.
    """
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "docs" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    written = (ROOT / "docs" / "methods.md").read_text()
    files = {name: lookup(name).source for name in list_methods()}
    names = {heading: re.findall(r"`(\w+)`", heading) for heading in make.sections()}
    known = {files[name] for name in files if f"`{name}`" in headings(written)}
    expected = [text for h, text in make.sections().items() if known & {files[n] for n in names[h]}]
    assert written == make.TITLE + "\n".join(expected), "run `make docs`, commit docs/methods.md"


def test_every_method_of_the_page_has_an_equation_that_can_be_shown():
    spec = importlib.util.spec_from_file_location("equations", ROOT / "docs" / "equations.py")
    equations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(equations)
    lines = headings((ROOT / "docs" / "methods.md").read_text()).splitlines()
    assert set(equations.EQUATIONS) == {re.search(r"`(\w+)`", line)[1] for line in lines}
    latex = pytest.importorskip("docutils.utils.math.latex2mathml", reason="extra docs")
    for name, (formula, words) in equations.EQUATIONS.items():
        for text in (formula, *re.findall(r"\$(.+?)\$", words)):
            assert latex.tex2mathml(text).startswith("<math"), name


def headings(page):
    return "\n".join(line for line in page.splitlines() if line.startswith("## `"))


def test_links_of_the_readme_exist():
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / page).read_text()
        for target in re.findall(r"\]\((?!http)([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            target = target[0] or target[1]
            assert (ROOT / target).exists(), f"{page} links to {target}"


def test_commands_of_the_readme_exist():
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    known |= {group.name for group in cli.app.registered_groups}
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"^ytilde (\w+)", text, re.M):
        assert name in known, f"README: there is no command `ytilde {name}`"


def test_readme_is_one_screen_and_a_half():
    assert len((ROOT / "README.md").read_text().split()) < 700


def test_pictures_are_small_and_load_nothing():
    made = [*(ROOT / "docs" / "pictures").glob("*.svg"), *(ROOT / "docs").glob("*.png")]
    assert sum(path.stat().st_size for path in made) < 1.5e6
    for path in (ROOT / "docs" / "pictures").glob("*.svg"):
        text = path.read_text("utf-8")
        assert "<script" not in text and not re.search(r"(href|src)=.http|url\(.?http", text), path
