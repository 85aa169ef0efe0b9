"""Everything `read` takes, and one clear sentence for everything it does not."""

import itertools
import json
import pickle
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ytilde.data import BadInput, Data, images
from ytilde.data.images import Images
from ytilde.data.readers import Schema, encode, fingerprint, read, split

RANDOM = np.random.default_rng(0)


def csv(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def same(schema: Schema) -> Schema:
    """The schema after a trip through JSON, as a run folder keeps it."""
    return Schema(**json.loads(json.dumps(asdict(schema))))


# ------------------------------------------------------------------ tables

TABLE = "a,colour,label,b\n1,red,dog,0.5\n2,blue,cat,1.5\n3,red,dog,-2\n"


def test_csv_with_numbers_categories_and_names(tmp_path):
    source = read(csv(tmp_path / "d.csv", TABLE))
    data = source.data
    assert data.names == ("cat", "dog") and data.y.tolist() == [1, 0, 1] and data.clean is None
    assert data.x.dtype == torch.float32
    # a, then colour as blue and red, then b
    assert data.x.tolist() == [[1, 0, 1, 0.5], [2, 1, 0, 1.5], [3, 0, 1, -2]]
    assert source.schema.columns == {"a": None, "colour": ["blue", "red"], "b": None}


@pytest.mark.parametrize("end", ["tsv", "parquet"])
def test_other_tables_agree_with_csv(tmp_path, end):
    frame = pd.read_csv(csv(tmp_path / "d.csv", TABLE))
    path = tmp_path / f"d.{end}"
    if end == "tsv":
        frame.to_csv(path, sep="\t", index=False)
    else:
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    for source in (read(path), read(frame)):
        assert torch.equal(source.data.x, read(tmp_path / "d.csv").data.x)
        assert source.schema == read(tmp_path / "d.csv").schema


def test_second_file_is_read_by_the_first_ones_schema(tmp_path):
    schema = same(read(csv(tmp_path / "d.csv", TABLE)).schema)
    other = csv(tmp_path / "e.csv", "b,extra,colour,a,label\n7,x,blue,8,dog\n")
    data = read(other, schema=schema).data
    assert data.x.tolist() == [[8, 1, 0, 7]] and data.y.tolist() == [1]
    assert data.names == ("cat", "dog")


def test_prediction_needs_no_label(tmp_path):
    schema = read(csv(tmp_path / "d.csv", TABLE)).schema
    new = csv(tmp_path / "e.csv", "a,b,colour\n1,2,red\n")
    data = read(new, schema=schema, labelled=False).data
    assert data.y.tolist() == [-1] and data.num_classes == 2
    with pytest.raises(BadInput, match="no label column 'label'"):
        read(new, schema=schema)


def test_integer_labels_are_sorted_as_numbers_and_kept_as_names(tmp_path):
    data = read(csv(tmp_path / "d.csv", "a,y\n1,10\n2,9\n3,100\n"), label="y").data
    assert data.names == ("9", "10", "100") and data.y.tolist() == [1, 0, 2]


def test_a_csv_is_parsed_once(tmp_path, monkeypatch):
    """Beside its header."""
    plain, parsed = pd.read_csv, []

    def count(*words, **options):
        found = plain(*words, **options)
        parsed.append(len(found))
        return found

    monkeypatch.setattr(pd, "read_csv", count)
    read(csv(tmp_path / "d.csv", "a,label\n" + "1,x\n2,y\n" * 50))
    assert sorted(parsed)[-1] == 100 and sum(parsed) <= 101


def test_a_class_may_be_called_na(tmp_path):
    data = read(csv(tmp_path / "d.csv", "a,label\n1,NA\n2,None\n3,007\n")).data
    assert data.names == ("007", "NA", "None")


def test_clean_column_is_never_a_feature(tmp_path):
    path = csv(tmp_path / "d.csv", "a,label,clean_label\n1,x,y\n2,y,y\n3,x,\n")
    data = read(path).data
    assert data.x.tolist() == [[1], [2], [3]] and data.clean.tolist() == [1, 1, -1]
    path = csv(tmp_path / "d.csv", "a,label,truth\n1,x,y\n2,y,y\n")
    data = read(path, clean_label="truth").data
    assert data.shape == (1,) and data.clean.tolist() == [1, 1]


def test_saved_index_and_dropped_columns_are_left_out(tmp_path):
    pd.DataFrame({"a": [1, 2], "id": ["u", "v"], "label": [0, 1]}).to_csv(tmp_path / "d.csv")
    assert read(tmp_path / "d.csv", drop=["id"]).data.x.tolist() == [[1], [2]]


@pytest.mark.parametrize(("name", "separator"), [("d.csv", ";"), ("d.csv", "\t"), ("d.tsv", ",")])
def test_the_separator_is_read_from_the_header(tmp_path, name, separator):
    plain = read(csv(tmp_path / "plain.csv", TABLE))
    found = read(csv(tmp_path / name, TABLE.replace(",", separator)))
    assert torch.equal(found.data.x, plain.data.x) and found.schema == plain.schema
    kind = {";": "semicolons", "\t": "tabs", ",": "commas"}[separator]
    assert f"{tmp_path / name} is separated by {kind}" in found.notes
    assert not [note for note in plain.notes if "separated" in note]
    with pytest.raises(BadInput, match=r"no label column 'label' in .*; its columns: a;b label"):
        read(csv(tmp_path / "d.csv", "a;b\tlabel\n1;2\tx\n"))


def test_a_separator_in_a_quoted_name_separates_nothing(tmp_path):
    found = read(csv(tmp_path / "d.csv", '"size, cm";"a;b";label\n1;2;x\n3;4;y\n'))
    assert found.data.x.tolist() == [[1, 2], [3, 4]]
    assert list(found.schema.columns) == ["size, cm", "a;b"]


def test_decimal_commas_beside_semicolons(tmp_path):
    text = "a;b;label\n1,5e+2;-,25;1,5\n2; 3 ;2,5\n7;4;2,5\n"
    found = read(csv(tmp_path / "d.csv", text))
    assert found.data.x.tolist() == [[150, -0.25], [2, 3], [7, 4]]
    assert found.data.names == ("1,5", "2,5")
    assert found.notes[0].endswith("d.csv is separated by semicolons, with decimal commas in a, b")


TWO = "\n".join(f"name{i},other{i},{i % 2}" for i in range(30))
MANY = "\n".join(f"name{i},{i % 2}" for i in range(30))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,lable\n1,x\n", "no label column 'label' .* lable"),
        ("a,label\n", "no rows"),
        ("", "cannot be read as a table"),
        ("a,label\n1,x\n2,x\n", "two classes or more"),
        ("a,label\n1,x\ninf,y\n", r"no finite number in row 1 \(counting from 0\) of column 'a'"),
        ("a,label\n1,x\n1e60,y\n", r"no finite number in row 1 \(counting from 0\) of column 'a'"),
        ("a,label\n1,x\n2,\n", "nothing in row 1 .counting from 0. of the labels of"),
        (
            "a,label\n1,x\n2,\n3,y\n4,\n",
            r"nothing in 2 rows \(1, 3; counting from 0\) of the labels",
        ),
        ("a,label\ninf,x\n2,y\n-inf,y\n", r"no finite number in 2 rows \(0, 2; counting from 0\)"),
        ("t,label\n" + MANY, r"no feature column .*; left out: 't' \(30 different short texts"),
        ("t,u,label\n" + TWO, r"left out: 't' \(30 .*\), 'u' \(30 different"),
        ("a|b|label\n1|2|x\n", r"its columns: a\|b\|label; it seems to be separated by \|"),
        ("a,b,class\n1,2,x\n", r"its columns: a, b, class; name the right one with --label"),
        ("a,label\n" + "\n".join(f"{i},r{i}" for i in range(11)), "all different .* an id"),
        ("a,label\n" + "\n".join(f"{i},{7 * i}" for i in range(11)), "all different .* an id"),
        ("label\nx\ny\n", "no feature column"),
        ("a,label\n1,x,3,4\n2,y\n3,y,4,5,6\n", "cannot be read as a table .*line 4"),
        ("a,label\n1,2,x\n2,3,y\n", "Length of header .* does not match"),
    ],
)
def test_bad_tables(tmp_path, text, sentence):
    with pytest.raises(BadInput, match=sentence) as error:
        read(csv(tmp_path / "d.csv", text))
    assert str(error.value).endswith(".") and "\n" not in str(error.value).strip()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b,colour,label\n1,2,red,dgo\n", r"'dgo' in row 0 .* 2 classes \(did you mean dog\?\)"),
        ("a,colour,label\n1,red,dog\n", "no feature column 'b'"),
        ("a,label\n1,dog\n", "no feature columns 'colour', 'b'"),
    ],
)
def test_bad_second_tables(tmp_path, text, sentence):
    schema = read(csv(tmp_path / "d.csv", TABLE)).schema
    with pytest.raises(BadInput, match=sentence):
        read(csv(tmp_path / "e.csv", text), schema=schema)


