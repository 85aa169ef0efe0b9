"""Nothing that is read can run code, and nothing that is written can be run."""

import ast
import io
import os
import pickle
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from packaging.requirements import Requirement

from test_cli import FAST, refused, ytilde
from ytilde import Classifier, audit, checkpoint, create, datasets, readers
from ytilde.data import BadInput
from ytilde.datasets.fetch import unpack
from ytilde.testing import blobs

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "ytilde").rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {"read_pickle", "unsafe_load", "system", "popen"}


class Trap:
    """Unpickled, it makes a file: the proof that code ran."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


# ---- the source ----------------------------------------------------------------------------------


def has(call: ast.Call, keyword: str, value: object) -> bool:
    return any(
        k.arg == keyword and isinstance(k.value, ast.Constant) and k.value.value == value
        for k in call.keywords
    )


def complaints(source: str) -> list[str]:
    """What a file does that could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            found += [n for n in names if n.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node.func)
        name = text.rpartition(".")[2]
        if text in FORBIDDEN_CALLS or name in FORBIDDEN_ATTRIBUTES:
            found.append(ast.unparse(node))
        if text == "torch.load" and not has(node, "weights_only", True):
            found.append(ast.unparse(node))
        if text in ("np.load", "numpy.load") and not has(node, "allow_pickle", False):
            found.append(ast.unparse(node))
        if name == "extractall" and not has(node, "filter", "data"):
            found.append(ast.unparse(node))
        if has(node, "shell", True) or text == "yaml.load":
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_source_reads_no_code(path):
    allowed = {"testing": ["__import__("]}.get(path.stem, [])  # of a method's own module
    left = [c for c in complaints(path.read_text()) if not any(a in c for a in allowed)]
    assert left == []


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "eval(text)",
        "tar.extractall(folder)",
        "subprocess.run(text, shell=True)",
        "pd.read_pickle(path)",
        "os.system(text)",
    ],
)
def test_the_search_finds_what_it_looks_for(bad):
    assert complaints(bad)


def test_pages_escape_what_they_show():
    for path in SOURCES:
        assert "Environment(" not in path.read_text() or "autoescape=True" in path.read_text()
    kinds = (".html", ".j2", ".js", ".css")
    pages = [path for path in (ROOT / "src" / "ytilde").rglob("*") if path.suffix in kinds]
    assert len(pages) >= 8
    for path in pages:
        assert not re.search(r"\|\s*safe\b|eval\(|document\.write", path.read_text()), path


# ---- files that are traps ------------------------------------------------------------------------


def pickled(path: Path, trap: Trap) -> None:
    path.write_bytes(pickle.dumps({"x": trap, "y": trap}))


def torch_saved(path: Path, trap: Trap) -> None:
    torch.save({"x": trap, "method.net": trap}, path)


def object_array(path: Path, trap: Trap) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.array([trap, trap]), y=np.array([0, 1]))


def bare_array(path: Path, trap: Trap) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([trap, trap]), allow_pickle=True)


@pytest.mark.parametrize("make", [pickled, torch_saved, object_array, bare_array])
@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet", "x.safetensors", "x.pkl", "x.pt"])
def test_no_file_is_unpickled(make, name, tmp_path):
    trap, path = tmp_path / "sprung", tmp_path / name
    make(path, Trap(trap))
    for read in (readers.read, checkpoint.load, Classifier.load):
        with pytest.raises(BadInput):
            read(path)
    refused("predict", path, path, match="")
    refused("fit", path, *FAST, "--out", tmp_path / "r", match="")
    assert not trap.exists()


@pytest.mark.parametrize("make", [pickled, torch_saved, bare_array])
def test_no_named_set_is_unpickled(make, tmp_path):
    trap = tmp_path / "sprung"
    make(tmp_path / "CIFAR-10_human.pt", Trap(trap))
    for name in (f"data_batch_{i}.bin" for i in range(1, 6)):
        (tmp_path / name).write_bytes(bytes(3073))
    with pytest.raises(BadInput, match=r"human\.pt is not a plain file of label arrays"):
        datasets.load("cifar10n-worst", tmp_path, "train")
    assert not trap.exists()
    make(tmp_path / "T.npy", Trap(trap))
    with pytest.raises(BadInput):
        Classifier("forward", epochs=1).set_params(
            method=create("forward").set_params(T=str(tmp_path / "T.npy"))
        ).fit(np.eye(4), [0, 1, 0, 1])
    assert not trap.exists()


