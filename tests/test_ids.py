"""Ids: found, never a feature, and the user's own text wherever a row is shown or written."""

import json
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from test_cli import FAST, refused, ytilde
from ytilde import BadInput, Classifier
from ytilde.auditing import review
from ytilde.auditing.relabel import relabel
from ytilde.data.ids import find_ids
from ytilde.readers import read

N = 120
IDS = [f"{100_000_000_000_000_000 + 7 * k}" for k in range(N)]  # 18 digits: no float holds them


def table(path, ids=IDS, **columns):
    """Two clear classes, every twelfth label wrong; amounts that float32 cannot hold."""
    rng = np.random.default_rng(0)
    truth = np.arange(N) % 2
    given = np.where(np.arange(N) % 12 == 0, 1 - truth, truth)
    frame = pd.DataFrame(
        {
            "patient": ids,
            "amount": [f"{1234567000 + int(v)}.50" for v in rng.integers(0, 999, N)],
            "size": (4 * truth + rng.normal(size=N)).round(3),
            "width": (4 * truth + rng.normal(size=N)).round(3),
            "label": np.array(["sick", "well"])[given],
        }
    )
    frame.assign(**columns).to_csv(path, index=False)
    return pd.read_csv(path, dtype=str)


KINDS = {  # what ids look like; the last begin like numbers, dates and formulas
    "18 digits": IDS,
    "leading zeros": [f"{k:010d}" for k in range(N)],
    "texts": [f'{"=+-@"[k % 4]}{k}e5/Ä ö,"{k}"' for k in range(N)],
}


@pytest.fixture(scope="module", params=list(KINDS))
def audited(request, tmp_path_factory):
    """A folder with a table, its run, and every file that names rows."""
    folder = tmp_path_factory.mktemp("ids")
    frame = table(folder / "d.csv", KINDS[request.param])
    told = ytilde("fit", "d.csv", *FAST, "--epochs", "30", "--out", "run", cwd=folder).stdout
    words = ["--label-studio", "ls.json", "--argilla", "a.json", "--fix-above", "0.8"]
    ytilde("audit", "run", "--folds", "2", *words, cwd=folder)
    return folder, frame, told


def test_a_column_that_differs_in_every_row_is_an_id():
    n = 40
    ids = {
        "number": np.arange(n), "long": [10**24 + k for k in range(n)],
        "zeros": [f"{k:05d}" for k in range(n)], "text": [f"P-{k}" for k in range(n)],
    }  # fmt: skip
    others = {
        "measure": np.arange(n) / 7, "repeated": np.arange(n) // 2, "whole": np.arange(n) * 1.0,
        "quantity": [f"{k}.5" for k in range(n)], "flag": np.arange(n) % 2 == 0,
        "gap": pd.array([None, *range(1, n)], dtype="Int64"),
        "said": [f"{k}: " + "a sentence that says something " * 3 for k in range(n)],
    }  # fmt: skip
    frame = pd.DataFrame(ids | others)
    assert find_ids(frame) == list(ids)
    assert find_ids(frame.head(20)) == []  # of few rows it may be an accident
    assert find_ids(frame[["number"]]) == []  # all that there is to learn from


