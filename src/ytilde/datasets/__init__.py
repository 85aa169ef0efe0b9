"""Named data sets: `load` reads the publishers' own files, `download` fetches those that are free.

Files are looked for under `root`, $YTILDE_DATA or ./data, in the folders that the publishers (and
torchvision) use. No pickle is ever loaded.
"""

from .classes import (
    CAMVID,
    CIFAR10,
    CIFAR100,
    CIFAR100_COARSE,
    CIFAR100_FINE,
    CITYSCAPES,
    CITYSCAPES_IDS,
    CLOTHING,
    DIGITS,
    FASHION,
    VOC,
)
from .fetch import download
from .locate import home
from .registry import NAMES, at_hand, load, splits
from .sources import origin
from .synthetic import SHAPES, shapes

__all__ = [
    "CAMVID",
    "CIFAR10",
    "CIFAR100",
    "CIFAR100_COARSE",
    "CIFAR100_FINE",
    "CITYSCAPES",
    "CITYSCAPES_IDS",
    "CLOTHING",
    "DIGITS",
    "FASHION",
    "NAMES",
    "SHAPES",
    "VOC",
    "at_hand",
    "download",
    "home",
    "load",
    "origin",
    "shapes",
    "splits",
]
