"""Corrected labels go back into the table, and nothing else changes."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ytilde import cli
from ytilde.auditing.relabel import relabel
from ytilde.checkpoint import write_csv
from ytilde.data import BadInput

TEXT = 'id,a,note,label\n007,1.50,"x, ""y""",+\n008,,NA,=f(1)\n009,3e2,"two\nlines",+\n'


def labels_of(path, old, wanted, rows=None):
    """As an audit writes them."""
    rows = range(len(old)) if rows is None else rows
    fixed = [a != b for a, b in zip(old, wanted, strict=True)]
    columns = {"index": rows, "label": wanted, "fixed": fixed, "given_label": old}
    write_csv(path, pd.DataFrame(columns))
    return path


def texts(path, sep=","):
    return pd.read_csv(path, dtype=str, keep_default_na=False, sep=sep)


def test_only_the_fixed_labels_change(tmp_path):
    data, out = tmp_path / "data.csv", tmp_path / "fixed.csv"
    data.write_text(TEXT)
    old = ["+", "=f(1)", "+"]
    labels = labels_of(tmp_path / "labels.csv", old, ["=f(1)", "=f(1)", "+"])
    assert relabel(data, labels, out) == (3, 1, 0)
    before, after = texts(data), texts(out)
    assert after.label.tolist() == ["=f(1)", "=f(1)", "+"]
    assert before.drop(columns="label").equals(after.drop(columns="label"))
    assert out.read_text() == TEXT.replace('"x, ""y""",+', '"x, ""y""",=f(1)')


