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
PAGES += sorted((ROOT / "docs" / "tutorials").glob("*.md"))
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
        assert not stopped.code, f"{line}: exit code {stopped.code}"


def run_page(page):
    import uvicorn

    uvicorn.Server.run = lambda self, *args, **kwargs: None  # a review that is closed at once
    names = {"__name__": "page"}
    for kind, text in blocks(Path(page)):
        if kind == "python":
            exec(compile(text, str(page), "exec"), names)
        elif kind == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                type_in(line)
        else:
            assert kind in SHOWN, f"{page}: a block of {kind}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_runs(page, tmp_path):
    """In a process of its own: a page may set variables, and register methods."""
    pytest.importorskip("uvicorn", reason='pip install "ytilde[app]"')
    wine = load_wine(as_frame=True).frame.rename(columns={"target": "label"})
    if page.stem == "README":
        wine.to_csv(tmp_path / "data.csv", index=False)  # "your data"
    command = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
    command += f"import test_tutorials; test_tutorials.run_page({str(page)!r})"
    own = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env=os.environ | own, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_has_blocks_that_run():
    for page in PAGES:
        kinds = [kind for kind, _ in blocks(page)]
        assert page.stem == "index" or {"python", "bash"} & set(kinds), page


def test_targets_of_make_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for page in PAGES:
        for name in re.findall(r"^make ([\w-]+)", page.read_text("utf-8"), re.M):
            assert name in targets, f"{page.name}: make {name}"
