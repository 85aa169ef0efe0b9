"""Named data sets: `load` reads the publishers' own files, `download` fetches those that are free.

Files are looked for under `root`, $YTILDE_DATA or ./data, in the folders that the publishers (and
torchvision) use. No pickle is ever loaded.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .data import IGNORE, BadInput, Data, Rows, unknown
from .files import check_writable
from .images import LIMIT, Images, is_image, list_images, read_image, read_mask

_words = str.split
DIGITS = _words("0 1 2 3 4 5 6 7 8 9")
FASHION = _words("T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle-boot")
CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")
# CIFAR-100's 20 coarse classes, five fine ones each. Both lists are numbered alphabetically.
CIFAR100 = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
CIFAR100_FINE = sorted(fine for five in CIFAR100.values() for fine in five.split())
CIFAR100_COARSE = [  # the coarse class of each fine class
    next(c for c, five in enumerate(CIFAR100.values()) if fine in five.split())
    for fine in CIFAR100_FINE
]
CAMVID = _words("sky building pole road pavement tree sign_symbol fence car pedestrian bicyclist")
VOC = _words(
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse "
    "motorbike person pottedplant sheep sofa train tvmonitor"
)
CITYSCAPES = _words(
    "road sidewalk building wall fence pole traffic_light traffic_sign vegetation terrain sky "
    "person rider car truck bus train motorcycle bicycle"
)
# The ids stored in Cityscapes' masks of the 19 classes that are scored.
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
CLOTHING = _words(
    "T-Shirt Shirt Knitwear Chiffon Sweater Hoodie Windbreaker Jacket Downcoat Suit Shawl Dress "
    "Vest Underwear"
)


def load(
    name: str, root: str | Path | None = None, split: str = "train", size: int | None = None
) -> Data:
    """The named set's split ("train", "val" or "test", as far as it has them).

    root: where the official files lie; default $YTILDE_DATA, else ./data.
    size: side of the pictures, for the sets whose pictures differ in size.
    """
    entry = _SETS[_known(name)]
    folder = home(root)
    if size is not None and entry.size is None:
        raise BadInput(f"The pictures of {name} have one size; leave size out.")
    if split not in entry.splits:
        raise BadInput(f"{name} has no split {split!r}; it has {', '.join(entry.splits)}.")
    if entry.size is None:
        return entry.read(folder, split)
    return entry.read(folder, split, size or entry.size)


def home(root: str | Path | None = None) -> Path:
    """The folder below which the official files lie."""
    return Path(root or os.environ.get("YTILDE_DATA") or "data")


def _known(name: str) -> str:
    if name in _SETS:
        return name
    raise BadInput(unknown("data set", name.lower(), NAMES))


class _Found(Exception):
    """A file is there: enough for `at_hand`, which reads none."""


_ONLY_LOOK = ContextVar("_ONLY_LOOK", default=False)


def at_hand(name: str, root: str | Path | None = None, split: str = "train") -> bool:
    """Are the split's files there? Tells by the first that its reader looks for, and reads none."""
    if _key(_known(name)) not in {**_SOURCES, **_ASK}:
        return True
    looking = _ONLY_LOOK.set(True)
    try:
        load(name, root, split)
    except _Found:
        return True
    except BadInput:
        return False
    finally:
        _ONLY_LOOK.reset(looking)
    raise AssertionError(f"the reader of {name} looks for no file")


def _find(root: Path, name: str, folders: Iterable[str], files: Iterable[str]) -> Path:
    """The first of these files that lies in one of these folders below root."""
    folders, files = list(folders), list(files)
    for folder in folders:
        for file in files:
            if (root / folder / file).exists():
                if _ONLY_LOOK.get():
                    raise _Found
                return root / folder / file
    wanted = root / folders[0] / files[0]
    where = _ASK.get(name.split("-")[0])
    how = f"ask for it {where}" if where else f"get it with `ytilde data {name} --to {root}`"
    raise BadInput(
        f"{name} needs {wanted}, which is not there; name the folder of the data with --data-root "
        f"or $YTILDE_DATA, or {how}."
    )


