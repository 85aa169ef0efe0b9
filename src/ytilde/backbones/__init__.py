"""Networks that turn inputs into features. Each knows `dim`; the head that follows is elsewhere.

Classifiers give [B, dim]; networks for pixels give [B, H / stride, W / stride, dim]. Dropout is a
module everywhere, so eval mode switches it off. Layer initialisation draws from torch's global
generator: the caller forks and seeds it.
"""

from . import inception, pixels, resnet, small, xception  # noqa: F401 (they register themselves)
from .measured import as_backbone
from .patches import Patches
from .registry import (
    Backbone,
    about_backbone,
    create_backbone,
    default_backbone,
    list_backbones,
    without_weights,
)
from .weights import is_pretrained, load_weights, mark_pretrained

__all__ = [
    "Backbone",
    "Patches",
    "about_backbone",
    "as_backbone",
    "create_backbone",
    "default_backbone",
    "is_pretrained",
    "list_backbones",
    "load_weights",
    "mark_pretrained",
    "without_weights",
]