def test_a_category_that_training_did_not_have_is_none_of_the_known_ones(tmp_path):
    schema = read(csv(tmp_path / "d.csv", TABLE)).schema
    text = "a,b,colour\n1,2,mauve\n3,4,red\n5,6,pink\n"
    found = read(csv(tmp_path / "e.csv", text), schema=schema, labelled=False)
    assert found.data.x.tolist() == [[1, 0, 0, 2], [3, 0, 1, 4], [5, 0, 0, 6]]
    (note,) = found.notes
    assert note.startswith("a value in 2 rows (0, 2; counting from 0) of column 'colour' of ")
    assert note.endswith("that training did not have ('mauve'): treated as none of blue, red")


def test_a_quantity_is_no_label(tmp_path):
    values = np.random.default_rng(0).normal(size=(60, 2)).round(3)
    path = tmp_path / "d.csv"
    pd.DataFrame(values, columns=["a", "label"]).to_csv(path, index=False)
    with pytest.raises(BadInput, match="60 different numbers in 60 rows: a quantity, not classes"):
        read(path)
    text = "".join(f"{i};{i},5\n" for i in range(60))
    with pytest.raises(BadInput, match="a quantity, not classes"):
        read(csv(path, "a;label\n" + text))
    # codes with fractions (of a disease, 250.01) and whole numbers are classes
    for names in (250 + np.arange(20) / 100, np.arange(30), ["0.5", "1.5", "x"]):
        labels = np.resize(np.asarray(names).astype(str), 60)
        pd.DataFrame({"a": values[:, 0], "label": labels}).to_csv(path, index=False)
        assert read(path).data.num_classes == len(names)


