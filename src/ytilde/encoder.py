"""The old place of `ytilde.encoders.encoder`."""

from .backbones.weights import is_pretrained, mark_pretrained
from .encoders.encoder import Encoder

__all__ = ["Encoder", "is_pretrained", "mark_pretrained"]
