"""What a command loads and reads before it answers: no more than it needs."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from test_cli import FAST, blobs, ytilde
from ytilde import noise
from ytilde.cli import main as entry_point
from ytilde.cli.flags import recipe_help
from ytilde.cli.sources import method_fields
from ytilde.data import images
from ytilde.encoders.encoder import Encoder
from ytilde.engine import Recipe, choices
from ytilde.method import Method, list_methods, lookup

HEAVY = "torch", "sklearn", "pandas", "matplotlib", "numpy", "PIL", "rich"
SCRIPT = """
import sys
from ytilde.cli import main
sys.argv = ["ytilde", *sys.argv[1:]]
try:
    main()
finally:
    print("loaded:", *(name for name in {heavy} if name in sys.modules))
"""


def loaded(*words):
    script = SCRIPT.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    said, _, names = done.stdout.partition("loaded:")
    return names.split(), said + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--help", "--version", "", "fit --help", "predict --help", "audit --help", "review --help",
        "relabel --help", "export --help", "diagnose --help", "noise --help", "pretrain --help",
        "embed --help", "data --help", "methods --help", "demo --help", "bench --help",
        "bench run --help", "bench report --help", "fti", "predict", "predict --bogus",
        "diagnose a --rows many", "review a --port 99999", "bench run --workers 0",
        "fit a --method elrr", "fit a --epohcs 3", "fit a --method=auto --lamda 3",
        "fit a --method elr --tau=0.5",
    ],
)  # fmt: skip
def test_help_and_wrong_flags_load_no_library(words):
    names, said = loaded(*words.split())
    assert said.strip() and not names


def test_the_help_of_fit_is_grouped_and_names_a_methods_own_flags():
    said = ytilde("fit", "--help").stdout
    groups = [line for line in said.splitlines() if line.endswith(":") and line[0] != " "]
    assert groups == ["Arguments:", "Data:", "Method:", "Training:", "Output:", "Options:"]
    assert "--epochs <int>" in said and "--beta" not in said
    for words in (["--method", "elr", "--help"], ["--help", "--method=elr"]):
        said = ytilde("fit", *words).stdout
        own = said.partition("\nMethod:")[2].partition("\nTraining:")[0]
        assert "--beta <float>" in own and "[default: 0.7]" in own


def test_what_help_says_without_loading_is_what_there_is():
    """The recipe's fields are read from its source, the kinds of noise are written down."""
    rows = dict(recipe_help())
    names = [flag.split()[0].removeprefix("--").replace("-", "_") for flag in rows]
    assert names == list(Recipe.__dataclass_fields__)
    words = choices(Recipe)["optimizer"]
    assert rows["--optimizer <str>"].startswith(", ".join(words))
    said = " ".join(ytilde("noise", "--help").stdout.split())
    assert all(kind in said for kind in noise.KINDS)


def test_mistyped_names_are_found_in_the_source_as_in_the_registry():
    """Which is not loaded for it; `fit` would refuse what the source does not show."""
    found = method_fields()
    assert sorted(found) == list_methods()
    for name, fields in found.items():
        cls = lookup(name).cls
        assert fields == {*cls.field_names(), *cls.renamed}, name


def test_mistyped_names_of_a_plugin_are_found_in_the_registry(tmp_path, monkeypatch):
    text = "from ytilde.methods.ce import CE\nfrom ytilde import register\nregister('mine')(CE)\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setenv("YTILDE_METHODS", str(tmp_path))
    names, said = loaded("fit", "a.csv", "--method", "mien")
    assert "torch" in names and "did you mean mine" in said


def test_the_entry_point_stays_a_function():
    assert callable(entry_point)
    from ytilde.cli import app, main  # also after the module of this name was loaded

    assert main is entry_point and app.registered_commands


# ---- data is read, and methods are built, no more often than they must be -----------------------

