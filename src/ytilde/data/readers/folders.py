"""Folders of images: a class is a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from ...errors import BadInput, shorten_list
from ..images import read_images
from ..listing import Listing, check_names, look_through
from ..types import Data, Rows
from .labels import read_labels
from .source import ReadOptions, Source, with_schema

NAMES = {  # of splits, in any case of letters
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
SPLITS = tuple(name for names in NAMES.values() for name in names)


def read_folder(folder: Path, options: ReadOptions) -> Source:
    """FOLDER/CLASS/**/image, or FOLDER/SPLIT/CLASS/**/image. Unlabelled: any images in FOLDER."""
    found = look_through(folder)
    if not found.images:
        raise BadInput(f"There are no images in {folder}{_looked_for(found)}.")
    if options.labelled and (part := _split_folder(folder, found, options.split)):
        options.notes.append(_other_splits(folder, part, found))
        folder, found = part, look_through(part)
    paths = found.images
    check_names(paths)
    options.notes.extend(found.notes())
    classes = [Path(path).relative_to(folder).parts[:-1] for path in paths]
    if options.labelled:
        if not all(classes):
            loose = paths[next(i for i, parts in enumerate(classes) if not parts)]
            raise BadInput(f"{loose} lies in no class folder; images belong in {folder}/CLASS/.")
        if empty := sorted(_folders(folder) - {parts[0] for parts in classes}):
            count = f"{len(empty)} ({shorten_list(empty)})"
            options.notes.append(f"left out, class folders without an image: {count}")
    labels = np.array([parts[0] if parts else "" for parts in classes], dtype=object)
    y, _, names = read_labels(labels, None, len(paths), options, str(folder))
    if options.schema is None and options.labelled and len(names) < 2:
        raise BadInput(f"{folder} holds one class folder only; learning needs two or more.")
    return with_schema(
        Data(read_pictures(paths, options), y, len(names), None, tuple(names)), paths
    )


def _looked_for(found: Listing) -> str:
    return f" ({'; '.join(found.notes())})" if found.notes() else ""


def _folders(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")}


def _split_folder(folder: Path, found: Listing, split: str) -> Path | None:
    """The folder of this split, where folders are splits; None where they are classes.

    They are splits where each that holds images is called like one, and the one that is asked for
    holds images in folders of its own alone.
    """
    ways = [Path(path).relative_to(folder).parts for path in found.images]
    filled = {way[0] for way in ways if len(way) > 1}
    called = [name for name in filled if name.lower() in NAMES.get(split, (split,))]
    split = split if split in called or len(called) != 1 else called[0]
    deep = all(len(way) > 2 for way in ways if way[0] == split)
    if split not in filled or not deep:
        return None
    if strange := sorted(name for name in filled if name.lower() not in SPLITS):
        raise BadInput(
            f"{folder} holds {split}/ with folders of images in it, as for a split, and "
            f"{shorten_list(strange)} beside it, as for classes; give {folder / split} if it is a "
            "split, or rename it if it is a class."
        )
    return folder / split


def _other_splits(folder: Path, part: Path, found: Listing) -> str:
    ways = [Path(path).relative_to(folder).parts for path in found.images]
    counts = Counter(way[0] if len(way) > 1 else "no folder" for way in ways)
    others = [f"{name} {count}" for name, count in sorted(counts.items()) if name != part.name]
    return f"the split {part} is read; left out, images of others: {', '.join(others) or 'none'}"


def read_pictures(paths: list[str], options: ReadOptions) -> Rows:
    if options.features is not None:  # the pictures are only shown
        return read_images(paths, options.size, None, True, options.strict)
    if options.schema is None:
        how = (options.lazy, options.strict, options.notes)
        return read_images(paths, options.size, None, *how)
    if len(options.schema.shape) != 3:
        raise BadInput(
            "The model was fitted on features, not on images; give it a table, or the images' "
            "embeddings with --features."
        )
    channels, height, width = options.schema.shape
    return read_images(paths, (height, width), channels, options.lazy, options.strict)