def _set(
    x: Rows, y: Tensor, names: Sequence[str], clean: Tensor | None = None, *, what: object
) -> Data:
    """A Data whose parts fit together."""
    if not len(y) or len(x) != len(y):
        raise BadInput(f"{what} holds {len(x)} inputs and {len(y)} labels; get the files again.")
    if int(y.max()) >= len(names) or int(y.min()) < IGNORE:
        raise BadInput(f"{what} holds labels outside its {len(names)} classes.")
    return Data(x, y, len(names), clean, tuple(names))


def _embedded(root: Path, split: str) -> Data:
    """6,000 + 2,000 images of Fashion-MNIST that come with the package (MIT licence)."""
    file = resources.files("ytilde") / "embedded" / "fashion_mnist.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        x, y, names = arrays[f"x_{split}"], arrays[f"y_{split}"], arrays["names"]
    return _set(torch.from_numpy(x)[:, None], torch.from_numpy(y).long(), names.tolist(), what=file)


# ------------------------------------------------------------------ MNIST and Fashion-MNIST: idx


def _mnist(root: Path, split: str) -> Data:
    return _idx_set(root, split, "mnist", ("MNIST/raw", "MNIST", "mnist", ""), DIGITS)


def _fashion_mnist(root: Path, split: str) -> Data:
    folders = ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "")
    return _idx_set(root, split, "fashion-mnist", folders, FASHION)


def _idx_set(
    root: Path, split: str, name: str, folders: Sequence[str], names: Sequence[str]
) -> Data:
    prefix = "train" if split == "train" else "t10k"
    parts = []
    for kind in ("images-idx3", "labels-idx1"):
        stem = f"{prefix}-{kind}-ubyte"
        dotted = stem.replace("-idx", ".idx")  # some unpackers keep the dot of the original name
        files = (stem, f"{stem}.gz", dotted, f"{dotted}.gz")
        parts.append(_idx(_find(root, name, folders, files)))
    x, y = parts
    return _set(x.unsqueeze(1), y.long(), names, what=f"{name} under {root}")


def _idx(path: Path) -> Tensor:
    """An idx file of bytes: two zeros, type 8, number of axes, sizes (big-endian), content."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be unpacked ({error}); get it again.") from error
    axes = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    shape = np.frombuffer(raw, ">i4", axes, 4).tolist() if len(raw) >= 4 + 4 * axes else []
    if not axes or len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise BadInput(f"{path} is not a whole idx file of bytes; get it again.")
    return torch.frombuffer(bytearray(raw[4 + 4 * axes :]), dtype=torch.uint8).reshape(shape)


# ------------------------------------------------------------------ CIFAR and CIFAR-N


def _cifar10(root: Path, split: str) -> Data:
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    folders = ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "")
    return _cifar(root, "cifar10", folders, files, 0, CIFAR10)


def _cifar100(root: Path, split: str) -> Data:
    folders = ("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100", "")
    return _cifar(root, "cifar100", folders, [f"{split}.bin"], 1, CIFAR100_FINE)


def _cifar100_coarse(root: Path, split: str) -> Data:
    data = _cifar100(root, split)
    y = torch.tensor(CIFAR100_COARSE)[data.y]
    return replace(data, y=y, num_classes=len(CIFAR100), names=tuple(CIFAR100))


def _cifar(
    root: Path, name: str, folders: Sequence[str], files: list[str], column: int, names: list[str]
) -> Data:
    """Records of `column + 1` label bytes and 3072 pixels; the label wanted is the last one."""
    try:
        paths = [_find(root, name, folders, [file]) for file in files]
    except BadInput:
        _refuse_pickles(root, name)
        raise
    records = []
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        if not len(raw) or len(raw) % (column + 1 + 3072):
            raise BadInput(f"{path} is not a whole file of {name}'s binary version; get it again.")
        records.append(raw.reshape(-1, column + 1 + 3072))
    table = torch.from_numpy(np.concatenate(records))
    x = table[:, column + 1 :].reshape(-1, 3, 32, 32).contiguous()
    return _set(x, table[:, column].long(), names, what=f"{name} under {root}")


def _refuse_pickles(root: Path, name: str) -> None:
    dashed = name.replace("cifar", "cifar-")
    python = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    for found in (python, f"{name}/{python}", f"{dashed}-python.tar.gz"):
        if (root / found).exists():
            raise BadInput(
                f"{root / found} is the pickled version, never loaded because a pickle can "
                f"run code; get {dashed}-binary.tar.gz instead: `ytilde data {name} --to {root}`."
            )


def _cifar_n(base: Callable[[Path, str], Data], key: str) -> Callable[[Path, str], Data]:
    """CIFAR with human labels (Wei et al. 2022) as y and CIFAR's own as clean."""

    def read(root: Path, split: str) -> Data:
        if split == "test":
            return base(root, split)
        labels, path = _human_labels(root, "cifar10n" if base is _cifar10 else "cifar100n")
        data = base(root, split)
        if key not in labels or "clean_label" not in labels:
            raise BadInput(f"{path} holds no {key} and clean_label; get it again.")
        if not torch.equal(labels["clean_label"], data.y):
            raise BadInput(
                f"{path} does not follow the order of the images (its clean_label differs); "
                "get the file in PyTorch's order, not TensorFlow's."
            )
        return _set(data.x, labels[key], data.names or (), data.y, what=path)

    return read


