"""Probabilities and labels of tables larger than memory: parquet files, read a block at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import BadInput, shorten_list, which_rows
from ..listing import look_through
from .labels import encode
from .probabilities import check_column, check_sums, matching
from .roles import label_columns
from .source import ReadOptions
from .tables import readable_table

READ = 1 << 16  # rows that are decoded at once


class Block(NamedTuple):
    """Rows that follow one another: the number of the first, probabilities, labels, ids."""

    first: int
    p: NDArray[Any]  # [n, K], as the file has them: float32 or float64
    y: NDArray[np.int64]  # -1: none
    ids: Any = None  # an Arrow array


class ProbabilityFiles:
    """A parquet file, or a folder of them, whose rows are counted on from file to file.

    path: files in it are taken in the order of their names.
    pattern: of the columns' names, as in "p_*", or the name of one column of lists.
    label, id_column: as of `read_probabilities`; no id is looked for that is not named.

    Holds no rows, and can be sent to other processes.
    """

    def __init__(
        self, path: str | Path, pattern: str, label: str | None = None, id_column: str | None = None
    ) -> None:
        self.path = Path(path)
        self.files = [file.absolute() for file in parquet_files(self.path)]
        self.rows_of: list[int] = []
        self.columns: list[str] = []
        self.names: list[str] = []
        self.read: list[str] = []
        self.id_column = None if id_column == "none" else id_column
        schema: Any = None
        for file in self.files:
            opened = open_parquet(file)
            self.rows_of.append(opened.metadata.num_rows)
            if schema is None:
                schema = opened.schema_arrow
                self._choose(schema, pattern, label)
            missing = set(self.read) - set(opened.schema_arrow.names)
            if missing:
                raise BadInput(f"{file} has no column {shorten_list(sorted(missing))}, unlike "
                               f"{self.files[0]}; give files of the same columns")  # fmt: skip
        if not self.rows:
            raise BadInput(f"There are no rows in {self.path}.")
        if not self.names:  # of lists: as many classes as the first one has
            first = next(open_parquet(self._first_with_rows).iter_batches(1, columns=self.columns))
            width = len(first.column(0)[0]) if first.column(0)[0].is_valid else 0
            self.names = [str(k) for k in range(width)]
        if len(self.names) < 2:
            raise BadInput(f"{pattern!r} of {self.path} has one class; an audit needs two")

    def _choose(self, schema: Any, pattern: str, label: str | None) -> None:
        """Which columns are read."""
        import pyarrow as pa

        options = ReadOptions(label=label, labelled=True)
        found, _ = label_columns(schema.names, options, str(self.path))
        assert found is not None  # label_columns refuses
        self.label = found
        if self.id_column is not None and self.id_column not in schema.names:
            raise BadInput(f"There is no id column {self.id_column!r} in {self.path}; its columns: "
                           f"{shorten_list(schema.names, 20)}.")  # fmt: skip
        lists = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
        self.is_list = pattern in schema.names and any(f(schema.field(pattern).type) for f in lists)
        if self.is_list:
            self.columns, self.names = [pattern], []
        else:
            others = [name for name in schema.names if name != self.label]
            self.columns, self.names = matching(others, pattern, self.path)
        self.read = [*self.columns, self.label, *filter(None, [self.id_column])]

    @property
    def rows(self) -> int:
        return sum(self.rows_of)

    @property
    def _first_with_rows(self) -> Path:
        return next(f for f, n in zip(self.files, self.rows_of, strict=True) if n)

    def blocks(self, cuts: Iterable[slice]) -> Iterator[Block]:
        """The rows of each of these slices, which follow one another."""
        import pyarrow as pa

        batches, table, at = None, None, 0
        for cut in cuts:
            if batches is None or table is None:
                batches, at = self._batches(cut.start), cut.start
                table = pa.Table.from_batches([next(batches)])
            while len(table) < cut.stop - at:
                table = pa.concat_tables([table, pa.Table.from_batches([next(batches)])])
            yield self._block(at, table.slice(0, cut.stop - at))
            table, at = table.slice(cut.stop - at), cut.stop

    def _batches(self, start: int) -> Iterator[Any]:
        """Record batches from this row on."""
        before = 0
        for file, rows in zip(self.files, self.rows_of, strict=True):
            if start < before + rows:
                batches = self._of_file(file, max(0, start - before))
                while (batch := readable_table(file, partial(next, batches, None))) is not None:
                    yield batch
            before += rows

    def _of_file(self, file: Path, skip: int) -> Iterator[Any]:
        """Those of a file, without its first rows."""
        opened = open_parquet(file)
        groups = list(range(opened.metadata.num_row_groups))
        while skip >= (rows := opened.metadata.row_group(groups[0]).num_rows):
            skip, groups = skip - rows, groups[1:]
        for batch in opened.iter_batches(READ, groups, self.read, use_threads=False):
            if skip < len(batch):
                yield batch.slice(skip)
            skip = max(0, skip - len(batch))

    def _block(self, first: int, table: Any) -> Block:
        p = self._lists(table, first) if self.is_list else self._columns(table, first)
        check_sums(p, self.path, first)
        labels, what = table.column(self.label).to_pandas().to_numpy(), f"the labels of {self.path}"
        y, _ = encode(labels, self.names, what=what, clean=True, first=first)
        ids = table.column(self.id_column).combine_chunks() if self.id_column else None
        return Block(first, p, y.numpy(), ids)

    def _columns(self, table: Any, first: int) -> np.ndarray:
        columns = [_numbers(table.column(name), name, self.path) for name in self.columns]
        p = np.empty((len(table), len(columns)), np.result_type(*columns, np.float32))
        for k, (numbers, name) in enumerate(zip(columns, self.columns, strict=True)):
            check_column(numbers, name, self.path, first)
            p[:, k] = numbers
        return p

    def _lists(self, table: Any, first: int) -> np.ndarray:
        import pyarrow.compute as pc

        column, name, k = table.column(0), self.columns[0], len(self.names)
        length = pc.list_value_length(column).fill_null(0).to_numpy()
        odd = np.flatnonzero(length != k)
        if odd.size:
            raise BadInput(
                f"There are {length[odd[0]]} probabilities, not {k} as in the first row, in "
                f"{which_rows(odd + first)} of column {name!r} of {self.path}."
            )
        numbers = _numbers(pc.list_flatten(column), name, self.path).reshape(-1, k)
        p = numbers.astype(np.result_type(numbers, np.float32), copy=False)
        check_column(p.min(1), name, self.path, first)
        check_column(p.max(1), name, self.path, first)
        return p


def _numbers(column: Any, name: str, path: Path) -> np.ndarray:
    """A column of numbers, NaN where there is none."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise BadInput(f"Column {name!r} of {path} holds {kind}; probabilities are numbers.")
    return column.to_numpy()


def parquet_files(path: Path) -> list[Path]:
    """The parquet files; below names that begin with . or _ lie other programs' notes."""
    if path.is_dir():
        found = look_through(path)
        if closed := _parts_of(path, found.closed):
            raise BadInput(f"{closed[0]} cannot be read: it leads to nothing, or is no file.")
        if not (files := _parts_of(path, found.other)):
            raise BadInput(f"There is no parquet file in {path}.")
        return files
    if not path.is_file() or path.suffix.lower() != ".parquet":
        raise BadInput(
            f"{path} is no parquet file, nor a folder of them, and only such are read in parts; "
            "write it as parquet, or let --out be a folder, and it is read into memory"
        )
    return [path]


def _parts_of(folder: Path, files: list[str]) -> list[Path]:
    """Those of the files below a folder that are parts of a table."""
    parts = [Path(file) for file in files if file.lower().endswith(".parquet")]
    return sorted(f for f in parts if not any(n[0] in "._" for n in f.relative_to(folder).parts))


def open_parquet(file: Path) -> Any:
    def read() -> Any:
        import pyarrow.parquet as pq

        # pages as they are asked for: a row group may be larger than memory
        return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)

    return readable_table(file, read)
