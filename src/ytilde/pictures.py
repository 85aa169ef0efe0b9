"""Deprecated: the old place of `ytilde.plotting`."""

import warnings

from .plotting import plot_comparison, plot_images, plot_instances, plot_T

__all__ = ["plot_T", "plot_comparison", "plot_images", "plot_instances"]

warnings.warn("ytilde.pictures is now ytilde.plotting", DeprecationWarning, stacklevel=2)
