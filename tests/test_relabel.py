"""Corrected labels go back into the table, and nothing else changes."""

import numpy as np
import pandas as pd
import pytest

from ytilde import cli
from ytilde.checkpoint import write_csv
from ytilde.data import BadInput
from ytilde.relabel import relabel

TEXT = 'id,a,note,label\n007,1.50,"x, ""y""",+\n008,,NA,=f(1)\n009,3e2,"two\nlines",+\n'


def labels_of(path, given, wanted, rows=None):
    """As an audit writes them."""
    rows = range(len(given)) if rows is None else rows
    fixed = [a != b for a, b in zip(given, wanted, strict=True)]
    columns = {"index": rows, "label": wanted, "fixed": fixed, "given_label": given}
    write_csv(path, pd.DataFrame(columns))
    return path


def texts(path, sep=","):
    return pd.read_csv(path, dtype=str, keep_default_na=False, sep=sep)


def test_only_the_fixed_labels_change(tmp_path):
    data, out = tmp_path / "data.csv", tmp_path / "fixed.csv"
    data.write_text(TEXT)
    given = ["+", "=f(1)", "+"]
    labels = labels_of(tmp_path / "labels.csv", given, ["=f(1)", "=f(1)", "+"])
    assert relabel(data, labels, out) == (3, 1)
    before, after = texts(data), texts(out)
    assert after.label.tolist() == ["=f(1)", "=f(1)", "+"]
    assert before.drop(columns="label").equals(after.drop(columns="label"))
    assert out.read_text() == TEXT.replace('"x, ""y""",+', '"x, ""y""",=f(1)')


@pytest.mark.parametrize(("name", "sep"), [("d.csv", ";"), ("d.tsv", "\t"), ("d.csv", ",")])
def test_separators_stay_and_rows_may_come_in_any_order(name, sep, tmp_path):
    data, out = tmp_path / name, tmp_path / f"fixed-{name}"
    frame = pd.DataFrame({"kind": ["a", "b", "a", "b"], "x": ["1,5", "2", "3", "4"]})
    frame.to_csv(data, sep=sep, index=False)
    some = labels_of(tmp_path / "labels.csv", ["b", "a"], ["a", "b"], rows=[3, 0])
    assert relabel(data, some, out, label="kind") == (4, 2)
    assert texts(out, sep).equals(frame.assign(kind=["b", "b", "a", "a"]))


def test_parquet_keeps_its_types(tmp_path):
    pytest.importorskip("pyarrow")
    data, out = tmp_path / "d.parquet", tmp_path / "fixed.parquet"
    frame = pd.DataFrame({"y": np.array([3, 5, 3], np.int16), "x": [1.0, np.nan, 2.0]})
    frame.to_parquet(data)
    labels = labels_of(tmp_path / "labels.csv", ["3", "5", "3"], ["3", "3", "5"])
    assert relabel(data, labels, out) == (3, 2)
    pd.testing.assert_frame_equal(pd.read_parquet(out), frame.assign(y=np.array([3, 3, 5], "i2")))


@pytest.mark.parametrize(
    ("given", "wanted", "rows", "what"),
    [
        (["+", "+", "+"], ["+", "+", "+"], None, r"row 1 .*the label is .*=f.*there '\+'"),
        (["+", "=f(1)", "+"], ["-", "=f(1)", "+"], None, "asks for the label '-'"),
        (["+", "+"], ["+", "+"], [0, 3], "not about the 3 rows"),
        (["+", "+"], ["+", "+"], [2, 2], "not about the 3 rows"),
    ],
)
def test_labels_of_another_table_are_refused(given, wanted, rows, what, tmp_path):
    data, out = tmp_path / "data.csv", tmp_path / "fixed.csv"
    data.write_text(TEXT)
    with pytest.raises(BadInput, match=what):
        relabel(data, labels_of(tmp_path / "labels.csv", given, wanted, rows), out)
    assert not out.exists()


def test_what_is_no_table_is_refused(tmp_path):
    data, labels = tmp_path / "data.csv", tmp_path / "labels.csv"
    data.write_text(TEXT)
    labels.write_text("index,label\n0,+\n")
    for source, given, out, what in (
        (tmp_path / "images", labels, tmp_path / "a.csv", "is no table"),
        (data, labels, tmp_path / "a.npz", "is no table"),
        (data, labels, tmp_path / "a.parquet", "same kind"),
        (data, labels, data, "would be overwritten"),
        (data, labels, tmp_path / "a.csv", "no column 'fixed'.*ytilde audit"),
        (data, tmp_path / "none.csv", tmp_path / "a.csv", "cannot be read"),
        (tmp_path / "none.csv", labels, tmp_path / "a.csv", "cannot be read"),
    ):
        with pytest.raises(BadInput, match=what):
            relabel(source, given, out)
        assert data.read_text() == TEXT and not (tmp_path / "a.csv").exists()


def test_from_fit_to_the_corrected_table(tmp_path, monkeypatch, capsys):
    """The commands that a user types; each prints the next one."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 2)) + 4 * truth[:, None]
    given = np.where(np.arange(240) % 10 == 0, 1 - truth, truth)
    frame = pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "kind": np.array(["cat", "dog"])[given]})
    monkeypatch.chdir(tmp_path)
    frame.to_csv("pets.csv", index=False)

    def ytilde(*words):
        monkeypatch.setattr("sys.argv", ["ytilde", *words])
        cli.main()
        return capsys.readouterr().out

    ytilde("fit", "pets.csv", "--label", "kind", "--out", "run", "--epochs", "8")
    said = ytilde("audit", "run", "--folds", "2", "--fix-above", "0.9")
    command = "relabel pets.csv run/labels.csv --label kind --out pets-fixed.csv"
    assert f"next: ytilde {command}" in said
    assert "of 240 labels changed; written: pets-fixed.csv" in ytilde(*command.split())
    after = pd.read_csv("pets-fixed.csv")
    wrong = (after.kind == "dog").to_numpy() != truth
    assert wrong.sum() < 6 < 24 == (given != truth).sum()
    assert after[["x", "z"]].equals(pd.read_csv("pets.csv")[["x", "z"]])