def test_ids_are_left_out_of_the_features_and_named(tmp_path):
    table(tmp_path / "d.csv")
    found = read(tmp_path / "d.csv")
    assert list(found.schema.columns) == ["amount", "size", "width"]
    assert found.schema.id_column == "patient" and found.ids == IDS
    assert any("'patient'" in note and "an id" in note for note in found.notes)
    kept = read(tmp_path / "d.csv", id_column="none")
    assert next(iter(kept.schema.columns)) == "patient" and kept.ids is None
    other = read(tmp_path / "d.csv", id_column="size")  # one that is named is the only one
    assert list(other.schema.columns) == ["patient", "amount", "width"]
    assert other.ids == pd.read_csv(tmp_path / "d.csv", dtype=str)["size"].tolist()
    assert read(tmp_path / "d.csv", schema=found.schema).ids == IDS
    new = pd.read_csv(tmp_path / "d.csv").drop(columns="patient")
    assert read(new, schema=found.schema).ids is None
    with pytest.raises(BadInput, match=r"no id column 'patients' .* patient"):
        read(tmp_path / "d.csv", id_column="patients")
    with pytest.raises(BadInput, match="'label' holds the labels"):
        read(tmp_path / "d.csv", id_column="label")


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons", "parquet", "frame"])
def test_values_are_what_their_owner_wrote(tmp_path, kind):
    n = 40
    ids = [900_000_000_000_000_000 + k for k in range(n)]
    amounts = [1_700_000_000 + k / 4 for k in range(n)]
    frame = pd.DataFrame({"no": ids, "amount": amounts, "label": ["a", "b"] * 20})
    source = tmp_path / f"d.{'csv' if kind == 'semicolons' else kind}"
    if kind == "frame":
        source = frame
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(source)
    else:
        frame.to_csv(source, index=False, sep={"csv": ",", "tsv": "\t"}.get(kind, ";"))
    found = read(source)
    assert found.ids == [str(each) for each in ids]
    shown = found.texts([7, 3])
    assert shown.index.tolist() == [7, 3] and shown.columns.tolist() == ["amount"]
    assert shown.amount.tolist() == [str(amounts[7]), str(amounts[3])]


def test_text_of_a_csv_is_not_made_a_number(tmp_path):
    rows = "".join(f"{k:04d},{k}.50,NA,{'ab'[k % 2]}\n" for k in range(40))
    (tmp_path / "d.csv").write_text("id,price,kind,label\n" + rows)
    found = read(tmp_path / "d.csv", drop=["kind"])
    assert found.ids[:2] == ["0000", "0001"]
    assert found.texts([2]).price.tolist() == ["2.50"]


def test_arrays_are_shown_as_they_were_given(tmp_path):
    x = np.arange(80, dtype=np.int64).reshape(40, 2) + 1_700_000_000
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(40) % 2)
    for source in (tmp_path / "d.npz", (x, np.arange(40) % 2)):
        assert read(source).texts([5]).loc[5].tolist() == [str(v) for v in x[5]]
    y = np.arange(40) % 2
    found = Classifier("ce", "mlp:width=4", epochs=1, device="cpu").audit(x, y, folds=2)
    found.issues["is_label_issue"] = True
    replace(found, at_chance=False).to_html(tmp_path / "report.html")
    assert str(x[5, 0]) in (tmp_path / "report.html").read_text()


def test_every_file_of_an_audit_has_the_ids(audited):
    folder, frame, told = audited
    ids = frame.patient.tolist()
    assert "column 'patient' of d.csv differs in every row: taken as an id" in told
    for name in ("issues.csv", "labels.csv", "predictions.csv"):
        found = pd.read_csv(folder / "run" / name, dtype=str)
        assert list(found.columns)[:2] == ["index", "id"], name
        assert found.id.tolist() == [ids[int(k)] for k in found["index"]]
    flagged = json.loads((folder / "run" / "audit.json").read_text())["issues"]
    assert len(flagged) > 5 and all(row["id"] == ids[row["index"]] for row in flagged)
    page = unescape((folder / "run" / "report.html").read_text())
    for row in flagged:
        assert ids[row["index"]] in page and frame.amount[row["index"]] in page
    assert "e+09" not in page and "e+17" not in page


def test_labelling_tools_get_the_ids_and_the_values_as_written(audited):
    folder, frame, _ = audited
    tasks = json.loads((folder / "ls.json").read_text())
    assert len(tasks) > 5
    for task in tasks:
        row = task["data"]["index"]
        assert task["data"]["id"] == frame.patient[row]
        assert task["data"]["item"] == frame.loc[row, ["amount", "size", "width"]].to_dict()
    view = ElementTree.parse(folder / "ls.xml").getroot()
    assert "id: $id" in [header.get("value") for header in view.findall("Header")]
    for record in json.loads((folder / "a.json").read_text()):
        row = record["metadata"]["index"]
        assert record["metadata"]["id"] == frame.patient[row]
        assert f"amount: {frame.amount[row]}" in record["fields"]["item"]


