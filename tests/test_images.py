"""Pictures are read as viewers show them, by the named formats alone, and none is lost unsaid."""

import base64
import io
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from test_cli import ytilde
from ytilde.auditing.review import Review
from ytilde.data import BadInput
from ytilde.data.images import FORMATS, SUFFIXES, read_image, read_mask
from ytilde.data.readers import read

RANDOM = np.random.default_rng(0)
# What is stored for each orientation, made from what is to be seen; the EXIF standard, table 6.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


def photo(path: Path, seen: np.ndarray, orientation: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(STORED[orientation](seen))
    Image.fromarray(stored).save(path, exif=exif, quality=95)


# ---- EXIF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp"])
def test_a_picture_is_read_as_viewers_show_it(tmp_path, orientation, suffix):
    corner = np.zeros((8, 24, 3), np.uint8)
    corner[:4, :8] = 255  # top left
    for name in ("a/1", "b/2"):
        photo(tmp_path / f"{name}{suffix}", corner, orientation)
    x = read(tmp_path).data.x
    assert x.shape == (2, 3, 8, 24)  # the size that is seen, not the one that is stored
    assert x[:, :, :3, :7].min() > 200 and x[:, :, 5:].max() < 55 and x[:, :, :, 10:].max() < 55


@pytest.mark.parametrize("orientation", STORED)
def test_lazy_pictures_masks_and_dataset_items_stand_upright_too(tmp_path, orientation):
    seen = RANDOM.integers(0, 4, (6, 10)).astype(np.uint8)
    photo(tmp_path / "a.png", seen, orientation)
    photo(tmp_path / "b.png", seen, orientation)
    path = str(tmp_path / "a.png")
    assert read_image(path, (6, 10), 1)[0].numpy().tolist() == seen.tolist()
    assert read_mask(path, (6, 10), torch.arange(256)).tolist() == seen.tolist()
    items = [(Image.open(tmp_path / f"{name}.png"), name) for name in "aab"]
    for lazy in (False, True):
        x = read(items, lazy=lazy).data.x[torch.tensor([2, 0])]
        assert x[0, 0].tolist() == x[1, 0].tolist() == seen.tolist()


def test_a_photo_is_predicted_alike_however_it_is_stored(tmp_path):
    """Dark above or dark below: upside down it would be the other class."""
    from ytilde import Classifier

    def sky(up: bool, shade: int) -> np.ndarray:
        picture = np.full((12, 12, 3), shade, np.uint8)
        picture[slice(6) if up else slice(6, 12)] += 120
        return picture

    for i in range(20):
        photo(tmp_path / f"train/{'up' if i % 2 else 'down'}/{i}.png", sky(i % 2, 5 * i), 1)
    for orientation in STORED:
        photo(tmp_path / f"new/{orientation}.png", sky(True, 40), orientation)
    found = read(tmp_path / "train")
    model = Classifier("ce", epochs=30, random_state=0).fit(found.data.x, found.data.y)
    new = read(tmp_path / "new", schema=found.schema, labelled=False).data
    predicted = model.predict_proba(new.x)
    assert (predicted[:, 1] > 0.9).all() and found.data.names == ("down", "up")


def is_upright(content: bytes) -> bool:
    """The red mark is in the corner at the top left, and in no other."""
    picture = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    red = picture[..., 0] - picture[..., 1] > 60
    fifth = len(red) // 5
    return bool(
        red[:fifth, :fifth].all() and not red[fifth * 3 :].any() and not red[:, -fifth:].any()
    )


def test_reports_and_reviews_show_a_photo_as_viewers_do(tmp_path):
    """The page of `review` opens the files themselves, the report what was read of them."""
    for i in range(80):
        shade = 20 + i if i % 2 else 150 + i
        picture = np.full((20, 20, 3), shade, np.uint8)
        picture[:8, :8] = (255, 0, 0)
        dark = i % 2 if i % 11 else 1 - i % 2  # eight labels are wrong
        orientation = 2 + i % 7
        photo(tmp_path / f"photos/{'dark' if dark else 'light'}/{i}.png", picture, orientation)
    words = ["--method", "ce", "--epochs", "20", "--backbone", "mlp:width=16,depth=1"]
    ytilde("fit", "photos", *words, "--out", "run", cwd=tmp_path)
    ytilde("audit", "run", "--folds", "2", cwd=tmp_path)
    page = (tmp_path / "run" / "report.html").read_text()
    shown = [
        base64.b64decode(text) for text in re.findall(r"data:image/\w+;base64,([\w+/=]+)", page)
    ]
    assert len(shown) >= 4 and all(map(is_upright, shown))
    found = read(tmp_path / "photos")
    view = Review(tmp_path / "run", found.data, paths=found.paths)
    rows = [issue["index"] for issue in view.issues]
    assert len(rows) >= 4
    assert all(is_upright(view.picture(row, size)[0]) for row in rows for size in ("page", "full"))


def test_damaged_exif_leaves_the_picture(tmp_path):
    for name in ("a/1.jpg", "b/2.jpg"):
        photo(tmp_path / name, np.full((8, 8, 3), 90, np.uint8), 6)
        path = tmp_path / name
        content = path.read_bytes()
        at = content.index(b"Exif\0\0") + 6
        path.write_bytes(content[:at] + b"\xff" * 10 + content[at + 10 :])
    assert (read(tmp_path).data.x.float() - 90).abs().max() < 3


# ---- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_listed_ending_can_be_read(tmp_path, suffix):
    for name in "ab":
        (tmp_path / name).mkdir()
        grey = Image.fromarray(np.full((4, 5), 7, np.uint8))
        (grey if suffix == ".pgm" else grey.convert("RGB")).save(tmp_path / name / f"1{suffix}")
    assert (read(tmp_path).data.x.float() - 7).abs().max() <= 2


def test_photos_of_several_pictures_in_one_file_are_read(tmp_path):
    """Telephones write MPO files and call them .jpg."""
    image = Image.fromarray(np.full((4, 5, 3), 7, np.uint8))
    for name in "ab":
        (tmp_path / name).mkdir()
        file = tmp_path / name / "1.jpg"
        image.save(file, format="MPO", save_all=True, append_images=[image])
    assert read(tmp_path).data.x.shape == (2, 3, 4, 5)


def test_no_program_is_started_for_a_picture(tmp_path, monkeypatch):
    """Pillow goes by the content: an EPS called x.png would be given to Ghostscript."""
    started = []
    monkeypatch.setattr(subprocess, "check_call", lambda *a, **_: started.append(a))
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(eps)
    with pytest.raises(BadInput, match=r"a/x\.png cannot be read"):
        read(tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_image(str(tmp_path / "a/x.png"), (8, 8), 3)
    assert not started


@pytest.mark.parametrize("kind", ["TGA", "ICO", "PCX", "SGI", "PDF", "DDS"])
def test_other_formats_under_a_known_name_are_refused(tmp_path, kind):
    assert kind not in FORMATS
    path = tmp_path / "x.png"
    Image.new("RGB", (16, 16)).save(path, format=kind)
    with pytest.raises(BadInput, match=r"x\.png cannot be read"):
        read_image(str(path), (16, 16), 3)


# ---- folders -------------------------------------------------------------------------------------


def save(path: Path, shade: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(path)


def names_of(source) -> list[str]:
    return [source.data.class_name(k) for k in source.data.y.tolist()]


def test_linked_class_folders_are_read(tmp_path):
    for i in range(3):
        save(tmp_path / f"elsewhere/{i}.png")
        save(tmp_path / f"d/cats/{i}.png")
    (tmp_path / "d/dogs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "d/cats/more.png").symlink_to(tmp_path / "elsewhere/0.png")
    found = read(tmp_path / "d")
    assert names_of(found) == ["cats"] * 4 + ["dogs"] * 3
    assert len(read(tmp_path / "d", labelled=False).data) == 7


def test_links_in_circles_end_and_take_no_image_from_another_class(tmp_path):
    for name in ("a/1.png", "b/2.png", "c/in/3.png"):
        save(tmp_path / "d" / name)
    (tmp_path / "d/a/self").symlink_to(tmp_path / "d/a")
    (tmp_path / "d/a/up").symlink_to(tmp_path / "d")
    (tmp_path / "d/a/b").symlink_to(tmp_path / "d/b")
    (tmp_path / "d/c/in/back").symlink_to(tmp_path / "d/c")
    found = read(tmp_path / "d")
    assert names_of(found) == ["a", "b", "c"] and len(found.paths) == 3
    told = [note for note in found.notes if "links to folders that are read already: 4" in note]
    assert len(told) == 1


@pytest.mark.parametrize("extra", [[], ["bus/9.png"]])
def test_classes_may_be_called_train_and_test(tmp_path, extra):
    files = [f"{name}/{i}.png" for name in ("test", "train", "val") for i in range(2)] + extra
    for name in files:
        save(tmp_path / name)
    found = read(tmp_path)
    assert sorted(set(names_of(found))) == sorted({name.split("/")[0] for name in files})
    assert len(found.data) == len(files) == len(read(tmp_path, labelled=False).data)


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "validation"), ("TRAIN", "dev")])
def test_splits_have_other_names_too(names, tmp_path):
    for name in names:
        for kind in ("ice", "tgv"):
            save(tmp_path / name / kind / "1.png")
    found = read(tmp_path)
    assert sorted(names_of(found)) == ["ice", "tgv"] and len(found.data) == 2
    assert f"the split {tmp_path / names[0]} is read" in found.notes[0]


def test_a_split_beside_a_class_is_ambiguous(tmp_path):
    for name in ("train/ice/1.png", "train/tgv/2.png", "bus/3.png"):
        save(tmp_path / name)
    with pytest.raises(BadInput, match="train if it is a split, or rename it if it is a class"):
        read(tmp_path)
    assert len(read(tmp_path, labelled=False).data) == 3


def test_the_split_that_is_read_and_those_that_are_not_are_told(tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", "val/a/3.png", "test/4.png", "test/5.png"):
        save(tmp_path / name)
    found = read(tmp_path)
    assert names_of(found) == ["a", "b"]
    assert any(note.endswith("images of others: test 2, val 1") for note in found.notes)
    assert len(read(tmp_path, schema=found.schema, labelled=False).data) == 5  # all are answered


def test_everything_left_out_is_named_and_counted(tmp_path):
    for name in ("a/1.png", "b/2.png", "b/.cache/3.png", "b/.4.png"):
        save(tmp_path / name)
    for name in ("a/1.heic", "a/2.HEIC", "b/x.svg", "notes.txt", "b/LICENSE"):
        (tmp_path / name).write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "b/gone.png").symlink_to(tmp_path / "nowhere.png")
    found = read(tmp_path)
    assert names_of(found) == ["a", "b"]
    told = "\n".join(found.notes)
    assert "files of another kind: 5 (.heic 2, .svg 1, .txt 1, no ending 1)" in told
    assert "hidden images: 2" in told and ".4.png" in told and ".cache/3.png" in told
    assert "class folders without an image: 1 (empty)" in told
    assert "cannot be opened: 1" in told and "gone.png" in told


def test_embeddings_beside_the_pictures_make_no_table_of_them(tmp_path):
    for name in ("a/1.png", "b/2.png"):
        save(tmp_path / name)
    (tmp_path / "embeddings.parquet").write_text("PAR1")
    found = read(tmp_path)
    assert names_of(found) == ["a", "b"]
    assert any("files of another kind: 1 (.parquet 1)" in note for note in found.notes)


def test_pipes_and_links_to_themselves_are_left_out(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        save(tmp_path / name)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    for name in ("a/loop.png", "b/loop"):
        (tmp_path / name).symlink_to((tmp_path / name).name)
    found = read(tmp_path)
    assert len(found.data) == 2 and "what cannot be opened: 3" in " ".join(found.notes)
    (tmp_path / "d.csv").write_text("image,label\na/1.png,a\nb/1.png,b\na/pipe.png,a\n")
    with pytest.raises(BadInput, match=r"pipe\.png cannot be read \(it is no file\)"):
        read(tmp_path / "d.csv", strict=True)
    assert len(read(tmp_path / "d.csv").data) == 3


def test_a_folder_of_unknown_pictures_says_what_lies_there(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.heic").write_text("x")
    with pytest.raises(BadInput, match=r"no images in .*another kind: 1 \(\.heic 1\)"):
        read(tmp_path)


def test_names_that_are_not_utf8_are_refused_before_training(tmp_path):
    """No table, page or terminal could show them."""
    for name in (b"a/caf\xe9.png", b"caf\xe9/1.png", b"b/1.png"):
        path = os.fsencode(tmp_path) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            Image.new("RGB", (4, 4)).save(file, format="PNG")
    for labelled in (True, False):
        with pytest.raises(BadInput, match=r"names of 2 files .* UTF-8 .*caf\\xe9.*; rename them"):
            read(tmp_path, labelled=labelled)
