"""The feed: which rows make an epoch's batches, and the rows themselves as the methods see them.

Data that fits lies on the device and is gathered by index; larger data is read by worker processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import checkpoint
from ..data import IGNORE, BadInput, Batch, Data, plural
from ..data.images import read_rows, row_name
from ..data.precision import keep_double
from ..runfolder import UNREADABLE
from .device import layout
from .parallel import Team
from .recipe import Recipe

Index = Tensor | Mapping[str, Tensor] | Callable[[], Any]
Batches = list[Tensor] | dict[str, list[Tensor]]  # row numbers; of named streams, theirs


class Sampler:
    """Which rows make the batches of an epoch.

    rows: an index of `data`, a dict of named ones, a function asked before every epoch, or None:
    all rows. weights: how often each row is drawn, relative to the others.
    """

    def __init__(
        self,
        stage: str,
        data: Data,
        rows: Index | None,
        recipe: Recipe,
        weights: Tensor | None,
        team: Team,
    ) -> None:
        self.stage, self.data, self.rows, self.recipe = stage, data, rows, recipe
        self.weights, self.team = weights, team
        self.order = recipe.generator("order", stage)

    def epoch(self) -> Batches:
        """The batches of one more epoch."""
        rows = self.rows() if callable(self.rows) else self.rows
        if isinstance(rows, Mapping):
            return {name: self._batches(index) for name, index in rows.items()}
        return self._batches(torch.arange(len(self.data)) if rows is None else rows)

    def _batches(self, index: Any) -> list[Tensor]:
        """Shuffled batches of one size, so that one captured step serves them all.

        Fewer rows than a batch sit an epoch out (other ones each time); where that would be more
        than one row in twenty, the batches shrink instead.
        """
        rows = torch.as_tensor(index)
        if len(rows) == 0:
            raise ValueError(f"stage {self.stage!r} was given no rows to train on")
        drawn = self._draw(rows.cpu())
        size, n = min(self.recipe.batch_size, len(drawn)), len(drawn)
        if n % size > n / 20:
            size = n // math.ceil(n / size)
        return list(self.team.broadcast_rows(drawn[: n - n % size].view(-1, size)))

    def _draw(self, rows: Tensor) -> Tensor:
        """A shuffle of the rows; with weights, row i stands in it about n w_i / sum(w) times.

        Systematic resampling: the count of a row is that number rounded down or up, so that unit
        weights are a plain shuffle and a weight of 0 is a row left out.
        """
        n = len(rows)
        shuffled = rows[torch.randperm(n, generator=self.order)]
        weights = self._weights(shuffled)
        if weights is None:
            return shuffled
        ends = weights.double().cumsum(0) * (n / weights.double().sum())
        ticks = torch.arange(n) + torch.rand((), generator=self.order, dtype=torch.float64)
        drawn = shuffled[torch.searchsorted(ends, ticks, right=True).clamp(max=n - 1)]
        return drawn[torch.randperm(n, generator=self.order)]

    def _weights(self, rows: Tensor) -> Tensor | None:
        weights = None if self.weights is None else self.weights[rows]
        if self.recipe.balance:
            y = self.data.y[rows]
            if y.dim() > 1:
                raise BadInput("balance needs one label per row; pixel labels have many")
            count = torch.bincount(y[y != IGNORE], minlength=self.data.num_classes)
            each = (y != IGNORE) / count.clamp(min=1).double()[y]
            weights = each if weights is None else weights * each
        return weights


class Feed:
    """Rows of data as the methods see them, on the device: x float, images in [0, 1].

    module: what is fed; it says how images should lie in memory. notes: hears of files that cannot
    be read, which `folder` gets a list of.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        team: Team,
        workers: int,
        notes: list[str],
        folder: Path | None,
    ) -> None:
        self.module, self.device, self.team, self.workers = module, device, team, workers
        self.notes, self.folder = notes, folder
        self.unreadable: set[str] = set()  # files that could not be read
        self._told = ""  # the note on them
        self._resident: dict[int, tuple[Data, Data]] = {}

    # ---- what training takes --------------------------------------------------------------------

    def inputs(self, data: Data, batches: Batches) -> Iterator[Any]:
        """What the step is given: row numbers on the device, or batches that were read ahead."""
        if isinstance(batches, dict):
            streams = {name: torch.stack(parts) for name, parts in batches.items()}
            for k in range(len(next(iter(streams.values())))):
                yield {name: b[k % len(b)].to(self.device) for name, b in streams.items()}
        elif data.lazy:
            yield from self.read_ahead(data, batches)
        else:
            yield from torch.stack(batches).to(self.device)

    def gather(self, data: Data, inputs: Any) -> Any:
        """What the loss is given: the Batch of these inputs, or a dict of named ones."""
        if isinstance(inputs, Batch):  # read ahead: already here
            return inputs._replace(x=self._as_input(inputs.x))
        if isinstance(inputs, Tensor):
            return self.batch(data, inputs)
        return {name: self.batch(data, index) for name, index in inputs.items()}

    # ---- what evaluation takes ------------------------------------------------------------------

    def in_order(self, data: Data) -> Iterator[Batch]:
        """All rows, in row order."""
        most, pixels = (1024 if self.device.type == "cuda" else 256) * 64 * 64, data.shape[1:]
        size = 8192 if self.device.type == "cuda" else 256
        size = max(1, min(size, most // math.prod(pixels)))  # of large pictures fewer at once
        if not pixels:
            size = 8192 if data.lazy else max(size, 2048)  # fewer, longer reads
        batches = _InOrder(len(data), size)
        here = (index.to(self.device) for index in batches)
        for inputs in self.read_ahead(data, batches) if data.lazy else here:
            yield self.gather(data, inputs)

    def batch(self, data: Data, index: Tensor) -> Batch:
        """These rows."""
        if data.lazy:
            batch = next(self.read_ahead(data, [index.cpu()]))
            return batch._replace(x=self._as_input(batch.x))
        data = self._on_device(data)
        votes = None if data.votes is None else data.votes[index]
        return Batch(self._as_input(data.x[index]), data.y[index], index, votes)

    # ---- reading and moving ---------------------------------------------------------------------

    def read_ahead(self, data: Data, batches: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches of a lazy data set, x as it is stored; worker processes read ahead.

        Of a team each process reads its share. What cannot be read is black with the label -1.
        """
        alone = self.team.size == 1
        own = batches if alone else [self.team.my_shard(index) for index in batches]
        few = len(batches) < 4  # less work than starting the workers
        loader: Any = torch.utils.data.DataLoader(
            _Reader(data, own),
            batch_size=None,
            num_workers=0 if few else self.workers,
            prefetch_factor=None if few or not self.workers else 4,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),
        )
        for (x, *rest), whole in zip(loader, batches, strict=True):
            gather = self.team.gather if len(x) < len(whole) else lambda t: t
            y, index, readable = map(gather, rest)
            if not readable.all():
                self._leave_out(data, index[~readable])
            votes = None if data.votes is None else data.votes[index.cpu()].to(self.device)
            x, y, index = (t.to(self.device, non_blocking=True) for t in (x, y, index))
            yield Batch(gather(x), y, index, votes)

    def _leave_out(self, data: Data, rows: Tensor) -> None:
        """Tell the user, once, which files cannot be read."""
        names = {row_name(data.x, row) for row in rows.tolist()} - self.unreadable
        if not names:
            return
        self.unreadable |= names
        known = sorted(self.unreadable)
        shown = ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")
        if self._told in self.notes:
            self.notes.remove(self._told)
        self._told = f"{plural(len(known), 'unreadable file')} skipped: {shown}"
        self.notes.append(self._told)
        if self.folder:
            checkpoint.write_text(self.folder / UNREADABLE, "\n".join(known) + "\n")

    def _as_input(self, x: Tensor) -> Tensor:
        x = x.float().div_(255) if x.dtype == torch.uint8 else keep_double(x)
        return x.contiguous(memory_format=self.layout) if x.dim() == 4 else x

    @cached_property
    def layout(self) -> torch.memory_format:
        return layout(self.module, self.device)

    def _on_device(self, data: Data) -> Data:
        if id(data) not in self._resident:
            x = data.x.to(self.device) if isinstance(data.x, Tensor) else data.x
            votes = None if data.votes is None else data.votes.to(self.device)
            moved = replace(data.without_clean(), x=x, y=data.y.to(self.device), votes=votes)
            self._resident[id(data)] = (data, moved)  # holds `data`, so that its id stays its own
        return self._resident[id(data)][1]


class _InOrder(Sequence[Tensor]):
    """The numbers of n rows in batches, made when they are asked for."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size

    def __len__(self) -> int:
        return -(-self.n // self.size)

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < len(self):
            raise IndexError(k)
        return torch.arange(k * self.size, min(self.n, (k + 1) * self.size))


class _Reader(torch.utils.data.Dataset[Any]):
    """Batches of a lazy data set for the worker processes."""

    def __init__(self, data: Data, batches: Sequence[Tensor]) -> None:
        self.data, self.batches = data, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        index = self.batches[k]
        x, readable = read_rows(self.data.x, index)
        y = self.data.y[index]
        y[~readable] = IGNORE
        return x, y, index, readable
