"""Method: what every noisy-label method answers. Net, and the registry."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from .backbones.layers import glorot_init
from .data import BadInput, Batch, Data, Spec, StepInfo, check_ranges, unknown_name_message
from .data.precision import as_weights
from .engine import Trainer, choices
from .heads import Head, Softmax, Upsampled
from .losses import mean
from .transition import noisy_posterior


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
        x = (x - self.mean).div_(self.std)  # in place: a pass over x less
        return self.backbone(as_weights(x, self))

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

    A subclass overrides what differs from plain training: mostly `loss` or `head`. It is a
    dataclass whose fields have defaults; CONTRIBUTING.md shows one in full.

    Args:
        args: fields in their order.
        fields: fields by name.

    Example:
        >>> class Halved(Method):
        ...     def loss(self, batch, step):
        ...         return 0.5 * super().loss(batch, step)
        >>> from ytilde import Classifier
        >>> X, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> clf = Classifier(Halved(), "mlp:width=8,depth=1", epochs=1).fit(X, y)
        >>> clf.predict_proba(X).shape
        (40, 2)
    """

    name: ClassVar[str] = ""  # the registry's, set by `register`
    graphable: ClassVar[bool] = True  # can its step be captured as a CUDA graph?
    distributable: ClassVar[bool] = True  # can many processes train it? (same draws, same state)
    helper_stages: ClassVar[tuple[str, ...]] = ("simclr", "rate")  # they train no classifier
    pixels: ClassVar[bool] = True  # can it learn from a label a pixel, too?
    early_stopping: ClassVar[bool] = True  # where nobody says: keep the best epoch, or the last?
    ranges: ClassVar[str] = ""  # what must hold of its own fields: "0 < q <= 1, alpha >= 0"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}  # what "auto" chooses from, by field
    grid_by: ClassVar[Literal["accuracy", "nll"]] = "accuracy"  # of noisy validation, for "auto"
    renamed: ClassVar[Mapping[str, str]] = {}  # old name of a field -> its name now

    def __new__(cls, *args: Any, **fields: Any) -> Method:
        self = super().__new__(cls)
        nn.Module.__init__(self)  # before the dataclass's __init__ sets the fields
        return self

    def __post_init__(self) -> None:
        _check_values(self.name, type(self), self.get_params())

    # ---- what a method may override -------------------------------------------------------------

    def build(self, spec: Spec) -> None:
        """Make the networks and all state; here one Net."""
        self.spec = spec
        self.net = self.new_net()

    def head(self, dim: int, num_classes: int) -> Head:
        """The head of a network; here a softmax.

        Args:
            dim: of the features.
            num_classes: K.
        """
        return Softmax(dim, num_classes)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        """The scalar to minimise; here the head's mean negative log-likelihood of a random view.

        Args:
            batch: raw inputs, observed labels, rows.
            step: where training stands, the generator, and the augmentation.
        """
        x, y = view(batch, step)
        return mean(self.net.nll(x, y, step.generator), y)

    def param_groups(self) -> list[Any]:
        """Parameters, or dicts with `params` and their own lr, optimizer, weight_decay."""
        return list(self.parameters())

    def fit(self, data: Data, trainer: Trainer) -> None:
        """Train; here one stage. Pipelines are straight-line code of several.

        Args:
            data: the training rows, without clean labels and without the validation rows.
            trainer: trains a loss (`train`, `epochs`), maps rows (`map`), keeps results (`cached`).
        """
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
        if spec.init == "keras":
            glorot_init(net)
        return net

    def forward(self, x: Tensor) -> Tensor:
        """The log of the clean posterior; what an exported network computes."""
        return self.predict_proba(x).clamp(min=1e-30).log()

    @classmethod
    def field_names(cls) -> list[str]:
        """The names of the hyper-parameters."""
        return [field.name for field in dataclasses.fields(cls)]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name (scikit-learn's protocol)."""
        return {name: getattr(self, name) for name in self.field_names()}

    def set_params(self, **fields: Any) -> Method:
        """Set fields; a wrong one is refused and nothing is set (scikit-learn's protocol).

        Args:
            fields: values by name.
        """
        fields = _checked(self.name, type(self), fields)
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


GROUP = "ytilde.methods"  # the group of entry points by which packages bring methods
OWN_FOLDER = Path(__file__).parent / "methods"
RESERVED = ("auto", "backbones", "recipe")  # words that stand where a method's name does

logger = logging.getLogger("ytilde")


@dataclass(frozen=True)
class Entry:
    """What a registered name stands for."""

    name: str
    cls: type[Method]
    preset: dict[str, Any]  # fields whose defaults this name replaces
    source: str = ""  # the file that registered it; "" where there is none, as in a notebook


_REGISTRY: dict[str, Entry] = {}
_LEFT_OUT: dict[str, str] = {}  # name of a plugin that cannot be used -> a sentence that says why
_searched: set[str] = set()  # what was searched: "own", "plugins"
M = TypeVar("M", bound=type[Method])


def register(name: str, **preset: Any) -> Callable[[M], M]:
    """Class decorator: the method, or one preset of its fields, under this name.

    A name belongs to the file that registers it first, and ytilde's own come before all others.

    Args:
        name: what `create`, the command line and tables call it: a word such as my_method.
        preset: fields whose defaults this name replaces.

    Returns:
        The decorator; it returns the class as it is.

    Example:
        >>> @register("halved_ce")
        ... class Halved(Method):
        ...     def loss(self, batch, step):
        ...         return 0.5 * super().loss(batch, step)
        >>> create("halved_ce")
        Halved()
    """
    caller = sys._getframe(1).f_globals
    source, module = str(caller.get("__file__") or ""), caller.get("__name__")

    def add(cls: M) -> M:
        if Path(source).parent != OWN_FOLDER:
            _check_plugin(name, cls)
            _find_own()
        taken = _REGISTRY.get(name)
        if taken and taken.source != source:
            whose = "of ytilde" if Path(taken.source).parent == OWN_FOLDER else taken.source
            raise BadInput(
                f"there is a method {name} already ({whose}); register yours under another name"
            )
        _REGISTRY[name] = Entry(name, cls, preset, source)
        if cls.__module__ == module:  # else it is a preset of somebody else's method
            cls.name = name  # of several, the uppermost
        return cls

    return add


def _check_plugin(name: str, cls: type) -> None:
    if not name.isidentifier() or name in RESERVED:
        raise BadInput(f"{name!r} cannot be the name of a method; take a word such as my_method")
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise BadInput(f"what is registered as {name} must be a subclass of ytilde.Method")
    for field in dataclasses.fields(cls):
        if field.default is field.default_factory:  # both are missing
            raise BadInput(f"the field {field.name} of {name} needs a default")


def _find_own() -> None:
    """Import every file of `methods/`, so that a new method is one new file."""
    if "own" not in _searched:
        _searched.add("own")
        for module in pkgutil.iter_modules([str(OWN_FOLDER)]):
            if not module.name.startswith("_"):
                importlib.import_module(f"{GROUP}.{module.name}")


def find_methods() -> None:
    """Import ytilde's own methods, the files in $YTILDE_METHODS and what packages bring, once.

    A plugin that cannot be used is left out and named in a sentence; all others are there.
    """
    _find_own()
    if "plugins" in _searched:
        return
    _searched.add("plugins")
    for folder in importlib.import_module(GROUP).__path__:
        if Path(folder) == OWN_FOLDER:
            continue
        if not Path(folder).is_dir():
            _leave_out(folder, f"YTILDE_METHODS names {folder}, which is no folder")
        for module in pkgutil.iter_modules([folder]):
            if not module.name.startswith("_"):
                what = f"the method file {module.name} in {folder}"
                _load(module.name, what, partial(_import_file, module.name, folder))
    try:
        points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    except Exception as error:  # of an installed package that is damaged
        _leave_out(GROUP, f"the entry points {GROUP} cannot be read: {error}")
        return
    for point in points:
        _load(point.name, f"the entry point {point.name} = {point.value}", point.load)


def _import_file(name: str, folder: str) -> None:
    found = Path(importlib.import_module(f"{GROUP}.{name}").__file__ or "")
    if Path(folder) not in found.parents:
        raise BadInput(f"{found} has the same file name; give it another one")


def _load(name: str, what: str, load: Callable[[], Any]) -> None:
    """Load a plugin; of one that fails nothing stays registered."""
    before = set(_REGISTRY)
    try:
        load()
    except (Exception, SystemExit) as error:
        modules = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
        alive = {vars(module).get("__file__") for module in modules}
        for new in set(_REGISTRY) - before:
            if _REGISTRY[new].source not in alive:  # else another plugin's, which it imports
                del _REGISTRY[new]
        told = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        _leave_out(name, f"{what} is left out: {told}")


def _leave_out(name: str, reason: str) -> None:
    _LEFT_OUT[name] = str(BadInput(reason))  # one line, whatever the plugin says
    logger.warning(_LEFT_OUT[name])


def list_methods() -> list[str]:
    """The names of all methods: ytilde's, and those of plugins.

    Returns:
        The names, sorted.

    Example:
        >>> "volminnet" in list_methods()
        True
    """
    find_methods()
    return sorted(_REGISTRY)


def lookup(name: str) -> Entry:
    """What a name stands for; unknown ones are refused, with those that are near."""
    if name in list_methods():
        return _REGISTRY[name]
    raise BadInput(_LEFT_OUT.get(name) or unknown_name_message("method", name, list_methods()))


def create(name: str, **fields: Any) -> Method:
    """An unbuilt method by its registry name.

    Args:
        name: see `list_methods()`.
        fields: its hyper-parameters; the rest have their defaults.

    Returns:
        The method, for `Classifier(method=...)` or `fit_method`.

    Example:
        >>> create("ln", tau=1.0)
        LN(tau=1.0, lam=0.5, covariance='full', dummy=True, smoothing=0.01)
    """
    entry = lookup(name)
    return entry.cls(**(entry.preset | _checked(name, entry.cls, fields)))


create_method, register_method = create, register  # the same, for `from ytilde import *`


def _checked(name: str, cls: type[Method], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields by their names of today; unknown ones and wrong values are refused."""
    found: dict[str, Any] = {}
    for field, value in fields.items():
        known = cls.renamed.get(field, field)
        if known != field:
            text = f"{field} of {name} is called {known} now"
            warnings.warn(text, DeprecationWarning, stacklevel=3)
        if known not in cls.field_names():
            raise BadInput(unknown_name_message(f"field of {name}", field, cls.field_names()))
        if known in found:
            raise BadInput(f"{name} was given {known} twice; {field} is its old name")
        found[known] = value
    _check_values(name, cls, found)
    return found


def _check_values(name: str, cls: type[Method], fields: Mapping[str, Any]) -> None:
    name = name or cls.__name__
    words = choices(cls)
    for field, value in fields.items():
        if field in words and value not in words[field]:
            text = unknown_name_message(f"{field} of {name}", str(value), words[field])
            raise BadInput(text)
        kind = str(cls.__dataclass_fields__[field].type)
        if kind == "str" and not isinstance(value, str | Path):
            raise BadInput(f"{field} of {name} must be a text, not {value!r}")
        if isinstance(value, str) and "float | str" in kind and value != "auto":
            raise BadInput(f"{field} of {name} must be a number or auto, not {value!r}")
    for base in cls.__mro__:  # a method that builds on another has its fields, and their ranges
        check_ranges(name, fields, vars(base).get("ranges", ""))


# ---- what moved ----------------------------------------------------------------------------------

_MOVED = {  # to fitting.py; the left name is the old one
    "CACHE": "CACHE",
    "BackboneFactory": "BackboneFactory",
    "backbone_name": "backbone_name",
    "fit_method": "fit_method",
    "make_spec": "make_spec",
    "pretrained": "load_or_pretrain",
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".fitting", __package__), _MOVED[name])
