"""Bad input of every kind: each ends in an answer or in one sentence, never in a traceback.

A short run is part of the tests; `make fuzz` (YTILDE_FUZZ=10000) is the long one. Examples that
once failed are kept at the end.
"""

import json
import os
import random
import shutil
import string
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from test_cli import ytilde
from ytilde import checkpoint, readers
from ytilde.bench import tables as bench_tables
from ytilde.data import BadInput
from ytilde.method import list_methods
from ytilde.testing import blobs

CASES = int(os.environ.get("YTILDE_FUZZ", "200"))
PARTS = {"table": 0.2, "bytes": 0.1, "npz": 0.15, "folder": 0.05, "words": 0.25, "toml": 0.15}
PARTS |= {"run": 0.1}


def fuzz(part: str):
    """This many cases of hypothesis, from a fixed seed, without a database."""
    return settings(
        max_examples=max(1, round(PARTS[part] * CASES)),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def one_sentence(message: str) -> None:
    assert message.strip() and "\n" not in message.strip(), message
    assert "Traceback" not in message and "object at 0x" not in message, message


def answer_or_sentence(read, *args, **options):
    """The answer, or None after one sentence."""
    try:
        return read(*args, **options)
    except BadInput as error:
        one_sentence(str(error))
        return None


def consistent(source) -> None:
    """Data that training could take."""
    if source is None:
        return
    data = source.data
    n = len(data)
    assert n and len(data.x) == n == len(data.y)
    assert data.y.dtype.is_signed and int(data.y.max()) < data.num_classes
    assert int(data.y.min()) >= (-1 if data.y.dim() > 1 else 0)
    assert data.names and len(set(data.names)) == len(data.names) == data.num_classes
    assert tuple(data.x[torch.arange(min(3, n))].shape[1:]) == data.shape
    json.dumps(source.schema.__dict__)
    assert readers.fingerprint(data)


# ---- readers -------------------------------------------------------------------------------------

ODD = ["", " ", "nan", "NaN", "inf", "-inf", "1e400", "-0", "0x10", "1_000", "1,5", "NA", "None"]
ODD += [
    "-1",
    "007",
    "=1+1",
    '"',
    "''",
    "é",
    "日本",
    "\u202e",
    "a\tb",
    "1.0",
    "True",
    "a" * 300,
    "null",
]
ODD += ["x.png", "/etc/passwd", "../x.jpg", "\x00", "\ufeff", "1e-320", "12345678901234567890"]
CELL = st.one_of(st.sampled_from(ODD), st.integers(-3, 3).map(str), st.floats(width=32).map(str))
HEAD = st.one_of(
    st.sampled_from(["label", "y", "clean", "clean_label", "a", "b", "a", "image", "Unnamed: 0"]),
    st.sampled_from(ODD),
)


@st.composite
def tables(draw):
    """Mostly rectangular text, sometimes ragged, with any cell odd."""
    width = draw(st.integers(0, 5))
    rows = [draw(st.lists(HEAD, min_size=width, max_size=width))]
    if draw(st.booleans()) and width:
        rows[0][-1] = "label"
    kinds = [draw(st.sampled_from(["number", "word", "any"])) for _ in range(width)]
    for _ in range(draw(st.integers(0, 8))):
        row = [draw(_cell(kind)) for kind in kinds]
        if draw(st.integers(0, 9)) == 0:
            row = row[: draw(st.integers(0, width))] + draw(st.lists(CELL, max_size=2))
        rows.append(row)
    separator = draw(st.sampled_from([",", ",", ",", ";", "\t"]))
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    return end.join(separator.join(row) for row in rows)


def _cell(kind):
    if kind == "number":
        return st.one_of(st.integers(-9, 9).map(str), st.integers(-9, 9).map(str), CELL)
    return st.sampled_from(["red", "blue", "7"]) if kind == "word" else CELL


@fuzz("table")
@given(
    text=tables(),
    suffix=st.sampled_from([".csv", ".tsv"]),
    label=st.sampled_from([None, None, "label", "a", "nothing"]),
    labelled=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-16", "latin-1"]),
)
def test_tables(tmp_path_factory, text, suffix, label, labelled, encoding):
    path = folder(tmp_path_factory) / f"d{suffix}"
    path.write_bytes(text.encode(encoding, "replace"))
    found = answer_or_sentence(readers.read, path, label=label, labelled=labelled)
    if labelled:
        consistent(found)
    if found:  # a second file, read alike
        answer_or_sentence(readers.read, path, schema=found.schema, labelled=labelled)


def folder(factory) -> Path:
    """An empty folder; one for all cases of a process."""
    path = factory.getbasetemp() / "fuzz"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def good_files(tmp_path_factory):
    """One right file of each kind."""
    path = tmp_path_factory.mktemp("good")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "label": ["x", "y", "x", "y"]})
    frame.to_csv(path / "d.csv", index=False)
    frame.to_parquet(path / "d.parquet")
    np.savez(path / "d.npz", x=np.zeros((4, 3)), y=np.array([0, 1, 0, 1]))
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(path / "d.png")
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(path / "d.jpg")
    return {p.suffix: p.read_bytes() for p in path.iterdir()}


