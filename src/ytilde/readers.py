"""The old place of `ytilde.data.readers`."""

from .data.readers import *  # noqa: F403
