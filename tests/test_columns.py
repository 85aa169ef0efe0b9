"""Tables as people have them: gaps, dates, categories, ids, mixed types, groups, other files."""

import gzip
import json
import warnings
from io import StringIO

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array

from test_cli import FAST, refused, ytilde
from ytilde import Classifier
from ytilde.auditing.crossfit import out_of_fold
from ytilde.data import BadInput, Data
from ytilde.data.dates import date_format
from ytilde.data.readers import Schema, read, read_features
from ytilde.data.splits import split

SMALL = {"backbone": "mlp:width=16,depth=1", "device": "cpu", "epochs": 3}


def penguins(n=344, seed=0):
    """The kinds of columns that the published table of penguins has: none is prepared."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, n, p=[0.44, 0.2, 0.36])

    def by_kind(means, sd):
        return np.round(rng.normal(np.array(means)[kind], sd), 1)

    table = pd.DataFrame(
        {
            "studyName": rng.choice(["PAL0708", "PAL0809", "PAL0910"], n),
            "Sample Number": np.arange(n) % 152 + 1,
            "Region": "Anvers",
            "Island": np.where(kind == 2, "Biscoe", rng.choice(["Torgersen", "Dream"], n)),
            "Individual ID": [f"N{row // 2 % 100 + 1}A{row % 2 + 1}" for row in range(n)],
            "Clutch Completion": rng.choice(["Yes", "No"], n),
            "Date Egg": [f"{11 + row % 2}/{1 + row % 28}/0{7 + row % 3}" for row in range(n)],
            "Culmen Length (mm)": by_kind([38.8, 48.8, 47.5], 2.5),
            "Flipper Length (mm)": by_kind([190, 196, 217], 6),
            "Sex": rng.choice(["MALE", "FEMALE", ".", None], n, p=[0.48, 0.47, 0.01, 0.04]),
            "Delta 15 N (o/oo)": np.where(rng.random(n) < 0.05, np.nan, rng.normal(8.7, 0.5, n)),
            "Comments": np.where(rng.random(n) < 0.1, "Adult not sampled. No blood.", None),
            "Species": np.array(["Adelie", "Chinstrap", "Gentoo"])[kind],
        }
    )
    table.loc[[3, n - 7], ["Culmen Length (mm)", "Flipper Length (mm)"]] = np.nan
    return table


def kept(schema):
    """As a run folder keeps it."""
    return Schema(**json.loads(json.dumps(schema.to_json())))


def test_penguins_as_published_go_through_at_the_first_try(tmp_path):
    """fit, predict, audit, relabel: each command typed once, and no column prepared."""
    table = penguins()
    table.to_csv(tmp_path / "penguins.csv", index=False)
    run = tmp_path / "r"
    told = ytilde(
        "fit", tmp_path / "penguins.csv", "--label", "species", *FAST, "--out", run
    ).stdout
    assert "'Individual ID' (200 different short texts, like ids)" in told
    assert "features are 4 numbers, 6 categories and 1 date" in told
    new = table.drop(columns="Species").head(12)
    new.loc[1, "Flipper Length (mm)"] = None
    new.loc[2, "Island"] = "Mars"
    new.loc[3, "Clutch Completion"] = None
    new.loc[4, "Date Egg"] = None
    new["Culmen Length (mm)"] = new["Culmen Length (mm)"].astype(object)
    new.loc[5, "Culmen Length (mm)"] = "?"
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "p.csv"
    told = ytilde("predict", run, tmp_path / "new.csv", "--out", out).stdout
    for words in ("('Mars')", "'Date Egg'", "'Clutch Completion'", "('?'): treated as 1 gap"):
        assert words in told
    assert pd.read_csv(out).predicted_label.notna().all()
    ytilde("audit", run, "--folds", "2", "--fix-above", "0.5")
    issues = pd.read_csv(run / "issues.csv")
    assert len(issues) == 344
    fixed = tmp_path / "fixed.csv"
    words = ["--label", "Species", "--out", fixed]
    ytilde("relabel", tmp_path / "penguins.csv", run / "labels.csv", *words)
    assert pd.read_csv(fixed).shape == table.shape
    ytilde("review", run, "--export", tmp_path / "labels.csv")


def test_gaps_are_a_category_or_the_median_and_an_indicator():
    table = pd.DataFrame(
        {"a": [1.0, None, 5.0, 6.0], "c": ["x", None, "y", "x"], "label": [*"abab"]}
    )
    found = read(table)
    assert found.data.x.tolist() == [
        [1, 0, 1, 0, 0],  # a, c is nothing, x, y, a is missing
        [5, 1, 0, 0, 1],
        [5, 0, 0, 1, 0],
        [6, 0, 1, 0, 0],
    ]
    assert found.schema.columns == {"a": None, "c": ["", "x", "y"]}
    assert found.schema.medians == {"a": 5.0} and found.schema.gaps == ["a"]
    again = read(table, schema=kept(found.schema))
    assert torch.equal(again.data.x, found.data.x) and again.notes == []


def test_a_new_gap_is_filled_and_told():
    schema = read(pd.DataFrame({"a": [1.0, 2.0, 9.0], "c": [*"xyx"], "label": [*"aba"]})).schema
    new = pd.DataFrame({"a": [None, 4.0], "c": ["x", None]})
    found = read(new, schema=kept(schema), labelled=False)
    assert found.data.x.tolist() == [[2, 1, 0], [4, 0, 0]]
    assert "row 0" in found.notes[0] and "the median, 2" in found.notes[0]
    assert "row 1" in found.notes[1] and "none of x, y" in found.notes[1]
    old = Schema(**{k: v for k, v in kept(schema).to_json().items() if k != "medians"})
    with pytest.raises(BadInput, match="no finite number in row 0"):  # runs of 0.2 know no median
        read(new, schema=old, labelled=False)


def test_mixed_columns_are_numbers_with_gaps_or_codes():
    n = 60
    mixed = [str(k) if k % 10 else "unknown" for k in range(n)]
    codes = [["1", "2", "A", "B"][k % 4] for k in range(n)]
    truths = [None if k == 7 else k % 2 == 0 for k in range(n)]
    table = pd.DataFrame({"mixed": mixed, "code": codes, "truth": truths, "label": [*"ab"] * 30})
    found = read(table, id_column="none")
    assert found.schema.columns == {"mixed": None, "code": ["1", "2", "A", "B"], "truth": None}
    assert found.schema.gaps == ["mixed", "truth"]
    assert any("not a number in 6 rows" in note and "'unknown'" in note for note in found.notes)
    assert found.data.x[10, 0] == float(np.median([k for k in range(n) if k % 10]))


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (["2007-11-16", "2008-01-02"], "ISO8601"),
        (["2021-03-04 12:33:01", "2021-03-05T01:00:00"], "ISO8601"),
        (["11/16/07", "1/2/08"], "%m/%d/%y"),
        (["16/11/2007", "02/01/2008"], "%d/%m/%Y"),
        (["16.11.2007", "2.1.2008"], "%d.%m.%Y"),
        (["16 Nov 2007", "2 Jan 2008"], "%d %b %Y"),
        (["11/16/2007 23:10", "1/2/2008 5:00"], "%m/%d/%Y %H:%M"),
        (["1.5", "2.5"], None),
        (["192.168.0.1", "10.0.0.1"], None),
        (["red", "blue"], None),
        (["2007-11-16", "red"], None),
        (["555-12-3456", "555-13-9999"], None),
    ],
)
def test_dates_are_told_from_other_texts(texts, written):
    assert date_format(pd.Series(texts)) == written


def test_dates_become_days_and_parts():
    days = ["2020-01-01", "2020-03-02", None, "2021-01-01"]
    for when in (days, pd.to_datetime(days), pd.to_datetime(days).tz_localize("UTC")):
        found = read(pd.DataFrame({"when": when, "label": [*"abab"]}))
        kind = found.schema.columns["when"]
        assert kind["parts"] == ["days", "month", "day", "weekday"]  # the hour never varies
        x = found.data.x
        assert x[0].tolist() == [0, 1, 1, 2, 0] and x[1].tolist() == [61, 3, 2, 0, 0]
        assert x[2].tolist() == [61, 1, 1, 2, 1]  # medians, and that it is missing
        again = read(pd.DataFrame({"when": when}), schema=kept(found.schema), labelled=False)
        assert torch.equal(again.data.x, x)


def test_ids_and_rare_texts_are_left_out_and_frequent_ones_are_kept():
    rng = np.random.default_rng(0)
    n = 400
    country = np.where(rng.random(n) < 0.8, "US", [f"country {k}" for k in rng.integers(0, 40, n)])
    zips = [f"{k:05d}x" for k in rng.integers(0, 300, n)]
    table = pd.DataFrame({"age": rng.normal(size=n), "country": country, "zip": zips})
    table["label"] = rng.choice([*"ab"], n)
    found = read(table)
    assert list(found.schema.columns) == ["age", "country"]
    kind = found.schema.columns["country"]
    assert kind["kind"] == "category" and "US" in kind["values"]
    assert any("'zip'" in note and "like ids" in note for note in found.notes)
    rare = next(c for c in country if c not in kind["values"])
    new = pd.DataFrame({"age": [0.0], "country": [rare]})
    again = read(new, schema=kept(found.schema), labelled=False)
    assert again.data.x[0, 1:].sum() == 0 and again.notes == []


def test_dates_that_differ_in_every_row_are_no_ids():
    days = pd.date_range("2020-01-01", periods=50).strftime("%Y-%m-%d")
    found = read(pd.DataFrame({"a": np.arange(50) % 7, "day": days, "label": [*"ab"] * 25}))
    assert list(found.schema.columns) == ["a", "day"] and found.ids is None


def test_all_problems_are_told_at_once(tmp_path):
    table = pd.DataFrame({"a": [1.0, np.inf, 2.0], "b": [1j, 2j, 3j], "c": [{1}, {2}, {3}]})
    table["label"] = ["x", None, "y"]
    with pytest.raises(BadInput) as said:
        read(table)
    text = str(said.value)
    assert "There are 2 problems: (1) There is nothing in row 1" in text
    for column in ("'a'", "'b'", "'c'"):
        assert column in text
    assert text.endswith("leave it out: --drop a,b,c.")
    assert read(table.fillna({"label": "y"}).assign(d=1), drop=["a,b,c"]).data.shape == (1,)
    with pytest.raises(BadInput) as said:
        read(table, label="lable", drop=["d"], group_column="e")
    for words in ("no label column 'lable'", "no dropped column 'd'", "no group column 'e'"):
        assert words in str(said.value)
    refused("fit", "digits", "--labels", "x", match="did you mean label or clean-label?")


def test_columns_are_found_whatever_their_capitals():
    table = pd.DataFrame({"A": [1.0, 2.0], "Label": ["x", "y"]})
    assert read(table).schema.label == "Label"
    assert read(table, label="LABEL", drop=[]).schema.label == "Label"
    schema = kept(read(table).schema)
    assert read(pd.DataFrame({"a": [3.0]}), schema=schema, labelled=False).data.x.item() == 3
    with pytest.raises(BadInput, match=r"did you mean 'abcd'"):
        read(table.assign(abcd=1), drop=["abcde"])


def test_one_word_may_drop_several_columns():
    table = pd.DataFrame({"a": [1, 2], "b": [1, 2], "c,d": [1, 2], "e": [3, 4], "label": [0, 1]})
    assert list(read(table, drop=["a,b", "c,d"]).schema.columns) == ["e"]


def test_what_is_read_cannot_be_dropped(tmp_path):
    """The labels, ids and groups were read all the same, and nothing was said of --drop."""
    columns = {"a": range(40), "city": ["x", "z"] * 20, "Who": [f"r{k}" for k in range(40)]}
    frame = pd.DataFrame(columns | {"label": ["u", "v"] * 20, "clean": ["u", "v"] * 20})
    frame.to_csv(tmp_path / "d.csv", index=False)
    for flag, name, dropped in (
        ("--label", "label", "label"),
        ("--label", "Label", "a,label"),
        ("--clean-label", "clean", "clean"),
        ("--id", "Who", "who"),
        ("--group", "city", "city"),
        ("--text", "city", "city"),
        ("--image-column", "city", "city"),
    ):
        words = ["fit", tmp_path / "d.csv", *FAST, flag, name, "--drop", dropped]
        told = f"{tmp_path / 'd.csv'}, which {flag} reads; take it out of --drop"
        refused(*words, "--out", tmp_path / "r", match=told)
    with pytest.raises(BadInput, match="column 'label' of the table, which --label reads"):
        read(frame, drop=["label"])
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]
    found = read(frame, drop=["Who", "clean"], id_column="none")  # nobody named these
    assert found.ids is None and found.data.clean is None and found.schema.clean_label is None
    assert len(read(frame, drop=["label"], labelled=False).data) == 40


def test_a_table_to_predict_may_have_its_columns_in_another_order(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"]).assign(label=[*"xyz"] * 20)
    table.to_csv(tmp_path / "d.csv", index=False)
    table[["label", "b", "a"]].assign(more=1).to_csv(tmp_path / "other.csv", index=False)
    table[["b"]].to_csv(tmp_path / "few.csv", index=False)
    ytilde("fit", "d.csv", *FAST, "--out", "r", cwd=tmp_path)
    for name in ("d", "other"):
        ytilde("predict", "r", f"{name}.csv", "--out", f"{name}-p.csv", cwd=tmp_path)
    assert (tmp_path / "d-p.csv").read_bytes() == (tmp_path / "other-p.csv").read_bytes()
    refused("predict", "r", "few.csv", match="no feature column 'a' in few.csv", cwd=tmp_path)


@pytest.mark.parametrize("end", [".csv.gz", ".tsv.gz"])
def test_compressed_tables(tmp_path, end):
    table = penguins(60)
    separator = "\t" if "tsv" in end else ","
    table.to_csv(tmp_path / f"d{end}", sep=separator, index=False)
    table.to_csv(tmp_path / "d.csv", index=False)
    found, plain = (
        read(tmp_path / f"d{end}", label="Species"),
        read(tmp_path / "d.csv", label="Species"),
    )
    assert torch.equal(found.data.x, plain.data.x)
    assert found.texts([5]).equals(plain.texts([5]))
    (tmp_path / "x.csv.gz").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="cannot be read as a table"):
        read(tmp_path / "x.csv.gz")


def test_a_compressed_table_is_relabelled(tmp_path):
    text = "a,label\n1,x\n2,y\n"
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(text.encode()))
    labels = "index,label,fixed,given_label\n0,y,True,x\n1,y,False,y\n"
    (tmp_path / "labels.csv").write_text(labels)
    for name in ("e.csv.gz", "e.csv"):
        words = [tmp_path / "d.csv.gz", tmp_path / "labels.csv", "--out", tmp_path / name]
        ytilde("relabel", *words)
        assert pd.read_csv(tmp_path / name).label.tolist() == ["y", "y"]


@pytest.mark.parametrize("names", [("X", "labels"), ("features", "y"), ("x_train", "y_train")])
def test_arrays_under_other_names(tmp_path, names):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", **dict(zip(names, (x, y), strict=True)))
    found = read(tmp_path / "d.npz")
    assert found.data.x.tolist() == x.tolist() and found.data.y.tolist() == y.tolist()
    assert found.notes == [f"inputs are the array {names[0]!r}, labels {names[1]!r}"]
    assert found.texts([1]).iloc[0, 0] == "2.0"
    np.savez(tmp_path / "e.npz", X=x, features=x, y=y)
    with pytest.raises(BadInput, match=r"several arrays that could be 'x' \(X, features\)"):
        read(tmp_path / "e.npz")


def test_sparse_matrices_are_read(monkeypatch):
    x, y = np.eye(6)[:, :4] * 3, np.arange(6) % 2
    tensor = torch.from_numpy(x).float()
    for sparse in (csr_array(x), tensor.to_sparse(), tensor.to_sparse_csr()):
        assert read((sparse, y)).data.x.tolist() == x.tolist()
        clf = Classifier("ce", **SMALL).fit(sparse, y)
        assert (clf.predict_proba(sparse) == clf.predict_proba(x)).all()
        assert len(clf.audit(sparse, y, folds=2).issues) == 6
    with pytest.raises(BadInput, match="would fill 745 GB; reduce its columns"):
        read((csr_array((200_000, 1_000_000)), np.zeros(200_000)))


def test_a_frame_of_every_kind_is_fitted_saved_and_audited(tmp_path):
    n = 120
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    table = pd.DataFrame(
        {
            "count": pd.array(np.where(rng.random(n) < 0.1, None, y + 1), dtype="Int64"),
            "seen": pd.array(np.where(rng.random(n) < 0.1, None, y == 1), dtype="boolean"),
            "colour": pd.Categorical(np.where(y, "red", "blue")),
            "name": pd.array(np.where(rng.random(n) < 0.1, None, "x"), dtype="string"),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "took": pd.to_timedelta(rng.integers(0, 900, n), "s"),
            "thin": pd.arrays.SparseArray(rng.integers(0, 2, n).astype(float)),
        }
    )
    with pytest.warns(UserWarning, match="gaps in 'count', 'seen', 'name' are kept"):
        clf = Classifier("ce", **SMALL | {"epochs": 30, "lr": 0.02, "batch_size": 20}).fit(table, y)
    assert clf.n_features_in_ == 7 and clf.score(table, y) > 0.95
    clf.save(tmp_path / "m")
    again = Classifier.load(tmp_path / "m")
    gap = table.head(10).assign(colour=None, when=pd.NaT)
    with pytest.warns(UserWarning, match="which had no gaps in training"):
        assert (again.predict_proba(gap) == clf.predict_proba(gap)).all()
    with pytest.warns(UserWarning, match="gaps in"):
        assert len(clf.audit(table, y, folds=2).issues) == n


def test_a_frame_of_numbers_may_have_gaps_later():
    table = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0) % 3})
    clf = Classifier("ce", **SMALL).fit(table, np.arange(20) % 2)
    gap = table.head(2).assign(a=[np.nan, 9.5])
    with pytest.warns(UserWarning, match="the median, 9.5"):
        probs = clf.predict_proba(gap)
    assert (probs[0] == clf.predict_proba(table.head(1).assign(a=9.5))[0]).all()


# ------------------------------------------------------------------ groups


def test_a_group_is_never_split():
    rng = np.random.default_rng(0)
    groups = torch.from_numpy(rng.integers(0, 40, 200)) * 7 + 3
    y = torch.from_numpy(rng.integers(0, 3, 200))
    kept_rows, held = split(y, 0.2, torch.Generator().manual_seed(0), groups)
    assert not set(groups[kept_rows].tolist()) & set(groups[held].tolist())
    assert sorted([*kept_rows.tolist(), *held.tolist()]) == list(range(200))
    assert 20 <= len(held) <= 60
    seen: list[Data] = []

    def fit(part, on_record, folder):
        seen.append(part)

        def answer(other):
            assert not set(part.groups.tolist()) & set(other.groups.tolist())
            return np.full((len(other), 3), 1 / 3)

        return answer

    out_of_fold(Data(torch.zeros(200, 2), y, 3, groups=groups), 5, 0, fit)
    assert len(seen) == 5
    with pytest.raises(BadInput, match="5 folds need as many groups, and there are 2"):
        out_of_fold(Data(torch.zeros(200, 2), y, 3, groups=groups % 2), 5, 0, fit)


def test_groups_of_a_column_and_of_an_array(tmp_path, monkeypatch):
    """Of each item there are two views with one label by chance: seeing one tells the other's."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(60, 8)), 2, axis=0) + 0.1 * rng.normal(size=(120, 8))
    table = pd.DataFrame(x, columns=[*"abcdefgh"]).assign(
        item=np.repeat([f"item {k}" for k in range(60)], 2),
        label=np.repeat(rng.choice(["no", "yes"], 60), 2),
    )
    table.to_csv(tmp_path / "d.csv", index=False)
    common = ["--epochs", "40", "--method", "ce", "--backbone", "mlp:width=64,depth=1"]
    common += ["--lr", "0.01", "--batch-size", "20"]
    agree = {}
    for name, words in (("apart", ["--drop", "item"]), ("together", ["--group", "item"])):
        run = tmp_path / name
        told = ytilde("audit", tmp_path / "d.csv", *words, *common, "--folds", "2", "--out", run)
        issues = pd.read_csv(run / "issues.csv")
        agree[name] = (issues.given_label == issues.predicted_label).mean()
    assert "rows of one 'item' are kept together: 60 groups" in told.stdout
    assert agree["together"] < 0.65 < agree["apart"]
    ytilde("audit", tmp_path / "together", "--folds", "2")  # it remembers its groups
    clf = Classifier("ce", val=0.5, **SMALL)
    clf.fit(x, table.label, groups=table.item)
    with pytest.raises(BadInput, match="one name or number for each of the 120 rows"):
        clf.fit(x, table.label, groups=[1, 2])
    assert len(clf.audit(x, table.label, folds=2, groups=table.item).issues) == 120


