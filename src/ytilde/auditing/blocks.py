"""Blocks of rows, and sums over them that have the same bits wherever the blocks are worked on.

Rows are cut into PARTs, and these into blocks, by the numbers of the rows alone. Sums are added up
block by block within a PART, then PART by PART, in order: in memory, of a file that is read a block
at a time, and on many machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import groupby
from typing import TypeVar

from .inputs import chunks

PART = 1 << 20  # rows

Sum = TypeVar("Sum", bound=tuple)


def blocks(start: int, stop: int, columns: int) -> Iterator[slice]:
    """The blocks of the rows from `start`, where a PART begins, to `stop`."""
    for first in range(start, stop, PART):
        for part in chunks(min(PART, stop - first), columns):
            yield slice(first + part.start, first + part.stop)


def total(sums: Iterable[tuple[int, Sum]]) -> Sum:
    """What named tuples of arrays add up to, each given with the first row of its block."""
    parts = groupby(sums, key=lambda item: item[0] // PART)
    return reduce(add, (reduce(add, (each for _, each in part)) for _, part in parts))


def add(one: Sum, other: Sum) -> Sum:
    return type(one)(*(a + b for a, b in zip(one, other, strict=True)))