def test_a_set_of_the_same_name_does_not_hide_what_lies_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits/a/1.png", "digits/b/1.png"):
        save(tmp_path / name, 4, 4)
    with pytest.raises(BadInput, match=r"both a data set's name and a folder here; .*\./digits"):
        read("digits")
    for folder in ("./digits", Path("digits")):
        assert read(folder).data.names == ("a", "b")
    assert read("digits", data_root=".").data.num_classes == 10  # the sets' files lie here
    csv(tmp_path / "moons", TABLE)
    with pytest.raises(BadInput, match="a file here"):
        read("moons")


def test_unknown_columns_are_refused(tmp_path):
    path = csv(tmp_path / "d.csv", TABLE)
    for option in ("label", "clean_label", "image_column"):
        with pytest.raises(BadInput, match=r"no .* column 'nothing'"):
            read(path, **{option: "nothing"})
    with pytest.raises(BadInput, match="no dropped column 'nothing'"):
        read(path, drop=["nothing"])


def test_frame_of_odd_columns():
    frame = pd.DataFrame(
        {0: [True, False], "n": ["1.5", "2"], "c": pd.Categorical([7, 8]), "label": [1.0, 2.0]}
    )
    source = read(frame)
    assert source.data.names == ("1", "2")
    assert source.data.x.tolist() == [[1, 1.5, 7], [0, 2, 8]]
    assert torch.equal(read(frame, schema=same(source.schema)).data.x, source.data.x)


# ------------------------------------------------------------------ labels


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=40))
def test_encode_keeps_integers(labels):
    y, names = encode(np.array(labels), None)
    assert [int(names[k]) for k in y.tolist()] == labels
    assert [int(n) for n in names] == sorted(set(labels))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=20))
def test_encode_keeps_texts(labels):
    y, names = encode(np.array(labels, dtype=object), None)
    assert [names[k] for k in y.tolist()] == labels and len(set(names)) == len(names)


def test_encode_pixels_keeps_ignore():
    y, names = encode(np.array([[[-1, 5], [7, 5]]]), None)
    assert y.tolist() == [[[-1, 0], [1, 0]]] and names == ["5", "7"]


def test_encode_refuses():
    with pytest.raises(BadInput, match=r"0\.5; classes must be whole numbers"):
        encode(np.array([0.5, 1]), None)
    with pytest.raises(BadInput, match="all be different"):
        encode(np.array(["a"]), ["a", "a"])
    with pytest.raises(BadInput, match="nothing in row 1"):
        encode(np.array([0, np.nan]), None)
    assert encode(np.array([1, np.nan]), ["0", "1"], clean=True)[0].tolist() == [1, -1]


