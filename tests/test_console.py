"""What the terminal shows, whatever it can show and whenever the user stops it."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from test_cli import FAST, blobs, refused, ytilde
from ytilde.cli import console
from ytilde.data import readers

INTERRUPT = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
IN_AN_IMPORT = """
import sys
module = sys.argv.pop(1)
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            exec({interrupt!r})
sys.meta_path.insert(0, Stop())
from ytilde.cli import main
main()
"""
IN_THE_WORK = """
import importlib, sys
place, name = sys.argv.pop(1).split(":")
where = importlib.import_module(place)
for part in name.split(".")[:-1]:
    where = getattr(where, part)
def stop(*args, **options):
    exec({interrupt!r})
setattr(where, name.split(".")[-1], stop)
from ytilde.cli import main
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table whose labels need more than ASCII, and a run of it."""
    folder = tmp_path_factory.mktemp("console")
    blobs(folder / "d.csv", ["größe", "日本"])
    ytilde("fit", "d.csv", *FAST, "--out", "run", cwd=folder)
    ytilde("audit", "run", "--folds", "2", cwd=folder)
    return folder


def process(script, *words, cwd, **environment):
    command = [sys.executable, "-c", script.format(interrupt=INTERRUPT), *map(str, words)]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="replace",
        env=os.environ | environment,
    )


# ---- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", "--help"),
        ("torch", "fit d.csv"),
        ("torch.nn", "audit run"),
        ("pandas", "diagnose d.csv"),
        ("sklearn.utils", "predict run d.csv"),
        ("ytilde.bench.pool", "bench list"),
    ],
)
def test_ctrl_c_while_libraries_are_loaded_is_one_line(module, words, folder):
    before = sorted(folder.rglob("*"))
    done = process(IN_AN_IMPORT, module, *words.split(), cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ytilde: interrupted\n")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("ytilde.estimator:Classifier.audit_data", "audit run"),
        ("ytilde.auditing.diagnosis:diagnose_data", "diagnose d.csv"),
        ("ytilde.data.readers:read", "noise d.csv"),
        ("ytilde.data.readers:read", "fit d.csv"),
        ("ytilde.bench.pool:sweep", "bench run fashion_idn --scale tiny"),
    ],
)
def test_ctrl_c_in_the_work_is_one_line(place, words, folder):
    done = process(IN_THE_WORK, place, *words.split(), cwd=folder)
    assert done.returncode == 130 and done.stdout.count("\n") <= 1, done
    said = {"audit": "stopped; run the same command to continue"}
    said["bench"] = "interrupted; run the same command again to continue"
    assert done.stderr == f"ytilde: {said.get(words.split()[0], 'interrupted')}\n"


def test_ctrl_c_in_training_keeps_the_model_and_says_how_to_continue(folder, tmp_path):
    words = ["fit", folder / "d.csv", *FAST, "--out", tmp_path / "r"]
    done = process(IN_THE_WORK, "ytilde.engine.loop:Trainer._validate", *words, cwd=folder)
    assert done.returncode == 130 and not done.stderr
    assert done.stdout.endswith(
        "Interrupted before a model existed; run the same command with --resume to continue\n"
    )
    ytilde(*words, "--resume")


# ---- what a terminal cannot show -----------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "words",
    ["fit d.csv --epochs 1 --method ce --out again --force", "audit run --folds 2",
     "diagnose d.csv", "methods", "bench list", "fit d.csv --label größes"],
)  # fmt: skip
def test_a_terminal_that_cannot_show_a_label_gets_its_number(words, encoding, folder):
    script = "import sys; from ytilde.cli import main; sys.argv[0] = 'ytilde'; main()"
    done = process(script, *words.split(), cwd=folder, PYTHONIOENCODING=encoding)
    assert done.returncode == (2 if "größes" in words else 0), done
    assert "Traceback" not in done.stderr
    if words.startswith("fit") and done.returncode == 0:
        assert "\\u65e5\\u672c" in done.stdout


def test_labels_do_not_steer_the_terminal(tmp_path):
    x = np.random.default_rng(0).normal(size=(120, 2))
    frame = pd.DataFrame(x, columns=["a", "b"])
    frame["label"] = np.where(x[:, 0] > 0, "up\x1b[2J", "down\x07")
    frame.to_csv(tmp_path / "d.csv", index=False)
    for words in (["fit", "d.csv", *FAST, "--out", "r"], ["diagnose", "d.csv"]):
        said = ytilde(*words, cwd=tmp_path).stdout
        assert "\x1b" not in said and "\x07" not in said and "\\x1b[2J" in said


def test_file_names_that_are_no_text_are_shown(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    blobs(tmp_path / f"{name}.csv", ["a", "b"])
    out = ["--out", f"r{name}"]
    said = ytilde("fit", f"{name}.csv", *FAST, *out, cwd=tmp_path).stdout
    assert "rcaf\\udce9" in said
    ytilde("audit", f"r{name}", "--folds", "2", "--fix-above", "0.5", cwd=tmp_path)
    ytilde("predict", f"r{name}", f"{name}.csv", "--out", f"p{name}.csv", cwd=tmp_path)
    refused("predict", f"r{name}", f"{name}.cvs", match="There is no file", cwd=tmp_path)


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((10**6, 10**6), np.dtype("float64")),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                     "allocate memory: you tried to allocate 80000000000 bytes."),
    ],
    ids=["python", "numpy", "cuda", "torch"],
)  # fmt: skip
def test_too_little_memory_is_one_sentence(error, folder, monkeypatch):
    def read(*_, **__):
        raise error

    monkeypatch.setattr(readers, "read", read)
    done = ytilde("fit", "d.csv", cwd=folder, check=False)
    assert done.returncode == 1 and done.stderr.startswith("ytilde: out of memory; use a smaller")
    assert len(done.stderr.splitlines()) == 1


def test_a_fault_of_our_own_keeps_its_traceback():
    assert console.explain(RuntimeError("no")) is None
    assert console.explain(KeyError("no")) is None


@pytest.mark.parametrize("path", ["/", "/.", "."])
@pytest.mark.parametrize("words", ["review run --export", "predict run d.csv --out"])
def test_a_folder_is_no_file_to_write(words, path, folder):
    refused(*words.split(), path, match="it is a folder", cwd=folder)


@pytest.mark.parametrize(
    "words",
    ["--help", "fit --help", "methods", "methods ln", "methods recipe"],
)
def test_help_is_there_without_docstrings(words, folder):
    """`python -OO` removes them."""
    code = "import sys; from ytilde.cli import main; sys.argv[0] = 'ytilde'; main()"
    said = [
        subprocess.run(
            [sys.executable, *flags, "-c", code, *words.split()], capture_output=True, text=True
        )
        for flags in ([], ["-OO"])
    ]
    assert all(done.returncode == 0 for done in said), said[1].stderr
    assert said[0].stdout == said[1].stdout