def damaged(content: bytes, seed: int) -> bytes:
    """Cut, flipped, filled, repeated or replaced."""
    rng, wrong = random.Random(seed), bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(wrong) + 1)
        how = rng.randrange(5)
        if how == 0:
            del wrong[place:]
        elif how == 1 and place < len(wrong):
            wrong[place] ^= 1 << rng.randrange(8)
        elif how == 2:
            wrong[place : place + rng.randrange(32)] = rng.randbytes(rng.randrange(32))
        elif how == 3:
            wrong[place:place] = wrong[: rng.randrange(64)]
        else:
            wrong[place:place] = b"\xff" * rng.randrange(8)
    return bytes(wrong)


@fuzz("bytes")
@given(
    suffix=st.sampled_from([".csv", ".parquet", ".npz"]),
    seed=st.integers(0, 2**32),
    junk=st.one_of(st.none(), st.binary(max_size=60)),
)
def test_damaged_files(tmp_path_factory, good_files, suffix, seed, junk):
    path = folder(tmp_path_factory) / f"d{suffix}"
    path.write_bytes(damaged(good_files[suffix], seed) if junk is None else junk)
    consistent(answer_or_sentence(readers.read, path))


DTYPES = ["f4", "f8", "f2", "i8", "u1", "i1", "u4", "b1", "c8", "U3", "M8[D]", "S2"]


@st.composite
def arrays(draw):
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=5)))
    array = np.asarray(np.random.default_rng(draw(st.integers(0, 99))).integers(0, 3, shape))
    array = array.astype(draw(st.sampled_from(DTYPES)), casting="unsafe")
    if array.dtype.kind == "f" and array.size and draw(st.booleans()):
        array.reshape(-1)[0] = draw(st.sampled_from([np.nan, np.inf, -1e4, 300.0]))
    return array


@fuzz("npz")
@given(
    parts=st.dictionaries(
        st.sampled_from(["x", "x", "y", "y", "clean", "names", "other"]), arrays(), max_size=5
    ),
    pair=st.booleans(),
)
def test_arrays(tmp_path_factory, parts, pair):
    if pair and {"x", "y"} <= set(parts):
        consistent(answer_or_sentence(readers.read, (parts["x"], parts["y"])))
        return
    path = folder(tmp_path_factory) / "d.npz"
    np.savez(path, **parts)
    consistent(answer_or_sentence(readers.read, path))
    answer_or_sentence(readers.read, path, labelled=False)


@fuzz("folder")
@given(
    files=st.dictionaries(
        st.sampled_from(["a/1.png", "a/2.jpg", "b/1.png", "b/c/2.jpg", "3.png", ".x/4.png"]),
        st.tuples(st.sampled_from([".png", ".jpg", None]), st.integers(0, 2**32)),
        max_size=5,
    ),
    strict=st.booleans(),
    lazy=st.sampled_from([None, True]),
)
def test_image_folders(tmp_path_factory, good_files, files, strict, lazy):
    root = folder(tmp_path_factory)
    for name, (kind, seed) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        content = good_files[kind or ".png"]
        (root / name).write_bytes(content if kind else damaged(content, seed))
    found = answer_or_sentence(readers.read, root, strict=strict, lazy=lazy)
    consistent(found)


# ---- the command line ----------------------------------------------------------------------------