ROWS, EPOCHS = 24, 3
LAZY = ["--epochs", str(EPOCHS), "--val", "0", "--workers", "0", "--batch-size", "8"]
LAZY += ["--backbone", "identity"]


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A folder of pictures that is always lazy, and how often each thing is done."""
    for k in range(ROWS):
        path = tmp_path / "d" / "ab"[k % 2] / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 100 * (k % 2) + k).save(path)
    count = Counter()
    read, build, load = images.Images.read, Method.build, Encoder.load.__func__

    def counted_read(self, index):
        count["rows"] += len(index)
        return read(self, index)

    def counted_build(self, spec):
        count["builds"] += 1
        return build(self, spec)

    def counted_load(cls, path):
        count["encoders"] += 1
        return load(cls, path)

    monkeypatch.setattr(images, "LIMIT", 0)
    monkeypatch.setattr(images.Images, "read", counted_read)
    monkeypatch.setattr(Method, "build", counted_build)
    monkeypatch.setattr(Encoder, "load", classmethod(counted_load))
    return tmp_path, count


@pytest.mark.parametrize("method", ["ce", "volminnet"])
def test_a_fit_reads_a_lazy_set_once_beside_its_epochs(counted, method):
    """For the inputs' mean, and after training for predictions, T and what is unreadable."""
    folder, count = counted
    (folder / "d" / "a" / "99.png").write_bytes(b"broken")
    ytilde("fit", "d", *LAZY, "--method", method, "--out", "r", cwd=folder)
    rows = ROWS + 1
    fingerprint = mean = after = rows  # a fingerprint takes 64 rows at most
    assert count["rows"] == fingerprint + mean + EPOCHS * (rows - rows % 8) + after
    assert count["builds"] == 1
    frame = pd.read_csv(folder / "r" / "predictions.csv")
    assert frame.predicted_label.isna().sum() == 1
    assert frame.path[frame.predicted_label.isna()].tolist() == ["d/a/99.png"]


@pytest.mark.parametrize("method", ["ce", "volminnet"])
def test_an_audit_reads_a_lazy_set_once_beside_its_folds(counted, method):
    """volminnet has a T of its own, which is asked for together with the posterior."""
    folder, count = counted
    ytilde("fit", "d", *LAZY, "--method", method, "--out", "r", cwd=folder)
    count.clear()
    ytilde("audit", "r", "--folds", "2", cwd=folder)
    half = ROWS // 2
    folds = 2 * (half + EPOCHS * (half - half % 6) + half)  # the mean, training, the answers
    fingerprints = 2 * ROWS  # the run's, and the key under which the answers are kept
    assert count["rows"] <= fingerprints + ROWS + folds + ROWS  # unreadable ones; the report
    assert count["builds"] == 3  # the run's model, two folds
    count.clear()
    ytilde("predict", "r", "d", "--out", "p.csv", cwd=folder)
    assert count["rows"] == ROWS


def test_an_encoder_is_loaded_once(counted):
    folder, count = counted
    words = ["--epochs", "1", "--batch-size", "8", "--backbone", "mlp:width=8"]
    ytilde("pretrain", "d", *words, "--out", "e", cwd=folder)
    count.clear()
    words = ["--backbone", "mlp:width=8", "--encoder", "e", "--method", "ce"]
    ytilde("fit", "d", *LAZY[:-2], *words, "--out", "r", cwd=folder)
    assert count["encoders"] == 1
    count.clear()
    ytilde("audit", "r", "--folds", "2", cwd=folder)
    assert count["encoders"] == 1


def test_a_csv_is_parsed_once(tmp_path, monkeypatch):
    """Not counting its header."""
    blobs(tmp_path / "d.csv", ["a", "b"])
    parsed = []
    parse = pd.read_csv

    def counted(path, *args, **options):
        if options.get("nrows") is None:
            parsed.append(path)
        return parse(path, *args, **options)

    monkeypatch.setattr(pd, "read_csv", counted)
    ytilde("fit", "d.csv", *FAST, "--out", "r", cwd=tmp_path)
    assert len(parsed) == 1
    assert len(np.unique(parse(tmp_path / "r" / "predictions.csv").predicted_label)) == 2
