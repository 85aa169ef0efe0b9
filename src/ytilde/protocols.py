"""The old place of `ytilde.engine.protocols`."""

from .engine.protocols import KEEP, PROTOCOLS, SIGN, best_epoch, protocols, validation_score

__all__ = ["KEEP", "PROTOCOLS", "SIGN", "best_epoch", "protocols", "validation_score"]
