"""The galleries of the report: which items are shown, and what of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from PIL import Image

from ...data.ids import own_text
from ..issues import worst_first
from ..items import data_address, encode, file_picture, picture_of
from ..pages import text_of
from ..totals import AMBIGUOUS

COLUMNS = 12  # values of a table's row that a card shows
CHARACTERS = 720  # of these values together; each may have 60
TEXT = 40  # characters from which on a value is read rather than compared
# (side, JPEG quality) to try in turn, until a picture is small enough
SIZES = ((320, 85), (192, 80), (96, 85), (96, 60), (64, 60), (40, 50), (24, 40))
THUMBNAILS = SIZES[2:]


class Source:
    """Who a row is: its id, its file and its values; None where the data has no such thing."""

    def __init__(
        self,
        rows: pd.DataFrame | None,
        paths: Sequence[object] | None,
        ids: Sequence[object] | None,
        text_first: bool = False,
    ) -> None:
        """rows: texts, under the numbers of the rows; text_first: the first is one to be read."""
        self.paths, self.ids = paths, ids
        self.columns: list[str] = []
        self._values: dict[int, Any] = {}
        if rows is not None:
            shown = rows.iloc[:, :COLUMNS]
            self.columns = [text_of(name, 40) for name in shown.columns]
            self._values = dict(zip(shown.index.tolist(), shown.to_numpy(), strict=True))
        lengths = (len(str(value)) for values in self._values.values() for value in values)
        self.has_texts = any(length > TEXT for length in lengths)
        share = max(60, CHARACTERS // max(1, len(self.columns)))
        self._longest = [share] * len(self.columns)
        if text_first:
            self._longest[:1] = [CHARACTERS]

    def look(self, row: int) -> tuple[str | None, str | None, list[str] | None]:
        """Its id, its file, its values."""
        return (
            None if self.ids is None else text_of(own_text(self.ids[row])),
            None if self.paths is None else text_of(self.paths[row], 200),
            [text_of(*each) for each in zip(self._values[row], self._longest, strict=True)]
            if self.columns
            else None,
        )


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


def card(issue: Any, source: Source, image: str | None) -> dict[str, Any]:
    row = int(issue.index)
    own_id, path, values = source.look(row)
    return {
        "row": row,
        "given": text_of(issue.given_label),
        "suggested": text_of(issue.predicted_label),
        "runner_up": text_of(issue.runner_up_label),
        "p_wrong": float(issue.p_wrong),
        "ambiguity": float(issue.ambiguity),
        "id": own_id,
        "path": path,
        "values": list(zip(source.columns, values or (), strict=True)),
        "image": image,
    }


class Pictures:
    """Pictures as data: addresses, as long as there is room for them on the page."""

    def __init__(self, images: Any, room: int, paths: Sequence[object] | None = None) -> None:
        """paths: the files of the rows, which are shown as they are, whatever size was trained."""
        self.images, self.room, self.paths = images, room, paths
        self._kept: dict[int, str] = {}

    def take(self, row: int, quota: int, sizes: Sequence[tuple[int, int]] = SIZES) -> str | None:
        """The picture of a row in at most `quota` characters; it is taken once."""
        if self.images is None or row in self._kept:
            return self._kept.get(row)
        own = file_picture(self.paths[row]) if self.paths else None
        address = _small(own or picture_of(self.images, row), min(quota, self.room), sizes)
        if address is not None:
            self.room -= len(address)
            self._kept[row] = address
        return address


def _small(picture: Image.Image, quota: int, sizes: Sequence[tuple[int, int]]) -> str | None:
    for address in _addresses(picture, sizes):
        if len(address) <= quota:
            return address
    return None


def _addresses(picture: Image.Image, sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    if max(picture.size) <= THUMBNAILS[0][0]:
        yield data_address(encode(picture, "png", optimize=True), "png")
    for side, quality in sizes:
        small = picture.copy()
        small.thumbnail((side, side))
        yield data_address(encode(small, "jpeg", quality=quality), "jpeg")
