"""ytilde: learning from labels that are wrong in ways that depend on the input."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import heads, losses, noise
    from .auditing.audit import audit
    from .auditing.diagnosis import Diagnosis, diagnose
    from .auditing.result import Audit
    from .data import BadInput, Batch, Data, Spec, Step, StepInfo
    from .engine import Recipe, Trainer
    from .estimator import Classifier
    from .method import (
        Method,
        create,
        create_method,
        list_methods,
        register,
        register_method,
    )

__version__ = "0.2.0"
__all__ = [
    "Audit",
    "BadInput",
    "Batch",
    "Classifier",
    "Data",
    "Diagnosis",
    "Method",
    "Recipe",
    "Spec",
    "Step",
    "StepInfo",
    "Trainer",
    "audit",
    "create",
    "create_method",
    "diagnose",
    "heads",
    "list_methods",
    "losses",
    "noise",
    "register",
    "register_method",
]
_HOMES = {
    "auditing": ("Audit", "audit"),
    "auditing.diagnosis": ("Diagnosis", "diagnose"),
    "data": ("BadInput", "Batch", "Data", "Spec", "Step", "StepInfo"),
    "engine": ("Recipe", "Trainer"),
    "estimator": ("Classifier",),
    "method": (
        "Method",
        "create",
        "create_method",
        "list_methods",
        "register",
        "register_method",
    ),
}


def __getattr__(name: str) -> Any:
    """A public name, or a module, is imported when it is first used.

    Losses and heads then need torch alone.
    """
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f".{home}", __name__), name)
            return globals()[name]
    if name.startswith("_") or find_spec(f".{name}", __name__) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return __all__
