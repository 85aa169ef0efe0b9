"""Pictures in tar archives."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from ytilde.archives import members, open_member, real_file, split_member
from ytilde.cli import app
from ytilde.data.images import Images
from ytilde.data.readers import read
from ytilde.errors import BadInput

RUNNER = CliRunner()


def png(row: int, side: int = 16) -> bytes:
    """A picture of class row % 2: dark or bright, with noise."""
    noise = np.random.default_rng(row).integers(0, 60, (side, side, 3))
    file = io.BytesIO()
    Image.fromarray((noise + 180 * (row % 2)).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def write(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def samples(rows: range, kind: str = "cls") -> dict[str, bytes]:
    """As WebDataset writes them: KEY.png and its label beside it."""
    files = {}
    for row in rows:
        files[f"{row:04d}.png"] = png(row)
        label = json.dumps({"label": row % 2, "animal": ["cat", "dog"][row % 2]})
        files[f"{row:04d}.{kind}"] = label.encode() if kind == "json" else str(row % 2).encode()
    return files


def folder_of(root: Path, rows: range) -> Path:
    for row in rows:
        path = root / str(row % 2) / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(row))
    return root


@pytest.mark.parametrize("lazy", [False, True])
def test_shards_read_as_the_same_pictures_in_a_folder(tmp_path, lazy):
    write(tmp_path / "s" / "b.tar", samples(range(7, 12)))
    write(tmp_path / "s" / "a.tar", samples(range(7)))
    found = read(tmp_path / "s", lazy=lazy)
    want = read(folder_of(tmp_path / "f", range(12)))
    order = np.argsort([Path(path).name for path in want.paths])
    assert isinstance(found.data.x, Images) == lazy
    assert torch.equal(found.data.x[torch.arange(12)], want.data.x[torch.from_numpy(order)])
    assert torch.equal(found.data.y, want.data.y[order])
    assert [Path(path).name for path in found.paths] == [f"{row:04d}.png" for row in range(12)]


def test_labels_are_in_cls_or_json_or_the_folder(tmp_path):
    assert read(write(tmp_path / "a.tar", samples(range(4)))).data.names == ("0", "1")
    by_json = write(tmp_path / "b.tar", samples(range(4), "json"))
    assert read(by_json).data.names == ("0", "1")
    assert read(by_json, label="animal").data.names == ("cat", "dog")
    inside = {f"{['cat', 'dog'][row % 2]}/deep/{row}.png": png(row) for row in range(4)}
    found = read(write(tmp_path / "c.tar", inside))
    assert found.data.names == ("cat", "dog") and found.data.y.tolist() == [0, 1, 0, 1]


def test_archives_are_of_splits_if_all_are_called_so(tmp_path):
    for name, rows in (("train-0", range(4)), ("train_1", range(4, 6)), ("val-0", range(6, 9))):
        write(tmp_path / f"{name}.tar", samples(rows))
    found = read(tmp_path)
    assert len(found.data) == 6 and "left out, archives of others: val 1" in found.notes[0]
    assert len(read(tmp_path, split="val").data) == 3
    with pytest.raises(BadInput, match="no archive of the split test"):
        read(tmp_path, split="test")
    write(tmp_path / "more.tar", samples(range(9, 12)))
    assert len(read(tmp_path).data) == 12


def test_members_are_found_by_place(tmp_path):
    archive = write(tmp_path / "x.tar" / "y.tar", {"./d/1.txt": b"one", "2.txt": b""})
    places = members(archive)
    assert list(places) == ["d/1.txt", "2.txt"]
    start, size = places["d/1.txt"]
    assert archive.read_bytes()[start : start + size] == b"one"
    path = f"{archive}/d/1.txt"  # a folder may be called like an archive
    assert split_member(path) == (str(archive), "d/1.txt")
    assert real_file(path) == archive and real_file(archive) == archive
    assert open_member(path).read() == b"one" and open_member(str(archive)) is None
    write(archive, {"2.txt": b"two, written anew"})
    assert open_member(f"{archive}/2.txt").read() == b"two, written anew"
    with pytest.raises(FileNotFoundError, match=r"holds no d/1\.txt"):
        open_member(path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"1.txt": b"x"}, "There are no images"),
        ({"1.png": b"x"}, r"has no label: put it into 1\.cls"),
        ({"1.png": b"x", "1.json": b"{"}, "is no JSON"),
        ({"1.png": b"x", "1.json": b"[1]"}, "is no JSON object"),
        ({"1.png": b"x", "1.json": b'{"animal": 1}'}, "name the field of the label with --label"),
        ({"1.png": b"x", "1.json": b'{"label": [1]}'}, "give a number or a name"),
        ({"1.png": b"x", "1.cls": b"\xff"}, "not written in UTF-8"),
        ({"1.png": b"x", "1.cls": b"0"}, "holds one class only"),
    ],
)
def test_bad_archives_are_one_sentence(tmp_path, files, said):
    with pytest.raises(BadInput, match=said):
        read(write(tmp_path / "a.tar", files))


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"nothing of the kind" * 100)
    packed = write(tmp_path / "b.tar", samples(range(4)), "w:gz")
    cut = write(tmp_path / "c.tar", samples(range(4)))
    cut.write_bytes(cut.read_bytes()[:1400])
    for path in (tmp_path / "a.tar", packed, cut):
        with pytest.raises(BadInput, match="cannot be read as a tar archive"):
            read(path)
    twice = write(tmp_path / "d.tar", {"1.png": b"x"})
    write(twice, {"1.png": b"y"}, "a")
    with pytest.raises(BadInput, match=r"holds 1\.png twice"):
        read(twice)


def test_fit_audit_predict_and_the_archive_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shard = write(tmp_path / "s" / "a.tar", samples(range(40)))
    before = shard.read_bytes()
    fit = ["fit", "s", "--out", "run", "--epochs", "2", "--method", "ce", "--backbone", "patches"]
    assert RUNNER.invoke(app, fit).exit_code == 0
    done = RUNNER.invoke(app, ["audit", "run", "--folds", "2"])
    assert done.exit_code == 0, done.output
    issues = pd.read_csv("run/issues.csv")
    assert issues["path"].str.startswith("s/a.tar/").all() and len(issues) == 40
    assert "data:image/" in Path("run/report.html").read_text()
    done = RUNNER.invoke(app, ["predict", "run", "s/a.tar", "--out", "p.csv"])
    assert done.exit_code == 0, done.output
    said = pd.read_csv("p.csv")
    right = said.predicted_label == said.path.str.extract(r"(\d+)\.png")[0].astype(int) % 2
    assert right.mean() > 0.9
    for force in ([], ["--force"]):
        done = RUNNER.invoke(app, ["predict", "run", "s", "--out", "s/a.tar", *force])
        assert isinstance(done.exception, BadInput)
    assert shard.read_bytes() == before
