"""Folders of images: a class is a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import BadInput
from ..images import list_images, read_images
from ..types import Data, Rows
from .labels import read_labels
from .source import ReadOptions, Source, with_schema


def read_folder(folder: Path, options: ReadOptions) -> Source:
    """FOLDER/CLASS/**/image, or FOLDER/SPLIT/CLASS/**/image. Unlabelled: any images in FOLDER."""
    if (folder / options.split).is_dir():
        folder = folder / options.split
    paths = list_images(folder)
    if not paths:
        raise BadInput(f"There are no images in {folder}.")
    classes = [Path(path).relative_to(folder).parts[:-1] for path in paths]
    if options.labelled and not all(classes):
        loose = paths[next(i for i, parts in enumerate(classes) if not parts)]
        raise BadInput(f"{loose} lies in no class folder; images belong in {folder}/CLASS/.")
    labels = np.array([parts[0] if parts else "" for parts in classes], dtype=object)
    y, _, names = read_labels(labels, None, len(paths), options, str(folder))
    if options.schema is None and options.labelled and len(names) < 2:
        raise BadInput(f"{folder} holds one class folder only; learning needs two or more.")
    return with_schema(
        Data(read_pictures(paths, options), y, len(names), None, tuple(names)), paths
    )


def read_pictures(paths: list[str], options: ReadOptions) -> Rows:
    if options.schema is None:
        how = (options.lazy, options.strict, options.notes)
        return read_images(paths, options.size, None, *how)
    if len(options.schema.shape) != 3:
        raise BadInput("The model was fitted on features, not on images; give it a table.")
    channels, height, width = options.schema.shape
    return read_images(paths, (height, width), channels, options.lazy, options.strict)
