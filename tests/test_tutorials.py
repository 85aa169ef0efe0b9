"""Every code block of the README, the quick start and the tutorials runs as it stands there.

A page runs from its first line to its last, in a folder of its own; Python blocks share their
names. Trainings that a page starts from the command line with the default number of epochs get few
here. What installs, or has tests of its own, is named in OUTSIDE and not run.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.datasets import load_wine

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
PAGES += [p for p in sorted((ROOT / "docs" / "tutorials").glob("*.md")) if p.stem != "index"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
OUTSIDE = ("git clone", "pip install", "make ", "ytilde demo")
SHOWN = ("text", "toml", "bibtex")  # answers, and files of others


def blocks(page):
    return BLOCK.findall(page.read_text("utf-8"))


def type_in(line):
    """A line of a bash block, as a person would type it."""
    words = shlex.split(line, comments=True)
    if not words or line.startswith(OUTSIDE):
        return
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value
        return
    assert words[0] == "ytilde", f"the test cannot run: {line}"
    is_run = Path(words[2]).joinpath("config.json").exists() if len(words) > 2 else False
    if words[1] in ("fit", "audit") and "--epochs" not in words and not is_run:
        words += ["--epochs", "4"] if "--probabilities" not in words else []
    from ytilde.cli import main

    sys.argv = words
    try:
        main()
    except SystemExit as stopped:
        if stopped.code:
            raise AssertionError(f"{line}: exit code {stopped.code}") from stopped


def run_page(page):
    names = {"__name__": "page"}
    for kind, text in blocks(page):
        if kind == "python":
            exec(compile(text, str(page), "exec"), names)
        elif kind == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                type_in(line)
        else:
            assert kind in SHOWN, f"{page}: a block of {kind}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_runs(page, tmp_path, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn", reason='pip install "ytilde[app]"')
    if page.stem == "README":  # "your data"
        wine = load_wine(as_frame=True).frame.rename(columns={"target": "label"})
        wine.to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, *args, **kwargs: None)  # closed at once
    if page.stem != "plugin":
        run_page(page)
        return
    command = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import pathlib, "
    command += f"test_tutorials; test_tutorials.run_page(pathlib.Path({str(page)!r}))"
    own = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # it registers a method, in a process of its own
        [sys.executable, "-c", command], env=os.environ | own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_has_blocks_that_run():
    for page in PAGES:
        assert {"python", "bash"} & {kind for kind, _ in blocks(page)}, page


def test_targets_of_make_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for page in PAGES:
        for name in re.findall(r"^make ([\w-]+)", page.read_text("utf-8"), re.M):
            assert name in targets, f"{page.name}: make {name}"