def test_a_text_keeps_every_other_character(tmp_path):
    """BOM, ends of lines, blank lines, quotes, unnamed and repeated columns, surplus commas."""
    data, out = tmp_path / "data.csv", tmp_path / "fixed.csv"
    lines = [",a,a,label,", '0,"1",2,"p",', "", '1,3,"x\ny",q,', "2,5,6,p,"]
    text = "\ufeff" + "\r\n".join(lines)
    for end in ("", "\r\n", "\r\n\r\n"):
        data.write_bytes((text + end).encode())
        labels = labels_of(tmp_path / "labels.csv", ["p", "q", "p"], ["q", "p", "p"])
        assert relabel(data, labels, out, force=True) == (3, 2, 0)
        wanted = (text + end).replace('"p"', '"q"').replace('y",q', 'y",p')
        assert out.read_bytes() == wanted.encode()


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", 'b"', "c,", " d", "e\nf"]), st.text()), min_size=1
    )
)
def test_any_text_comes_back(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("relabel")
    classes = [label for label, _ in rows]
    notes = [note.replace("\0", "").replace("\r", " ") for _, note in rows]
    table = pd.DataFrame({"label": classes, "note": [f"{k}{note}" for k, note in enumerate(notes)]})
    table.to_csv(folder / "data.csv", index=False)
    new = classes[1:] + classes[:1]
    labels = labels_of(folder / "labels.csv", classes, new)
    relabel(folder / "data.csv", labels, folder / "fixed.csv")
    assert texts(folder / "fixed.csv").equals(table.assign(label=new))


@pytest.mark.parametrize(("name", "sep"), [("d.csv", ";"), ("d.tsv", "\t"), ("d.csv", ",")])
def test_separators_stay_and_rows_may_come_in_any_order(name, sep, tmp_path):
    data, out = tmp_path / name, tmp_path / f"fixed-{name}"
    frame = pd.DataFrame({"kind": ["a", "b", "a", "b"], "x": ["1,5", "2", "3", "4"]})
    frame.to_csv(data, sep=sep, index=False)
    some = labels_of(tmp_path / "labels.csv", ["b", "a"], ["a", "b"], rows=[3, 0])
    assert relabel(data, some, out, label="kind") == (4, 2, 0)
    assert texts(out, sep).equals(frame.assign(kind=["b", "b", "a", "a"]))


@pytest.mark.parametrize(
    "values", [np.array([3, 5, 3], np.int16), np.array([True, False, True]), ["u", "v", "u"]]
)
@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("wanted", [[0, 1, 0], [1, 1, 0]])
def test_parquet_keeps_its_types(values, categorical, wanted, tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    data, out = tmp_path / "d.parquet", tmp_path / "fixed.parquet"
    y = pd.Series(values, dtype="category" if categorical else None)
    ids = pd.array([None, 2**53 + 1, 2**53 + 3], dtype="Int64")  # more than a float can hold
    frame = pd.DataFrame({"y": y.to_numpy() if not categorical else y.array, "id": ids})
    frame.set_index(pd.Index(["r", "s", "t"], name="key")).to_parquet(data)
    names = [str(value) for value in values]
    labels = labels_of(tmp_path / "labels.csv", names, [names[k] for k in wanted])
    before = pq.read_table(data)
    assert relabel(data, labels, out) == (3, wanted[0], 0)  # of the two, one changes the first row
    after = pq.read_table(out)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.drop_columns(["y"]).equals(before.drop_columns(["y"]))
    assert after["y"].to_pylist() == [before["y"].to_pylist()[k] for k in wanted]


@pytest.mark.parametrize(
    ("old", "wanted", "rows", "what"),
    [
        (["+", "+", "+"], ["+", "+", "+"], None, r"row 1 .*the label is .*=f.*there '\+'"),
        (["+", "=f(1)", "+"], ["-", "=f(1)", "+"], None, "asks for the label '-'"),
        (["+", "+"], ["+", "+"], [0, 3], "not about the 3 rows"),
        (["+", "+"], ["+", "+"], [2, 2], "not about the 3 rows"),
        ([], [], [], "not about the 3 rows"),
    ],
)
def test_labels_of_another_table_are_refused(old, wanted, rows, what, tmp_path):
    data, out = tmp_path / "data.csv", tmp_path / "fixed.csv"
    data.write_text(TEXT)
    with pytest.raises(BadInput, match=what):
        relabel(data, labels_of(tmp_path / "labels.csv", old, wanted, rows), out)
    assert not out.exists()


def test_what_is_no_table_is_refused(tmp_path):
    data, labels = tmp_path / "data.csv", tmp_path / "labels.csv"
    data.write_text(TEXT)
    labels.write_text("index,label\n0,+\n")
    for source, those, out, what in (
        (tmp_path / "images", labels, tmp_path / "a.csv", "is no table"),
        (data, labels, tmp_path / "a.parquet", "must end in .csv"),
        (data, labels, tmp_path / "a.tsv", "must end in .csv"),
        (data, labels, data, "would be overwritten"),
        (data, labels, tmp_path / "a.csv", "no column 'given_label'.*ytilde audit"),
        (data, tmp_path / "none.csv", tmp_path / "a.csv", "cannot be read"),
        (tmp_path / "none.csv", labels, tmp_path / "a.csv", "cannot be read"),
    ):
        with pytest.raises(BadInput, match=what):
            relabel(source, those, out)
        assert data.read_text() == TEXT and not (tmp_path / "a.csv").exists()


def test_from_fit_to_the_corrected_table(tmp_path, monkeypatch, capsys):
    """The commands that a user types; each prints the next one."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 2)) + 4 * truth[:, None]
    noisy = np.where(np.arange(240) % 10 == 0, 1 - truth, truth)
    frame = pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "kind": np.array(["cat", "dog"])[noisy]})
    monkeypatch.chdir(tmp_path)
    frame.to_csv("pets.csv", index=False)

    def ytilde(*words):
        monkeypatch.setattr("sys.argv", ["ytilde", *words])
        cli.main()
        return capsys.readouterr().out

    ytilde("fit", "pets.csv", "--label", "kind", "--out", "run", "--epochs", "8")
    said = ytilde("audit", "run", "--folds", "2", "--fix-above", "0.5")
    command = "relabel pets.csv run/labels.csv --label kind --out pets-fixed.csv"
    assert f"next: ytilde {command}" in said
    assert "of 240 labels changed; written: pets-fixed.csv" in ytilde(*command.split())
    for free in ("pets-fixed-2.csv", "pets-fixed-3.csv"):  # the command is refused for no file
        said = ytilde("audit", "run", "--folds", "2", "--fix-above", "0.5")
        command = command.rpartition(" ")[0] + f" {free}"
        assert f"next: ytilde {command}\n" in said
        ytilde(*command.split())
    after = pd.read_csv("pets-fixed.csv")
    wrong = (after.kind == "dog").to_numpy() != truth
    assert wrong.sum() < 6 < 24 == (noisy != truth).sum()
    assert after[["x", "z"]].equals(pd.read_csv("pets.csv")[["x", "z"]])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_bad_items_are_left_out_and_nothing_else_changes(tmp_path, kind):
    """A row without a label, as a review writes it, is of no class."""
    old, new = ["p", "q", "p", "q"], ["", "p", "p", ""]
    labels = labels_of(tmp_path / "labels.csv", old, new)
    data, out = tmp_path / f"data.{kind}", tmp_path / f"fixed.{kind}"
    frame = pd.DataFrame({"a": ["1", 'x, "y"', "two\nlines", "4"], "label": old})
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(data)
        assert relabel(data, labels, out) == (4, 1, 2)
        assert pd.read_parquet(out).to_dict("list") == {
            "a": ['x, "y"', "two\nlines"],
            "label": ["p"] * 2,
        }
        return
    text = '\ufeffa,label\r\n1,p\r\n\r\n"x, ""y""",q\r\n"two\nlines",p\r\n4,q'
    for end in ("", "\r\n"):
        data.write_bytes((text + end).encode())
        assert relabel(data, labels, out, force=True) == (4, 1, 2)
        wanted = '\ufeffa,label\r\n\r\n"x, ""y""",p\r\n"two\nlines",p\r\n'
        assert out.read_bytes() == wanted.encode()


def test_a_table_of_bad_items_alone_is_not_written(tmp_path):
    data, out = tmp_path / "data.csv", tmp_path / "fixed.csv"
    data.write_text(TEXT)
    labels = labels_of(tmp_path / "labels.csv", ["+", "=f(1)", "+"], ["", "", ""])
    with pytest.raises(BadInput, match="every row"):
        relabel(data, labels, out)
    assert not out.exists()
