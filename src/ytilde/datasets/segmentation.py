"""CamVid, PASCAL VOC and Cityscapes: pictures and masks."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.images import LIMIT, Images, is_image, list_images, read_image, read_mask
from ..data.types import IGNORE, Data, Rows
from ..errors import BadInput
from .classes import CAMVID, CITYSCAPES, CITYSCAPES_IDS, VOC
from .locate import find, make_set


def camvid(root: Path, split: str) -> Data:
    """CamVid at 240x180 with 11 classes: SPLIT/{images,masks}, or SPLIT.zip with the two inside."""
    folders = ("camvid-small", "camvid", "CamVid", "")
    found = find(root, "camvid", folders, [f"{split}/images", f"{split}.zip"])
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
    return make_set(torch.stack(x), torch.stack(y), CAMVID, what=found)


def _mask_of(name: str) -> str:
    return f"masks/{Path(name).stem}.png"


def voc2012(root: Path, split: str, size: int) -> Data:
    """PASCAL VOC 2012 segmentation. Its test labels are not public, so "test" is "val"."""
    folders = ("VOCdevkit/VOC2012", "VOC2012", "")
    file = f"ImageSets/Segmentation/{'train' if split == 'train' else 'val'}.txt"
    listed = find(root, "voc2012", folders, [file])
    base = listed.parents[2]
    keys = listed.read_text().split()
    images = [str(base / "JPEGImages" / f"{key}.jpg") for key in keys]
    masks = [str(base / "SegmentationClass" / f"{key}.png") for key in keys]
    return _segmentation(images, masks, (size, size), _pixel_labels(range(21)), VOC, listed)


def cityscapes(root: Path, split: str, size: int) -> Data:
    """Cityscapes, fine annotations, size x 2 size. Its test labels are hidden: "test" is "val"."""
    part = "train" if split == "train" else "val"
    found = find(root, "cityscapes", ("cityscapes", "Cityscapes", ""), [f"leftImg8bit/{part}"])
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
    return make_set(x, y, names, what=what)
