"""The list of named sets: `load` reads one from the publishers' own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..data.types import Data
from ..errors import BadInput, unknown_name_message
from .cifar import cifar10, cifar100, cifar100_coarse, cifar_n
from .locate import ONLY_LOOK, FileFound, home
from .mnist import embedded, fashion_mnist, mnist
from .photographs import clothing1m, ilsvrc12, webvision
from .segmentation import camvid, cityscapes, voc2012
from .sources import ON_REQUEST, SOURCES, source_of
from .svhn import svhn
from .synthetic import circles, digits, moons, shapes_set


@dataclass(frozen=True)
class NamedSet:
    read: Callable[..., Data]
    splits: tuple[str, ...] = ("train", "test")
    size: int | None = None  # the default side, for sets whose pictures differ in size


_THREE = ("train", "val", "test")
SETS = {
    "mnist": NamedSet(mnist),
    "fashion-mnist": NamedSet(fashion_mnist),
    "fashion-mnist-small": NamedSet(embedded),
    "cifar10": NamedSet(cifar10),
    "cifar100": NamedSet(cifar100),
    "cifar100-coarse": NamedSet(cifar100_coarse),
    "cifar10n-worst": NamedSet(cifar_n(cifar10, "worse_label")),
    "cifar10n-aggre": NamedSet(cifar_n(cifar10, "aggre_label")),
    "cifar10n-random1": NamedSet(cifar_n(cifar10, "random_label1")),
    "cifar10n-random2": NamedSet(cifar_n(cifar10, "random_label2")),
    "cifar10n-random3": NamedSet(cifar_n(cifar10, "random_label3")),
    "cifar100n": NamedSet(cifar_n(cifar100, "noisy_label")),
    "svhn": NamedSet(svhn, ("train", "test", "extra")),
    "moons": NamedSet(moons),
    "circles": NamedSet(circles),
    "digits": NamedSet(digits),
    "shapes": NamedSet(shapes_set(0.0), _THREE),
    "shapes-noisy": NamedSet(shapes_set(2.0), _THREE),
    "camvid": NamedSet(camvid, _THREE),
    "voc2012": NamedSet(voc2012, _THREE, 256),
    "cityscapes": NamedSet(cityscapes, _THREE, 256),
    "clothing1m": NamedSet(clothing1m, _THREE, 224),
    "webvision": NamedSet(webvision(None), size=299),
    "webvision-50": NamedSet(webvision(50), size=299),
    "ilsvrc12": NamedSet(ilsvrc12(None), size=299),
    "ilsvrc12-50": NamedSet(ilsvrc12(50), size=299),
}
NAMES = tuple(SETS)


def load(
    name: str, root: str | Path | None = None, split: str = "train", size: int | None = None
) -> Data:
    """The named set's split ("train", "val" or "test", as far as it has them).

    root: where the official files lie; default $YTILDE_DATA, else ./data.
    size: side of the pictures, for the sets whose pictures differ in size.
    """
    entry = SETS[known_name(name)]
    folder = home(root)
    if size is not None and entry.size is None:
        raise BadInput(f"The pictures of {name} have one size; leave size out.")
    if split not in entry.splits:
        raise BadInput(f"{name} has no split {split!r}; it has {', '.join(entry.splits)}.")
    if entry.size is None:
        return entry.read(folder, split)
    return entry.read(folder, split, size or entry.size)


def known_name(name: str) -> str:
    if name in SETS:
        return name
    raise BadInput(unknown_name_message("data set", name.lower(), NAMES))


def at_hand(name: str, root: str | Path | None = None, split: str = "train") -> bool:
    """Are the split's files there? Tells by the first that its reader looks for, and reads none."""
    if source_of(known_name(name)) not in {**SOURCES, **ON_REQUEST}:
        return True
    looking = ONLY_LOOK.set(True)
    try:
        load(name, root, split)
    except FileFound:
        return True
    except BadInput:
        return False
    finally:
        ONLY_LOOK.reset(looking)
    raise AssertionError(f"the reader of {name} looks for no file")


def splits(name: str) -> tuple[str, ...]:
    return SETS[known_name(name)].splits
