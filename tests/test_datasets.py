"""Named sets, from small files of the official formats that this file makes itself."""

import contextlib
import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
import types
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from ytilde import datasets
from ytilde.data import BadInput
from ytilde.datasets import NAMES, download, load, shapes, sources

RANDOM = np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}i", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize(
    ("name", "folder", "end"),
    [
        ("mnist", "MNIST/raw", ""),
        ("mnist", "mnist", ".gz"),
        ("fashion-mnist", "FashionMNIST/raw", ".gz"),
        ("fashion-mnist", "fashion-mnist", ""),
    ],
)
def test_idx_sets_in_every_layout(tmp_path, name, folder, end):
    for prefix, n in (("train", 12), ("t10k", 5)):
        images = RANDOM.integers(0, 256, (n, 28, 28))
        write_idx(tmp_path / folder / f"{prefix}-images-idx3-ubyte{end}", images)
        write_idx(tmp_path / folder / f"{prefix}-labels-idx1-ubyte{end}", np.arange(n) % 10)
    data = load(name, tmp_path, "test")
    assert data.shape == (1, 28, 28) and data.num_classes == 10 and len(data.names) == 10
    assert np.array_equal(data.x[:, 0].numpy(), images) and data.y.tolist() == [0, 1, 2, 3, 4]
    assert len(load(name, tmp_path)) == 12


def test_root_comes_from_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path / "MNIST/raw/t10k-images-idx3-ubyte", np.zeros((2, 28, 28)))
    write_idx(tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte", np.array([3, 4]))
    monkeypatch.setenv("YTILDE_DATA", str(tmp_path))
    assert load("mnist", split="test").y.tolist() == [3, 4]


def test_truncated_idx_is_refused(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 28, 28)))
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(3))
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(BadInput, match="not a whole idx file"):
        load("mnist", tmp_path)
    write_idx(images, np.zeros((3, 28, 28)))
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-9])
    with pytest.raises(BadInput, match="cannot be unpacked"):
        load("mnist", tmp_path)
    write_idx(labels, np.zeros(2))
    with pytest.raises(BadInput, match="3 inputs and 2 labels"):
        load("mnist", tmp_path)


def write_cifar10(root: Path, n: int = 4) -> np.ndarray:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        labels = RANDOM.integers(0, 10, (n, 1))
        pixels = RANDOM.integers(0, 256, (n, 3072))
        np.concatenate([labels, pixels], 1).astype(np.uint8).tofile(folder / f"{name}.bin")
    return pixels


def test_cifar10_binary(tmp_path):
    last = write_cifar10(tmp_path)
    train, test = load("cifar10", tmp_path), load("cifar10", tmp_path, "test")
    assert train.x.shape == (20, 3, 32, 32) and test.names[9] == "truck"
    # A record is the red plane, then green, then blue, each row by row.
    assert test.x[1, 2, 3, 4] == last[1, 2 * 1024 + 3 * 32 + 4]
    assert test.x.is_contiguous()


def test_cifar100_fine_and_coarse(tmp_path):
    fine = np.arange(100)
    coarse = np.array(datasets.CIFAR100_COARSE)
    records = np.concatenate([coarse[:, None], fine[:, None], np.zeros((100, 3072))], 1)
    (tmp_path / "cifar-100-binary").mkdir()
    records.astype(np.uint8).tofile(tmp_path / "cifar-100-binary/train.bin")
    assert load("cifar100", tmp_path).y.tolist() == fine.tolist()
    data = load("cifar100-coarse", tmp_path)
    assert data.y.tolist() == coarse.tolist() and data.num_classes == 20
    assert np.bincount(coarse).tolist() == [5] * 20
    # Spot checks against the publisher's lists.
    named = dict(zip(load("cifar100", tmp_path).names, data.y.tolist(), strict=True))
    assert data.names[named["aquarium_fish"]] == "fish" and named["wardrobe"] == 6
    assert datasets.CIFAR100_FINE[0] == "apple" and datasets.CIFAR100_FINE[99] == "worm"


def test_cut_cifar_file_is_refused(tmp_path):
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BadInput, match="not a whole file"):
        load("cifar10", tmp_path, "test")