def _human_labels(root: Path, stem: str) -> tuple[dict[str, Tensor], Path]:
    official = stem.upper().replace("CIFAR", "CIFAR-")[:-1] + "_human.pt"
    folders = ("cifar-n", "CIFAR-N", "data", "")
    path = _find(root, stem, folders, [f"{stem}.npz", official])
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise BadInput(f"{path} cannot be read ({error}); get it again.") from error
    else:
        arrays = _weights_only(path)
    return {key: torch.from_numpy(np.asarray(a, np.int64)) for key, a in arrays.items()}, path


def _weights_only(path: Path) -> dict[str, np.ndarray]:
    """A dict of integer arrays saved by torch, read with nothing allowed beyond numpy's arrays."""
    rebuild = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    allowed = [np.ndarray, np.dtype, (rebuild, "numpy.core.multiarray._reconstruct"), rebuild]
    allowed += [type(np.dtype(code)) for code in ("i8", "i4", "i2", "i1", "u1")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; the user needs one sentence of any
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"{path} is not a plain file of label arrays ({reason}).") from error


# ------------------------------------------------------------------ SVHN


def _svhn(root: Path, split: str) -> Data:
    from scipy.io import loadmat

    path = _find(root, "svhn", ("svhn", "SVHN", ""), [f"{split}_32x32.mat"])
    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"].reshape(-1)
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise BadInput(f"{path} cannot be read ({error}); get it again.") from error
    # Stored as (32, 32, 3, N), and the digit 0 as label 10.
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
    return _set(images, torch.from_numpy(y.astype(np.int64) % 10), DIGITS, what=path)


# ------------------------------------------------------------------ made here


def _moons(root: Path, split: str) -> Data:
    from sklearn.datasets import make_moons

    x, y = make_moons(1000, noise=0.2, random_state=0 if split == "train" else 1)
    return _points(x, y, ("upper", "lower"))


def _circles(root: Path, split: str) -> Data:
    from sklearn.datasets import make_circles

    x, y = make_circles(1000, noise=0.1, factor=0.5, random_state=0 if split == "train" else 1)
    return _points(x, y, ("outer", "inner"))


