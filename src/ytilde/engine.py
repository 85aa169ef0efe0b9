"""Recipe and Trainer: the one training loop.

`Trainer.epochs` reads top to bottom: rows are shuffled, gathered on the device, handed to the
method's loss as a Batch, and one optimiser step follows. On CUDA that whole step is captured once
as a CUDA graph and replayed. Every epoch leaves a record and, in a run folder, a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from . import checkpoint
from .augment import make_augment
from .data import IGNORE, BadInput, Batch, Data, StepInfo
from .data.precision import keep_double
from .encoder import is_pretrained
from .images import read_rows, row_name
from .metrics import Confusion
from .parallel import Team, costly_parts

UNREADABLE = "files that cannot be read"  # how the note on them begins
Record = dict[str, Any]
History = list[Record]
Loss = Callable[[Any, StepInfo], Tensor]
Index = Tensor | Mapping[str, Tensor] | Callable[[], Any]


@dataclass(frozen=True)
class Recipe:
    """How to train. One seed gives separate streams; each stream's own seed can be set instead."""

    epochs: int = 30  # times that training goes through the rows
    batch_size: int = 128  # rows in one step
    optimizer: str = "sgd"  # sgd (Nesterov), adam, adamw
    lr: float = 0.05  # learning rate at the start
    pretrained_lr: float = 1.0  # that of weights that come pre-trained, as a share of lr
    momentum: float = 0.9  # SGD's; Adam's beta1
    weight_decay: float = 5e-4  # pull of the weights towards 0
    schedule: str = "cosine"  # constant, cosine, step:0.5,0.75, linear:0.4, linear_beta:0.4
    augment: str = "none"  # or parts joined by +: crop2, flip, cutout8, simclr; features: jitter0.1
    precision: str = "auto"  # auto (bfloat16 on CUDA, float32 elsewhere), float32, bfloat16
    ema: float = 0.0  # decay of the weight average; 0 = none
    clip: float = 0.0  # largest gradient norm of a parameter group; 0 = no clipping
    val: float = 0.1  # fraction of the rows held out as noisy validation
    keep: str = "last"  # last, best (noisy validation accuracy), best_nll
    patience: int = 0  # stop after so many epochs without a better noisy validation; 0 = never
    balance: bool = False  # draw every observed class equally often
    workers: int = 2  # processes that read data that does not fit in memory
    seed: int = 0  # of everything that is drawn, where no other is given
    noise_seed: int | None = None  # of the wrong labels that --noise makes
    split_seed: int | None = None  # of the choice of the validation rows
    init_seed: int | None = None  # of the first weights
    order_seed: int | None = None  # of the order of the rows and all else in training
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    graph: bool = True  # on CUDA: capture the step as one CUDA graph
    compile: bool = False  # fuse the networks by torch.compile: slower to start, then faster

    def __post_init__(self) -> None:
        for field in fields(self):
            kind, what = KINDS[str(field.type).removesuffix(" | None")]
            given = getattr(self, field.name)
            fits = isinstance(given, kind) and (kind is bool or not isinstance(given, bool))
            if not fits and not (given is None and field.default is None):
                raise BadInput(f"{field.name} must be {what}, not {given!r}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("val", "momentum", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name} must be a fraction in [0, 1), not {getattr(self, name)}")
        for name in ("lr", "pretrained_lr", "weight_decay", "clip", "patience", "workers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(
                    f"{name} must be a finite number from 0 on, not {getattr(self, name)}"
                )
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                given = getattr(self, name)
                raise BadInput(f"unknown {name} {given!r}; known: {', '.join(known)}")
        learning_rate(self.schedule, 0, 1)

    def seed_of(self, stream: str, stage: str = "") -> int:
        """A seed for one stream (noise, split, init, order) that no other stream shares."""
        own = getattr(self, f"{stream}_seed", None)
        text = f"{self.seed if own is None else own}/{stream}/{stage}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    def generator(self, stream: str, stage: str = "", device: Any = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(self.seed_of(stream, stage))


KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a text"),
    "bool": (bool, "true or false"),
}
CHOICES = {
    "optimizer": ("sgd", "adam", "adamw"),
    "precision": ("auto", "float32", "bfloat16"),
    "keep": ("last", "best", "best_nll"),
}


ENOUGH_TO_CHOOSE = 100  # held-out labels; fewer choose an epoch by luck (docs/decisions/0012)