FLAGS = ["--label", "--method", "--backbone", "--noise", "--test", "--clean-label", "--epochs"]
FLAGS += ["--batch-size", "--lr", "--optimizer", "--schedule", "--augment", "--precision", "--ema"]
FLAGS += ["--clip", "--val", "--keep", "--patience", "--balance", "--seed", "--device", "--rate"]
FLAGS += ["--tau", "--lam", "--momentum", "--weight-decay", "--workers", "--image-column", "--q"]
FLAGS += ["--kind", "--features", "--folds", "--fix-above", "--split", "--data-root", "--task"]
FLAGS += ["--resume", "--force", "--strict", "--help", "--nonsense", "-x", "--", "--epochs=1"]
VALUES = ["0", "1", "-1", "2", "0.5", "1.5", "nan", "inf", "-inf", "1e30", "auto", "label", "x"]
VALUES += ["", " ", "é", "d.csv", "nowhere", "run", "ce", "elr", "ln", "sgd", "adam", "cosine"]
VALUES += ["step:0.5", "step:x", "linear:1", "linear:2", "none", "crop4", "jitter0.1", "jitter-1"]
VALUES += ["mlp:width=4,depth=1", "mlp:width=0", "mlp:", "mlp:width=", "resnet18:x=1", "lenet5"]
VALUES += ["symmetric:0.2", "instance:0.4", "instance:2", "instance", ":", "pair:x", "float32"]
VALUES += ["best", "best_nll", "cpu", "cuda:99", "true", "false", "raw255", "-5", "99999999999"]
VALUES += ["/proc/x", "../up", "a,b", "x=y", "[1]", "{}", "'", '"', "%s", "{0}", "\\", "0x1", "1_0"]
COMMANDS = [
    "fit",
    "fit",
    "fit",
    "predict",
    "audit",
    "noise",
    "methods",
    "data",
    "diagnose",
    "bench",
]
SAFE = ["--epochs", "1", "--batch-size", "16", "--backbone", "mlp:width=4,depth=1"]


