"""Generated pages are checked, not trusted; so are the links and commands of the README."""

import importlib.util
import re
from pathlib import Path

from ytilde import cli

ROOT = Path(__file__).parents[1]


def test_methods_page_is_fresh():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "docs" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    written = (ROOT / "docs" / "methods.md").read_text()
    assert written == make.methods_page(), "run `make docs` and commit docs/methods.md"


def test_links_of_the_readme_exist():
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text()
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (ROOT / target).exists(), f"{page} links to {target}"


def test_commands_of_the_readme_exist():
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    known |= {group.name for group in cli.app.registered_groups}
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"^ytilde (\w+)", text, re.M):
        assert name in known, f"README: there is no command `ytilde {name}`"