# ------------------------------------------------------------------ arrays


def test_numpy_and_torch_features():
    x = RANDOM.normal(size=(4, 3))
    for pair in ((x, [0, 1, 1, 0]), (torch.from_numpy(x), torch.tensor([0, 1, 1, 0]))):
        data = read(pair).data
        assert data.x.dtype == torch.float32 and data.y.tolist() == [0, 1, 1, 0]
        assert np.allclose(data.x.numpy(), x, atol=1e-6)


def test_minus_one_is_a_class_like_any_other():
    assert read((np.eye(2), np.array([1, -1]))).data.names == ("-1", "1")


@pytest.mark.parametrize("shape", [(4, 8, 8), (4, 8, 8, 3), (4, 3, 8, 8), (4, 8, 8, 1)])
@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float64])
def test_image_arrays(shape, kind):
    raw = RANDOM.integers(0, 256, shape)
    x = raw / 255 if kind is np.float64 else raw.astype(kind)
    data = read((x, [0, 1, 0, 1])).data
    channels = 3 if 3 in shape else 1
    assert data.shape == (channels, 8, 8) and data.x.is_contiguous()
    assert data.x.dtype == (torch.float32 if kind is np.float64 else torch.uint8)
    last = raw[..., None] if len(shape) == 3 else raw
    first = last if last.shape[1] == channels else last.transpose(0, 3, 1, 2)
    got = data.x.numpy() * 255 if kind is np.float64 else data.x.numpy()
    assert np.allclose(got, first, atol=1e-3)


def with_nan() -> np.ndarray:
    x = np.zeros((3, 2))
    x[1, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.zeros((0, 2)), [], "no rows"),
        (np.zeros((3, 2)), [0, 0, 0], "two classes"),
        (np.zeros((3, 2)), [0, 1], "3 inputs and 2 labels"),
        (with_nan(), [0, 1, 0], r"missing or infinite value in row 1 .* .column 1."),
        (np.zeros(3), [0, 1, 0], r"shape \(3,\)"),
        (np.array([["a"], ["b"]]), [0, 1], "instead of numbers"),
        (np.full((2, 1, 4, 4), 2.0), [0, 1], "floats from 0 to 1"),
        (np.full((2, 1, 4, 4), 256), [0, 1], "0 to 255"),
        (np.zeros((2, 1, 4, 4)), np.ones((2, 5, 5), int), "one label per row, or one per pixel"),
        (np.zeros((2, 3)), [0.5, 1], "whole numbers"),
    ],
)
def test_bad_arrays(x, y, sentence):
    with pytest.raises(BadInput, match=sentence):
        read((x, y))


def test_unknown_objects_are_refused():
    with pytest.raises(BadInput, match="A set cannot be read"):
        read({1, 2})
    with pytest.raises(BadInput, match=r"give the pair \(x, y\)"):
        read(np.eye(3))


def test_shapes_and_classes_must_match_the_training_data():
    schema = read((np.zeros((2, 3)), ["a", "b"])).schema
    with pytest.raises(BadInput, match=r"shape \(4,\), but the model was fitted on \(3,\)"):
        read(np.zeros((2, 4)), schema=schema, labelled=False)
    with pytest.raises(BadInput, match=r"'c' in .*, which is not one of the 2 classes \(a, b\)"):
        read((np.zeros((1, 3)), ["c"]), schema=schema)
    assert read((np.zeros((1, 3)), ["b"]), schema=schema).data.y.tolist() == [1]
    two = read("moons").schema
    with pytest.raises(BadInput, match="are not those that the model was fitted on"):
        read("circles", schema=two)


def test_npz(tmp_path):
    path = tmp_path / "d.npz"
    x = RANDOM.integers(0, 256, (3, 1, 4, 4)).astype(np.uint8)
    np.savez(path, x=x, y=[2, 0, 0], clean=[-1, 0, 1], names=["u", "v", "w"])
    source = read(path)
    assert source.data.names == ("u", "v", "w") and source.data.y.tolist() == [2, 0, 0]
    assert source.data.clean.tolist() == [-1, 0, 1] and torch.equal(
        source.data.x, torch.from_numpy(x)
    )
    # The order of the classes is the training data's, whatever the second file's own.
    np.savez(path, x=x, y=[2, 0, 0], names=["w", "u", "v"])
    assert read(path, schema=source.schema).data.y.tolist() == [1, 2, 2]
    np.savez(path, x=x, y=np.array([[[0, 1], [1, -1]]] * 3).repeat(2, 1).repeat(2, 2))
    assert read(path).data.y[0, 3].tolist() == [1, 1, -1, -1]