@pytest.mark.parametrize("found", ["cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_pickled_cifar_is_not_read(tmp_path, found):
    (tmp_path / found).mkdir()
    with pytest.raises(BadInput, match=r"get cifar-10-binary\.tar\.gz instead"):
        load("cifar10", tmp_path)


def write_human(root: Path, clean: torch.Tensor, **labels: np.ndarray) -> None:
    (root / "cifar-n").mkdir()
    np.savez(root / "cifar-n/cifar10n.npz", clean_label=clean.numpy().astype(np.uint8), **labels)


def test_cifar_n_npz(tmp_path):
    write_cifar10(tmp_path)
    clean = load("cifar10", tmp_path).y
    worst = (clean.numpy() + 1) % 10
    write_human(tmp_path, clean, worse_label=worst)
    data = load("cifar10n-worst", tmp_path)
    assert torch.equal(data.clean, clean) and data.y.tolist() == worst.tolist()
    assert load("cifar10n-worst", tmp_path, "test").clean is None
    with pytest.raises(BadInput, match="no aggre_label"):
        load("cifar10n-aggre", tmp_path)


def test_cifar_n_in_another_order_is_refused(tmp_path):
    write_cifar10(tmp_path)
    clean = load("cifar10", tmp_path).y
    write_human(tmp_path, (clean + 1) % 10, worse_label=clean.numpy())
    with pytest.raises(BadInput, match="order of the images"):
        load("cifar10n-worst", tmp_path)


@pytest.mark.parametrize("old_numpy", [False, True])
def test_official_cifar_n_file_is_read_weights_only(tmp_path, old_numpy):
    write_cifar10(tmp_path)
    clean = load("cifar10", tmp_path).y.numpy()
    path = tmp_path / "CIFAR-10_human.pt"
    torch.save({"clean_label": clean, "aggre_label": clean[::-1].copy()}, path)
    if old_numpy:  # the published file was written when the module had its old name
        rename_in_pickle(path, b"numpy._core.multiarray", b"numpy.core.multiarray")
    data = load("cifar10n-aggre", tmp_path)
    assert data.y.tolist() == clean[::-1].tolist()


def rename_in_pickle(path: Path, old: bytes, new: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            assert old in content or not name.endswith(".pkl")
            archive.writestr(name, content.replace(old, new))


class Evil:
    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


def test_code_in_a_cifar_n_file_does_not_run(tmp_path):
    write_cifar10(tmp_path)
    torch.save({"clean_label": Evil()}, tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(BadInput, match="not a plain file"):
        load("cifar10n-aggre", tmp_path)
    assert not Evil.ran


def test_svhn_transposes_and_maps_ten_to_zero(tmp_path):
    x = RANDOM.integers(0, 256, (32, 32, 3, 4)).astype(np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": np.array([[10], [1], [9], [2]], np.uint8)})
    data = load("svhn", tmp_path)
    assert data.y.tolist() == [0, 1, 9, 2] and data.x.shape == (4, 3, 32, 32)
    assert data.x[3, 2, 5, 7] == x[5, 7, 2, 3]
    (tmp_path / "test_32x32.mat").write_bytes(b"no mat file")
    with pytest.raises(BadInput, match="cannot be read"):
        load("svhn", tmp_path, "test")


@pytest.mark.parametrize("name", ["moons", "circles", "digits"])
def test_made_sets_are_the_same_every_time(name):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    train, again, test = load(name), load(name), load(name, split="test")
    assert torch.equal(train.x, again.x) and torch.equal(train.y, again.y)
    assert not torch.equal(train.x[: len(test)], test.x)
    assert train.x.dtype == torch.float32 and len(train.y.unique()) == train.num_classes
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002


def test_shapes_have_noise_at_their_outlines_only():
    data = shapes(20, torch.Generator().manual_seed(0), boundary=2.0)
    assert data.x.shape == (20, 3, 64, 64) and data.x.dtype == torch.uint8
    assert set(data.clean.unique().tolist()) == {0, 1, 2, 3}
    clean = data.clean.float()[:, None]
    spread = torch.nn.functional.max_pool2d(clean, 3, 1, 1)
    edge = (spread != -torch.nn.functional.max_pool2d(-clean, 3, 1, 1)).float()
    near = torch.nn.functional.max_pool2d(edge, 9, 1, 4)[:, 0] > 0
    wrong = data.y != data.clean
    assert 0.02 < wrong.float().mean() < 0.15
    assert wrong[near].float().mean() > 10 * wrong[~near].float().mean()


def test_shapes_without_noise_are_true_and_repeatable():
    data = shapes(5, torch.Generator().manual_seed(1))
    assert torch.equal(data.y, data.clean)
    again = shapes(5, torch.Generator().manual_seed(1))
    assert torch.equal(data.x, again.x) and torch.equal(data.y, again.y)


# ------------------------------------------------------------------ segmentation


def save_mask(path: Path, values: np.ndarray, palette: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values.astype(np.uint8))
    if palette:
        image.putpalette([255 - i // 3 for i in range(768)])
    image.save(path)


def save_image(path: Path, height: int = 8, width: int = 8, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    Image.fromarray(RANDOM.integers(0, 256, shape).astype(np.uint8)).save(path)


def test_camvid_folder_and_zip_agree(tmp_path):
    mask = RANDOM.integers(0, 12, (180, 240))
    for name in ("b", "a"):
        save_image(tmp_path / f"one/camvid-small/val/images/{name}.jpg", 180, 240)
        save_mask(tmp_path / f"one/camvid-small/val/masks/{name}.png", mask)
        mask = mask[::-1]
    base = tmp_path / "one/camvid-small/val"
    (tmp_path / "two").mkdir()
    with zipfile.ZipFile(tmp_path / "two/val.zip", "w") as archive:
        for path in base.rglob("*.*"):
            archive.write(path, path.relative_to(base))
    one, two = load("camvid", tmp_path / "one", "val"), load("camvid", tmp_path / "two", "val")
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)
    assert one.y.shape == (2, 180, 240) and one.num_classes == 11
    expected = np.where(mask == 11, -1, mask)
    assert np.array_equal(one.y[1].numpy(), expected)


def test_voc_keeps_classes_and_pads_with_ignore(tmp_path):
    base = tmp_path / "VOCdevkit/VOC2012"
    (base / "ImageSets/Segmentation").mkdir(parents=True)
    (base / "ImageSets/Segmentation/train.txt").write_text("2007_1\n2007_2\n")
    mask = np.full((20, 40), 20)
    mask[:, 30:] = 255
    for key in ("2007_1", "2007_2"):
        save_image(base / f"JPEGImages/{key}.jpg", 20, 40)
        save_mask(base / f"SegmentationClass/{key}.png", mask, palette=True)
    data = load("voc2012", tmp_path, size=40)
    assert data.x.shape == (2, 3, 40, 40) and data.names[20] == "tvmonitor"
    assert (data.y[0, :20, :30] == 20).all() and (data.y[0, :20, 30:] == -1).all()
    assert (data.y[0, 20:] == -1).all() and (data.x[0, :, 20:] == 0).all()
    half = load("voc2012", tmp_path, size=20)
    assert (half.y[0, :10, :15] == 20).all() and (half.y[0, :10, 15:] == -1).all()


def test_voc_refuses_a_coloured_mask(tmp_path):
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("a")
    save_image(tmp_path / "JPEGImages/a.jpg")
    save_image(tmp_path / "SegmentationClass/a.png")
    with pytest.raises(BadInput, match=r"a\.png cannot be read .*one class number a pixel"):
        load("voc2012", tmp_path, "val")


def test_cityscapes_ids_become_training_labels(tmp_path):
    stem = "aachen_000000_000019"
    save_image(tmp_path / f"leftImg8bit/train/aachen/{stem}_leftImg8bit.png", 32, 64)
    ids = np.arange(64)[None].repeat(32, 0) % 34
    save_mask(tmp_path / f"gtFine/train/aachen/{stem}_gtFine_labelIds.png", ids)
    data = load("cityscapes", tmp_path, size=32)
    row = data.y[0, 0].tolist()
    assert data.shape == (3, 32, 64) and data.num_classes == 19
    assert (row[7], row[8], row[11], row[26], row[33]) == (0, 1, 2, 13, 18)
    assert row[0] == row[9] == row[29] == -1 and sorted(set(row)) == list(range(-1, 19))
    assert data.names[13] == "car"


# ------------------------------------------------------------------ photographs by the million


@pytest.mark.parametrize("inside", ["", "annotations"])
def test_clothing1m(tmp_path, inside):
    lists = tmp_path / "clothing1m" / inside
    lists.mkdir(parents=True)
    keys = [f"images/0/{i}.jpg" for i in range(3)]
    for key in keys:
        save_image(tmp_path / "clothing1m" / key, 30, 40)
    (lists / "noisy_train_key_list.txt").write_text("\n".join(keys[:2]) + "\n")
    (lists / "clean_test_key_list.txt").write_text(keys[2] + "\n")
    (lists / "noisy_label_kv.txt").write_text(f"{keys[0]} 13\n{keys[1]} 4\n")
    (lists / "clean_label_kv.txt").write_text(f"{keys[2]} 7\n{keys[1]} 5\n")
    data = load("clothing1m", tmp_path, size=24)
    assert data.lazy and data.x.shape == (2, 3, 24, 24) and data.num_classes == 14
    assert data.y.tolist() == [13, 4] and data.clean.tolist() == [-1, 5]
    assert data.x[torch.tensor([1, 0])].shape == (2, 3, 24, 24)
    test = load("clothing1m", tmp_path, "test")
    assert test.y.tolist() == [7] and test.clean is None and test.shape == (3, 224, 224)
    (lists / "noisy_train_key_list.txt").write_text("images/9/9.jpg")
    with pytest.raises(BadInput, match=r"images/9/9\.jpg, which has no label"):
        load("clothing1m", tmp_path)


def test_webvision_and_its_first_fifty(tmp_path):
    info = tmp_path / "webvision/info"
    info.mkdir(parents=True)
    synsets = [f"n{i:08d} thing {i}, other name" for i in range(60)]
    (info / "synsets.txt").write_text("\n".join(synsets))
    (info / "train_filelist_google.txt").write_text("google/q1/a.jpg 0\ngoogle/q1/b.jpg 55\n")
    (info / "train_filelist_flickr.txt").write_text("flickr/q1/c.jpg 3\n")
    (info / "val_filelist.txt").write_text("v1.jpg 49\nv2.jpg 50\n")
    for path in ("google/q1/a.jpg", "google/q1/b.jpg", "flickr/q1/c.jpg", "val_images_256/v1.jpg"):
        save_image(tmp_path / "webvision" / path)
    whole = load("webvision", tmp_path, size=8)
    assert whole.y.tolist() == [0, 55, 3] and whole.num_classes == 60
    assert whole.x[torch.arange(3)].shape == (3, 3, 8, 8)
    first = load("webvision-50", tmp_path)
    assert first.y.tolist() == [0] and first.num_classes == 50
    assert first.names[1] == "n00000001 thing 1"
    test = load("webvision-50", tmp_path, "test", size=8)
    assert test.y.tolist() == [49] and test.x[torch.tensor([0])].shape == (1, 3, 8, 8)


def write_devkit(root: Path, numbers: list[int]) -> None:
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    # The devkit's own order (1, 2, 3) is not that of the WordNet ids.
    rows = [(1, "n03", "cat, kitty"), (2, "n01", "tench, fish"), (3, "n02", "ox")]
    data = root / "ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    savemat(data / "meta.mat", {"synsets": np.array([*rows, (1001, "n00", "animal")], kind)})
    text = "\n".join(map(str, numbers))
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(text)


def test_ilsvrc12_flat_validation_with_devkit(tmp_path):
    root = tmp_path / "ilsvrc12"
    write_devkit(root, [1, 2, 3])
    for i in (1, 2, 3):
        save_image(root / f"val/ILSVRC2012_val_{i:08d}.JPEG", 20, 30)
    data = load("ilsvrc12", tmp_path, "test", size=16)
    assert data.names == ("n01 tench", "n02 ox", "n03 cat")
    assert data.y.tolist() == [2, 0, 1] and data.x[torch.arange(3)].shape == (3, 3, 16, 16)
    write = root / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
    write.write_text("1")
    with pytest.raises(BadInput, match="does not describe the images"):
        load("ilsvrc12", tmp_path, "test")


def test_ilsvrc12_folders(tmp_path):
    for wnid in ("n02", "n01"):
        save_image(tmp_path / f"imagenet/train/{wnid}/x_{wnid}.JPEG")
    data = load("ilsvrc12", tmp_path)
    assert data.names == ("n01", "n02") and data.y.tolist() == [0, 1]
    assert load("ilsvrc12-50", tmp_path).num_classes == 2


# ------------------------------------------------------------------ errors


def test_unknown_names_and_splits_list_what_there_is(tmp_path):
    with pytest.raises(BadInput, match="fashion-mnist"):
        load("fashon-mnist", tmp_path)
    with pytest.raises(BadInput, match="has no split 'val'; it has train, test"):
        load("mnist", tmp_path, "val")
    with pytest.raises(BadInput, match="one size"):
        load("mnist", tmp_path, size=32)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in NAMES
        if n.split("-")[0] not in ("moons", "circles", "digits", "shapes")
        and n != "fashion-mnist-small"
    ],
)
def test_missing_files_say_what_to_get(tmp_path, name):
    with pytest.raises(BadInput, match=f"needs {tmp_path}.*(ytilde data|ask for it)"):
        load(name, tmp_path)


# ------------------------------------------------------------------ download


class Server(http.server.BaseHTTPRequestHandler):
    files: dict[str, bytes] = {}
    cut = 0  # send only so many bytes of the next answers
    ranges: list[str | None] = []
    use_range = True

    def do_GET(self):
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        content = self.files.get(self.path.lstrip("/"))
        if content is None:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.use_range else 0
        if start and start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        rest = content[start:]
        self.wfile.write(rest[: self.cut] if self.cut else rest)
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("Handler", (Server,), {"files": {}, "ranges": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        handler.url = f"http://127.0.0.1:{httpd.server_port}/"
        yield handler
        httpd.shutdown()


CONTENT = RANDOM.integers(0, 256, 300_000).astype(np.uint8).tobytes()


def publish(monkeypatch, server, files: dict[str, bytes], folder: str) -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    source = sources.Download("http://127.0.0.1:1/", digests, folder)
    monkeypatch.setitem(sources.SOURCES, "svhn", source)
    server.files.update(files)


def names_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_download_goes_on_after_a_cut(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"a.mat": CONTENT}, "svhn")
    server.cut = 100_000
    with pytest.raises(BadInput, match=r"cut off.*run it again"):
        download("svhn", tmp_path, server.url)
    assert names_in(tmp_path) == ["svhn/a.mat.part"]
    server.cut = 0
    seen = []
    folder = download("svhn", tmp_path, server.url, lambda *step: seen.append(step))
    assert folder == tmp_path / "svhn" and (folder / "a.mat").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"] and names_in(tmp_path) == ["svhn/a.mat"]
    assert seen[-1] == ("a.mat", 300_000, 300_000)
    download("svhn", tmp_path, server.url)
    assert len(server.ranges) == 2  # what is there is not fetched again


def test_download_from_a_server_that_ignores_ranges(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"a.mat": CONTENT}, "svhn")
    server.use_range = False
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/a.mat.part").write_bytes(CONTENT[:1000])
    download("svhn", tmp_path, server.url)
    assert (tmp_path / "svhn/a.mat").read_bytes() == CONTENT


def test_download_of_a_whole_part_only_checks_it(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"a.mat": CONTENT}, "svhn")
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/a.mat.part").write_bytes(CONTENT)
    download("svhn", tmp_path, server.url)
    assert names_in(tmp_path) == ["svhn/a.mat"]


def test_nothing_is_fetched_by_http(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"a.mat": CONTENT}, "svhn")
    for url in ("http://example.org/", "ftp://example.org/", "file:///etc/"):
        with pytest.raises(BadInput, match="must begin with https"):
            download("svhn", tmp_path, url)
    opened = types.SimpleNamespace(url="http://example.org/a.mat", status=200)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: contextlib.nullcontext(opened))
    with pytest.raises(BadInput, match=r"example\.org/a\.mat is not fetched"):
        download("svhn", tmp_path, "https://example.org/")  # which sends the reader on
    assert names_in(tmp_path) == []


def test_wrong_digest_leaves_nothing(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"a.mat": CONTENT}, "svhn")
    server.files["a.mat"] = CONTENT[::-1]
    with pytest.raises(BadInput, match="digest"):
        download("svhn", tmp_path, server.url)
    assert names_in(tmp_path) == []


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_download_unpacks_an_archive(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"x.tar.gz": tar_of({"deep/in/a": b"1"})}, "deep/in")
    for _ in range(2):
        assert download("svhn", tmp_path, server.url) == tmp_path / "deep/in"
    assert names_in(tmp_path) == ["deep/in/a"] and len(server.ranges) == 1


