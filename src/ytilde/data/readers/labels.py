"""Labels of any kind as int64 and class names."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...errors import BadInput, sentence, shorten_list, which_rows
from ..types import IGNORE
from .convert import as_array
from .source import ReadOptions


def encode(
    labels: Any,
    names: Sequence[str] | None,
    *,
    what: str = "the labels",
    clean: bool = False,
    first: int = 0,
) -> tuple[Tensor, list[str]]:
    """Labels of any shape, ints or strings, as int64 and the class names.

    Without `names` the classes are sorted, as numbers where all are whole numbers. -1 stays -1 for
    pixels. In `clean` labels an unknown truth, empty or -1, becomes -1; elsewhere it is refused.
    first: the number of the first row, for messages.
    """
    array = label_array(labels, what)
    flat, values = pd.factorize(pd.Series(array.reshape(-1)))
    codes = np.asarray(flat).reshape(array.shape)
    found = [class_name(value, what) for value in values]
    unknown = {""} | ({"-1"} if array.ndim > 1 or (clean and "-1" not in (names or ())) else set())
    chosen = _sorted_classes(set(found) - unknown) if names is None else [str(n) for n in names]
    place = {name: label for label, name in enumerate(chosen)} | dict.fromkeys(unknown, IGNORE)
    if len(place) < len(chosen) + len(unknown):
        raise BadInput(f"The class names must all be different: {', '.join(chosen)}.")
    for code, name in enumerate(found):
        if name not in place:
            rows = which_rows(np.argwhere(codes == code)[:, 0] + first)
            near = difflib.get_close_matches(name, chosen, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else shorten_list(chosen, 10)
            raise BadInput(
                f"There is {name!r} in {rows} of {what}, which is not one of the "
                f"{len(chosen)} classes ({hint})."
            )
    lookup = np.array([place[name] for name in found] + [IGNORE])  # code -1 (missing) is the last
    if array.ndim == 1 and not clean and (missing := np.flatnonzero(lookup[codes] == IGNORE)).size:
        raise empty_cells(missing + first, what)
    return torch.from_numpy(lookup[codes].astype(np.int64)), chosen


def label_array(labels: Any, what: str) -> np.ndarray:
    """Labels as an array; what can be no class is refused, missing ones are not."""
    array = as_array(labels, what)
    if array.dtype.kind in "Vc":
        raise BadInput(f"{sentence(what)} hold {array.dtype}; classes must be numbers or names.")
    if array.dtype.kind == "O" and not all(isinstance(label, Hashable) for label in array.flat):
        raise BadInput(f"{sentence(what)} hold lists or records; give one class per row.")
    return array


def empty_cells(rows: np.ndarray, what: str) -> BadInput:
    return BadInput(f"There is nothing in {which_rows(rows)} of {what}; {FILL}.")


FILL = "fill it in or leave the row out"


def class_name(value: Any, what: str) -> str:
    if isinstance(value, float | np.floating):
        if not float(value).is_integer():
            raise BadInput(
                f"{sentence(what)} hold {value}; classes must be whole numbers or names."
            )
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _sorted_classes(found: Iterable[str]) -> list[str]:
    found = list(found)
    try:
        return sorted(found, key=lambda name: (int(name), name))  # 1 and 01 are two classes
    except ValueError:
        return sorted(found)


def renumber(
    labels: np.ndarray,
    names: Sequence[str],
    fixed: Sequence[str] | None,
    what: str,
    clean: bool = False,
) -> Tensor:
    """Integer labels that count into `names`, as int64 labels that count into `fixed`."""
    y = torch.as_tensor(labels.astype(np.int64))
    lowest = IGNORE if clean or y.ndim > 1 else 0
    if y.numel() and not lowest <= int(y.min()) <= int(y.max()) < len(names):
        raise BadInput(f"{sentence(what)} lie outside the {len(names)} class names beside them.")
    place, _ = encode(np.array(names, dtype=object), fixed or names, what=f"the names of {what}")
    return torch.cat([place, place.new_full((1,), IGNORE)])[y]  # the label -1 takes the last


def read_labels(
    y: Any, clean: Any, n: int, options: ReadOptions, what: str, names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor | None, list[str]]:
    """y, clean and class names, in the order that the caller or the schema fixed.

    names: the source's own class names; its integer labels count into them.
    """
    fixed = options.names or (options.schema.names if options.schema else None)
    if not options.labelled:
        return torch.full((n,), IGNORE), None, list(fixed or names or ())
    parts: list[Tensor | None] = []
    chosen = [str(name) for name in fixed or names or ()]
    for labels, kind in ((y, "labels"), (clean, "clean labels")):
        where, truth = f"the {kind} of {what}", kind == "clean labels"
        if labels is None:
            parts.append(None)
        elif not (array := as_array(labels, where)).ndim:
            raise BadInput(f"{sentence(where)} are one number; give one for every row.")
        elif names and array.dtype.kind in "iu":
            parts.append(renumber(array, names, fixed, where, truth))
        else:
            part, chosen = encode(array, chosen or None, what=where, clean=truth)
            parts.append(part)
    if parts[0] is None:
        raise BadInput(f"There are no labels in {what}; give one for every row.")
    if not (fixed or names):
        check_classes(chosen, len(parts[0]), f"the labels of {what}")
        options.notes.extend(_alike(chosen))
    return parts[0], parts[1], chosen


def check_classes(names: Sequence[str], rows: int, what: str) -> None:
    """Refuse a quantity: many numbers, some with fractions, and fewer than three rows for each.

    And an id: many texts or whole numbers, all different.
    """
    try:
        whole = all(float(name.replace(",", ".")).is_integer() for name in names)
    except ValueError:
        whole = True  # or a text: neither is a quantity
    if whole and len(names) == rows > 10:
        raise BadInput(
            f"{sentence(what)} are all different ({shorten_list(names, 3)}): an id or a "
            "text, not classes; name the column of the classes with --label (label=)."
        )
    if not whole and len(names) > max(10, rows / 3):
        raise BadInput(
            f"{sentence(what)} are {len(names)} different numbers in {rows} rows: a quantity, not "
            "classes; cut it into classes (pandas.cut), or write classes as names, not as numbers."
        )


def _alike(names: Sequence[str]) -> list[str]:
    """A note on each group of classes that differ by spaces or capitals alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(name.split()).casefold(), []).append(repr(name))
    return [
        f"the classes {' and '.join(group)} differ by spaces or capitals alone; are they one?"
        for group in groups.values()
        if len(group) > 1
    ]