def test_bad_npz(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((2, 2)))
    with pytest.raises(BadInput, match="no array 'y'; it holds x"):
        read(path)
    np.savez(path, x=np.zeros((2, 2)), y=[0, 3], names=["a", "b"])
    with pytest.raises(BadInput, match="outside the 2 class names"):
        read(path)
    np.savez(path, x=np.array([{"a": 1}], dtype=object), y=[0])
    with pytest.raises(BadInput, match="cannot be read as plain arrays"):
        read(path)
    path.write_bytes(b"PK no zip")
    with pytest.raises(BadInput, match="cannot be read as plain arrays"):
        read(path)


def test_paths_that_are_nothing(tmp_path):
    with pytest.raises(BadInput, match="did you mean fashion-mnist"):
        read("fashion-mnits")
    with pytest.raises(BadInput, match="no file, folder or data set"):
        read(tmp_path / "nothing.csv")
    (tmp_path / "d.pkl").write_bytes(pickle.dumps(1))
    with pytest.raises(BadInput, match="kind of file"):
        read(tmp_path / "d.pkl")


def test_named_set_and_data_pass_through():
    source = read("moons", split="test")
    assert source.data.names == ("upper", "lower") and source.schema.shape == [2]
    assert read(source.data).data is source.data


# ------------------------------------------------------------------ images


def save(path: Path, height: int, width: int, colour: bool = True) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = RANDOM.integers(0, 256, (height, width, 3) if colour else (height, width))
    Image.fromarray(array.astype(np.uint8)).save(path)
    return array


def test_folder_of_equal_images(tmp_path):
    arrays = [save(tmp_path / name, 6, 9) for name in ("cat/a.png", "cat/deep/b.png", "dog/c.PNG")]
    save(tmp_path / ".hidden/d.png", 3, 3)
    (tmp_path / "cat/notes.txt").write_text("no image")
    source = read(tmp_path)
    assert source.data.names == ("cat", "dog") and source.data.y.tolist() == [0, 0, 1]
    assert source.data.x.shape == (3, 3, 6, 9)
    assert np.array_equal(source.data.x.permute(0, 2, 3, 1).numpy(), np.stack(arrays))
    assert [Path(path).name for path in source.paths] == ["a.png", "b.png", "c.PNG"]
    assert torch.equal(read(tmp_path, lazy=True).data.x[torch.arange(3)], source.data.x)


def test_grey_folder_has_one_channel(tmp_path):
    array = save(tmp_path / "a/1.png", 4, 4, colour=False)
    save(tmp_path / "b/1.png", 4, 4, colour=False)
    data = read(tmp_path).data
    assert data.shape == (1, 4, 4) and np.array_equal(data.x[0, 0].numpy(), array)
    save(tmp_path / "b/2.png", 4, 4)
    assert read(tmp_path).data.shape == (3, 4, 4)


def test_images_of_different_sizes_become_squares(tmp_path):
    for name, height, width in (("a/1.png", 10, 20), ("a/2.png", 12, 12), ("b/1.png", 30, 16)):
        save(tmp_path / name, height, width)
    assert read(tmp_path).data.shape == (3, 12, 12)
    assert read(tmp_path, size=5).data.shape == (3, 5, 5)
    save(tmp_path / "b/2.png", 500, 600)
    save(tmp_path / "b/3.png", 500, 601)
    save(tmp_path / "b/4.png", 500, 601)
    save(tmp_path / "b/5.png", 500, 601)
    assert read(tmp_path).data.shape == (3, 224, 224)


def test_centre_crop_keeps_the_middle(tmp_path):
    array = save(tmp_path / "wide.png", 8, 12)
    x = Images([str(tmp_path / "wide.png")], (8, 8))[torch.tensor([0])]
    assert np.array_equal(x[0].permute(1, 2, 0).numpy(), array[:, 2:10])


