"""Odd files and objects: the right answer, or one sentence."""

import datetime
import os

import numpy as np
import pandas as pd
import pytest
import torch

from ytilde import Classifier, audit, diagnose
from ytilde.data import BadInput
from ytilde.data.readers import read
from ytilde.errors import sentence

X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
FRAME = pd.DataFrame(X, columns=list("abc"))
TENSOR, LABELS = torch.from_numpy(X).float(), torch.from_numpy(Y)


def small(**params) -> Classifier:
    return Classifier("ce", **({"epochs": 1, "backbone": "mlp:width=8,depth=1"} | params))


# ---- npz -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [">f8", ">f4", ">i4", ">u2", "<f2", "longdouble", "bool"])
def test_numbers_of_any_kind_are_read(kind, tmp_path):
    x = (X * 10).astype(kind) if kind != ">u2" else np.abs(X * 10).astype(kind)
    for name, y in (("a", Y.astype(">i8")), ("b", Y.astype(np.longdouble)), ("c", Y.astype(">f4"))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, clean=y)
        found = read(tmp_path / f"{name}.npz").data
        assert found.names == ("0", "1") and found.y.tolist() == found.clean.tolist() == Y.tolist()
        assert np.allclose(found.x.numpy(), x.astype(np.float64), rtol=1e-6)


def test_whole_numbers_that_int64_cannot_hold(tmp_path):
    large = np.uint64(2**63) + np.arange(40, dtype=np.uint64) * np.uint64(2**50)
    np.savez(tmp_path / "d.npz", x=large[:, None], y=np.where(Y, large[3], large[2]))
    found = read(tmp_path / "d.npz").data
    assert found.names == (str(large[2]), str(large[3])) and found.y.tolist() == Y.tolist()
    assert found.x[:, 0].tolist() == large.astype(np.float64).tolist()


@pytest.mark.parametrize("shape", [(40, 0), (40, 3, 0, 5), (40, 0, 4, 5), (40, 4, 0)])
@pytest.mark.parametrize("kind", [np.float64, np.uint8])
def test_inputs_without_a_value_are_refused(shape, kind, tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros(shape, kind), y=Y)
    with pytest.raises(BadInput, match="its inputs are empty"):
        read(tmp_path / "d.npz")


@pytest.mark.parametrize("kind", [[("a", "i4"), ("b", "f4")], "V3", "c16"])
def test_labels_that_are_no_classes_are_refused(kind, tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=np.zeros(40, kind))
    with pytest.raises(BadInput, match="classes must be numbers or names"):
        read(tmp_path / "d.npz")


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "label", [[1], {"a": 1}, np.arange(2), {1, 2}], ids=["list", "struct", "array", "set"]
)
def test_labels_of_lists_and_records_are_refused(label, tmp_path):
    frame = FRAME.assign(label=pd.Series([label] * 40, dtype=object))
    with pytest.raises(BadInput, match="lists or records"):
        read(frame)
    if not isinstance(label, set):
        frame.to_parquet(tmp_path / "d.parquet")
        with pytest.raises(BadInput, match="lists or records"):
            read(tmp_path / "d.parquet")


@pytest.mark.parametrize("header", ["", ",", ",,"])
@pytest.mark.parametrize("row", ["", ",", ",,"])
def test_commas_at_the_end_of_lines_say_nothing(header, row, tmp_path):
    rows = [f"{a},{b},c{y}{row}" for (a, b, _), y in zip(X, Y, strict=True)]
    path = tmp_path / "d.csv"
    path.write_text("\n".join([f"a,b,label{header}", *rows]))
    if len(row) > len(header) + 1:
        with pytest.raises(BadInput):
            read(path)
        return
    found = read(path)
    assert found.data.names == ("c0", "c1") and found.data.y.tolist() == Y.tolist()
    assert np.allclose(found.data.x.numpy(), X[:, :2], rtol=1e-6)
    again = read(path, schema=found.schema, labelled=False)
    assert torch.equal(again.data.x, found.data.x)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_quoted_name_may_hold_line_ends_and_separators(end, separator, tmp_path):
    header = separator.join(["a", f'"b,;{end}c"', "label"])
    rows = [separator.join([str(a), str(b), f"c{y}"]) for (a, b, _), y in zip(X, Y, strict=True)]
    path = tmp_path / "d.csv"
    path.write_bytes(end.join([header, *rows]).encode())
    found = read(path)
    assert found.data.x.shape == (40, 2) and found.data.y.tolist() == Y.tolist()


