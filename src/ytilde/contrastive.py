"""The old place of `ytilde.encoders`: SimCLR, features, neighbours and clusters."""

from .encoders.clusters import assign, kmeans
from .encoders.features import Features
from .encoders.neighbours import neighbours, probe
from .encoders.simclr import DONE, PROBES, Settings, SimCLR, default_views, nt_xent, probes, simclr

__all__ = [
    "DONE", "PROBES", "Features", "Settings", "SimCLR", "assign", "default_views", "kmeans",
    "neighbours", "nt_xent", "probe", "probes", "simclr",
]  # fmt: skip