def test_split_folders_and_schema(tmp_path):
    for part in ("train", "test"):
        save(tmp_path / f"{part}/a/1.png", 6, 6)
    save(tmp_path / "train/b/1.png", 6, 6)
    source = read(tmp_path)
    assert len(source.data) == 2
    test = read(tmp_path, split="test", schema=same(source.schema)).data
    assert test.y.tolist() == [0] and test.names == ("a", "b")
    save(tmp_path / "new/1.png", 20, 30, colour=False)
    new = read(tmp_path / "new", schema=source.schema, labelled=False).data
    assert new.shape == (3, 6, 6) and new.y.tolist() == [-1]


def test_bad_folders(tmp_path):
    with pytest.raises(BadInput, match="no images"):
        read(tmp_path)
    save(tmp_path / "a/1.png", 4, 4)
    with pytest.raises(BadInput, match="one class folder only"):
        read(tmp_path)
    save(tmp_path / "loose.png", 4, 4)
    with pytest.raises(BadInput, match=r"loose\.png lies in no class folder"):
        read(tmp_path)
    schema = read((np.zeros((2, 3)), [0, 1])).schema
    with pytest.raises(BadInput, match="fitted on features, not on images"):
        read(tmp_path, schema=schema, labelled=False)


@pytest.mark.parametrize("lazy", [False, True])
def test_truncated_and_unreadable_images_are_named(tmp_path, lazy):
    save(tmp_path / "a/1.png", 40, 40)
    save(tmp_path / "b/2.jpg", 40, 40)
    path = tmp_path / "b/2.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(BadInput, match=r"2\.jpg cannot be read"):
        read(tmp_path, lazy=lazy, strict=True).data.x[torch.arange(2)]
    path.write_bytes(b"not an image")
    with pytest.raises(BadInput, match=r"2\.jpg cannot be read"):
        read(tmp_path, lazy=lazy, strict=True)
    Image.fromarray(RANDOM.integers(0, 2**16, (40, 40)).astype(np.uint16)).save(
        path.with_suffix(".png")
    )
    path.unlink()
    with pytest.raises(BadInput, match="more than 8 bits"):
        read(tmp_path, lazy=lazy, strict=True).data.x[torch.arange(2)]


def test_what_cannot_be_read_is_told_and_black(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        save(tmp_path / name, 8, 8)
    (tmp_path / "a/2.png").write_bytes(b"")
    data = read(tmp_path).data
    assert data.lazy and len(data) == 3
    part = data.rows(torch.tensor([1, 2]))
    x, readable = images.read_rows(part.x, torch.tensor([1, 0]))
    assert readable.tolist() == [True, False] and (x[1] == 0).all() and (x[0] > 0).any()
    assert images.row_name(part.x, 0).endswith("2.png")
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(BadInput, match=r"1\.png cannot be read"):
        read(tmp_path)


def test_large_sets_are_lazy_and_can_be_pickled(tmp_path, monkeypatch):
    for i in range(4):
        save(tmp_path / f"{i % 2}/{i}.png", 4, 4)
    monkeypatch.setattr(images, "LIMIT", 4 * 48 - 1)
    data = read(tmp_path).data
    assert data.lazy and data.x.shape == (4, 3, 4, 4)
    copy = pickle.loads(pickle.dumps(data.x))
    index = torch.tensor([3, 0, 3])
    assert torch.equal(copy[index], data.x[index]) and copy[index].shape == (3, 3, 4, 4)
    assert data.rows(torch.tensor([2])).x[torch.tensor([0])].equal(data.x[torch.tensor([2])])


def test_table_of_image_paths(tmp_path):
    arrays = [save(tmp_path / f"pictures/{i}.png", 5, 5) for i in range(2)]
    path = csv(tmp_path / "d.csv", "n,file,label\n1,pictures/1.png,x\n2,pictures/0.png,y\n")
    source = read(path)
    assert source.schema.image_column == "file" and source.data.shape == (3, 5, 5)
    assert np.array_equal(source.data.x[0].permute(1, 2, 0).numpy(), arrays[1])
    assert source.paths[0] == str(tmp_path / "pictures/1.png")
    again = read(path, schema=same(source.schema), labelled=False)
    assert torch.equal(again.data.x, source.data.x)
    broken = csv(tmp_path / "e.csv", "file,label\npictures/9.png,x\npictures/0.png,y\n")
    with pytest.raises(BadInput, match=r"9\.png does not exist"):
        read(broken, strict=True)


# ------------------------------------------------------------------ Datasets


class TorchSet(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def picture(height=6, width=6) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (height, width, 3)).astype(np.uint8))