def test_the_trap_works(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


# ---- archives ------------------------------------------------------------------------------------


def tar(path: Path, member: tarfile.TarInfo, content: bytes = b"") -> None:
    member.size = len(content)
    with tarfile.open(path, "w") as archive:
        inner = tarfile.TarInfo("in/a")
        archive.addfile(inner, io.BytesIO())
        archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("name", ["../evil", "in/../../evil", "in/link"])
def test_archives_cannot_write_outside_their_folder(name, tmp_path):
    member = tarfile.TarInfo(name)
    if name == "in/link":
        member.type, member.linkname = tarfile.SYMTYPE, "../../../../etc/passwd"
    folder = tmp_path / "data"
    folder.mkdir()
    tar(folder / "x.tar", member, b"" if name == "in/link" else b"evil")
    with pytest.raises(BadInput, match="cannot be unpacked"):
        unpack(folder / "x.tar", folder, "in")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["data", "x.tar"]


def test_an_absolute_path_in_an_archive_stays_inside(tmp_path):
    tar(tmp_path / "x.tar", tarfile.TarInfo(f"{tmp_path}/evil"), b"evil")
    unpack(tmp_path / "x.tar", tmp_path, "in")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "in"]


def test_an_archive_that_is_read_in_place_writes_nothing(tmp_path):
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("../evil.png", b"x")
        archive.writestr("images/../../evil.png", b"x")
    with pytest.raises(BadInput):
        datasets.load("camvid", tmp_path, "train")
    assert [p.name for p in tmp_path.parent.rglob("evil*")] == []


# ---- what is written -----------------------------------------------------------------------------

EVIL = [
    "=cmd|' /C calc'!A0",
    "+HYPERLINK(A1)",
    "-2+cmd|'x'!A0",
    "@SUM(A1)",
    "\t=SUM(A1)",
    "\r\n=SUM(A1)",
    "＝SUM（A1）",
    "<script>alert(1)</script>",
]
HARMLESS = ["+", "-", "@home", "-1", "+1", "=", "- none -", "a=b(c)", "'quoted'", "(|!"]
HARMLESS += ["-1 (low)", "+1.5e3", "-0,5", "a; b", "a;-1", "x;=y", "+49 (0)30 1234", "=)"]


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    data = blobs(21 * len(EVIL), num_classes=len(EVIL), dim=4)
    frame = pd.DataFrame(data.x.numpy(), columns=list("abcd"))
    frame["label"] = np.array(EVIL)[data.y.numpy()]
    frame.to_csv(tmp_path / "d.csv", index=False)
    ytilde("fit", tmp_path / "d.csv", *FAST, "--out", tmp_path / "r")
    ytilde("audit", tmp_path / "r", "--folds", "0")
    ytilde("predict", tmp_path / "r", tmp_path / "d.csv", "--out", tmp_path / "p.csv")
    tables = [tmp_path / "p.csv", *(tmp_path / "r").glob("*.csv")]
    assert len(tables) >= 3
    for path in tables:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        for column in frame.select_dtypes(include=["object", "string"]).columns:
            text = frame[column][pd.to_numeric(frame[column], errors="coerce").isna()]
            assert not text.str.match(r"^\s*[=+\-@＝]").any(), (path, column)


@pytest.mark.parametrize("text", EVIL[:-1])
@pytest.mark.parametrize("before", ["", "a;", "a;;", "a\t", "a\n", "=SUM(A1);"])
def test_what_a_spreadsheet_acts_on_stands_behind_a_quote(text, before):
    """Where ; separates cells, or a line ends, another cell begins, quoted or not."""
    safe = checkpoint.spreadsheet_safe(before + text)
    cells = [cell for cell in re.split("[;\t\r\n]", safe) if cell]
    assert not any(re.match(r"\s*[=+\-@＝]", cell) for cell in cells)
    assert re.sub("'(?=[=+@＝-])", "", safe) == before + text  # and nothing else is changed