def default_recipe(shape: Sequence[int], n: int, pixels: bool = False, **own: Any) -> Recipe:
    """A sensible recipe for tables, features, small and large images, and pixel labels.

    Epochs are chosen so that small data sets get enough steps. With enough held-out labels noisy
    validation chooses the epoch that is kept. `own` replaces any field.
    """
    own = {name: value for name, value in own.items() if value is not None}
    if len(shape) == 1:
        base = Recipe(optimizer="adamw", lr=2e-3, weight_decay=1e-4, batch_size=128)
        steps, most = 2000, 100
    elif pixels:
        base = Recipe(optimizer="adamw", lr=1e-3, weight_decay=1e-4, batch_size=16, augment="flip")
        steps, most = 4000, 100
    elif max(shape[1:]) <= 64:
        augment = "none" if max(shape[1:]) < 16 else "crop+flip" if shape[0] == 3 else "crop2"
        base = Recipe(lr=0.05, weight_decay=5e-4, batch_size=128, augment=augment)
        steps, most = 4000, 60
    else:
        base = Recipe(lr=0.02, weight_decay=5e-4, batch_size=64, augment="crop+flip")
        steps, most = 10000, 40
    recipe = replace(base, **own)
    if "keep" not in own and recipe.val * n >= ENOUGH_TO_CHOOSE:
        recipe = replace(recipe, keep="best")
    per_epoch = max(1, n // recipe.batch_size)
    epochs = max(10, min(most, steps // per_epoch))
    return recipe if "epochs" in own else replace(recipe, epochs=epochs)


def learning_rate(schedule: str, epoch: int, epochs: int) -> tuple[float, float | None]:
    """(factor of the learning rate, Adam's beta1 or None to leave it) in this epoch.

    Times in a schedule are fractions of training, so that a short run goes through every phase.
    """
    kind, _, text = schedule.partition(":")
    try:
        times = [float(part) for part in text.split(",") if part]
    except ValueError:
        raise BadInput(f"the times of schedule {schedule!r} must be numbers in [0, 1]") from None
    progress = epoch / epochs
    if kind == "constant":
        return 1.0, None
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress)), None
    if kind == "step":
        return 0.1 ** sum(progress >= t for t in times or [0.5, 0.75]), None
    if kind in ("linear", "linear_beta"):
        start = times[0] if times else 0.4
        factor = min(1.0, (1 - progress) / (1 - start))
        return factor, (0.9 if progress < start else 0.1) if kind == "linear_beta" else None
    known = "constant, cosine, step:0.5,0.75, linear:0.4, linear_beta:0.4"
    raise BadInput(f"unknown schedule {schedule!r}; known: {known}")


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device {name!r}; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("no CUDA device is available here; use --device cpu")
    if name == "cuda" and torch.cuda.current_device():
        return torch.device("cuda", torch.cuda.current_device())  # one of many: this process's
    return device


class RandomState:
    """torch's global random state, ours apart from the caller's.

    Dropout and layer initialisation cannot take a generator: they run inside `with state():`, and
    the caller's state is put back afterwards.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.sources = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            self.sources.append(torch.cuda.default_generators[device.index or 0])
        self.seed = seed
        self.states: list[Tensor] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        caller = [source.get_state() for source in self.sources]
        for k, source in enumerate(self.sources):
            if self.states is None:
                source.manual_seed(self.seed)
            else:
                source.set_state(self.states[k])
        try:
            yield
        finally:
            self.states = [source.get_state() for source in self.sources]
            for source, state in zip(self.sources, caller, strict=True):
                source.set_state(state)


class Diverged(RuntimeError):
    """The loss stopped being a number."""


class Trainer:
    """Trains a built method; owns device, precision, random streams, records and checkpoints.

    val: rows with NOISY labels held out for selection. monitor: called after each validated epoch
    for figures that are only recorded (test accuracy), never used. weights: how often each row is
    drawn, relative to the others. team: the processes that train this method together.
    """

    def __init__(
        self,
        method: nn.Module,
        recipe: Recipe,
        *,
        val: Data | None = None,
        weights: Tensor | None = None,
        folder: Path | None = None,
        resume: bool = False,
        monitor: Callable[[Trainer], Record] | None = None,
        on_record: Callable[[Record], None] = lambda record: None,
        checkpoint_every: float = 0.0,
        team: Team | None = None,
    ) -> None:
        self.team = team or Team()
        self.method, self.recipe, self.val, self.weights = method, recipe, val, weights
        self.folder, self.monitor, self.on_record = folder, monitor, on_record
        self.checkpoint_every, self._saved_at = checkpoint_every, time.monotonic()
        self.device = choose_device(recipe.device)
        on_cuda = self.device.type == "cuda"
        bfloat16 = recipe.precision == "bfloat16" or (recipe.precision == "auto" and on_cuda)
        self.dtype = torch.bfloat16 if bfloat16 else torch.float32
        self.history: History = []
        self.notes: list[str] = []  # what the user should know, such as a fall-back
        self.unreadable: set[str] = set()  # files that could not be read
        self.data: Data | None = None  # the rows given to fit: only theirs have an index
        self._resident: dict[int, tuple[Data, Data]] = {}
        self._count = 0
        self.resume = resume
        self._checkpoint = self._whole(self._paths(), self._fits) if resume else None
        if self._checkpoint:
            self._count = self._checkpoint[1]["count"]

    # ---- training ---------------------------------------------------------------------------

    def train(self, stage: str, loss: Loss, params: Any, data: Data, **options: Any) -> History:
        """Run all epochs of a stage; keeps the last, or the best by noisy validation."""
        return list(self.epochs(stage, loss, params, data, **options))

    def epochs(
        self,
        stage: str,
        loss: Loss,
        params: Any,
        data: Data,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        rows: Index | None = None,
        validate: bool = True,
        recipe: Recipe | None = None,
    ) -> Iterator[Record]:
        """Train, and yield a record after every epoch; code between two epochs may change state.

        rows: an index of `data`, a dict of named streams (then `loss` gets a dict of batches, and
        the first stream sets the length of an epoch), or a function asked before every epoch.
        """
        recipe = recipe or self.recipe
        recipe = replace(recipe, epochs=epochs or recipe.epochs, lr=recipe.lr if lr is None else lr)
        if self._skip(stage):
            return
        run = _Stage(self, stage, loss, params, data, recipe, rows)
        best = _Best(recipe, self.val is not None and validate)
        start = self._resume(run, best)
        last = self._state()
        for epoch in range(start, recipe.epochs):
            if best.stale:
                break
            began = time.perf_counter()
            try:
                with run.random(), run.fused():
                    mean_loss = run.epoch(epoch)
                record: Record = {"stage": stage, "epoch": epoch + 1, "epochs": recipe.epochs}
                record |= {"loss": mean_loss, "lr": recipe.lr * run.factor}
                record["train_seconds"] = round(time.perf_counter() - began, 4)
                if validate:
                    with run.averaged():
                        record |= self._validate()
                        best.see(record, self._state)
            except (KeyboardInterrupt, Diverged):
                self._load_state(last)  # the last whole epoch
                raise
            record["seconds"] = round(time.perf_counter() - began, 4)
            self.history.append(record)
            self.on_record(record)
            yield record
            self.team.agree(self.method.state_dict().values())
            last = self._state()
            if epoch + 1 < recipe.epochs:
                self._save(run, best, epoch + 1)
        run.adopt_average()
        if recipe.keep != "last" and best.state is not None:
            self._load_state(best.state)
        self._save_stage(stage)

    def _validate(self) -> Record:
        record = self.score(self.val, noisy=True) if self.val is not None else {}
        record = {f"val_{name}": value for name, value in record.items()}
        if self.monitor and self.team.rank == 0:
            with self.team.alone():
                record |= self.monitor(self)
        return record

    def score(self, data: Data, noisy: bool = False) -> Record:
        """Accuracy and log loss of `data.y`, under the posterior of the observed or clean label.

        Of pixel labels the mean IoU too. Summed up batch by batch: they need no [N, H, W, K].
        """
        method = cast(Any, self.method)
        proba = method.noisy_proba if noisy else method.predict_proba
        sums = self.map(lambda batch: _scores(proba(batch.x), batch.y), data).sum(0)
        right, loss, count, *counts = sums.tolist()
        record = {"accuracy": right / max(count, 1), "nll": loss / max(count, 1)}
        return record | ({"miou": Confusion.of(counts).miou()} if counts else {})

    # ---- whole passes over data ---------------------------------------------------------------

    @torch.no_grad()
    def map(self, fn: Callable[[Batch], Tensor], data: Data) -> Tensor:
        """fn over all rows, in eval mode without gradients, in row order, on the device."""
        was_training = self.method.training
        self.method.eval()
        seen = data is self.data
        size = 1024 if self.device.type == "cuda" else 256
        pixels = math.prod(data.shape[1:])  # of large pictures fewer at once
        size = max(1, min(size, size * 64 * 64 // pixels))
        parts = []
        try:
            for batch in self._in_order(data, list(torch.arange(len(data)).split(size))):
                if not seen:
                    batch = batch._replace(index=torch.full_like(batch.index, -1))
                with self.autocast():
                    parts.append(fn(batch))
        finally:
            self.method.train(was_training)
        return self.team.agreed(torch.cat(parts))

    def cached(self, stage: str, inputs: Any, fn: Callable[[], Tensor]) -> Tensor:
        """fn(), kept in the run folder under the hash of its inputs: resuming does not redo it."""
        if self.folder is None:
            return fn()
        path = self.folder / "cache" / f"{stage}-{hash_of(inputs)}.safetensors"
        found = self._whole([path], lambda tensors, meta: set(tensors) == {"value"})
        if found:
            return found[0]["value"].to(self.device)
        value = fn()
        checkpoint.save(path, {"value": value}, {"count": 0})
        return value

    def _in_order(self, data: Data, batches: list[Tensor]) -> Iterator[Batch]:
        if data.lazy:
            for batch in self.read_ahead(data, batches):
                yield batch._replace(x=self._as_input(batch.x))
        else:
            for index in batches:
                yield self.batch(data, index.to(self.device))

    def batch(self, data: Data, index: Tensor) -> Batch:
        """These rows as the methods see them: x float, images in [0, 1]."""
        if data.lazy:
            batch = next(self.read_ahead(data, [index.cpu()]))
            return batch._replace(x=self._as_input(batch.x))
        data = self._on_device(data)
        return Batch(self._as_input(data.x[index]), data.y[index], index)

    def read_ahead(self, data: Data, batches: list[Tensor]) -> Iterator[Batch]:
        """Batches of a lazy data set, x as it is stored; worker processes read ahead.

        Of a team each process reads its share. What cannot be read is black with the label -1.
        """
        own = [self.team.own(index) for index in batches]
        few = len(batches) < 4  # less work than starting the workers
        loader: Any = torch.utils.data.DataLoader(
            _Reader(data, own),
            batch_size=None,
            num_workers=0 if few else self.recipe.workers,
            prefetch_factor=None if few or not self.recipe.workers else 4,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),
        )
        for (x, *rest), whole in zip(loader, batches, strict=True):
            gather = self.team.gather if len(x) < len(whole) else lambda t: t
            y, index, readable = map(gather, rest)
            if not readable.all():
                self._leave_out(data, index[~readable])
            x, y, index = (t.to(self.device, non_blocking=True) for t in (x, y, index))
            yield Batch(gather(x), y, index)

    def _leave_out(self, data: Data, rows: Tensor) -> None:
        """Tell the user, once, which files cannot be read."""
        names = {row_name(data.x, row) for row in rows.tolist()} - self.unreadable
        if not names:
            return
        self.unreadable |= names
        known = sorted(self.unreadable)
        shown = ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")
        self.notes = [note for note in self.notes if not note.startswith(UNREADABLE)]
        self.notes.append(f"{UNREADABLE} and take no part: {len(known)} ({shown})")
        if self.folder:
            checkpoint.write_text(self.folder / "unreadable.txt", "\n".join(known) + "\n")

    def _as_input(self, x: Tensor) -> Tensor:
        x = x.float().div_(255) if x.dtype == torch.uint8 else keep_double(x)
        return x.contiguous(memory_format=self.layout) if x.dim() == 4 else x

    @cached_property
    def layout(self) -> torch.memory_format:
        return layout(self.method, self.device)

    def _on_device(self, data: Data) -> Data:
        if id(data) not in self._resident:
            x = data.x.to(self.device) if isinstance(data.x, Tensor) else data.x
            moved = replace(data.without_clean(), x=x, y=data.y.to(self.device))
            self._resident[id(data)] = (data, moved)  # holds `data`, so that its id stays its own
        return self._resident[id(data)][1]

    def autocast(self) -> Any:
        if self.dtype == torch.float32:
            return nullcontext()
        # no cache of casted weights: a captured step must cast them anew at every replay
        return torch.autocast(self.device.type, dtype=self.dtype, cache_enabled=False)

    # ---- state, checkpoints, resuming -----------------------------------------------------------

    def _state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.method.state_dict().items()}

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        self.method.load_state_dict(state)  # copies in place: captured steps keep their addresses

    def _paths(self) -> list[Path]:
        return [self.folder / f"checkpoint-{k}.safetensors" for k in (0, 1)] if self.folder else []

    def _save(self, run: _Stage, best: _Best, epoch: int) -> None:
        if not self.folder or time.monotonic() - self._saved_at < self.checkpoint_every:
            return
        self._count += 1
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        tensors |= run.state()
        tensors |= {f"best.{name}": value for name, value in (best.state or {}).items()}
        meta: Record = {"count": self._count, "stage": run.stage, "epoch": epoch}
        meta |= {"history": self.history, "best": best.value, "since": best.since}
        checkpoint.save(self._paths()[self._count % 2], tensors, meta)
        self._saved_at = time.monotonic()

    def _resume(self, run: _Stage, best: _Best) -> int:
        """Put back what the checkpoint of this stage holds; returns the epoch to go on with."""
        if self._checkpoint is None or self._checkpoint[1]["stage"] != run.stage:
            return 0
        tensors, meta = self._checkpoint
        self._checkpoint = None
        self.history = meta["history"]
        self._load_state(_under("method.", tensors))
        best.value, best.since = meta["best"], meta["since"]
        best.state = _under("best.", tensors) or None
        run.load_state(tensors)
        return meta["epoch"]

    def _stage_path(self, stage: str) -> Path | None:
        return self.folder / "stages" / f"{stage}.safetensors" if self.folder else None

    def _save_stage(self, stage: str) -> None:
        """The state at a stage's end: a resumed pipeline runs its code again, not its training."""
        if path := self._stage_path(stage):
            meta = {"count": 0, "stage": stage, "history": self.history}
            tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
            checkpoint.save(path, tensors, meta)

    def _skip(self, stage: str) -> bool:
        path = self._stage_path(stage)
        found = self._whole([path], self._fits) if self.resume and path else None
        if found is None:
            return False
        tensors, meta = found
        self._load_state(_under("method.", tensors))
        self.history = meta["history"]
        return True

    def _whole(self, paths: list[Path], fits: Any) -> Any:
        """The newest of these files that is whole and fits; the user hears of any other.

        What is missing or damaged is made again: the code before it has put back its beginning.
        """
        found, refused = checkpoint.newest(paths, fits)
        self.notes += [f"{sentence}; it is made again" for sentence in refused]
        return found if self.team.decide(found is not None) else None

    def _fits(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bool:
        """Is this a state of this very model?"""
        own = {name: value.shape for name, value in self.method.state_dict().items()}
        theirs = {name: value.shape for name, value in _under("method.", tensors).items()}
        return own == theirs and {"count", "stage", "history"} <= set(meta)


def _scores(probs: Tensor, y: Tensor) -> Tensor:
    """[1, 3]: how many labels are right, their log losses, how many count.

    Of pixels [1, 3 + K * K]: the counts [given, predicted] too.
    """
    probs, known = probs.float(), y >= 0
    given, predicted, K = y.clamp(min=0), probs.argmax(-1), probs.shape[-1]
    chosen = probs.gather(-1, given.unsqueeze(-1)).squeeze(-1)
    losses = -chosen.clamp(min=1e-12).log() * known
    right = (predicted == y) & known
    sums = torch.stack([t.double().sum() for t in (right, losses, known)])
    if y.dim() > 1:
        cell = (given * K + predicted).flatten()
        counts = sums.new_zeros(K * K).scatter_add_(0, cell, known.double().flatten())
        sums = torch.cat([sums, counts])
    return sums.unsqueeze(0)


class _Best:
    """The best epoch by noisy validation, and how long ago it was."""

    def __init__(self, recipe: Recipe, active: bool) -> None:
        self.recipe, self.active = recipe, active
        self.value: float | None = None
        self.since = 0
        self.state: dict[str, Tensor] | None = None

    def see(self, record: Record, state: Callable[[], dict[str, Tensor]]) -> None:
        if not self.active or (self.recipe.keep == "last" and not self.recipe.patience):
            return
        by_nll = self.recipe.keep == "best_nll"
        value = -record["val_nll"] if by_nll else record["val_accuracy"]
        if self.value is None or value > self.value:
            self.value, self.since, self.state = value, 0, state()
        else:
            self.since += 1

    @property
    def stale(self) -> bool:
        return bool(self.recipe.patience) and self.since >= self.recipe.patience


class _Stage:
    """One stage's optimisers, streams and step."""

    def __init__(
        self,
        trainer: Trainer,
        stage: str,
        loss: Loss,
        params: Any,
        data: Data,
        recipe: Recipe,
        rows: Index | None,
    ) -> None:
        self.trainer, self.stage, self.loss, self.recipe = trainer, stage, loss, recipe
        self.data, self.rows = data, rows
        device = trainer.device
        groups = [group if isinstance(group, dict) else {"params": [group]} for group in params]
        groups = [group | {"params": list(group["params"])} for group in _merge(groups)]
        self.groups = _split_pretrained(groups, recipe)
        self.params = [p for group in self.groups for p in group["params"]]
        self.optimizers = _optimizers(self.groups, recipe, device)
        self.order = recipe.generator("order", stage)
        self.random = RandomState(recipe.seed_of("order", stage + "/global"), device)
        generator = recipe.generator("order", stage + "/step", device)
        augment = make_augment(recipe.augment, data.shape)
        self.step_info = StepInfo(
            epoch=torch.zeros((), device=device),
            epochs=recipe.epochs,
            generator=generator,
            augment=lambda *xy: augment(*xy, generator=generator),
        )
        self.average = [p.detach().clone() for p in self.params] if recipe.ema else []
        self.total = torch.zeros((), device=device)  # of the losses of an epoch
        self.done = torch.zeros((), device=device)  # steps of the epoch
        self.first_bad = torch.zeros((), device=device)  # the first step without a finite loss
        self.factor = 1.0
        self.beta1: float | None = None
        self.graph: _Graph | None = None
        self.compiled = self._compile() if recipe.compile else {}

    def epoch(self, epoch: int) -> float:
        """One pass over the rows; returns the mean loss. The host waits once, at the end."""
        self.trainer.method.train()
        if self.recipe.pretrained_lr == 0:  # the statistics of normalising layers stay too
            for part in self.trainer.method.modules():
                if any(map(is_pretrained, part.parameters(recurse=False))):
                    part.eval()
        self._set_rates(epoch)
        self.step_info.epoch.fill_(epoch)
        for counter, value in ((self.total, 0.0), (self.done, 0.0), (self.first_bad, math.inf)):
            counter.fill_(value)
        step = self._step()
        for inputs in self._inputs():
            step(inputs)
        mean, bad = (self.total / self.done).item(), self.first_bad.item()
        size = torch.stack(torch._foreach_norm([p.detach() for p in self.params])).sum()
        if math.isinf(bad) and size.isfinite():
            return mean
        if math.isinf(bad):  # a gradient was not finite, and no later loss has shown it
            what, where = "the weights were not finite numbers", "after the last batch"
        else:
            what, where = "the loss was not a finite number", f"batch {int(bad) + 1}"
        raise Diverged(
            f"{what} in epoch {epoch + 1}, {where} of stage {self.stage!r}; try a lower learning "
            f"rate (now {self.recipe.lr:g}) or gradient clipping (--clip 1)"
        )

    def _compile(self) -> dict[nn.Module, Callable[..., Any]]:
        """What torch.compile makes of the networks; nothing, and a note, where it does not work."""
        if reason := _why_not_compile(self.trainer.device):
            note = f"the networks run as they are: torch.compile does not work here ({reason})"
            self.trainer.notes += [] if note in self.trainer.notes else [note]
            return {}
        nets = costly_parts(self.trainer.method)
        return {net: torch.compile(net.forward, dynamic=False) for net in nets}

    @contextmanager
    def fused(self) -> Iterator[None]:
        """While an epoch trains, the networks run as compiled; elsewhere they are as they were."""
        for net, forward in self.compiled.items():
            net.forward = forward
        try:
            yield
        finally:
            for net in self.compiled:
                delattr(net, "forward")

    def _step(self) -> Callable[[Any], None]:
        trainer = self.trainer
        if trainer.device.type != "cuda" or not self.recipe.graph or trainer.team.size > 1:
            return self._update
        if not getattr(trainer.method, "graphable", True):
            return self._update
        if self.graph is None:
            self.graph = _Graph(self)
        return self.graph

    def _update(self, inputs: Any) -> None:
        """One step of training: batch, loss, gradient, update."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with self.trainer.autocast():
            value = self.loss(self._batch(inputs), self.step_info)
        value.backward()
        self.trainer.team.average(self.params)
        if self.recipe.clip:
            for group in self.groups:
                nn.utils.clip_grad_norm_(group["params"], self.recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.average:
            torch._foreach_lerp_(self.average, self.params, 1 - self.recipe.ema)
        value = value.detach()
        self.total += value
        here = torch.where(value.isfinite(), torch.full_like(self.done, math.inf), self.done)
        torch.minimum(self.first_bad, here, out=self.first_bad)
        self.done += 1

    def _batch(self, inputs: Any) -> Any:
        if isinstance(inputs, Batch):  # read lazily: already here
            return inputs._replace(x=self.trainer._as_input(inputs.x))
        if isinstance(inputs, Tensor):
            return self.trainer.batch(self.data, inputs)
        return {name: self.trainer.batch(self.data, index) for name, index in inputs.items()}

    # ---- which rows ---------------------------------------------------------------------------

    def _inputs(self) -> Iterator[Any]:
        """The batches of one epoch: row numbers on the device, or what a lazy reader read."""
        rows = self.rows() if callable(self.rows) else self.rows
        if rows is None:
            rows = torch.arange(len(self.data))
        if isinstance(rows, Mapping):
            yield from self._streams(rows)
            return
        batches = self._batches(torch.as_tensor(rows))
        if self.data.lazy:
            yield from self.trainer.read_ahead(self.data, batches)
        else:
            yield from torch.stack(batches).to(self.trainer.device)

    def _batches(self, rows: Tensor) -> list[Tensor]:
        """Shuffled batches of one size, so that one captured step serves them all.

        Fewer rows than a batch sit an epoch out (other ones each time); where that would be more
        than one row in twenty, the batches shrink instead.
        """
        if len(rows) == 0:
            raise ValueError(f"stage {self.stage!r} was given no rows to train on")
        drawn = self._draw(rows.cpu())
        size, n = min(self.recipe.batch_size, len(drawn)), len(drawn)
        if n % size > n / 20:
            size = n // math.ceil(n / size)
        return list(self.trainer.team.agreed(drawn[: n - n % size].view(-1, size)))

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
        weights = None if self.trainer.weights is None else self.trainer.weights[rows]
        if self.recipe.balance:
            y = self.data.y[rows]
            if y.dim() > 1:
                raise BadInput("balance needs one label a row; pixel labels have many")
            count = torch.bincount(y[y != IGNORE], minlength=self.data.num_classes)
            each = (y != IGNORE) / count.clamp(min=1).double()[y]
            weights = each if weights is None else weights * each
        return weights

    def _streams(self, rows: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        device = self.trainer.device
        batches = {name: torch.stack(self._batches(index)) for name, index in rows.items()}
        length = len(next(iter(batches.values())))
        for k in range(length):
            yield {name: b[k % len(b)].to(device) for name, b in batches.items()}

    # ---- rates, averages, state -----------------------------------------------------------------

    def _set_rates(self, epoch: int) -> None:
        self.factor, beta1 = learning_rate(self.recipe.schedule, epoch, self.recipe.epochs)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                rate = group["base_lr"] * self.factor
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
                if beta1 is not None and "betas" in group:
                    group["betas"] = (beta1, group["betas"][1])
        if beta1 != self.beta1:
            self.graph = None  # a captured step holds its betas as constants
        self.beta1 = beta1

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Evaluate with the averaged weights; without EMA with the weights as they are."""
        if not self.average:
            yield
            return
        own = [p.detach().clone() for p in self.params]
        self.adopt_average()
        yield
        torch._foreach_copy_([p.data for p in self.params], own)

    def adopt_average(self) -> None:
        if self.average:
            torch._foreach_copy_([p.data for p in self.params], self.average)

    def state(self) -> dict[str, Tensor]:
        tensors = {"order": self.order.get_state(), "step": self.step_info.generator.get_state()}
        for k, state in enumerate(self.random.states or []):
            tensors[f"random.{k}"] = state
        for k, value in enumerate(self.average):
            tensors[f"average.{k}"] = value
        for k, p in enumerate(self.params):
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer.{k}.{key}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.order.set_state(tensors["order"])
        self.step_info.generator.set_state(tensors["step"])
        self.random.states = list(_under("random.", tensors).values())
        for own, value in zip(self.average, _under("average.", tensors).values(), strict=True):
            own.copy_(value)
        owner = {p: o for o in self.optimizers for g in o.param_groups for p in g["params"]}
        for name, value in _under("optimizer.", tensors).items():
            k, key = name.split(".", 1)
            p = self.params[int(k)]
            owner[p].state[p][key] = value.to(p.device)


class _Graph:
    """The whole step as one CUDA graph: the first steps run eagerly, the rest are replays.

    The warm-up steps are real steps of training, so nothing has to be undone, and capturing
    executes nothing: eager and captured training walk through the same states.
    """

    WARM_UP = 3

    def __init__(self, stage: _Stage) -> None:
        self.stage, self.count = stage, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self.static: Any = None

    def __call__(self, inputs: Any) -> None:
        if self.failed:
            self.stage._update(inputs)
        elif self.graph is not None:
            _copy(inputs, self.static)
            self.graph.replay()
        elif self.count < self.WARM_UP:
            self.count += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.stage._update(inputs)
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            self._capture(inputs)
            self(inputs)

    def _capture(self, inputs: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.stage.step_info.generator)
        self.static = _clone(inputs)
        for optimizer in self.stage.optimizers:
            optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.stage._update(self.static)
        except RuntimeError as error:
            self.failed = True
            self._release_generators()
            reason = str(error).strip().splitlines()[0]
            self.stage.trainer.notes.append(
                f"stage {self.stage.stage!r} runs step by step: its step cannot be captured as a "
                f"CUDA graph ({reason})"
            )
            return
        self.graph = graph

    def _release_generators(self) -> None:
        """After a capture that failed, torch still believes its generators to be captured.

        A capture that succeeds ends that; one of nothing but a number will do.
        """
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.stage.step_info.generator)
        with torch.cuda.graph(graph):
            self.stage.total + 0


@cache
def _why_not_compile(device: torch.device) -> str:
    """Tried on one number: a compiler may be missing, or torch may not support the machine."""
    try:
        torch.compile(lambda x: x + 1)(torch.zeros((), device=device))
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return ""


def _clone(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.clone()
    if isinstance(inputs, Batch):
        return Batch(*(t.clone() for t in inputs))
    return {name: index.clone() for name, index in inputs.items()}


def _copy(inputs: Any, static: Any) -> None:
    if isinstance(inputs, Tensor):
        static.copy_(inputs)
    elif isinstance(inputs, Batch):
        for own, value in zip(static, inputs, strict=True):
            own.copy_(value, non_blocking=True)
    else:
        for name, index in inputs.items():
            static[name].copy_(index)


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


def _merge(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bare parameters become one group."""
    bare = [p for group in groups if group.keys() == {"params"} for p in group["params"]]
    own = [group for group in groups if group.keys() != {"params"}]
    return ([{"params": bare}] if bare else []) + own


def _split_pretrained(groups: list[dict[str, Any]], recipe: Recipe) -> list[dict[str, Any]]:
    """Pre-trained weights in groups of their own, with their share of the group's rate."""
    if recipe.pretrained_lr == 1:
        return groups
    made = []
    for group in groups:
        rate = group.get("lr", recipe.lr)
        for old, share in ((False, 1.0), (True, recipe.pretrained_lr)):
            params = [p for p in group["params"] if is_pretrained(p) == old]
            made += [group | {"params": params, "lr": share * rate}] if params else []
    return made


def layout(module: nn.Module, device: torch.device) -> torch.memory_format:
    """How maps lie in memory: on CUDA channels last, where convolutions are fastest.

    Not beside GroupNorm, whose kernel takes the plain layout alone: two transposes each. On CPUs
    channels last would be faster too, but backward convolutions of torch 2.13 crash in it.
    """
    grouped = any(isinstance(part, nn.GroupNorm) for part in module.modules())
    plain = device.type != "cuda" or grouped
    return torch.contiguous_format if plain else torch.channels_last


def _optimizers(
    groups: list[dict[str, Any]], recipe: Recipe, device: torch.device
) -> list[torch.optim.Optimizer]:
    """One optimiser for each kind that the groups name; the recipe's where a group names none."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        rate = float(group.get("lr", recipe.lr))
        on_cuda = device.type == "cuda"
        own = {
            "params": group["params"],
            "base_lr": rate,
            # a tensor, so that a captured step follows the schedule
            "lr": torch.tensor(rate, device=device) if on_cuda else rate,
            "weight_decay": group.get("weight_decay", recipe.weight_decay),
        }
        kind = group.get("optimizer", recipe.optimizer)
        momentum = group.get("momentum", recipe.momentum)
        if kind == "sgd":
            own |= {"momentum": momentum, "nesterov": momentum > 0}
        else:
            own |= {"betas": (momentum, 0.999), "capturable": on_cuda}
        kinds.setdefault(kind, []).append(own)
    make: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    return [make[kind](own, lr=recipe.lr, fused=True) for kind, own in kinds.items()]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries below a prefix, in order; numbered ones by number."""
    found = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    number = all(k.isdigit() for k in found)
    return dict(sorted(found.items(), key=lambda item: int(item[0]))) if number else found


def hash_of(inputs: Any) -> str:
    """A short name for tensors and plain values, nested in any way."""
    digest = hashlib.blake2b(digest_size=12)

    def feed(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        elif isinstance(value, Mapping):
            for key in sorted(value):
                digest.update(str(key).encode())
                feed(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                feed(item)
        else:
            digest.update(json.dumps(value, sort_keys=True).encode())

    feed(inputs)
    return digest.hexdigest()