@pytest.mark.parametrize("lazy", [False, True])
def test_torch_dataset(lazy):
    tensors = TorchSet([(torch.rand(3, 5, 5), torch.tensor(i % 2)) for i in range(4)])
    data = read(tensors, lazy=lazy).data
    assert data.lazy == lazy and data.y.tolist() == [0, 1, 0, 1] and data.shape == (3, 5, 5)
    assert torch.equal(data.x[torch.tensor([2])][0], tensors[2][0])
    pictures = TorchSet([(picture(), name) for name in ("b", "a")])
    data = read(pictures, lazy=lazy).data
    assert data.names == ("a", "b") and data.y.tolist() == [1, 0]
    assert np.array_equal(
        data.x[torch.tensor([1])][0].permute(1, 2, 0).numpy(), np.array(pictures[1][0])
    )


def test_torch_dataset_of_features_and_of_pixels():
    features = TorchSet([(np.ones(3) * i, i) for i in range(3)])
    assert read(features).data.x.tolist() == [[0] * 3, [1] * 3, [2] * 3]
    mask = torch.tensor([[0, -1], [1, 1]])
    pixels = read(TorchSet([(torch.zeros(1, 2, 2), mask), (torch.zeros(1, 2, 2), mask)])).data
    assert torch.equal(pixels.y[0], mask) and pixels.num_classes == 2


def test_bad_torch_datasets():
    with pytest.raises(BadInput, match=r"items \(input, label\)"):
        read(TorchSet([]))
    with pytest.raises(BadInput, match=r"items \(input, label\)"):
        read(TorchSet([torch.zeros(3)]))
    with pytest.raises(BadInput, match="differ in shape"):
        read(TorchSet([(torch.zeros(3), 0), (torch.zeros(4), 1)]))


class ClassLabel:
    def __init__(self, names):
        self.names = names


class HuggingFace:
    """What `read` uses of `datasets.Dataset`: columns by name, rows by number, features."""

    def __init__(self, columns, **names):
        self.columns, self.column_names = columns, list(columns)
        self.features = {c: ClassLabel(names[c]) if c in names else object() for c in columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}


@pytest.mark.parametrize("lazy", [False, True])
def test_hugging_face_pictures(lazy):
    rows = {"image": [picture(), picture()], "label": [1, 0], "clean": [1, -1]}
    data = read(HuggingFace(rows, label=["zebra", "ant"]), lazy=lazy).data
    assert data.names == ("zebra", "ant") and data.y.tolist() == [1, 0]
    assert data.clean.tolist() == [1, -1] and data.lazy == lazy
    assert np.array_equal(
        data.x[torch.tensor([0])][0].permute(1, 2, 0).numpy(), np.array(rows["image"][0])
    )


def test_hugging_face_table():
    rows = {"a": [1.0, 2.0], "b": ["u", "v"], "label": [1, 0]}
    source = read(HuggingFace(rows, label=["zebra", "ant"]))
    assert source.data.names == ("zebra", "ant") and source.data.y.tolist() == [1, 0]
    assert source.data.x.tolist() == [[1, 1, 0], [2, 0, 1]]
    with pytest.raises(BadInput, match="no rows"):
        read(HuggingFace({"a": [], "label": []}))


# ------------------------------------------------------------------ fingerprint, split


def make(n=50, lazy=False) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 4, generator=generator)
    return Data(x, torch.arange(n) % 3, 3, names=("a", "b", "c"))


def test_fingerprint_follows_content_but_not_the_truth():
    data = make()
    first = fingerprint(data)
    assert first == fingerprint(make())
    with_truth = Data(data.x, data.y, 3, clean=data.y.flip(0), names=data.names)
    assert fingerprint(with_truth) == first
    x, y = data.x.clone(), data.y.clone()
    x[49, 3] += 1
    y[20] = (y[20] + 1) % 3
    changed = [Data(x, data.y, 3, names=data.names), Data(data.x, y, 3, names=data.names)]
    changed.append(Data(data.x, data.y, 3, names=("a", "b", "d")))
    assert len({first, *map(fingerprint, changed)}) == 4