def test_archive_cannot_write_outside(tmp_path, monkeypatch, server):
    home = tmp_path / "home"
    publish(monkeypatch, server, {"x.tar.gz": tar_of({"in/a": b"1", "../../evil": b"2"})}, "in")
    with pytest.raises(BadInput, match="cannot be unpacked"):
        download("svhn", home, server.url)
    assert names_in(tmp_path) == ["home/x.tar.gz"]


def test_download_errors_are_one_sentence(tmp_path, monkeypatch, server):
    publish(monkeypatch, server, {"a.mat": CONTENT}, "svhn")
    with pytest.raises(BadInput, match="cannot be reached"):
        download("svhn", tmp_path)  # nobody listens at port 1
    server.files.clear()
    with pytest.raises(BadInput, match="the server says 404"):
        download("svhn", tmp_path, server.url)
    with pytest.raises(BadInput, match="did you mean"):
        download("svnh", tmp_path)
    with pytest.raises(BadInput, match="ask for it from its authors"):
        download("clothing1m", tmp_path)
    with pytest.raises(BadInput, match="UCSC-REAL"):
        download("cifar10n-worst", tmp_path)
    with pytest.raises(BadInput, match="made here"):
        download("shapes-noisy", tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInput, match="cannot write"):
        download("svhn", tmp_path / "file", server.url)
    assert names_in(tmp_path) == ["file"]
