"""Corrected labels back into the table that they came from, and nothing else in it changed."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..data import BadInput, which_rows
from ..data.readers import TABLES, class_name, file_texts, is_packed, label_column, table_kind
from ..files import check_no_stream, spreadsheet_safe, write_atomic, write_bytes
from ..outputs import check_outputs
from .labelling_exports import read_export

COLUMNS = ("index", "label", "given_label")  # of labels.csv, from an audit or a review


class Relabelled(NamedTuple):
    """How many rows the table has, how many labels changed, and how many rows were left out."""

    rows: int
    changed: int
    left_out: int = 0


def relabel(
    source: Path, labels: Path, out: Path, label: str | None = None, force: bool = False
) -> Relabelled:
    """Write the table with the labels of another file.

    labels: written by `audit --fix-above` or `review --export`, or exported by Label Studio or
    Argilla from the tasks that `audit` wrote for them. A file of another table is refused:
    each row must have the label that is the given one there. Rows are found by their ids where
    the labels have them, and by their number else. A row whose label is empty there, a bad item of
    a review, is left out: it belongs to no class.
    """
    if table_kind(source) not in TABLES:
        raise BadInput(
            f"{source} is no table; `relabel` takes csv, tsv and parquet. The rows or images to "
            f"change are those of {labels} whose label is not the given one."
        )
    if table_kind(out) != table_kind(source):
        raise BadInput(f"{out} must end in {table_kind(source)}, as {source} does")
    check_outputs([(out, "table")], [source, labels], force)
    values, column, position, separator = label_column(source, label)
    exported = read_export(labels)
    read = _read_labels(labels, exported.labels if exported else None, len(values), str(source))
    wanted = _by_id(read, labels, source)
    # in labels.csv a class has its name, made harmless for spreadsheets
    own = {v: str(spreadsheet_safe(class_name(v, str(source)))) for v in dict.fromkeys(values)}
    value_of = {name: value for value, name in own.items()}
    if len(value_of) < len(own):
        raise BadInput(f"two classes of {source} have one name in {labels}; rename one of them")
    index, given = wanted["index"].to_numpy(), wanted.given_label.to_numpy()
    here = np.array([own[values[row]] for row in index], dtype=object)
    if (other := np.flatnonzero(here != given)).size:
        first = other[0]
        raise BadInput(
            f"{labels} was made of other labels: in {which_rows(index[other])} of {source} the "
            f"label is {here[first]!r}, there {given[first]!r}."
        )
    bad = wanted[(wanted.label == "") & ("" not in value_of)]
    changed = wanted.drop(bad.index)[lambda frame: frame.label != frame.given_label]
    if strange := sorted(set(changed.label) - value_of.keys()):
        raise BadInput(f"{labels} asks for the label {strange[0]!r}, which {source} does not have.")
    new = {row: value_of[name] for row, name in zip(changed["index"], changed.label, strict=True)}
    left_out = set(bad["index"])
    if len(left_out) == len(values):
        raise BadInput(f"{labels} says of every row of {source} that it is bad; nothing is left.")
    if separator is None:
        _write_parquet(source, out, column, new, left_out)
    else:
        _write_text(source, out, position, separator, values, new, left_out)
    return Relabelled(len(values), len(new), len(left_out))


def _read_labels(path: Path, exported: pd.DataFrame | None, rows: int, what: str) -> pd.DataFrame:
    check_no_stream(path)
    try:
        found = exported
        if found is None:
            found = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise BadInput(f"{path} cannot be read ({error}).") from error
    if missing := [name for name in COLUMNS if name not in found.columns]:
        raise BadInput(
            f"{path} has no column {missing[0]!r}; give a file written by `ytilde audit "
            "--fix-above` or `ytilde review --export`."
        )
    index = pd.to_numeric(found["index"], errors="coerce")
    if not (len(index) and index.is_unique and index.isin(range(rows)).all()):
        raise BadInput(f"{path} is not about the {rows} rows of {what}.")
    return found.assign(index=index.astype(int))


def _by_id(wanted: pd.DataFrame, labels: Path, source: Path) -> pd.DataFrame:
    """Where the labels carry ids, the rows that have these now: the table may be in another order.

    The column that holds them is found by them.
    """
    if "id" not in wanted.columns:
        return wanted
    texts = file_texts(source, None, None).map(lambda text: str(spreadsheet_safe(text)))
    index, ids = wanted["index"].to_numpy(), wanted["id"].to_numpy()
    columns = [texts.iloc[:, place] for place in range(texts.shape[1])]
    if any((column.to_numpy()[index] == ids).all() for column in columns):
        return wanted
    for column in columns:
        place = pd.Series(range(len(column)), column)
        if place.index.is_unique and wanted["id"].is_unique and wanted["id"].isin(column).all():
            return wanted.assign(index=place[ids].to_numpy())
    raise BadInput(
        f"{labels} was made of another table: no column of {source} holds all of its ids, such as "
        f"{ids[0]!r}."
    )


def _write_parquet(
    source: Path, out: Path, column: str, new: dict[int, Any], left_out: set[int]
) -> None:
    """By pyarrow alone: pandas would change the types of columns with gaps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    place = table.schema.get_field_index(column)
    field, values = table.schema.field(place), table.column(place).to_pylist()
    for row, value in new.items():
        values[row] = value.item() if isinstance(value, np.generic) else value
    plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    array = pa.array(values, plain).cast(field.type)
    table = table.set_column(place, field, array)
    if left_out:
        table = table.take([row for row in range(len(values)) if row not in left_out])
    write_atomic(out, lambda temporary: pq.write_table(table, temporary))


