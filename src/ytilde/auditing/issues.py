"""The table of issues: its columns, its order, and the parquet file where it is too large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .blocks import PART
from .inputs import Labels
from .verdict import Rows

LABELS = ("given_label", "predicted_label", "runner_up_label")
MARK = {"ytilde": "issues"}  # in the file, so that the next one may replace it


def issue_columns(index: Any, y: Labels, rows: Rows, ids: Any = None) -> dict[str, Any]:
    """The columns of these rows, labels as numbers of classes; ids: what names the rows."""
    return {
        "index": index,
        **({} if ids is None else {"id": ids}),
        "given_label": y,
        "predicted_label": rows.predicted,
        "label_quality": rows.quality,
        "is_label_issue": rows.p_wrong > 0.5,
        "predicted_prob": rows.predicted_prob,
        "p_wrong": rows.p_wrong,
        "ambiguity": rows.ambiguity,
        "runner_up_label": rows.runner_up,
        "runner_up_prob": rows.runner_up_prob,
    }


def issues_frame(columns: Any, names: Sequence[str] | None) -> pd.DataFrame:
    """The same as a table, with the classes' names where there are any."""
    frame = pd.DataFrame(columns)
    if names is None:
        return frame
    shown = np.array(names, dtype=object)
    return frame.assign(**{name: shown[frame[name].to_numpy()] for name in LABELS})


def worst_first(issues: pd.DataFrame) -> pd.DataFrame:
    """The order is strict: where p_wrong is so near to 1 that it is 1, label_quality still differs.

    Likewise p_wrong among the best.
    """
    return issues.sort_values(["label_quality", "p_wrong", "index"], ascending=[True, False, True])


def arrow_table(columns: Mapping[str, Any], names: Sequence[str] | None) -> Any:
    """These columns as they go to a file: numbers in float32."""
    import pyarrow as pa

    def column(name: str, values: Any) -> Any:
        if name in LABELS and names is not None:
            codes = pa.array(values.astype(np.int32))
            return pa.DictionaryArray.from_arrays(codes, pa.array(list(names), pa.string()))
        floating = isinstance(values, np.ndarray) and values.dtype.kind == "f"
        return pa.array(values.astype(np.float32)) if floating else pa.array(values)

    return pa.table({name: column(name, values) for name, values in columns.items()})


class IssuesFile:
    """A parquet file of issues, in the order of the rows; each table that it is given is a group of
    rows in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: Any = None

    def __enter__(self) -> IssuesFile:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, table: Any) -> None:
        import pyarrow.parquet as pq

        table = table.replace_schema_metadata(MARK)
        if self._writer is None:
            texts = [name for name in table.column_names if name in (*LABELS, "id")]
            self._writer = pq.ParquetWriter(self.path, table.schema, use_dictionary=texts)
        self._writer.write_table(table, row_group_size=max(1, len(table)))


def write_issues(issues: pd.DataFrame, names: Sequence[str] | None, path: Path) -> None:
    """A table in memory as the file that its rows would have made one block after another."""
    with IssuesFile(path) as file:
        for _, part in issues.groupby(issues["index"] // PART):
            columns: dict[str, Any] = {name: part[name].to_numpy() for name in part}
            known = names is not None and all(part[n].isin(names).all() for n in LABELS)
            if known:
                columns |= {n: pd.Index(names).get_indexer(part[n]) for n in LABELS}
            file.write(arrow_table(columns, names if known else None))
