"""Features learnt without labels: encoder files, SimCLR, neighbours and clusters.

`simclr` trains with the engine, so it is imported apart: `from ytilde.encoders.simclr import ...`.
"""

from .encoder import Encoder

__all__ = ["Encoder"]
