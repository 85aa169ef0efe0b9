"""The old place of `ytilde.data.images`."""

from .data.images import (
    LIMIT,
    SUFFIXES,
    Images,
    is_image,
    list_images,
    pixels,
    read_image,
    read_images,
    read_mask,
    read_rows,
    row_name,
    unreadable,
    without_unreadable,
)

__all__ = [
    "LIMIT",
    "SUFFIXES",
    "Images",
    "is_image",
    "list_images",
    "pixels",
    "read_image",
    "read_images",
    "read_mask",
    "read_rows",
    "row_name",
    "unreadable",
    "without_unreadable",
]
