"""The old place of `ytilde.data.images`."""

from .data.images import *  # noqa: F403