@pytest.mark.parametrize("cell", [[1], {"a": 1}, np.arange(2)], ids=["list", "struct", "array"])
def test_features_of_lists_and_records_are_refused(cell, tmp_path):
    frame = FRAME.assign(cell=pd.Series([cell] * 40, dtype=object), label=Y)
    frame.to_parquet(tmp_path / "d.parquet")
    for source in (frame, tmp_path / "d.parquet"):
        with pytest.raises(BadInput, match=r"Column 'cell' of .* holds (object|vectors)"):
            read(source)


def test_complex_numbers_are_no_features():
    frame = FRAME.assign(a=1j * X[:, 0], label=Y)
    with pytest.raises(BadInput, match="complex"):
        read(frame)
    with pytest.raises(BadInput, match="complex"):
        read(frame, schema=read(FRAME.assign(label=Y)).schema, labelled=False)


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.npz", "d.parquet"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(BadInput, match="is a pipe or a device"):
        read(tmp_path / name)
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(BadInput, match="no file"):
        Classifier.load(tmp_path / "m.safetensors")


def test_columns_that_share_a_name_are_refused():
    for names in (["a", "a", "b"], [1, "1", "b"]):
        frame = FRAME.set_axis(names, axis=1).assign(label=Y)
        with pytest.raises(BadInput, match="several columns called"):
            read(frame)
    twice = FRAME.set_axis(["a", "a", "b"], axis=1)
    with pytest.raises(BadInput, match="several columns called 'a'"):
        small().fit(twice, Y)
    with pytest.raises(BadInput, match="several columns called 'a'"):
        small().fit(twice.assign(colour=["red", "blue"] * 20), Y)
    fitted = small().fit(FRAME, Y)
    with pytest.raises(BadInput, match="several columns called 'a'"):
        fitted.predict(twice)


# ---- missing labels ------------------------------------------------------------------------------

NAN = float("nan")
MIXED = ["cat" if y else NAN for y in Y]


@pytest.mark.parametrize("missing", [NAN, None, pd.NA, pd.NaT, np.float32("nan")])
@pytest.mark.parametrize("kind", [list, tuple, pd.Series, lambda y: np.array(y, dtype=object)])
def test_a_missing_label_among_texts_is_no_class(missing, kind):
    y = kind(["cat" if y else "dog" for y in Y[:-1]] + [missing])
    with pytest.raises(BadInput, match="nothing in row 39"):
        read((X, y))
    items = list(zip(TENSOR, list(y), strict=True))
    with pytest.raises(BadInput, match="nothing in row 39"):
        read(items)
    with pytest.raises(BadInput, match="missing labels"):
        small().fit(X, y)
    with pytest.raises(BadInput, match="nothing in row 39"):
        diagnose(X, y)


@pytest.mark.parametrize("missing", [NAN, None, pd.NA, np.ma.masked])
def test_an_audit_takes_no_missing_label_for_a_class(missing):
    names = [None if y == 0 else "dog" for y in Y]
    masked = np.ma.array(Y, mask=Y == 0)
    y = masked if missing is np.ma.masked else [missing if n is None else n for n in names]
    for attempt in (
        lambda: audit(np.full((40, 2), 0.5), y),
        lambda: small().fit(X, ["dog" if k else "cat" for k in Y]).audit(X, y, folds=0),
    ):
        with pytest.raises(BadInput, match=r"no label in 20 rows|missing"):
            attempt()


def test_masked_values_are_missing():
    x = np.ma.array(X, mask=X > 1)
    y = np.ma.array(Y, mask=X[:, 0] > 1)
    attempts = [lambda: read((x, Y)), lambda: read((X, y)), lambda: small().fit(x, Y)]
    attempts += [lambda: small().fit(X, y), lambda: diagnose(x, Y), lambda: diagnose(X, y)]
    attempts += [lambda: small().fit(X, Y).predict(x)]
    for attempt in attempts:
        with pytest.raises(BadInput, match="masked, that is missing"):
            attempt()
    assert read((np.ma.array(X), Y)).data.x.shape == (40, 3)  # nothing in it is


def test_a_class_may_still_be_called_nan():
    names = ["cat" if y else "nan" for y in Y]
    assert read((X, names)).data.names == ("cat", "nan")
    assert small().fit(X, names).classes_.tolist() == ["cat", "nan"]


# ---- tensors -------------------------------------------------------------------------------------


def quantised(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.125, 0, torch.qint32)


