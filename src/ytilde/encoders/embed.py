"""Rows to vectors by a pretrained model: in batches, and in parts that a stopped command leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .. import checkpoint
from ..data import BadInput
from ..data.images import open_image, upright
from ..files import write_atomic
from ..hashing import hash_of
from ..runfolder import CACHED
from .pretrained import Pretrained

PART = 1024  # rows of a part
MADE_BY = "made by ytilde embed"  # in the metadata of the file, by which it is known again

Reader = Callable[[int], Any]  # of a row: a picture or a text; None: it has none


class Embedded(NamedTuple):
    """Vectors [N, D], NaN in the rows of which there are none, and what is to be said of it."""

    x: Tensor
    missing: list[int]
    kept: int  # rows that an earlier, stopped command had embedded


def embed(
    read: Reader,
    rows: int,
    model: Pretrained,
    work: Path,
    about: Any,
    *,
    pictures: bool,
    batch_size: int = 32,
    part: int = PART,
    on_rows: Callable[[int, int], None] = lambda done, rows: None,
) -> Embedded:
    """Embed every row, in order.

    Args:
        read: gives a row's picture or text, or None where it cannot be read or is empty.
        rows: how many there are.
        model: what embeds them; its `check_pictures` or `check_texts` has been called.
        work: a folder for the parts.
        about: what tells these rows from others: the parts of other rows are not taken for theirs.
        pictures: are they pictures? Else texts.
        batch_size: of one pass of the model.
        part: rows that are kept together.
        on_rows: hears how many are done, and of how many.
    """
    key = hash_of([model.digest, about, pictures, part])
    found: list[Tensor] = []
    kept = 0
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for start in range(0, rows, part):
            numbers = range(start, min(start + part, rows))
            path = work / CACHED / f"{key}-{start}.safetensors"
            vectors = _load(path, key, len(numbers))
            if vectors is None:
                vectors = embed_part(read, numbers, model, pictures, batch_size, threads)
                checkpoint.save(path, {"x": vectors}, {"made_of": key, "count": start})
            else:
                kept += len(numbers)
            found.append(vectors)
            on_rows(numbers.stop, rows)
    width = max(vectors.shape[1] for vectors in found)
    if not width:
        what = "picture can be read" if pictures else "text has a word in it"
        raise BadInput(f"Not one {what}; there is nothing to embed.")
    x = torch.cat([v if v.shape[1] else torch.full((len(v), width), torch.nan) for v in found])
    return Embedded(x, x.isnan().all(1).nonzero()[:, 0].tolist(), kept)


def _load(path: Path, key: str, rows: int) -> Tensor | None:
    def fits(tensors: Any, meta: Any) -> bool:
        return meta.get("made_of") == key and len(tensors["x"]) == rows

    found, _ = checkpoint.newest([path], fits)
    return found[0]["x"] if found else None


def embed_part(
    read: Reader,
    numbers: Sequence[int],
    model: Pretrained,
    pictures: bool,
    batch_size: int,
    threads: ThreadPoolExecutor,
) -> Tensor:
    """Vectors of these rows; [rows, 0] where none of them can be read."""

    def prepare(row: int) -> Any:
        item = read(row)
        return model.prepare(item) if pictures and item is not None else item

    items = _ahead(threads, prepare, numbers, 2 * batch_size) if pictures else map(prepare, numbers)
    vectors: dict[int, Tensor] = {}
    todo = zip(numbers, items, strict=True)
    while batch := list(islice(todo, batch_size)):
        there = [(row, item) for row, item in batch if item is not None]
        if there:
            given = [item for _, item in there]
            made = model.pictures(given) if pictures else model.texts(given)
            vectors |= {row: vector for (row, _), vector in zip(there, made, strict=True)}
    width = len(next(iter(vectors.values()))) if vectors else 0
    nothing = torch.full((width,), torch.nan)
    return torch.stack([vectors.get(row, nothing) for row in numbers])


def _ahead(
    threads: ThreadPoolExecutor, prepare: Reader, numbers: Sequence[int], size: int
) -> Iterator[Any]:
    """What `prepare` makes of these rows, in order, while the next `size` of them are made."""
    later: list[Future[Any]] = []
    for start in range(0, len(numbers), size):
        now, later = later, [threads.submit(prepare, k) for k in numbers[start : start + size]]
        yield from (each.result() for each in now)
    yield from (each.result() for each in later)


def file_reader(paths: Sequence[str]) -> Reader:
    """Pictures of files at their own size, upright; None where a file cannot be read."""

    def read(row: int) -> Image.Image | None:
        try:
            with open_image(paths[row]) as picture:
                if picture.mode[0] in "IF":
                    return None  # more than 8 bits a channel
                return upright(picture).convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return None

    return read


def text_reader(texts: Sequence[str]) -> Reader:
    """Texts; None where there is nothing to read in one."""
    return lambda row: texts[row] if texts[row].strip() else None


def write_embeddings(
    path: Path, names: dict[str, Sequence[Any]], found: Embedded, about: dict[str, str]
) -> None:
    """A parquet file: the columns that name the rows, and `embedding`, a list of float32 a row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = found.x.float().numpy()
    flat = pa.array(np.nan_to_num(x).reshape(-1), pa.float32())
    gone = np.zeros(len(x), dtype=bool)
    gone[found.missing] = True
    lists = pa.FixedSizeListArray.from_arrays(flat, x.shape[1], mask=pa.array(gone))
    columns = {name: pa.array(list(values)) for name, values in names.items()}
    table = pa.table(columns | {"embedding": lists})
    table = table.replace_schema_metadata({"ytilde": MADE_BY, **about})
    write_atomic(path, lambda temporary: pq.write_table(table, temporary))
