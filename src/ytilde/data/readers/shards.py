"""Pictures in tar archives, as WebDataset writes them, or with a folder for each class."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...archives import is_shard, members, read_member
from ...errors import BadInput, shorten_list
from ..listing import check_names, is_image
from ..types import Data
from .folders import NAMES, SPLITS, read_pictures
from .labels import read_labels
from .source import ReadOptions, Source, with_schema

KEYS = ("label", "cls", "class", "target")  # of a sample's .json, if --label names none


def holds_shards(path: Path) -> bool:
    """Is it a tar archive, or a folder that holds some?"""
    if path.is_dir():
        return any(is_shard(file) for file in path.iterdir() if not file.name.startswith("."))
    return is_shard(path) and path.is_file()


def read_shards(path: Path, options: ReadOptions) -> Source:
    """A row for each picture of these archives, in their order.

    Its label is in KEY.cls or KEY.json beside KEY.jpg, or else the folder that it lies in. Pictures
    are read by their place in the archive when they are needed.
    """
    shards = _of_split(path, options) if path.is_dir() else [path]
    rows = [(shard, name) for shard in shards for name in members(shard) if is_image(name)]
    if not rows:
        raise BadInput(f"There are no images in {path}.")
    paths = [f"{shard}/{name}" for shard, name in rows]
    check_names(paths)
    labels = np.array([""] * len(rows), dtype=object)
    if options.labelled:
        labels[:] = [_label(shard, name, options.label) for shard, name in rows]
    y, _, names = read_labels(labels, None, len(rows), options, str(path))
    if options.schema is None and options.labelled and len(names) < 2:
        raise BadInput(f"{path} holds one class only; learning needs two or more.")
    data = Data(read_pictures(paths, options), y, len(names), None, tuple(names))
    return with_schema(data, paths)


def _of_split(folder: Path, options: ReadOptions) -> list[Path]:
    """The folder's archives; where their names begin with those of splits, one split's."""
    files = sorted(folder.iterdir())
    shards = [file for file in files if is_shard(file) and not file.name.startswith(".")]
    words = [shard.stem.lower().replace("_", "-").split("-")[0] for shard in shards]
    if not options.labelled or not all(word in SPLITS for word in words):
        return shards
    wanted = NAMES.get(options.split, (options.split,))
    chosen = [shard for shard, word in zip(shards, words, strict=True) if word in wanted]
    if not chosen:
        raise BadInput(
            f"{folder} holds no archive of the split {options.split}, but "
            f"{shorten_list([shard.name for shard in shards])}."
        )
    if left := Counter(word for word in words if word not in wanted):
        others = ", ".join(f"{word} {count}" for word, count in sorted(left.items()))
        options.notes.append(
            f"the split {options.split} is read; left out, archives of others: {others}"
        )
    return chosen


def _label(shard: Path, name: str, key: str | None) -> str:
    """What the sample's own file says, or the first folder of its name."""
    way = PurePosixPath(name)
    stem = str(way.parent / way.name.split(".")[0])
    places = members(shard)
    if f"{stem}.cls" in places and key is None:
        return _text(shard, f"{stem}.cls").strip()
    if f"{stem}.json" in places:
        return _field(shard, f"{stem}.json", key)
    if key is not None:
        raise BadInput(f"{shard}/{name} has no .json beside it that could hold {key!r}.")
    if len(way.parts) > 1:
        return way.parts[0]
    raise BadInput(
        f"{shard}/{name} has no label: put it into {stem}.cls or {stem}.json beside the image, or "
        "the image into a folder of its class."
    )


def _field(shard: Path, name: str, key: str | None) -> str:
    try:
        values: Any = json.loads(_text(shard, name))
    except ValueError as error:
        raise BadInput(f"{shard}/{name} is no JSON ({error}).") from error
    if not isinstance(values, dict):
        raise BadInput(f"{shard}/{name} is no JSON object; its label cannot be found.")
    found = [each for each in ([key] if key is not None else KEYS) if each in values]
    if not found:
        wanted = repr(key) if key is not None else f"any of {', '.join(KEYS)}"
        raise BadInput(
            f"{shard}/{name} holds no {wanted}, but {shorten_list(sorted(values))}; name the field "
            "of the label with --label."
        )
    value = values[found[0]]
    if isinstance(value, bool | int | str):
        return str(value)
    raise BadInput(f"{shard}/{name} has {value!r} as its label; give a number or a name.")


def _text(shard: Path, name: str) -> str:
    try:
        return read_member(str(shard), name).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{shard}/{name} is not written in UTF-8.") from error