def eight_bits(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("turn", [torch.Tensor.bfloat16, torch.Tensor.half, eight_bits, quantised])
def test_tensors_of_few_bits_are_read(turn):
    x, y = turn(TENSOR), turn(LABELS.float())
    expected = x.dequantize() if x.is_quantized else x.float()
    found = read((x, y)).data
    assert torch.equal(found.x, expected) and found.y.tolist() == Y.tolist()
    assert torch.equal(read(list(zip(x, Y.tolist(), strict=True))).data.x, expected)
    model = small().fit(x, y)
    assert np.array_equal(model.predict_proba(x), model.predict_proba(expected))
    assert model.audit(x, y, folds=0).issues.shape[0] == 40


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.nested.nested_tensor([TENSOR[0], TENSOR[1]]), "to_dense"),
        (TENSOR.to("meta"), "no values"),
        (TENSOR.to(torch.complex64), "Complex"),
        ([[1.0, 2.0], [3.0]], "differ in shape"),
    ],
    ids=["nested", "meta", "complex", "ragged"],
)
def test_objects_without_an_array_are_refused(x, says):
    y = [0, 1] * (len(x) // 2) if isinstance(x, list) else (Y if not x.is_nested else [0, 1])
    fitted = small().fit(X, Y)
    for attempt in (lambda: read((x, y)), lambda: small().fit(x, y), lambda: fitted.predict(x)):
        with pytest.raises(BadInput, match=says):
            attempt()


@pytest.mark.parametrize(
    "y", [LABELS.to_sparse(), LABELS.to("meta"), [[0], [0, 1]] * 20], ids=["coo", "meta", "ragged"]
)
def test_labels_without_an_array_are_refused(y):
    with pytest.raises(BadInput):
        read((X, y))
    with pytest.raises(BadInput):
        small().fit(X, y)


@pytest.mark.parametrize("shape", [(3,), (3, 8, 8)])
def test_one_hot_labels_of_a_dataset_are_no_pixels(shape):
    items = [(torch.rand(shape), row) for row in torch.eye(2)[LABELS]]
    with pytest.raises(BadInput, match=r"one-hot labels: their argmax"):
        read(items)


PROBS = np.full((40, 2), 0.5)


@pytest.mark.parametrize(
    "odd",
    [
        torch.eye(2).to_sparse(),
        torch.eye(2, device="meta"),
        np.eye(2) + 0j,
        np.eye(2).astype(str),
        [[1.0], [0.5, 0.5]],
        np.ma.array(np.eye(2), mask=np.eye(2)),
    ],
    ids=["coo", "meta", "complex", "texts", "ragged", "masked"],
)
def test_an_audit_of_what_holds_no_probabilities_is_refused(odd):
    for attempt in (lambda: audit(odd, [0, 1]), lambda: audit(PROBS, Y, transition=odd)):
        with pytest.raises(BadInput):
            attempt()


NO_LABELS = {"sets": [{0}, {1}] * 20, "number": 5, "text": "ab", "nothing": None}


@pytest.mark.parametrize("y", [*NO_LABELS.values(), [10**30, 1] * 20], ids=[*NO_LABELS, "huge"])
def test_an_audit_of_what_are_no_labels_is_refused(y):
    fitted = small().fit(X, Y)
    for attempt in (lambda: audit(PROBS, y), lambda: fitted.audit(X, y, folds=0)):
        with pytest.raises(BadInput):
            attempt()


def test_an_audit_needs_a_name_for_each_class():
    for names in (5, ["a"], ["a", "a"]):
        with pytest.raises(BadInput, match="name"):
            audit(PROBS, Y, names=names)


@pytest.mark.parametrize("y", NO_LABELS.values(), ids=NO_LABELS)
def test_what_are_no_labels_is_not_read(y):
    with pytest.raises(BadInput):
        read((X, y))


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize(
    "turn",
    [lambda x: x.astype(">f8"), lambda x: x.astype(np.longdouble),
     lambda x: torch.from_numpy(x).bfloat16(), lambda x: quantised(torch.from_numpy(x).float())],
    ids=["big-endian", "longdouble", "bfloat16", "quantised"],
)  # fmt: skip
def test_a_diagnosis_reads_numbers_of_any_kind(turn):
    x, y = np.concatenate([X, X + 0.1, X - 0.1]), np.tile(Y, 3)
    assert diagnose(turn(x), y).rows == 120
    for odd in (
        torch.from_numpy(x).to_sparse(),
        torch.from_numpy(x).to("meta"),
        [[1], [1, 2]] * 60,
    ):
        with pytest.raises(BadInput):
            diagnose(odd, y)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, [datetime.datetime(2020, 1, 1 + int(k)) for k in Y]),
        (X, np.array([b"a", b"b"])[Y]),
        (X, Y[:39]),
        (X, np.eye(2)[Y]),
        (X[:, 0], Y),
        (X[:0], Y[:0]),
        (X * np.inf, Y),
        ([["a", "b"]] * 40, Y),
        (pd.DataFrame({"a": [1, float("inf")] * 20}), Y),
        (pd.DataFrame({"a": [None] * 40}), Y),
    ],
    ids=[
        *("times", "bytes", "short", "one-hot", "1d", "empty", "inf", "texts"),
        *("inf in a table", "nothing"),
    ],
)
def test_what_scikit_learn_refuses_is_one_sentence(x, y):
    with pytest.raises(BadInput) as said:
        small().fit(x, y)
    assert "\n" not in str(said.value)