@st.composite
def words(draw):
    """A command, mostly with its first argument right, and options that are mostly wrong."""
    command = draw(st.sampled_from(COMMANDS))
    first = {"fit": ["d.csv"], "noise": ["d.csv"], "diagnose": ["d.csv"], "audit": ["run"]}
    first |= {"predict": ["run", "d.csv"], "bench": ["list"], "data": ["moons"], "methods": []}
    found = [command, *first[command]]
    if draw(st.integers(0, 3)) == 0:
        found[1:] = draw(st.lists(st.sampled_from(VALUES), max_size=2))
    for _ in range(draw(st.integers(0, 3))):
        found.append(draw(st.sampled_from(FLAGS)))
        if draw(st.integers(0, 9)):
            found.append(draw(st.sampled_from(VALUES)))
    if draw(st.integers(0, 9)) == 0:
        found.append(draw(st.text(string.printable, max_size=8)))
    if command == "fit":
        method = draw(st.sampled_from(["ce", "elr", "ln", "co_teaching", *list_methods()]))
        found = [*found, *SAFE, "--method", method, "--out", "out"]
    if command == "audit":
        found += ["--folds", "0"]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table and a finished run."""
    root = tmp_path_factory.mktemp("place")
    data = blobs(60, rate=0.1, dim=3)
    frame = pd.DataFrame(data.x.numpy(), columns=list("abc")).assign(label=data.y)
    frame.to_csv(root / "d.csv", index=False)
    ytilde("fit", "d.csv", *SAFE, "--method", "elr", "--out", "run", cwd=root)
    ytilde("audit", "run", "--folds", "0", cwd=root)
    return root


def listing(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file()}


def whole(root: Path) -> None:
    """No file is unfinished."""
    for path in root.rglob("*"):
        assert not path.name.startswith(".new-"), path
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".safetensors":
            checkpoint.load(path)
        if path.suffix == ".npz":
            assert zipfile.is_zipfile(path)


def run(given_words, root: Path):
    before = listing(root)
    done = ytilde(*given_words, cwd=root, check=False)
    assert done.returncode in (0, 1, 2), done
    assert "Traceback" not in done.stderr, done
    if done.returncode:
        one_sentence(done.stderr)
    if done.returncode == 2:
        assert listing(root) == before, (done, set(listing(root)) ^ set(before))
    return done


@fuzz("words")
@given(given_words=words())
def test_command_lines(place, given_words):
    for path in place.iterdir():
        if path.name not in ("d.csv", "run"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(given_words, place)
    whole(place)


# ---- TOML tables ---------------------------------------------------------------------------------

TOML = [path.read_text() for path in sorted(bench_tables.FOLDER.glob("*.toml"))]
ODD_TOML = [
    "1",
    "-1",
    "1.5",
    "true",
    '""',
    '"x"',
    "[]",
    "{}",
    "[1]",
    '["a"]',
    "nan",
    "inf",
    "{a = 1}",
]
ODD_TOML += ["[[1]]", '"instance:2"', "1979-05-27", '"88.5 ± x"', "[{}]", "[{name = 1}]"]


def other_toml(text: str, seed: int) -> str:
    """A table with some lines gone, doubled, swapped, or with another value."""
    rng, lines = random.Random(seed), text.splitlines()
    for _ in range(rng.randint(1, 3)):
        k, how = rng.randrange(len(lines)), rng.randrange(5)
        key, equals, _ = lines[k].partition("=")
        if how == 0 and len(lines) > 1:
            del lines[k]
        elif how == 1:
            lines.insert(rng.randrange(len(lines)), lines[k])
        elif how == 2:
            lines[k] = "".join(rng.sample(lines[k], len(lines[k])))
        elif equals:
            lines[k] = f"{key}= {rng.choice(ODD_TOML)}"
    return "\n".join(lines)


def planned(path: Path) -> int:
    """Read a table, make its cells and what their runs are made of."""
    table = bench_tables.read_table(path)
    made = bench_tables.cells(table)
    for cell in made:
        for scale in bench_tables.SCALES:
            bench_tables.digest(bench_tables.inputs(cell, scale, 0))
    return len(made)


@fuzz("toml")
@given(which=st.integers(0, len(TOML) - 1), seed=st.integers(0, 2**32))
def test_toml_tables(tmp_path_factory, which, seed):
    path = folder(tmp_path_factory) / "t.toml"
    path.write_text(other_toml(TOML[which], seed))
    answer_or_sentence(planned, path)


# ---- run folders ---------------------------------------------------------------------------------

ODD_JSON = [None, 0, "", "x", [], {}, [1], {"a": 1}, True, -1, 1.5]


def other_json(text: str, seed: int) -> str:
    """The same JSON with one value, somewhere, replaced or gone."""
    rng = random.Random(seed)
    value = json.loads(text)
    inner, steps = value, rng.randint(1, 3)
    for _ in range(steps):
        if not isinstance(inner, dict) or not inner:
            break
        key = rng.choice(sorted(inner))
        if isinstance(inner[key], dict) and inner[key] and rng.random() < 0.7:
            inner = inner[key]
            continue
        if rng.random() < 0.3:
            del inner[key]
        else:
            inner[key] = rng.choice(ODD_JSON)
        break
    return json.dumps(value)


@fuzz("run")
@given(
    name=st.sampled_from(["config.json", "config.json", "metrics.jsonl", "model.safetensors"]),
    how=st.sampled_from(["bytes", "json", "gone", "folder"]),
    seed=st.integers(0, 2**32),
    command=st.sampled_from(["predict", "audit", "resume"]),
)
def test_run_folders(place, tmp_path_factory, name, how, seed, command):
    root = folder(tmp_path_factory)
    shutil.copy(place / "d.csv", root / "d.csv")
    shutil.copytree(place / "run", root / "run")
    path = root / "run" / name
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "json" and path.suffix == ".json":
        path.write_text(other_json(content.decode(), seed))
    elif how != "gone":
        path.write_bytes(damaged(content, seed))
    words_of = {
        "predict": ["predict", "run", "d.csv", "--out", "p.csv"],
        "audit": ["audit", "run", "--folds", "0"],
        "resume": ["fit", "d.csv", *SAFE, "--method", "elr", "--out", "run", "--resume"],
    }
    done = ytilde(*words_of[command], cwd=root, check=False)
    assert done.returncode in (0, 2), done
    if done.returncode:
        one_sentence(done.stderr)
    assert not list(root.rglob(".new-*"))


# ---- what once failed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        {"x": np.zeros((2, 2)), "y": np.array(0)},
        {"x": np.zeros((2, 2)), "y": np.array([0, 1]), "names": np.array(1.0)},
        {"x": np.zeros((2, 2)), "y": np.array([0, 1]), "names": np.zeros((2, 1, 1))},
    ],
)
def test_numbers_in_the_place_of_lists(tmp_path, parts):
    np.savez(tmp_path / "d.npz", **parts)
    with pytest.raises(BadInput):
        readers.read(tmp_path / "d.npz")


def test_a_header_with_line_ends_stays_one_sentence(tmp_path):
    (tmp_path / "d.csv").write_text('a,"b\n\x1b[31m\u202e",c\n1,2,3\n')
    with pytest.raises(BadInput) as error:
        readers.read(tmp_path / "d.csv")
    one_sentence(str(error.value))
    assert str(error.value).isprintable()


def test_a_changed_config_is_refused(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"elr"', '"ce"'))
    done = ytilde("audit", tmp_path / "run", "--folds", "0", check=False)
    assert done.returncode == 2 and "changed or damaged" in done.stderr


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("paper = {}", "paper = 1"),
        ("seeds = 2", "seeds = true"),
        ("epochs = 20", 'epochs = "many"'),
        ("epochs = 20", "epochs = 0"),
        ('method = "ce"', "method = 1979-05-27"),
        ('name = "Fashion-MNIST"', "name = []"),
    ],
)
def test_a_table_with_a_value_of_another_type(tmp_path, line, other):
    text = (bench_tables.FOLDER / "fashion_idn.toml").read_text()
    assert line in text
    (tmp_path / "t.toml").write_text(text.replace(line, other, 1))
    with pytest.raises(BadInput, match=r"t\.toml"):
        planned(tmp_path / "t.toml")
