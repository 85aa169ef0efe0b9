"""ytilde: learning from labels that are wrong in ways that depend on the input."""

from . import heads, losses, noise
from .auditing import Audit, audit
from .data import BadInput, Batch, Data, Spec, Step
from .diagnosis import Diagnosis, diagnose
from .engine import Recipe, Trainer
from .estimator import Classifier
from .method import Method, create, list_methods, register

__version__ = "0.1.0"
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
    "Trainer",
    "audit",
    "create",
    "diagnose",
    "heads",
    "list_methods",
    "losses",
    "noise",
    "register",
]
