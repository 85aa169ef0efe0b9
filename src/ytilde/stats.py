"""Statistics for tables of runs; they live in `ytilde.bench.stats`."""

from .bench.stats import *  # noqa: F403