def test_a_review_shows_and_exports_the_ids(audited):
    folder, frame, _ = audited
    found = read(folder / "d.csv")
    view = review.Review(folder / "run", found.data, ids=found.ids, texts=found.texts)
    item = view.next("tab")["item"]
    assert item["id"] == frame.patient[item["row"]]
    assert ["amount", frame.amount[item["row"]]] == list(item["values"][0])
    ytilde("review", "run", "--export", "labels.csv", cwd=folder)
    labels = pd.read_csv(folder / "labels.csv", dtype=str)
    assert labels.id.tolist() == frame.patient.tolist()


def test_relabel_finds_the_rows_by_their_ids(audited, tmp_path):
    """Also in a table that was sorted since; by row numbers the labels would go elsewhere."""
    folder, frame, _ = audited
    labels = folder / "run" / "labels.csv"
    changed = pd.read_csv(labels, dtype=str).set_index("id")
    for order in (frame, frame.sort_values("size"), frame[frame.columns[::-1]].iloc[::-1]):
        order.to_csv(tmp_path / "d.csv", index=False)
        rows, number, _ = relabel(tmp_path / "d.csv", labels, tmp_path / "new.csv", force=True)
        after = pd.read_csv(tmp_path / "new.csv", dtype=str)
        assert (rows, number) == (N, int((changed.fixed == "True").sum())) and number > 2
        assert after.label.tolist() == changed.label[after.patient].tolist()
        others = order.drop(columns="label").reset_index(drop=True)
        assert after.drop(columns="label").equals(others)
    frame.assign(patient=[f"{k}" for k in range(N)]).to_csv(tmp_path / "d.csv", index=False)
    with pytest.raises(BadInput, match=r"no column of .* holds all of its ids"):
        relabel(tmp_path / "d.csv", labels, tmp_path / "other.csv")


def test_pictures_have_ids_too(tmp_path):
    """A column beside the pictures' names, from which nothing is learnt, was no id."""
    codes = [f"{k:04d}" for k in range(40)]
    for k in range(40):
        Image.new("L", (16, 16), 200 * (k % 2)).save(tmp_path / f"{k}.png")
    frame = pd.DataFrame({"file": [f"{k}.png" for k in range(40)], "code": codes})
    frame.assign(label=["dark", "light"] * 20).to_csv(tmp_path / "d.csv", index=False)
    words = ["--epochs", "1", "--method", "ce", "--backbone", "lenet5", "--device", "cpu"]
    done = ytilde("audit", "d.csv", *words, "--folds", "2", "--out", "run", cwd=tmp_path)
    assert "column 'code' of d.csv differs in every row: taken as an id" in done.stdout
    issues = pd.read_csv(tmp_path / "run" / "issues.csv", dtype=str)
    assert issues.id.tolist() == [codes[int(k)] for k in issues["index"]]
    assert issues.path.tolist() == [f"{int(k)}.png" for k in issues["index"]]


def test_ids_that_repeat_are_carried_too(tmp_path):
    ids = [f"00{k // 3}" for k in range(N)]
    table(tmp_path / "d.csv", ids)
    words = ["fit", "d.csv", *FAST, "--id", "patient", "--out", "run"]
    ytilde(*words, cwd=tmp_path)
    ytilde("audit", "run", "--folds", "0", "--fix-above", "0.5", cwd=tmp_path)
    labels = tmp_path / "run" / "labels.csv"
    assert pd.read_csv(labels, dtype=str).id.tolist() == ids
    assert relabel(tmp_path / "d.csv", labels, tmp_path / "new.csv", force=True)[0] == N
    ytilde("predict", "run", "d.csv", "--out", "p.csv", cwd=tmp_path)
    assert pd.read_csv(tmp_path / "p.csv", dtype=str).id.tolist() == ids
    refused("fit", "d.csv", *FAST, "--id", "person", match="no id column 'person'", cwd=tmp_path)


def test_a_run_that_had_ids_among_its_features_goes_on(tmp_path):
    """Of 0.1, whose config.json says nothing of ids."""
    table(tmp_path / "d.csv")
    words = ["fit", "d.csv", *FAST, "--out", "run"]
    ytilde(*words, "--id", "none", cwd=tmp_path)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert next(iter(config["schema"]["columns"])) == "patient"
    for name in ("digest", "id_column"):
        del config[name]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    ytilde("audit", "run", "--folds", "0", cwd=tmp_path)
    ytilde(*words, "--resume", cwd=tmp_path)
