"""The old place of `ytilde.bench.stats`."""

from .bench.stats import *  # noqa: F403
