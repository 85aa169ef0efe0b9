"""The galleries of the report: which items are shown, and what of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from PIL import Image

from ...data.ids import own_text
from ..audit import worst_first
from ..items import data_address, encode, picture_of
from ..pages import text_of

AMBIGUOUS = 0.5  # above this an item counts as hard
SIZES = ((96, 85), (96, 60), (64, 60), (40, 50), (24, 40))  # (side, JPEG quality) to try in turn
COLUMNS = 12  # values of a table's row that a card shows


class Source(NamedTuple):
    """Where a card takes its picture or values from."""

    images: Any
    rows: pd.DataFrame | None  # texts, under the numbers of the rows
    paths: Sequence[object] | None
    ids: Sequence[object] | None
    quota: int  # bytes a picture


def choose(issues: pd.DataFrame, examples: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The worst labels, a few of every kind of mistake, and the most ambiguous others.

    One pair of classes could otherwise fill the page; places left over go to the worst anyway.
    """
    flagged = worst_first(issues[issues.is_label_issue])
    kinds = flagged.groupby(["given_label", "predicted_label"], sort=False)
    within = kinds.cumcount() < max(3, math.ceil(2 * examples / max(1, kinds.ngroups)))
    first = pd.concat([flagged[within], flagged[~within]]).head(examples)
    worst = worst_first(first)
    others = issues[~issues.is_label_issue & (issues.ambiguity > AMBIGUOUS)]
    hardest = others.sort_values(["ambiguity", "index"], ascending=[False, True])
    return worst, hardest.head(math.ceil(0.4 * examples))


def card(issue: Any, source: Source) -> dict[str, Any]:
    row = int(issue.index)
    values: list[tuple[str, str]] = []
    if source.rows is not None:
        shown = source.rows.loc[row].iloc[:COLUMNS]
        values = [(text_of(name, 40), text_of(value, 60)) for name, value in shown.items()]
    return {
        "row": row,
        "given": text_of(issue.given_label),
        "suggested": text_of(issue.predicted_label),
        "runner_up": text_of(issue.runner_up_label),
        "p_wrong": float(issue.p_wrong),
        "sure": float(issue.predicted_prob),
        "ambiguity": float(issue.ambiguity),
        "id": text_of(own_text(source.ids[row])) if source.ids is not None else "",
        "path": text_of(source.paths[row], 200) if source.paths is not None else "",
        "image": None if source.images is None else _picture(source.images, row, source.quota),
        "values": values,
    }


def _picture(images: Any, row: int, quota: int) -> str | None:
    """The picture of a row as a data: address of at most `quota` characters."""
    picture = picture_of(images, row)
    if max(picture.size) <= SIZES[0][0]:
        address = _address(picture, "png", optimize=True)
        if len(address) <= quota:
            return address
    for side, quality in SIZES:
        small = picture.copy()
        small.thumbnail((side, side))
        address = _address(small, "jpeg", quality=quality)
        if len(address) <= quota:
            return address
    return None


def _address(picture: Image.Image, kind: str, **options: Any) -> str:
    return data_address(encode(picture, kind, **options), kind)
