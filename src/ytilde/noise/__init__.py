"""Label noise made on purpose, by seeded functions that also tell the truth about themselves.

`symmetric`, `asymmetric`, `pair` and `classwise` depend on the class alone, `instance` on the
input. Each returns a `Noisy`: the labels and the true transition matrix they were drawn from.
Labels of -1 stay -1. All work is done, and all results lie, on the CPU.
"""

from .class_dependent import MAPS, SETTINGS, asymmetric, classwise, pair, symmetric
from .instance_dependent import FEATURES, instance
from .noisy import Noisy
from .spec import KINDS, corrupt, parse

__all__ = [
    "FEATURES",
    "KINDS",
    "MAPS",
    "SETTINGS",
    "Noisy",
    "asymmetric",
    "classwise",
    "corrupt",
    "instance",
    "pair",
    "parse",
    "symmetric",
]
