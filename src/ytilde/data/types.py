"""What flows through ytilde: Data, Batch, StepInfo, Spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

IGNORE = -1  # the label of an example or pixel that takes no part in a loss or a metric


class Rows(Protocol):
    """What `Data.x` must be: a tensor, or a lazy reader that reads the rows it is asked for."""

    @property
    def shape(self) -> Sequence[int]: ...  # (N, ...) like a tensor's
    def __len__(self) -> int: ...
    def __getitem__(self, index: Tensor) -> Tensor: ...  # [B] int64 -> [B, ...]


@dataclass(frozen=True)
class Data:
    """A labelled data set.

    Args:
        x: images [N, C, H, W] (uint8, or float in [0, 1]) or features [N, D] (float32), in memory
            or as a lazy reader.
        y: the observed, maybe wrong labels, int64 [N] or, for pixels, [N, H, W]; -1 = ignore.
        num_classes: K.
        clean: the hidden truth. Only metrics read it; training gets `without_clean()`.
        names: of the classes, in label order.
        votes: where several annotators labelled the rows: (annotator, label) of every vote of a
            row, int32 [N, M, 2], -1 where it has fewer than M; y is then their consensus.
        annotators: what they are called, in the order that votes count them.
        groups: the number of each row's group [N], where some rows are of one thing: they are never
            split between training and validation.
        one_scale: (first, behind the last) of the features that share one scale, as the components
            of a text do; each of the others is standardised by itself.

    Example:
        >>> data = Data(torch.rand(5, 3), torch.tensor([0, 1, 1, 0, -1]), 2, names=("cat", "dog"))
        >>> len(data), data.shape, data.class_name(1)
        (5, (3,), 'dog')
        >>> data.rows(torch.tensor([4, 0])).y
        tensor([-1,  0])
    """

    x: Rows
    y: Tensor
    num_classes: int
    clean: Tensor | None = None
    names: tuple[str, ...] | None = None  # class names, in label order
    votes: Tensor | None = None
    annotators: tuple[str, ...] = ()
    groups: Tensor | None = None
    one_scale: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) or (D,)."""
        return tuple(self.x.shape[1:])

    @property
    def lazy(self) -> bool:
        """Are the inputs read when they are asked for?"""
        return not isinstance(self.x, Tensor)

    def without_clean(self) -> Data:
        """The same without the hidden truth: what training gets."""
        return replace(self, clean=None)

    def rows(self, index: Tensor) -> Data:
        """The data set made of these rows, in this order."""
        x = self.x[index] if isinstance(self.x, Tensor) else Subset(self.x, index)
        beside = (self.clean, self.votes, self.groups)
        clean, votes, groups = (None if part is None else part[index] for part in beside)
        return replace(self, x=x, y=self.y[index], clean=clean, votes=votes, groups=groups)

    def class_name(self, label: int) -> str:
        """The name of a class, or its number where there are no names."""
        return self.names[label] if self.names else str(label)


class Subset:
    """A lazy view of some rows of a lazy reader."""

    def __init__(self, x: Rows, index: Tensor) -> None:
        self.x, self.index = x, index

    @property
    def shape(self) -> Sequence[int]:
        return (len(self.index), *self.x.shape[1:])

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.x[self.index[index]]


class Batch(NamedTuple):
    """Some rows, as a loss sees them.

    Attributes:
        x: raw inputs [B, ...]: images as float in [0, 1], not augmented.
        y: observed labels [B], or [B, H, W] for pixels; -1 = ignore.
        index: rows of the data given to fit; -1 = unseen.
        votes: (annotator, label) of the rows' votes [B, M, 2], -1 = none; None: there are no votes.

    Example:
        >>> Batch(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([7, 3])).index
        tensor([7, 3])
    """

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment]
    votes: Tensor | None = None


class StepInfo(NamedTuple):
    """What a loss may know of where training stands.

    Attributes:
        epoch: the current one, counted from 0; a tensor on the device.
        epochs: of the stage.
        generator: for every draw of the step, on the device.
        augment: augment(x) -> one random view; pixel labels: augment(x, y) -> the pair.

    Example:
        >>> step = StepInfo(torch.tensor(5.0), 20, torch.Generator(), lambda x: x)
        >>> step.progress
        tensor(0.2500)
    """

    epoch: Tensor  # the current epoch, counted from 0
    epochs: int
    generator: torch.Generator
    augment: Callable[..., Tensor]  # augment(x) -> one random view; augment(x, y) -> the pair

    @property
    def progress(self) -> Tensor:
        """How far training has come, in [0, 1): a tensor, so that a captured step follows it."""
        return self.epoch / self.epochs


Step = StepInfo  # its old name


@dataclass(frozen=True)
class Spec:
    """All that a method may know before fit.

    Attributes:
        num_classes: K.
        num_train: rows that are trained on.
        shape: of one input.
        backbone: makes a new network, input -> features [..., dim].
        dim: of the features.
        generator: for draws in build and fit.
        mean: of the inputs, for the Net's first layer: [C, 1, 1] or [D]; by default 0.
        std: of the inputs, likewise; by default 1.
        num_annotators: who voted on the rows; 0: they have one label each.
        init: of the networks' weights: "own", or "keras".

    Example:
        >>> from ytilde import create
        >>> spec = Spec(3, 100, (6,), lambda: nn.Linear(6, 8), 8, torch.Generator())
        >>> method = create("ce")
        >>> method.build(spec)
        >>> method.predict_proba(torch.zeros(2, 6)).shape
        torch.Size([2, 3])
    """

    num_classes: int
    num_train: int
    shape: tuple[int, ...]  # of one input
    backbone: Callable[[], nn.Module]  # a new network: input -> features [..., dim]
    dim: int  # of the features
    generator: torch.Generator  # for draws in build and fit
    # of the inputs, for the Net's first layer: [C, 1, 1] or [D]; as they are if nothing is said
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    std: Tensor = field(default_factory=lambda: torch.ones(()))
    num_annotators: int = 0
    init: str = "own"