def test_no_column_of_a_csv_is_called_a_formula(tmp_path):
    checkpoint.write_csv(tmp_path / "p.csv", pd.DataFrame({"prob_a;=cmd|'x'!A0": [1.0]}))
    assert (tmp_path / "p.csv").read_text().startswith("prob_a;'=cmd|'x'!A0")


def test_a_label_that_a_spreadsheet_cannot_act_on_stays_as_it_is(tmp_path):
    frame = pd.DataFrame({"label": HARMLESS})
    checkpoint.write_csv(tmp_path / "labels.csv", frame)
    back = pd.read_csv(tmp_path / "labels.csv", dtype=str, keep_default_na=False)
    assert back.label.tolist() == HARMLESS


def test_no_name_is_markup_in_a_report(tmp_path):
    found = audit(np.full((30, 2), 0.5), np.arange(30) % 2, names=[EVIL[-1], "b"])
    found.to_html(tmp_path / "report.html")
    assert EVIL[-1] not in (tmp_path / "report.html").read_text()


# ---- dependencies --------------------------------------------------------------------------------


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonical(name): version for name, _, version in (x.partition("==") for x in lines)}


def test_ci_installs_what_the_constraints_say():
    """The digests of .ci/requirements.txt belong to the versions of constraints.txt."""
    lock = (ROOT / ".ci" / "requirements.txt").read_text().splitlines()[1:]
    locked = {}
    for line in lock:
        found = re.fullmatch(r"(\S+)==(\S+)(?: --hash=sha256:[0-9a-f]{64})+", line)
        assert found, line
        locked[canonical(found[1])] = found[2]
    versions = pinned()
    for name, version in locked.items():
        assert versions.get(name) == version, f"{name}: run .ci/lock.py again"
    assert {"numpy", "pandas", "pillow", "safetensors", "setuptools"} <= set(locked)
    assert "torch" not in locked and "HASHES=1" in (ROOT / ".ci" / "run").read_text()


def needed(name: str, extras: frozenset[str]) -> Iterator[str]:
    """The packages that a package needs here, theirs included."""
    for text in metadata.requires(name) or []:
        wanted = Requirement(text)
        mark = wanted.marker
        if mark is None or any(mark.evaluate({"extra": extra}) for extra in extras | {""}):
            yield canonical(wanted.name)
            with suppress(metadata.PackageNotFoundError):
                yield from needed(wanted.name, frozenset(wanted.extras))


def test_everything_that_is_installed_is_pinned():
    found = set(needed("ytilde", frozenset({"dev", "parquet"}))) - {"ytilde"}
    nvidia = {name for name in found if name.startswith(("nvidia", "cuda", "triton"))}
    assert len(found) > 50
    assert found - nvidia <= pinned().keys()  # those of torch are pinned by torch itself
    built = re.findall(r'requires = \["(\w+)', (ROOT / "pyproject.toml").read_text())
    assert built and set(built) <= pinned().keys()


def test_files_come_by_https_and_are_known_by_their_sha256():
    for source in datasets.sources.SOURCES.values():
        assert source.url.startswith("https://")
        assert all(len(digest) == 64 for digest in source.sha256.values())
    for path in SOURCES:
        text = path.read_text()
        assert "http://" not in text.replace("http://127.0.0.1", "").replace('f"http://{host}"', "")
        assert "md5" not in text


def test_pictures_of_others_carry_their_licence():
    notice = (ROOT / "NOTICE").read_text()
    own = ROOT / "src" / "ytilde" / "embedded"
    assert "MIT" in (own / "LICENSE").read_text() and "Zalando" in (own / "LICENSE").read_text()
    for path in (*own.glob("*.npz"), ROOT / "docs" / "camvid.png"):
        assert str(path.relative_to(ROOT)) in notice


def test_the_platforms_are_said_where_users_look():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    systems = [line for line in project["classifiers"] if line.startswith("Operating System")]
    names = [line.rpartition(":: ")[2].replace("MacOS", "macOS") for line in systems]
    least = project["requires-python"].removeprefix(">=")
    assert {"Linux", "macOS"} <= set(names)
    assert f"Programming Language :: Python :: {least}" in project["classifiers"]
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any(all(word in line for word in (*names, f"Python {least}")) for line in lines)
