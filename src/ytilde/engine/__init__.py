"""The engine: recipes and the one training loop. `loop.py` is the page to read first."""

from .device import choose_device, layout, to_device
from .loop import Trainer
from .parallel import Team
from .recipe import REFIT_FIELDS, Recipe, choices, default_recipe, learning_rate
from .rng import RandomState
from .stage import Diverged, Loss, Stage
from .state import hash_of
from .validate import History, Record, best_epoch

__all__ = [
    "REFIT_FIELDS",
    "Diverged",
    "History",
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
