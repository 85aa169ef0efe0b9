"""What commands do with the data that they are given: read it, corrupt it, say what is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import datasets, noise
from ..data import IGNORE, BadInput, Data, plural, readers, shorten_list
from ..data.images import row_name, unreadable
from ..engine import Recipe
from .annotated import read_annotated
from .console import say


def read_source(
    source: str, root: Path | None, *, drop: Any = None, annotations: Any = None, **options: Any
) -> readers.Source:
    """Read what a command was given, and say how; annotations: see `annotated`."""
    options |= {"data_root": root, "drop": drop or ()}
    if annotations:
        options.pop("label")
        found = read_annotated(source, annotations, **options)
    else:
        found = readers.read(source, **options)
    for note in found.notes:
        say(f"data: {note}")
    return found


def check_image_size(size: int | None, data: Data, source: str) -> None:
    """Refuse a size for what is not read from picture files, and so was not scaled."""
    if size and data.shape[1:] != (size, size):
        raise BadInput(f"--image-size is for picture files, and {source} has none; leave it out")


def input_paths(source: str, root: Path | None, *others: Any) -> list[Path]:
    """The paths that a command reads; for a named set, the folder of its files."""
    named = [datasets.home(root)] if source in datasets.NAMES else []
    return [*named, *(Path(each) for each in (source, *others) if each)]


def class_sizes(data: Data) -> str:
    """The classes, the largest first, and how many rows have each."""
    count = data.y[data.y != IGNORE].bincount(minlength=data.num_classes)
    order = count.argsort(descending=True, stable=True).tolist()
    sizes = shorten_list(f"{data.class_name(k)!r} {count[k]}" for k in order)
    return f"{data.num_classes} classes and their rows: {sizes}"


def true_labels(data: Data) -> Tensor:
    """The labels to corrupt: the true ones where they are known, else the given ones."""
    return data.y if data.clean is None else data.clean


def corrupt(data: Data, text: str | None, recipe: Recipe) -> tuple[Data, dict[str, Any]]:
    """Corrupt the labels on purpose; the given ones become the hidden truth. With a summary."""
    if text is None:
        return data, {}
    truth = true_labels(data)
    kind, options = noise.parse(text)
    made = noise.corrupt(
        kind, data.x, truth, data.num_classes, generator=recipe.generator("noise"), **options
    )
    noise_summary = {"rate": made.rate, **made.summary()}
    return replace(data, y=made.y, clean=truth), noise_summary


def say_noise(noise_summary: dict[str, Any], rows: int) -> None:
    if noise_summary:
        say(f"noise: {100 * noise_summary['rate']:.1f} % of {rows} labels were made wrong")


def why_lazy(data: Data) -> str:
    """Why the images of a data set cannot be written as one array, and what to do."""
    unreadable_rows = unreadable(data.x)
    if not unreadable_rows.any():
        return "the images fill more than 2 GB, too much for one npz; give fewer"
    count = plural(int(unreadable_rows.sum()), "image")
    first = row_name(data.x, int(unreadable_rows.nonzero()[0]))
    return f"cannot read {count}, the first {first}; remove or repair it"


def check_suffix(path: Path, suffix: str) -> None:
    """Refuse a file name whose ending does not match what is written."""
    if path.suffix.lower() != suffix:
        raise BadInput(
            f"--out {path}: this command writes {suffix[1:]} files; call it NAME{suffix}"
        )
