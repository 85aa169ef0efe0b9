"""Method: what every noisy-label method answers. Net, the registry, and `fit_method`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from . import parallel
from .backbones import as_backbone, create_backbone, default_backbone
from .contrastive import Settings, simclr
from .data import IGNORE, BadInput, Batch, Data, Spec, StepInfo, check_ranges, unknown
from .data.precision import ROUNDING, keep_double
from .encoder import Encoder, is_pretrained, mark_pretrained
from .encoders.simclr import finished
from .engine import RandomState, Recipe, Record, Trainer, to_device
from .hashing import hash_of
from .heads import Head, Softmax, Upsampled
from .images import unreadable
from .losses import mean
from .readers import fingerprint, split
from .transition import noisy_posterior
from .tuning import of_race, settle

CACHE = "YTILDE_CACHE"  # the variable with the folder of encoders that runs share


class Net(nn.Module):
    """Normalisation, backbone, head: raw inputs ([0, 1] pixels) -> a distribution over labels."""

    mean: Tensor
    std: Tensor
    row_parallel: ClassVar[tuple[str, ...]] = ("backbone",)  # many processes share it: parallel.py

    def __init__(self, spec: Spec, head: Head) -> None:
        super().__init__()
        self.register_buffer("mean", spec.mean.clone())
        self.register_buffer("std", spec.std.clone())
        self.backbone, self.head = spec.backbone(), head

    def features(self, x: Tensor) -> Tensor:
        return self.backbone((x - self.mean).div_(self.std).float())  # in place: a pass less

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits [..., K]."""
        return self.head(self.features(x))

    def log_probs(self, x: Tensor) -> Tensor:
        return self.head.log_probs(self.features(x))

    def nll(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Per element; the generator is for heads that draw Monte-Carlo noise."""
        return self.head.nll(self.features(x), y, generator)


@dataclass(eq=False, repr=False)
class Method(nn.Module):
    """A method: its fields are its hyper-parameters; `build` makes all of its state.

    A subclass overrides what differs from plain training: mostly `loss` or `head`.
    """

    name: ClassVar[str] = ""  # the registry's, set by `register`
    graphable: ClassVar[bool] = True  # can its step be captured as a CUDA graph?
    distributable: ClassVar[bool] = True  # can many processes train it? (same draws, same state)
    helper_stages: ClassVar[tuple[str, ...]] = ("simclr", "rate")  # they train no classifier
    ranges: ClassVar[str] = ""  # what must hold of its own fields: "0 < q <= 1, alpha >= 0"

    def __new__(cls, *args: Any, **fields: Any) -> Method:
        self = super().__new__(cls)
        nn.Module.__init__(self)  # before the dataclass's __init__ sets the fields
        return self

    def __post_init__(self) -> None:
        _check_ranges(self.name, type(self), self.get_params())

    # ---- what a method may override -------------------------------------------------------------

    def build(self, spec: Spec) -> None:
        """Make the networks and all state; here one Net."""
        self.spec = spec
        self.net = self.new_net()

    def head(self, dim: int, num_classes: int) -> Head:
        return Softmax(dim, num_classes)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        """The scalar to minimise; here the head's mean negative log-likelihood of a random view."""
        x, y = view(batch, step)
        return mean(self.net.nll(x, y, step.generator), y)

    def param_groups(self) -> list[Any]:
        """Parameters, or dicts with `params` and their own lr, optimizer, weight_decay."""
        return list(self.parameters())

    def fit(self, data: Data, trainer: Trainer) -> None:
        trainer.train("main", self.loss, self.param_groups(), data)

    def predict_proba(self, x: Tensor) -> Tensor:
        """The clean posterior [B, ..., K]."""
        return self.net.log_probs(x).exp()

    def noisy_proba(self, x: Tensor) -> Tensor:
        """The posterior of the observed label: p @ T(x), or p where there is no T."""
        p = self.predict_proba(x)
        T = self.transition(unseen(x))
        return p if T is None else noisy_posterior(p, T)

    def transition(self, batch: Batch) -> Tensor | None:
        """T [K, K], or T(x) [B, K, K], or None. Rows with index -1 were not trained on."""
        return None

    def uncertainty(self, x: Tensor) -> Tensor | None:
        """Aleatoric uncertainty, one number a row (or pixel); None if the head has none."""
        variance = self.net.head.variance(self.net.features(x))
        return None if variance is None else variance.sum(-1)

    def pretraining(self, shape: tuple[int, ...]) -> str | None:
        """The pre-training that it wants for such inputs, unless an encoder is given."""
        return None

    # ---- shared ---------------------------------------------------------------------------------

    def new_net(self) -> Net:
        """Another network of the same kind, freshly initialised."""
        spec = self.spec
        head = self.head(spec.dim, spec.num_classes)
        net = Net(spec, head)
        stride = getattr(net.backbone, "stride", 1)
        if stride > 1:
            net.head = Upsampled(head, stride, spec.shape[1:])
        return net

    def forward(self, x: Tensor) -> Tensor:
        """The log of the clean posterior; what an exported network computes."""
        return self.predict_proba(x).clamp(min=1e-30).log()

    @classmethod
    def field_names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name (scikit-learn's protocol)."""
        return {name: getattr(self, name) for name in self.field_names()}

    def set_params(self, **fields: Any) -> Method:
        for name, value in fields.items():
            _check_field(self.name, type(self), name, value)
        _check_ranges(self.name, type(self), fields)
        for name, value in fields.items():
            setattr(self, name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # a generator cannot be copied; it serves only build and fit
        state = dict(self.__dict__)
        if "spec" in state:
            state["spec"] = replace(state["spec"], generator=None)  # type: ignore[arg-type]
        return state

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({shown})"


def view(batch: Batch, step: StepInfo) -> tuple[Tensor, Tensor]:
    """One random view of the batch; pixel labels move with their pixels."""
    if batch.y.dim() > 1:
        x, y = step.augment(batch.x, batch.y)
        return x, y
    return step.augment(batch.x), batch.y


def unseen(x: Tensor) -> Batch:
    """Inputs that belong to no row of the training set."""
    nothing = torch.full((len(x),), -1, device=x.device)
    return Batch(x, nothing, nothing)


# ---- the registry --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    name: str
    cls: type[Method]
    preset: dict[str, Any]


_REGISTRY: dict[str, Entry] = {}
M = TypeVar("M", bound=type[Method])


def register(name: str, **preset: Any) -> Callable[[M], M]:
    """Class decorator: the method, or one preset of its fields, under this name."""

    def add(cls: M) -> M:
        _REGISTRY[name] = Entry(name, cls, preset)
        cls.name = name  # of several, the uppermost
        return cls

    return add


def find_methods(package: str = "ytilde.methods") -> None:
    """Import every file of the package, so that a new method is one new file."""
    root = importlib.import_module(package)
    for module in pkgutil.iter_modules(root.__path__):
        importlib.import_module(f"{package}.{module.name}")


def list_methods() -> list[str]:
    find_methods()
    return sorted(_REGISTRY)


def lookup(name: str) -> Entry:
    if name not in list_methods():
        raise BadInput(unknown("method", name, list_methods()))
    return _REGISTRY[name]


def create(name: str, **fields: Any) -> Method:
    """An unbuilt method by its registry name, with these fields."""
    entry = lookup(name)
    for field, value in fields.items():
        _check_field(name, entry.cls, field, value)
    return entry.cls(**(entry.preset | fields))


def _check_field(name: str, cls: type[Method], field: str, value: Any) -> None:
    if field not in cls.field_names():
        raise BadInput(unknown(f"field of {name}", field, cls.field_names()))
    kind = str(cls.__dataclass_fields__[field].type)
    if isinstance(value, str) and "float | str" in kind and value != "auto":
        raise BadInput(f"{field} of {name} must be a number or auto, not {value!r}")


def _check_ranges(name: str, cls: type[Method], fields: dict[str, Any]) -> None:
    for base in cls.__mro__:  # a method that builds on another has its fields, and their ranges
        check_ranges(name or cls.__name__, fields, vars(base).get("ranges", ""))


# ---- from data to a fitted method ----------------------------------------------------------------


def make_spec(
    data: Data,
    backbone: str | nn.Module | Callable[[], nn.Module],
    recipe: Recipe,
    encoder: Encoder | None = None,
) -> Spec:
    """What the method may know: sizes, a factory of backbones, the inputs' mean and sd.

    encoder: what the backbones start from; the inputs' mean and sd are then its own.
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


def backbone_name(data: Data, backbone: Any, encoder: Encoder | None = None) -> Any:
    """The name that "auto" stands for with these inputs and labels; anything else as it is."""
    auto = isinstance(backbone, str) and backbone == "auto"
    if auto and encoder and encoder.backbone:
        return encoder.backbone
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
    checkpoint_every: float = 0.0,
    encoder: Encoder | str | Path | None = None,
    pretrain: str | None = None,
) -> Trainer:
    """Hold out noisy validation, build the method, train it; returns the trainer with its history.

    The method sees neither clean labels nor the validation rows. encoder: a file (or an Encoder)
    that its networks start from; pretrain: make one first, as in "simclr:epochs=100".
    """
    team = parallel.team()
    if team.size > 1 and not method.distributable:
        raise BadInput(f"{method.name} trains in one process only; leave torchrun or devices out")
    data = data.without_clean()
    _check_data(data)
    if encoder is not None and pretrain:
        raise BadInput("give encoder or pretrain, not both: an encoder is what pretrain makes")
    if isinstance(encoder, str | Path):
        encoder = Encoder.load(encoder)
    if wanted := None if encoder else pretrain or method.pretraining(data.shape):
        if data.y.dim() == 1:
            _rehearse(method, data, backbone, recipe)
        encoder = pretrained(data, backbone, recipe, wanted, folder, on_record)
    own: dict[str, Any] = {"backbone": backbone, "weights": weights, "encoder": encoder}

    def try_out(candidate: Method, recipe: Recipe, name: str) -> Trainer:
        return fit_method(candidate, data, recipe, **own, on_record=of_race(name, on_record))

    notes = settle(method, recipe, try_out, folder, resume)
    train, val = data, None
    if recipe.val:
        kept, held = split(data.y, recipe.val, recipe.generator("split"))
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


def _rehearse(method: Method, data: Data, backbone: Any, recipe: Recipe) -> None:
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


def pretrained(
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
    """
    if data.y.dim() > 1:
        raise BadInput(
            "pre-training learns one vector a picture, and these are labels of pixels; leave it "
            "out, and take a method that needs none"
        )
    settings = Settings.parse(text)
    spec = make_spec(data, backbone, Recipe(seed=settings.seed))
    shared = os.environ.get(CACHE)
    root = Path(shared) if shared else folder / "pretrain" if folder else None
    if root:
        labels = torch.zeros(len(data), dtype=torch.int64)
        inputs = fingerprint(replace(data, y=labels, num_classes=0, names=None))
        name = backbone_name(data, backbone)
        name = name if isinstance(name, str) else spec.backbone().state_dict()
        root = root / f"simclr-{hash_of([inputs, dataclasses.asdict(settings), name])}"
    if root and (found := finished(root)) is not None:
        return found
    lost = unreadable(data.x)
    if lost.any():  # they would be learnt from as black pictures
        data = data.rows((~lost).nonzero().flatten())
        spec = make_spec(data, backbone, Recipe(seed=settings.seed))
    return simclr(spec, data, settings, recipe, folder=root, on_record=on_record)
