"""On-device batch augmentation: float images [B, C, H, W] in [0, 1], each with its own draws.

Every transform is a function of its inputs and of uniform draws, so a whole recipe needs one call
of the generator, gives the same bits for the same generator, and can be captured in a CUDA graph.
With pixel labels y [B, H, W] what moves the image moves the labels too; what comes from outside
the image is 0 in x (a policy's `fill`) and -1 (ignore) in y. Class labels [B] pass through.
"""

from .colour import ColorJitter, Grey
from .features import Jitter
from .geometry import CropFlip, Cutout, RandomCutout, ResizedCrop
from .policies import AutoAugment, RandAugment
from .recipes import make_augment, strong_view
from .transform import Augment, Transform, two_views

__all__ = [
    "Augment",
    "AutoAugment",
    "ColorJitter",
    "CropFlip",
    "Cutout",
    "Grey",
    "Jitter",
    "RandAugment",
    "RandomCutout",
    "ResizedCrop",
    "Transform",
    "make_augment",
    "strong_view",
    "two_views",
]