def test_fingerprint_of_large_and_lazy_data(tmp_path, monkeypatch):
    data = make()
    monkeypatch.setattr("ytilde.data.fingerprint.HASHED", 100)
    sampled = fingerprint(data)
    x = data.x.clone()
    x[0] += 1
    assert fingerprint(Data(x, data.y, 3, names=data.names)) != sampled
    for i in range(3):
        save(tmp_path / f"{i % 2}/{i}.png", 4, 4)
    lazy = fingerprint(read(tmp_path, lazy=True).data)
    assert lazy == read(tmp_path, lazy=True).fingerprint
    save(tmp_path / "1/1.png", 4, 4)
    assert fingerprint(read(tmp_path, lazy=True).data) != lazy


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=2, max_size=60), st.floats(0.02, 0.9))
def test_split_is_a_partition_with_each_class_s_share(labels, fraction):
    y = torch.tensor(labels)
    kept, held = split(y, fraction, torch.Generator().manual_seed(0))
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(y)))
    m = min(len(y) - 1, max(1, round(fraction * len(y))))
    assert len(held) == m
    for label in set(labels):
        share = m * labels.count(label) / len(labels)
        assert abs((y[held] == label).sum().item() - share) < 1


def test_split_depends_on_the_generator_alone():
    y = torch.arange(100) % 4
    state = torch.get_rng_state()
    first, again, other = (split(y, 0.2, torch.Generator().manual_seed(s))[1] for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())
    assert len(split(10, 0.0, torch.Generator())[1]) == 0
    assert len(split(torch.zeros(6, 2, 2), 0.5, torch.Generator())[1]) == 3
    for wrong in (-0.1, 1.5):
        with pytest.raises(BadInput, match="below 1"):
            split(y, wrong, torch.Generator())


def test_so_many_rows_of_each_observed_class_can_be_held_out():
    y = torch.tensor([0] * 50 + [1] * 12 + [2] * 5 + [-1] * 30)
    kept, held = split(y, 10.0, torch.Generator().manual_seed(0))
    assert torch.bincount(y[held]).tolist() == [10, 6, 2]  # of a small class half
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(y)))
    assert not torch.equal(held, split(y, 10.0, torch.Generator().manual_seed(1))[1])
    for labels in (10, torch.zeros(6, 2, 2)):
        with pytest.raises(BadInput, match="every row has one label"):
            split(labels, 1.0, torch.Generator())


def test_the_ending_may_be_in_capitals(tmp_path):
    path = tmp_path / "D.CSV"
    path.write_text("a,label\n1,x\n2,y\n")
    assert read(path).data.names == ("x", "y")


def test_a_file_that_is_no_npz_says_nothing_of_pickles(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(b"abc")
    with pytest.raises(BadInput, match="no npz file"):
        read(path)


def test_a_file_in_another_encoding_is_to_be_saved_again(tmp_path):
    (tmp_path / "d.csv").write_bytes("a,label\n1,Äpfel\n2,x\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"d\.csv is not written in UTF-8; save it as csv in UTF-8"):
        read(tmp_path / "d.csv")


def test_classes_that_differ_by_spaces_or_capitals_are_told(tmp_path):
    found = read(csv(tmp_path / "d.csv", "a,label\n1, x\n2,x\n3,X\n4,y\n"))
    assert found.data.num_classes == 4
    told = [note for note in found.notes if "capitals" in note]
    assert len(told) == 1 and told[0].startswith("the classes ' x' and 'X' and 'x' differ")


def test_classes_that_are_one_number_have_one_order():
    """Sets of strings have another order in every process."""
    for found in itertools.permutations(["2", "1", " 1", "01"]):
        assert encode(found, None)[1] == [" 1", "01", "1", "2"]


def test_a_label_has_one_column_and_one_role(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("a,label,label\n1,x,x\n2,y,y\n")
    with pytest.raises(BadInput, match="several columns called 'label'"):
        read(path, labelled=True)
    path.write_text("a,y,label\n1,0,0\n2,1,1\n3,1,0\n")
    found = read(path, clean_label="label").data
    assert found.y.tolist() == [0, 1, 1] and found.clean.tolist() == [0, 1, 0]
    with pytest.raises(BadInput, match="both the label and the clean label"):
        read(path, label="y", clean_label="y")
    path.write_text("a, label\n1,0\n2,1\n")
    assert read(path, labelled=True).schema.label == " label"
    path.write_text("a, label,Label\n1,0,0\n2,1,1\n")
    with pytest.raises(BadInput, match="its columns: a, ' label', Label"):
        read(path, labelled=True)