def test_labels_are_no_groups(tmp_path):
    """A model that never saw a class would judge all labels of it."""
    (tmp_path / "d.csv").write_text(
        "a,label,true\n" + "".join(f"{k},{k % 2},{k % 2}\n" for k in range(40))
    )
    for column in ("label", "true"):
        with pytest.raises(BadInput, match=f"Column '{column}' of .* holds the labels"):
            read(tmp_path / "d.csv", clean_label="true", group_column=column)


def test_what_is_no_table_has_no_columns_to_name(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.eye(4), y=[0, 1, 0, 1])
    for option in ("--group", "--text"):
        refused("fit", tmp_path / "d.npz", option, "a", match="is no table")


# ------------------------------------------------------------------ old runs


def test_a_run_is_read_as_it_was_trained(tmp_path):
    """Twelve days as categories, as 0.2 had them, stay categories in its runs."""
    days = [f"2020-01-{1 + k % 12:02d}" for k in range(60)]
    table = pd.DataFrame({"a": np.arange(60) % 5, "day": days, "label": [*"ab"] * 30})
    table.to_csv(tmp_path / "d.csv", index=False)
    old = Schema(["a", "b"], [13], label="label", columns={"a": None, "day": sorted(set(days))})
    found = read(tmp_path / "d.csv", schema=old)
    assert found.data.shape == (13,) and found.data.x[:, 1:].sum(1).eq(1).all()


def test_features_alone_are_read_by_a_schema():
    text = "when,size\n2020-01-01,1\n2020-02-01,2\n"
    found = read_features(pd.read_csv(StringIO(text)))
    assert read_features(pd.read_csv(StringIO(text)), kept(found.schema)).notes == []


def test_a_date_that_cannot_be_read_is_a_gap_and_said_to_be_one():
    """Gaps in training or not; blank values are plain gaps."""
    days = pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
    for gap in (False, True):
        frame = pd.DataFrame({"size": np.arange(60.0) % 7, "when": days})
        if gap:
            frame.loc[3, "when"] = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clf = Classifier(epochs=1).fit(frame, [0, 1] * 30)
        frame.loc[:, "when"] = "12/31/2024"
        frame.loc[[4, 5], "when"] = "never", " "
        with pytest.warns(UserWarning, match=r"not a date in 59 rows .* \('12/31/2024'\)") as said:
            clf.predict(frame)
        assert any("no value in row 5 " in str(each.message) for each in said) != gap