def _write_text(
    source: Path,
    out: Path,
    position: int,
    separator: str,
    values: list[Any],
    new: dict[int, Any],
    left_out: set[int],
) -> None:
    """The same characters, but for the fields that change and the lines that are left out: marks,
    quotes, ends of lines stay."""
    content = source.read_bytes()
    text = (gzip.decompress(content) if is_packed(source) else content).decode()
    every = list(_records(text, separator))
    ends = [spans[0][0] for spans in every[1:]] + [len(text)]  # where the next line begins
    both = zip(every, ends, strict=True)
    records = [(spans, end) for spans, end in both if _holds_something(text, spans)]
    lines = [(spans, end) for spans, end in records[1:] if len(spans) > position]
    fields = [spans[position] for spans, _ in lines]
    if [_unquoted(text[slice(*span)]) for span in fields] != values:
        raise BadInput(f"{source} is written in an unusual way; save it again as plain csv.")
    parts, end = [], 0
    for row in sorted({*new, *left_out}):
        if row in left_out:
            spans, after = lines[row]
            parts.append(text[end : spans[0][0]])
            end = after
            continue
        begin, stop = fields[row]
        quoted = text[begin:stop].startswith('"') or set(new[row]) & {separator, '"', "\r", "\n"}
        name = '"' + new[row].replace('"', '""') + '"' if quoted else new[row]
        parts += [text[end:begin], name]
        end = stop
    content = "".join([*parts, text[end:]]).encode()
    write_bytes(out, gzip.compress(content, mtime=0) if is_packed(out) else content)


def _records(text: str, separator: str) -> Iterator[list[tuple[int, int]]]:
    """Where the fields of each line are: (begin, end) of every one; a quoted one may hold lines."""
    sep = re.escape(separator)
    field = re.compile(rf'("(?:[^"]|"")*"[^{sep}\r\n]*|[^{sep}\r\n]*)({sep}|\r\n|\r|\n|\Z)')
    spans: list[tuple[int, int]] = []
    at = 1 if text.startswith("\ufeff") else 0
    while at < len(text):
        found = field.match(text, at)
        assert found is not None
        spans.append(found.span(1))
        at = found.end()
        if found[2] != separator:
            yield spans
            spans = []
    if spans:  # the file ends in a separator
        yield [*spans, (at, at)]


def _holds_something(text: str, spans: list[tuple[int, int]]) -> bool:
    """Readers pass over empty lines."""
    return len(spans) > 1 or bool(text[slice(*spans[0])].strip())


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') and text.endswith('"') else text