# ---- the estimator's parameters ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"backbone": None}, "a backbone is a name"),
        ({"backbone": 5}, "a backbone is a name"),
        ({"backbone": torch.nn.Flatten}, "a backbone is a name"),
        ({"devices": "a"}, "devices must be a whole number"),
        ({"devices": None}, "devices must be a whole number"),
        ({"devices": 1.5}, "devices must be a whole number"),
        ({"devices": 10**6}, "this machine has"),
        ({"encoder": 5}, "an encoder is a file"),
        ({"pretrain": 5}, "pre-training is a text"),
    ],
)
def test_parameters_of_the_wrong_kind_are_refused(params, says):
    with pytest.raises(BadInput, match=says):
        small(**params).fit(X, Y)


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["2020-01-01", "2021-06-30"], "datetime64[D]"),
        np.array(["2020-01-01T12:30:01.5", "2021-06-30"], "datetime64[ms]"),
        np.array([60, 3600], "timedelta64[s]"),
        np.array([3, 2**63 + 5], np.uint64),
    ],
    ids=str,
)
def test_times_and_large_numbers_may_be_classes(classes, tmp_path):
    model = small().fit(X, classes[Y])
    model.save(tmp_path / "m")
    again = Classifier.load(tmp_path / "m")
    assert again.classes_.dtype == classes.dtype and (again.classes_ == classes).all()
    assert (again.predict(X) == model.predict(X)).all()


def test_dates_of_python_are_read_as_classes():
    days = [datetime.date(2020, 1, 1 + int(y)) for y in Y]
    assert read((X, days)).data.names == ("2020-01-01", "2020-01-02")


@pytest.mark.parametrize("above", [NAN, -0.1, 1.5, None, "0.5", np.array([0.5, 0.6])])
def test_a_threshold_is_a_probability(above):
    found = audit(np.full((40, 2), 0.5), Y)
    with pytest.raises(BadInput, match="probability from 0 to 1"):
        found.fixed_labels(above)


def test_a_sentence_begins_with_a_capital_but_a_files_name_keeps_its_letters():
    assert sentence("the labels are all different") == "The labels are all different"
    for text in ("bad/cplx.npz holds complex128", "votes.csv has the columns a, b"):
        assert sentence(text) == text


def test_an_audit_of_rows_with_copies_says_how_these_are_judged():
    wrong = np.where(np.arange(40) % 8 == 0, 1 - Y, Y)
    once = small().audit(X, wrong, folds=2)
    assert not any("copies" in note for note in once.notes)
    thrice, again = np.tile(X, (3, 1)), np.tile(wrong, 3)
    notes = small().audit(thrice, again, folds=2).notes
    assert any(note.startswith("120 of 120 rows are copies") for note in notes)
    near, labels = np.concatenate([X, X[:8] + 1e-6]), np.concatenate([wrong, wrong[:8]])
    notes = small().audit(near, labels, folds=2).notes
    assert any("16 of 48 rows are nearly copies" in note and "--group" in note for note in notes)
    together = small().audit(thrice, again, folds=2, groups=np.tile(np.arange(40), 3))
    assert not any("copies" in note for note in together.notes)


def test_the_column_called_label_cannot_be_the_clean_label_alone(tmp_path):
    path = tmp_path / "d.csv"
    FRAME.assign(label=Y).to_csv(path, index=False)
    with pytest.raises(BadInput, match=r"'label' of .* is named as the clean label, and no other"):
        read(path, clean_label="label")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: small().fit(np.where(X > 1, np.nan, X), Y), "Input X contains NaN: fill"),
        (lambda: small().fit(X[:, 0], Y), r"got 1D array instead. Reshape your data: X.reshape"),
        (lambda: small().audit(X, 0 * Y, folds=2), r"y holds one class only \(0\); an audit"),
    ],
)
def test_what_scikit_learn_says_at_length_is_said_in_short(ask, said):
    with pytest.raises(BadInput, match=said) as error:
        ask()
    assert len(str(error.value)) < 150
