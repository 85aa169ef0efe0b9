"""What the files of an audit show beside its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from ..data import Rows
from ..data.ids import own_texts
from .items import table
from .similar import Features

if TYPE_CHECKING:
    from ..engine import History
    from ..metrics import Reliability


@dataclass
class ReportContext:
    """What is known of the audited rows beside their labels; the files show it.

    images: [N, C, H, W], uint8 or float in [0, 1], in memory or lazy; rows: a table's values [N,
        D]; texts: reads rows by their numbers, every value as its owner wrote it; it goes first.
    ids: what names each row; paths: its file; text_column: which of the values is a text to read.
    features: [N, D], or a function that gives those of rows by their numbers; similar items are
        found by them.
    history: a run's records, or those of several runs by name.
    reliability: of p_wrong, where the truth is known; measured: figures (name: text) against it.
    examples: wrong labels that the report shows; the ambiguous ones come on top.
    method: what the model that judged was trained with; it is not advised again.
    table: the file in which all rows are.
    """

    images: Rows | np.ndarray | None = None
    rows: pd.DataFrame | np.ndarray | Tensor | None = None
    texts: Callable[[Sequence[int]], pd.DataFrame] | None = None
    ids: Sequence[object] | None = None
    paths: Sequence[object] | None = None
    text_column: str | None = None
    features: Features | np.ndarray | Tensor | None = None
    history: History | Mapping[str, History] | None = None
    title: str | None = None
    reliability: Reliability | None = None
    examples: int = 60
    measured: Mapping[str, str] | None = None
    method: str = ""
    table: str = "issues.csv"

    def shown(self, rows: Sequence[int]) -> pd.DataFrame | None:
        """The values of these rows as texts, under their numbers; None where there are none."""
        if self.texts is not None:
            return self._text_first(self.texts(rows))
        if self.rows is None:
            return None
        if isinstance(self.rows, pd.DataFrame):
            return self._text_first(own_texts(self.rows, rows=rows))
        return own_texts(table(self.rows[list(rows)])).set_axis(list(rows))

    def _text_first(self, table: pd.DataFrame) -> pd.DataFrame:
        """The text before the other values, on one line."""
        name = self.text_column
        if name is None or name not in table.columns:
            return table
        others = [column for column in table.columns if column != name]
        return table[[name, *others]].assign(**{name: table[name].map(one_line)})


def one_line(text: str) -> str:
    """A text to be read, whatever its lines are."""
    return " ".join(text.split())
