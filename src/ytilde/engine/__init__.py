"""The engine: recipes and the one training loop. `loop.py` is the page to read first.

Names are imported when they are used: what writes files asks `parallel` who may, and the loop
writes files.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..hashing import hash_of
    from .device import choose_device, layout, to_device
    from .feed import Index
    from .loop import Trainer
    from .parallel import Team
    from .recipe import REFIT_FIELDS, Recipe, choices, default_recipe, learning_rate
    from .rng import RandomState
    from .stage import Diverged, Loss, Stage
    from .validate import History, Record, best_epoch

__all__ = [
    "REFIT_FIELDS",
    "Diverged",
    "History",
    "Index",
    "Loss",
    "RandomState",
    "Recipe",
    "Record",
    "Stage",
    "Team",
    "Trainer",
    "best_epoch",
    "choices",
    "choose_device",
    "default_recipe",
    "hash_of",
    "layout",
    "learning_rate",
    "to_device",
]
_HOMES = {
    "device": ("choose_device", "layout", "to_device"),
    "feed": ("Index",),
    "loop": ("Trainer",),
    "parallel": ("Team",),
    "recipe": ("REFIT_FIELDS", "Recipe", "choices", "default_recipe", "learning_rate"),
    "rng": ("RandomState",),
    "stage": ("Diverged", "Loss", "Stage"),
    "state": ("hash_of",),
    "validate": ("History", "Record", "best_epoch"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f".{home}", __name__), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
