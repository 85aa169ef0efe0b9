"""Parquet larger than memory as training data: read in parts, trained on as if in memory."""

import gc
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from ytilde import BadInput, Classifier
from ytilde.cli import app
from ytilde.data.readers import large, read
from ytilde.data.spool import Spool

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "ROWS", 170)


@pytest.fixture
def table() -> "pa.Table":
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 3)).astype(np.float32)
    columns = {"a": x[:, 0], "b": x[:, 1], "kind": rng.choice(["red", "blue", "green"], 1000)}
    columns |= {
        "label": np.where(x[:, 0] > 0, "yes", "no"),
        "clean": np.where(x[:, 1] > 0, "yes", "no"),
    }
    return pa.table(columns)


@pytest.fixture
def folder(table: "pa.Table", tmp_path: Path) -> Path:
    out = tmp_path / "parts"
    out.mkdir()
    pq.write_table(table.slice(0, 300), out / "1.parquet")
    pq.write_table(table.slice(300), out / "2.parquet", row_group_size=256)
    return out


def test_parts_are_read_as_the_whole(folder: Path, table: "pa.Table") -> None:
    whole, parts = read(table.to_pandas()), read(folder)
    assert isinstance(parts.data.x, Spool) and parts.data.lazy
    assert torch.equal(parts.data.x[torch.arange(1000)], whole.data.x)
    assert torch.equal(parts.data.y, whole.data.y) and torch.equal(
        parts.data.clean, whole.data.clean
    )
    medians = parts.schema.medians  # by the first part, for gaps that training did not have
    assert list(medians) == list(whole.schema.medians)
    assert replace(whole.schema, medians=medians) == parts.schema
    assert parts.data.names == whole.data.names
    index = torch.tensor([999, 3, 4, 5, 3, 0])
    assert torch.equal(parts.data.x[index], whole.data.x[index])
    sent = pickle.loads(pickle.dumps(parts.data.x))  # as to worker processes
    assert torch.equal(sent[index], whole.data.x[index])
    again = read(folder, schema=whole.schema)
    assert torch.equal(again.data.x[index], whole.data.x[index])


def test_the_file_on_disk_goes_with_the_data(folder: Path) -> None:
    found = read(folder)
    path = found.data.x.path
    assert path.exists()
    del found
    gc.collect()
    assert not path.exists() and not path.parent.exists()


def test_a_fit_from_disk_has_the_bits_of_one_from_memory(folder: Path, table: "pa.Table") -> None:
    fits = []
    for source in (table.to_pandas(), folder):
        clf = Classifier("elr", "mlp:width=8,depth=1", epochs=2, random_state=0, device="cpu")
        data = read(source).data.without_clean()
        clf.fit_data(data)
        fits.append((clf.history_, clf.predict_proba(data.x[torch.arange(50)].numpy())))
    (one, p), (other, q) = fits
    assert [r["loss"] for r in one] == [r["loss"] for r in other]
    np.testing.assert_array_equal(p, q)


def test_only_large_files_are_read_in_parts(
    table: "pa.Table", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(table, tmp_path / "t.parquet")
    assert not read(tmp_path / "t.parquet").data.lazy
    monkeypatch.setattr(large, "LIMIT", 10_000)
    assert read(tmp_path / "t.parquet").data.lazy
    words = ["fit", str(tmp_path / "t.parquet"), "--method", "ce", "--epochs", "1"]
    words += ["--backbone", "mlp:width=4,depth=1", "--workers", "0", "--out", str(tmp_path / "run")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "is read in parts" in told.output
    predicted = pd.read_csv(tmp_path / "run" / "predictions.csv")
    assert predicted.given_label.tolist() == table["label"].to_pylist()
    assert predicted["index"].tolist() == list(range(1000))


def test_numbers_that_float32_would_lose_are_kept(tmp_path: Path) -> None:
    times = 1.7e9 + np.arange(500.0) * 50
    (tmp_path / "d").mkdir()
    pq.write_table(
        pa.table({"t": times, "u": times % 7, "y": np.arange(500) % 2}),
        tmp_path / "d" / "a.parquet",
    )
    x = read(tmp_path / "d", id_column="none").data.x
    assert x.dtype == torch.float64
    np.testing.assert_array_equal(x[torch.arange(500)][:, 0].numpy(), times)


def test_what_is_wrong_is_said(
    folder: Path, table: "pa.Table", monkeypatch: pytest.MonkeyPatch
) -> None:
    holes = table.slice(300).set_column(0, "a", pa.array([None] + [1.0] * 699, pa.float32()))
    pq.write_table(holes, folder / "2.parquet")
    found = read(folder)  # a gap in a later part is kept, as in a table that is read whole
    assert found.schema.gaps == ["a"] and found.data.x[torch.tensor([300])][0, -1] == 1
    with pytest.raises(BadInput, match=r"'label' of .+, which --label reads"):
        read(folder, drop=["label"])
    assert read(folder, drop=["clean"]).data.clean is None
    pq.write_table(table.slice(300).drop_columns(["b"]), folder / "2.parquet")
    with pytest.raises(BadInput, match="has other columns than"):
        read(folder)
    pq.write_table(table.slice(300), folder / "2.parquet")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10})())
    with pytest.raises(BadInput, match="TMPDIR"):
        read(folder)
