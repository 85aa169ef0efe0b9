"""From data to a fitted method: what a method may know, its networks, pre-training, the fit."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .backbones import (
    as_backbone,
    create_backbone,
    default_backbone,
    is_pretrained,
    mark_pretrained,
)
from .data import IGNORE, BadInput, Data, Spec
from .data.fingerprint import fingerprint
from .data.images import unreadable
from .data.precision import ROUNDING, keep_double
from .data.splits import split
from .encoders import Encoder
from .encoders.patches import is_patches
from .encoders.simclr import Settings, finished, simclr
from .engine import RandomState, Recipe, Record, Trainer, parallel, to_device
from .hashing import hash_of
from .method import Method
from .runfolder import PRETRAIN, SIMCLR
from .tuning import resolve_auto_fields, tag_trial

LINEAR = "identity"  # the head alone
TEXT_ALONE = 0.9  # of the features: from there on a linear model reads texts (benchmarks/text.py)
CACHE = "YTILDE_CACHE"  # the variable with the folder of encoders that runs share


def make_spec(
    data: Data,
    backbone: str | nn.Module | Callable[[], nn.Module],
    recipe: Recipe,
    encoder: Encoder | None = None,
) -> Spec:
    """What a method may know before `fit`.

    Args:
        data: the training rows; of their labels only the number of classes is used.
        backbone: a name with options, "auto", a module, or a function that makes one.
        recipe: for its seeds, and whether inputs are standardised.
        encoder: what the backbones start from; the inputs' mean and sd are then its own.

    Returns:
        Sizes, a factory of backbones, the inputs' mean and sd, a generator.

    Example:
        >>> data = Data(torch.randn(40, 3), torch.arange(40) % 2, 2)
        >>> spec = make_spec(data, "mlp:width=8,depth=1", Recipe())
        >>> spec.num_train, spec.dim, spec.backbone()(torch.zeros(1, 3)).shape
        (40, 8, torch.Size([1, 8]))
    """
    shape = data.shape
    factory = BackboneFactory(backbone_name(data, backbone, encoder), shape, encoder)
    if encoder:
        encoder.check_shape(shape)
    sample = _sample(data, recipe)
    axes = (0, 2, 3) if len(shape) == 3 else (0,)
    mean_, std = sample.mean(axes, keepdim=True)[0], sample.std(axes, keepdim=True, correction=0)[0]
    size = mean_.abs().clamp(min=1)
    rounding = ROUNDING * mean_.abs() if mean_.dtype == torch.float64 else 1e-6 * size
    std = torch.where(std > rounding, std, size)  # constant, or it differs by rounding alone
    first, last = data.one_scale
    if last > first:
        std[first:last] = std[first:last].square().mean().sqrt()
    if not recipe.standardise:
        mean_, std = torch.zeros_like(mean_), torch.ones_like(std)
    with RandomState(0, torch.device("cpu"))():
        dim = factory().dim
    return Spec(
        num_classes=data.num_classes,
        num_train=len(data),
        shape=shape,
        backbone=factory,
        dim=int(dim),  # type: ignore[arg-type]
        generator=recipe.generator("init", "method"),
        mean=encoder.mean if encoder else mean_,
        std=encoder.std if encoder else std,
        num_annotators=len(data.annotators),
        init=recipe.init,
    )


@dataclass(frozen=True)
class BackboneFactory:
    """Makes networks of one kind: a registered name with options, or copies of a user's module.

    With an encoder, each starts from its weights.
    """

    backbone: Any
    shape: tuple[int, ...]
    encoder: Encoder | None = None

    def __call__(self) -> nn.Module:
        if isinstance(self.backbone, str):
            made: nn.Module = create_backbone(self.backbone, self.shape)
        else:
            made = copy.deepcopy(as_backbone(self.backbone, self.shape))
            mark_pretrained(made)  # for all we know; a user who asks for another rate does know
        if self.encoder:
            self.encoder.into(made)
        return made


def of_texts(data: Data) -> bool:
    """Are texts nearly all there is to learn from?"""
    first, last = data.one_scale
    return len(data.shape) == 1 and last - first > TEXT_ALONE * data.shape[0]


def backbone_name(data: Data, backbone: Any, encoder: Encoder | None = None) -> Any:
    """The name that "auto" stands for with these inputs and labels; anything else as it is."""
    auto = isinstance(backbone, str) and backbone == "auto"
    if auto and encoder and encoder.backbone:
        return encoder.backbone
    if auto and of_texts(data):
        return LINEAR
    return default_backbone(data.shape, pixels=data.y.dim() > 1) if auto else backbone


def _sample(data: Data, recipe: Recipe, most: int = 5000) -> Tensor:
    n = len(data)
    index = torch.randperm(n, generator=recipe.generator("split", "sample"))[:most]
    x = data.x[index.sort().values]
    return x.float().div(255) if x.dtype == torch.uint8 else keep_double(x)


def fit_method(
    method: Method,
    data: Data,
    recipe: Recipe,
    *,
    backbone: Any = "auto",
    weights: Tensor | None = None,
    folder: Path | None = None,
    resume: bool = False,
    monitor: Callable[[Trainer], Record] | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
    on_step: Callable[[Record], None] | None = None,
    checkpoint_every: float = 0.0,
    encoder: Encoder | str | Path | None = None,
    pretrain: str | None = None,
) -> Trainer:
    """Hold out noisy validation, build the method, train it.

    The method sees neither clean labels nor the validation rows.

    Args:
        method: not built yet; it is fitted in place.
        data: the training rows, those to be held out included.
        recipe: how to train.
        backbone: a name with options, "auto" (by the inputs), a module, or a function that makes
            one.
        weights: how often each row is drawn, relative to the others, [N].
        folder: where checkpoints and searches are kept; None: nowhere.
        resume: continue from what the folder holds.
        monitor: more figures of every epoch, of the trainer; only recorded.
        on_record: called with the record of every epoch.
        on_step: called within an epoch, now and then, with its "share" that is done.
        checkpoint_every: minimum seconds between two checkpoints.
        encoder: a file (or an Encoder) that the networks start from.
        pretrain: make an encoder first, as in "simclr:epochs=100".

    Returns:
        The trainer with its history; `trainer.data` are the rows that were trained on.

    Example:
        >>> from ytilde import create
        >>> data = Data(torch.randn(40, 3), torch.arange(40) % 2, 2)
        >>> method = create("volminnet")
        >>> trainer = fit_method(method, data, Recipe(epochs=2), backbone="mlp:width=8,depth=1")
        >>> len(trainer.data), method.transition(None).shape
        (36, torch.Size([2, 2]))
    """
    team = parallel.team()
    if team.size > 1 and not method.distributable:
        raise BadInput(f"{method.name} trains in one process only; leave torchrun or devices out")
    data = data.without_clean()
    _check_data(data)
    if is_patches(backbone):
        raise BadInput("patches are learnt before a fit: use Classifier(backbone='patches')")
    if data.y.dim() > 1 and not method.pixels:
        raise BadInput(f"{method.name} needs one label per row, not labels of pixels")
    if encoder is not None and pretrain:
        raise BadInput("give encoder or pretrain, not both: an encoder is what pretrain makes")
    if isinstance(encoder, str | Path):
        encoder = Encoder.load(encoder)
    if wanted := None if encoder else pretrain or method.pretraining(data.shape):
        if data.y.dim() == 1:
            _validate_by_building(method, data, backbone, recipe)
        encoder = load_or_pretrain(data, backbone, recipe, wanted, folder, on_record)
    own: dict[str, Any] = {"backbone": backbone, "weights": weights, "encoder": encoder}

    def try_out(candidate: Method, recipe: Recipe, name: str) -> Trainer:
        return fit_method(candidate, data, recipe, **own, on_record=tag_trial(name, on_record))

    notes = resolve_auto_fields(method, recipe, try_out, folder, resume)
    train, val = data, None
    if recipe.val:
        kept, held = split(data.y, recipe.val, recipe.generator("split"), data.groups)
        if len(held):
            train, val = data.rows(kept), data.rows(held)
            weights = None if weights is None else weights[kept]
    spec = make_spec(train, backbone, recipe, encoder)
    with RandomState(recipe.seed_of("init"), torch.device("cpu"))():
        method.build(spec)
    learn = (p for p in method.parameters() if p.requires_grad)
    if recipe.pretrained_lr != 1 and not any(map(is_pretrained, learn)):
        raise BadInput(
            "pretrained_lr is for weights that come pre-trained and are trained on, and none are; "
            "start from an encoder (--encoder FILE), or leave it out"
        )
    trainer = Trainer(
        method,
        recipe,
        val=val,
        weights=weights,
        folder=folder,
        resume=resume,
        monitor=monitor,
        on_record=on_record,
        on_step=on_step,
        checkpoint_every=checkpoint_every,
        team=team,
        notes=notes,
    )
    trainer.data = train
    to_device(method, trainer.device)
    with team.sharing(method, trainer.device):
        method.fit(train, trainer)
    method.eval()
    return trainer


def _validate_by_building(method: Method, data: Data, backbone: Any, recipe: Recipe) -> None:
    """Build a copy, so that a wrong field is refused before hours of pre-training."""
    with RandomState(recipe.seed_of("init"), torch.device("cpu"))():
        type(method)(**method.get_params()).build(make_spec(data, backbone, recipe))


def _check_data(data: Data) -> None:
    if len(data.x) != len(data.y) or not data.y.numel():
        raise BadInput(f"there are {len(data.x)} inputs and {len(data.y)} labels")
    low, high = int(data.y.min()), int(data.y.max())
    if low < IGNORE or high >= data.num_classes:
        raise BadInput(
            f"labels run from {low} to {high}; they must lie in 0..{data.num_classes - 1}, or be "
            "-1 = ignore"
        )
    if high == IGNORE:
        raise BadInput("every label is -1 = ignore, so there is nothing to learn from")


def load_or_pretrain(
    data: Data,
    backbone: Any,
    recipe: Recipe,
    text: str,
    folder: Path | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Encoder:
    """An encoder of all the inputs, validation rows included: labels play no part in it.

    Kept under the hash of what went into it, in the run's folder or, where $YTILDE_CACHE names
    one, in a folder that runs share: as the seed is the encoder's own, so is the encoder theirs.

    Args:
        data: the inputs; rows that cannot be read are left out.
        backbone: as in `fit_method`.
        recipe: for the device and the precision; the seed is that of `text`.
        text: the settings, as in "simclr:epochs=100,seed=0".
        folder: of the run; None: nothing is kept, unless $YTILDE_CACHE says where.
        on_record: called with the record of every epoch.
    """
    if data.y.dim() > 1:
        raise BadInput(
            "pre-training learns one vector per picture, and these are labels of pixels; leave it "
            "out, and take a method that needs none"
        )
    settings = Settings.parse(text)
    spec = make_spec(data, backbone, Recipe(seed=settings.seed))
    shared = os.environ.get(CACHE)
    root = Path(shared) if shared else folder / PRETRAIN if folder else None
    if root:
        labels = torch.zeros(len(data), dtype=torch.int64)
        inputs = fingerprint(replace(data, y=labels, num_classes=0, names=None))
        name = backbone_name(data, backbone)
        name = name if isinstance(name, str) else spec.backbone().state_dict()
        root = root / f"{SIMCLR}{hash_of([inputs, dataclasses.asdict(settings), name])}"
    if root and (found := finished(root)) is not None:
        return found
    lost = unreadable(data.x)
    if lost.any():  # they would be learnt from as black pictures
        data = data.rows((~lost).nonzero().flatten())
        spec = make_spec(data, backbone, Recipe(seed=settings.seed))
    return simclr(spec, data, settings, recipe, folder=root, on_record=on_record)
