"""Photographs by the million: Clothing1M, WebVision and ILSVRC 2012, read lazily."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..data.images import Images, list_images
from ..data.types import IGNORE, Data
from ..errors import BadInput
from .classes import CLOTHING
from .locate import find, make_set


def clothing1m(root: Path, split: str, size: int) -> Data:
    """Clothing1M (Xiao et al. 2015): train = the 1M noisy keys; val, test = the clean key lists.

    `clean` of the training set is known for the few images that also have a checked label, else -1.
    """
    folders = ("clothing1m", "Clothing1M", "clothing1M", "")
    kind = "noisy_train" if split == "train" else f"clean_{split}"
    nested = [f"annotations/{kind}_key_list.txt", f"{kind}_key_list.txt"]
    listed = find(root, "clothing1m", folders, nested)
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
    return make_set(x, y, CLOTHING, truth, what=listed)


def _key_labels(path: Path) -> list[tuple[str, int]]:
    """Lines "KEY LABEL" in their order."""
    try:
        rows = (line.rsplit(maxsplit=1) for line in path.read_text().splitlines() if line.strip())
        return [(key, int(label)) for key, label in rows]
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} does not hold lines of a key and a label ({error}).") from error


def webvision(first: int | None) -> Callable[[Path, str, int], Data]:
    """WebVision 1.0 (Li et al. 2017); `first` = 50: its Google images of the first 50 classes."""

    def read(root: Path, split: str, size: int) -> Data:
        name = "webvision" if first is None else f"webvision-{first}"
        folders = ("webvision", "WebVision", "")
        sources = ["google"] if first else ["google", "flickr"]
        lists = [f"train_filelist_{s}" for s in sources] if split == "train" else ["val_filelist"]
        rows: list[tuple[str, int]] = []
        for part in lists:
            listed = find(root, name, folders, [f"info/{part}.txt"])
            rows += _key_labels(listed)
        base = listed.parents[1]
        names = _synset_names(base / "info" / "synsets.txt")[:first]
        folder = base if split == "train" else _validation_folder(base)
        kept = [(str(folder / key), label) for key, label in rows if label < len(names)]
        x = Images([path for path, _ in kept], (size, size))
        return make_set(x, torch.tensor([label for _, label in kept]), names, what=base)

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


def ilsvrc12(first: int | None) -> Callable[[Path, str, int], Data]:
    """ILSVRC 2012: train = train/WNID/*; test = val/, flat with the devkit, or val/WNID/*.

    Classes are numbered by sorted WordNet id, as WebVision's; `first` keeps the first ones.
    """

    def read(root: Path, split: str, size: int) -> Data:
        name = "ilsvrc12" if first is None else f"ilsvrc12-{first}"
        folders = ("ilsvrc12", "ILSVRC2012", "imagenet", "")
        wanted = ["train"] if split == "train" else ["val", "ILSVRC2012_img_val"]
        folder = find(root, name, folders, wanted)
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
        return make_set(x, torch.tensor([label for _, label in kept]), names, what=folder)

    return read


def _devkit(base: Path, paths: list[str]) -> tuple[list[str], list[str]]:
    """Class names by sorted WordNet id, and the id of each flat validation image.

    The devkit numbers classes in its own order (1 to 1000), which meta.mat maps to WordNet ids.
    """
    from scipy.io import loadmat

    folder = find(
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