def _digits(root: Path, split: str) -> Data:
    """scikit-learn's 1797 digits of 8x8 pixels as 64 features; every fifth one is for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    test = np.arange(len(y)) % 5 == 4
    rows = test if split == "test" else ~test
    return _points(x[rows] / 16, y[rows], DIGITS)


def _points(x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> Data:
    return Data(
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(y.astype(np.int64)),
        len(names),
        names=tuple(names),
    )


SHAPES = ("background", "circle", "square", "triangle")


def shapes(n: int, generator: torch.Generator, *, boundary: float = 0.0, side: int = 64) -> Data:
    """n pictures [n, 3, side, side] of coloured shapes on texture, and their pixel labels.

    boundary: how far, in pixels (standard deviation), the annotator's outline strays from the true
    one, smoothly along the outline; y is what was drawn, clean is the truth.
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    grid = torch.arange(side).float()
    row, column = grid[:, None], grid[None, :]
    wave = sum(
        torch.sin(uniform(0.1, 0.6, 1, 1) * row + uniform(0.1, 0.6, 1, 1) * column + phase)
        for phase in (uniform(0, 6.3, 1, 1), uniform(0, 6.3, 1, 1))
    )
    x = uniform(0.2, 0.8, 3, 1, 1) + 0.08 * torch.as_tensor(wave)[:, None]
    y = torch.zeros(n, side, side, dtype=torch.int64)
    clean = torch.zeros_like(y)
    for _ in range(3):
        kind = 1 + torch.randint(3, (n, 1, 1), generator=generator)
        radius = uniform(0.12, 0.22, 1, 1) * side
        down = row - uniform(0.2, 0.8, 1, 1) * side
        right = column - uniform(0.2, 0.8, 1, 1) * side
        distance = _distance(kind, radius, uniform(0, 6.3, 1, 1), down, right)
        clean = torch.where(distance < 0, kind, clean)
        coarse = torch.randn(n, 1, side // 8, side // 8, generator=generator)
        stray = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")[:, 0]
        y = torch.where(distance < boundary * stray, kind, y)
        x = torch.where((distance < 0)[:, None], uniform(0, 1, 3, 1, 1), x)
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return Data(pixels, y, len(SHAPES), clean, SHAPES)


def _distance(kind: Tensor, radius: Tensor, angle: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Distance to the outline in pixels, negative inside (the usual lower bound near corners)."""
    u = angle.cos() * right + angle.sin() * down
    v = angle.cos() * down - angle.sin() * right
    circle = (u**2 + v**2).sqrt() - radius
    square = torch.maximum(u.abs(), v.abs()) - 0.85 * radius
    slope = 3**0.5 / 2
    triangle = torch.maximum(torch.maximum(slope * u + v / 2, v / 2 - slope * u), -v) - radius / 1.6
    return torch.where(kind == 1, circle, torch.where(kind == 2, square, triangle))


def _shapes(boundary: float) -> Callable[[Path, str], Data]:
    def read(root: Path, split: str) -> Data:
        seed = ("train", "val", "test").index(split)
        n = 800 if split == "train" else 200
        data = shapes(n, torch.Generator().manual_seed(seed), boundary=boundary)
        if split == "test" or boundary == 0:
            assert data.clean is not None
            return replace(data, y=data.clean, clean=None)
        return data

    return read


# ------------------------------------------------------------------ segmentation


def _camvid(root: Path, split: str) -> Data:
    """CamVid at 240x180 with 11 classes: SPLIT/{images,masks}, or SPLIT.zip with the two inside."""
    folders = ("camvid-small", "camvid", "CamVid", "")
    found = _find(root, "camvid", folders, [f"{split}/images", f"{split}.zip"])
    labels = _pixel_labels(range(11))
    size = (180, 240)
    if found.suffix == ".zip":
        with zipfile.ZipFile(found) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith("images/") and is_image(n))
            x = [read_image(archive.open(n), size, 3) for n in names]
            y = [read_mask(archive.open(_mask_of(n)), size, labels) for n in names]
    else:
        names = list_images(found)
        masks = found.parent / "masks"
        x = [read_image(n, size, 3) for n in names]
        y = [read_mask(str(masks / f"{Path(n).stem}.png"), size, labels) for n in names]
    if not names:
        raise BadInput(f"{found} holds no images.")
    return _set(torch.stack(x), torch.stack(y), CAMVID, what=found)


def _mask_of(name: str) -> str:
    return f"masks/{Path(name).stem}.png"


def _voc2012(root: Path, split: str, size: int) -> Data:
    """PASCAL VOC 2012 segmentation. Its test labels are not public, so "test" is "val"."""
    folders = ("VOCdevkit/VOC2012", "VOC2012", "")
    file = f"ImageSets/Segmentation/{'train' if split == 'train' else 'val'}.txt"
    listed = _find(root, "voc2012", folders, [file])
    base = listed.parents[2]
    keys = listed.read_text().split()
    images = [str(base / "JPEGImages" / f"{key}.jpg") for key in keys]
    masks = [str(base / "SegmentationClass" / f"{key}.png") for key in keys]
    return _segmentation(images, masks, (size, size), _pixel_labels(range(21)), VOC, listed)


def _cityscapes(root: Path, split: str, size: int) -> Data:
    """Cityscapes, fine annotations, size x 2 size. Its test labels are hidden: "test" is "val"."""
    part = "train" if split == "train" else "val"
    found = _find(root, "cityscapes", ("cityscapes", "Cityscapes", ""), [f"leftImg8bit/{part}"])
    images = list_images(found)
    targets = found.parents[1] / "gtFine" / part
    masks = [_labels_of(Path(image), targets) for image in images]
    labels = _pixel_labels(CITYSCAPES_IDS)
    return _segmentation(images, masks, (size, 2 * size), labels, CITYSCAPES, found)


def _labels_of(image: Path, targets: Path) -> str:
    name = image.name.replace("_leftImg8bit", "_gtFine_labelIds")
    return str(targets / image.parent.name / name)


def _pixel_labels(stored: Iterable[int]) -> Tensor:
    """[256] the label of each stored value: its place in `stored`, and -1 for all others."""
    labels = torch.full((256,), IGNORE, dtype=torch.int64)
    for label, value in enumerate(stored):
        labels[value] = label
    return labels


def _segmentation(
    images: list[str],
    masks: list[str],
    size: tuple[int, int],
    labels: Tensor,
    names: Sequence[str],
    what: Path,
) -> Data:
    if not images:
        raise BadInput(f"{what} names no images.")
    lazy = Images(images, size, pad=True)
    x: Rows = lazy if int(np.prod(lazy.shape)) > LIMIT else lazy[torch.arange(len(images))]
    y = torch.stack([read_mask(mask, size, labels) for mask in masks])
    return _set(x, y, names, what=what)


# ------------------------------------------------------------------ photographs by the million


def _clothing1m(root: Path, split: str, size: int) -> Data:
    """Clothing1M (Xiao et al. 2015): train = the 1M noisy keys; val, test = the clean key lists.

    `clean` of the training set is known for the few images that also have a checked label, else -1.
    """
    folders = ("clothing1m", "Clothing1M", "clothing1M", "")
    kind = "noisy_train" if split == "train" else f"clean_{split}"
    nested = [f"annotations/{kind}_key_list.txt", f"{kind}_key_list.txt"]
    listed = _find(root, "clothing1m", folders, nested)
    base = listed.parents[1] if listed.parent.name == "annotations" else listed.parent
    keys = listed.read_text().split()
    clean = dict(_key_labels(listed.parent / "clean_label_kv.txt"))
    given = dict(_key_labels(listed.parent / "noisy_label_kv.txt")) if split == "train" else clean
    missing = next((key for key in keys if key not in given), None)
    if missing is not None:
        raise BadInput(f"{listed} names {missing}, which has no label beside it.")
    y = torch.tensor([given[key] for key in keys])
    truth = torch.tensor([clean.get(key, IGNORE) for key in keys]) if split == "train" else None
    x = Images([str(base / key) for key in keys], (size, size))
    return _set(x, y, CLOTHING, truth, what=listed)


def _key_labels(path: Path) -> list[tuple[str, int]]:
    """Lines "KEY LABEL" in their order."""
    try:
        rows = (line.rsplit(maxsplit=1) for line in path.read_text().splitlines() if line.strip())
        return [(key, int(label)) for key, label in rows]
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} does not hold lines of a key and a label ({error}).") from error


def _webvision(first: int | None) -> Callable[[Path, str, int], Data]:
    """WebVision 1.0 (Li et al. 2017); `first` = 50: its Google images of the first 50 classes."""

    def read(root: Path, split: str, size: int) -> Data:
        name = "webvision" if first is None else f"webvision-{first}"
        folders = ("webvision", "WebVision", "")
        sources = ["google"] if first else ["google", "flickr"]
        lists = [f"train_filelist_{s}" for s in sources] if split == "train" else ["val_filelist"]
        rows: list[tuple[str, int]] = []
        for part in lists:
            listed = _find(root, name, folders, [f"info/{part}.txt"])
            rows += _key_labels(listed)
        base = listed.parents[1]
        names = _synset_names(base / "info" / "synsets.txt")[:first]
        folder = base if split == "train" else _validation_folder(base)
        kept = [(str(folder / key), label) for key, label in rows if label < len(names)]
        x = Images([path for path, _ in kept], (size, size))
        return _set(x, torch.tensor([label for _, label in kept]), names, what=base)

    return read


def _validation_folder(base: Path) -> Path:
    return next((base / f for f in ("val_images_256", "val_images") if (base / f).is_dir()), base)


def _synset_names(path: Path) -> list[str]:
    """Lines "WNID name, other names": the first name of each class, with its id to be unique."""
    try:
        rows = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from error
    return [f"{row[0]} {row[1].split(',')[0]}" if len(row) > 1 else row[0] for row in rows]


def _ilsvrc12(first: int | None) -> Callable[[Path, str, int], Data]:
    """ILSVRC 2012: train = train/WNID/*; test = val/, flat with the devkit, or val/WNID/*.

    Classes are numbered by sorted WordNet id, as WebVision's; `first` keeps the first ones.
    """

    def read(root: Path, split: str, size: int) -> Data:
        name = "ilsvrc12" if first is None else f"ilsvrc12-{first}"
        folders = ("ilsvrc12", "ILSVRC2012", "imagenet", "")
        wanted = ["train"] if split == "train" else ["val", "ILSVRC2012_img_val"]
        folder = _find(root, name, folders, wanted)
        paths = list_images(folder)
        ids = sorted(p.name for p in folder.iterdir() if p.is_dir())
        if ids:
            names, wnids = ids, [Path(path).parent.name for path in paths]
        else:
            names, wnids = _devkit(folder.parent, paths)
        names = names[:first]
        number = {key.split()[0]: label for label, key in enumerate(names)}
        kept = [(p, number[w]) for p, w in zip(paths, wnids, strict=True) if w in number]
        x = Images([path for path, _ in kept], (size, size))
        return _set(x, torch.tensor([label for _, label in kept]), names, what=folder)

    return read


def _devkit(base: Path, paths: list[str]) -> tuple[list[str], list[str]]:
    """Class names by sorted WordNet id, and the id of each flat validation image.

    The devkit numbers classes in its own order (1 to 1000), which meta.mat maps to WordNet ids.
    """
    from scipy.io import loadmat

    folder = _find(
        base, "ilsvrc12", ("ILSVRC2012_devkit_t12", "devkit", ""), ["data/meta.mat"]
    ).parent
    truth = folder / "ILSVRC2012_validation_ground_truth.txt"
    try:
        synsets = loadmat(folder / "meta.mat", squeeze_me=True)["synsets"]
        wnid = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
        word = dict(zip(wnid.values(), synsets["words"].tolist(), strict=True))
        numbers = [int(n) for n in truth.read_text().split()]
        # ILSVRC2012_val_00000001.JPEG is described by the first line.
        wnids = [wnid[numbers[int(Path(path).stem.rsplit("_", 1)[-1]) - 1]] for path in paths]
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise BadInput(
            f"The devkit in {folder} does not describe the images ({error!r})."
        ) from error
    leaves = sorted(w for n, w in wnid.items() if n <= 1000)  # above 1000 stand groups of classes
    return [f"{w} {word[w].split(',')[0]}" for w in leaves], wnids


# ------------------------------------------------------------------ the list


@dataclass(frozen=True)
class _Entry:
    read: Callable[..., Data]
    splits: tuple[str, ...] = ("train", "test")
    size: int | None = None  # the default side, for sets whose pictures differ in size


_THREE = ("train", "val", "test")
_SETS = {
    "mnist": _Entry(_mnist),
    "fashion-mnist": _Entry(_fashion_mnist),
    "fashion-mnist-small": _Entry(_embedded),
    "cifar10": _Entry(_cifar10),
    "cifar100": _Entry(_cifar100),
    "cifar100-coarse": _Entry(_cifar100_coarse),
    "cifar10n-worst": _Entry(_cifar_n(_cifar10, "worse_label")),
    "cifar10n-aggre": _Entry(_cifar_n(_cifar10, "aggre_label")),
    "cifar10n-random1": _Entry(_cifar_n(_cifar10, "random_label1")),
    "cifar10n-random2": _Entry(_cifar_n(_cifar10, "random_label2")),
    "cifar10n-random3": _Entry(_cifar_n(_cifar10, "random_label3")),
    "cifar100n": _Entry(_cifar_n(_cifar100, "noisy_label")),
    "svhn": _Entry(_svhn, ("train", "test", "extra")),
    "moons": _Entry(_moons),
    "circles": _Entry(_circles),
    "digits": _Entry(_digits),
    "shapes": _Entry(_shapes(0.0), _THREE),
    "shapes-noisy": _Entry(_shapes(2.0), _THREE),
    "camvid": _Entry(_camvid, _THREE),
    "voc2012": _Entry(_voc2012, _THREE, 256),
    "cityscapes": _Entry(_cityscapes, _THREE, 256),
    "clothing1m": _Entry(_clothing1m, _THREE, 224),
    "webvision": _Entry(_webvision(None), size=224),
    "webvision-50": _Entry(_webvision(50), size=224),
    "ilsvrc12": _Entry(_ilsvrc12(None), size=224),
    "ilsvrc12-50": _Entry(_ilsvrc12(50), size=224),
}
NAMES = tuple(_SETS)


# ------------------------------------------------------------------ download


@dataclass(frozen=True)
class _Source:
    url: str  # the folder of the files
    md5: dict[str, str]  # file -> digest, as published
    folder: str  # where they belong below `to`; for a tar: the folder that it holds


_SOURCES = {
    "mnist": _Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        "MNIST/raw",
    ),
    "fashion-mnist": _Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "FashionMNIST/raw",
    ),
    "cifar10": _Source(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar-10-batches-bin",
    ),
    "cifar100": _Source(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        "cifar-100-binary",
    ),
    "svhn": _Source(
        "http://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
        "svhn",
    ),
    "voc2012": _Source(
        "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
        {"VOCtrainval_11-May-2012.tar": "6cd6e144f989b92b3379bac3b3de84fd"},
        "VOCdevkit/VOC2012",
    ),
}
_CIFAR_N = "at github.com/UCSC-REAL/cifar-10-100n (CIFAR-10_human.pt, CIFAR-100_human.pt)"
_ASK = {  # sets that their publishers give on request, or that have no published digest
    "cifar10n": _CIFAR_N,
    "cifar100n": _CIFAR_N,
    "camvid": "at mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid",
    "cityscapes": "at www.cityscapes-dataset.com (leftImg8bit and gtFine)",
    "clothing1m": "from its authors, see github.com/Cysu/noisy_label",
    "webvision": "at data.vision.ee.ethz.ch/cvl/webvision/download.html (version 1.0)",
    "ilsvrc12": "at www.image-net.org (validation images and the development kit)",
}


def _key(name: str) -> str:
    return name if name in _SOURCES else name.split("-")[0]  # cifar100-coarse, webvision-50


def origin(name: str) -> str:
    """How one comes by the files of a named set."""
    key = _key(name)
    if key in _ASK:
        return f"ask for it {_ASK[key]}"
    return f"`ytilde data {name}`" if key in _SOURCES else "made here, it needs no files"


def splits(name: str) -> tuple[str, ...]:
    return _SETS[_known(name)].splits


def download(
    name: str,
    to: str | Path,
    base_url: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Fetch a named set from its publisher, or from a mirror at base_url, into the folder `to`.

    A cut download goes on where it stopped (NAME.part, HTTP Range); a file appears under its name
    only after its digest is right. progress(file, bytes, total) is called as the bytes arrive.
    Returns the folder of the files; what is there already is not fetched again.
    """
    if _key(_known(name)) not in _SOURCES:
        raise BadInput(f"{name} cannot be downloaded by ytilde: {origin(name)}.")
    source = _SOURCES[_key(name)]
    folder = Path(to) / source.folder
    for file, md5 in source.md5.items():
        packed = ".tar" in file
        if folder.is_dir() if packed else (folder / file).is_file():
            continue
        url = (base_url or source.url).rstrip("/") + "/" + file
        target = (Path(to) if packed else folder) / file
        for path in (target, _part(target)):  # of a link the target would be written or removed
            check_writable(path)
            if path.is_symlink():
                raise BadInput(f"{path} is a link; move it away, or download into another folder.")
        fetched = not target.is_file()  # an archive that could not be unpacked is still there
        try:
            if fetched:
                _fetch(url, target, md5, progress)
            if packed:
                _unpack(target, Path(to), source.folder, keep=not fetched)
        except OSError as error:
            raise BadInput(f"{target} cannot be written: {error.strerror or error}.") from error
    return folder


def _part(target: Path) -> Path:
    """What has come of a file so far."""
    return target.with_name(target.name + ".part")


def _fetch(
    url: str, target: Path, md5: str, progress: Callable[[str, int, int], None] | None
) -> None:
    part = _part(target)
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            if response.status != 206:  # the server sends all of it again
                have = 0
            total = have + int(response.headers.get("Content-Length") or 0)
            target.parent.mkdir(parents=True, exist_ok=True)  # not before there is what to write
            with part.open("ab" if have else "wb") as file:
                while block := _receive(response, url):
                    file.write(block)
                    have += len(block)
                    if progress:
                        progress(target.name, have, total)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to send; the digest decides
            raise BadInput(f"{url} cannot be fetched: the server says {error.code}.") from error
        total = have
    except urllib.error.URLError as error:
        raise BadInput(f"{url} cannot be reached ({error.reason}).") from error
    if have < total:
        raise BadInput(
            f"{url} was cut off at {have:,} of {total:,} bytes; run it again to go on from there."
        )
    with part.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise BadInput(
            f"{url} has digest {found}, not {md5}; it was removed, try again or a mirror."
        )
    os.replace(part, target)


def _receive(response: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return response.read(1 << 20)
    except (OSError, http.client.HTTPException) as error:
        raise BadInput(
            f"{url} was cut off ({error!r}); run it again to go on from there."
        ) from error


def _unpack(archive: Path, to: Path, folder: str, keep: bool = False) -> None:
    """Extract beside the place and rename, so that the folder is there whole or not at all.

    keep: an archive that was there before may be the user's own.
    """
    with tempfile.TemporaryDirectory(dir=to, prefix=".unpack-") as temporary:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(temporary, filter="data")  # refuses paths that lead outside
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise BadInput(f"{archive} cannot be unpacked ({error}); remove it.") from error
        inner = Path(temporary) / folder
        if not inner.is_dir():
            raise BadInput(f"{archive} does not hold the folder {folder}; remove it.")
        (to / folder).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(inner, to / folder)
    if not keep:
        archive.unlink()
