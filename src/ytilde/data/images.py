"""Pictures as tensors: one file, and the lazy reader `Images` for sets too large for memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..archives import open_member
from ..errors import BadInput, plural
from .listing import SUFFIXES, is_image, list_images
from .types import IGNORE, Data, Rows, Subset

__all__ = [
    "FORMATS",
    "LIMIT",
    "ORIENTATION",
    "SUFFIXES",
    "Images",
    "is_image",
    "list_images",
    "open_image",
    "pixels",
    "read_image",
    "read_images",
    "read_mask",
    "read_rows",
    "row_name",
    "unreadable",
    "upright",
    "upright_size",
    "without_unreadable",
]

# What Pillow may take a file for, whatever its name: it would hand an EPS to Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
LIMIT = 2 * 10**9  # bytes of pixels that are still read into memory
_LARGEST = 224  # the default side where the pictures of a set differ in size
_PROBED = 20_000  # headers read to learn the sizes; a larger set is sampled evenly
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def open_image(file: str | IO[bytes]) -> Image.Image:
    """A picture of one of the `FORMATS`; only its header is read, but of one in a tar archive."""
    if isinstance(file, str) and Path(file).exists() and not Path(file).is_file():
        raise ValueError("it is no file")  # a pipe would be waited for
    inside = open_member(file) if isinstance(file, str) else None
    return Image.open(inside or file, formats=FORMATS)


ORIENTATION = 0x0112  # the EXIF tag: how a viewer turns and mirrors what is stored
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    """1 to 8; 1, as it is stored, where nothing else is said or what is said cannot be read."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # nothing is said before the pixels, and Pillow would decode them to look behind
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged tags raise many kinds, and the pixels are still there
        return 1


def upright(image: Image.Image) -> Image.Image:
    """The picture as viewers show it."""
    image.load()  # a PNG may say behind its pixels how to turn them
    turn = _UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width of the picture as viewers show it; its pixels are not read."""
    width, height = image.size
    if image.format == "TIFF":  # Pillow's size is the stored one, or the upright one: by version
        width, height = (image.tag_v2[tag] for tag in (256, 257))  # type: ignore[attr-defined]
    return (width, height) if 5 <= _orientation(image) <= 8 else (height, width)


def pixels(image: Image.Image, size: tuple[int, int], channels: int, pad: bool = False) -> Tensor:
    """One picture, upright, as uint8 [channels, H, W], size = (H, W).

    It covers the frame and is cropped at the centre, or, with `pad`, it is contained in the frame,
    top left, and black fills the rest.
    """
    if image.mode[0] in "IF":
        raise ValueError("it has more than 8 bits a channel")
    image = upright(image).convert("L" if channels == 1 else "RGB")
    frame = (size[1], size[0])
    if pad:
        image = ImageOps.pad(image, frame, Image.Resampling.BILINEAR, centering=(0, 0))
    else:
        image = ImageOps.fit(image, frame, Image.Resampling.BILINEAR)
    array = np.array(image, dtype=np.uint8).reshape(*size, channels)
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()


def read_image(
    file: str | IO[bytes], size: tuple[int, int], channels: int, pad: bool = False
) -> Tensor:
    try:
        with open_image(file) as image:
            return pixels(image, size, channels, pad)
    except _UNREADABLE as error:
        raise _unreadable(file, error) from error


def read_mask(file: str | IO[bytes], size: tuple[int, int], labels: Tensor) -> Tensor:
    """Pixel labels of one mask as int64 [H, W], in the geometry of `pixels(pad=True)`.

    labels: [256] int64, the label of each stored value; what the picture does not cover is -1.
    """
    try:
        with open_image(file) as image:
            if image.mode not in ("P", "L"):
                raise ValueError(
                    f"a mask stores one class number a pixel, this one is {image.mode}"
                )
            # The palette is dropped, so that resizing keeps the stored class numbers.
            raw = Image.fromarray(np.array(upright(image), dtype=np.uint8))
    except _UNREADABLE as error:
        raise _unreadable(file, error) from error
    scaled = ImageOps.contain(raw, (size[1], size[0]), Image.Resampling.NEAREST)
    y = torch.full(size, IGNORE, dtype=torch.int64)
    y[: scaled.height, : scaled.width] = labels[torch.from_numpy(np.array(scaled)).long()]
    return y


def _unreadable(file: str | IO[bytes], error: Exception) -> BadInput:
    path = file if isinstance(file, str) else getattr(file, "name", "in the archive")
    if isinstance(error, FileNotFoundError):
        return BadInput(f"The image {path} does not exist.")
    return BadInput(f"The image {path} cannot be read ({error}); repair or remove it.")


class Images:
    """A lazy reader: `x[index]` reads those files as uint8 [B, C, H, W]. It can be pickled.

    strict: a file that cannot be read is refused; else it is black, and `read` says so.
    """

    def __init__(
        self,
        paths: Sequence[str],
        size: tuple[int, int],
        channels: int = 3,
        pad: bool = False,
        strict: bool = False,
    ) -> None:
        self.paths, self.size, self.channels, self.pad = list(paths), size, channels, pad
        self.strict = strict

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.paths), self.channels, *self.size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.read(index)[0]

    def read(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The pictures, and which of them could be read, bool [B]."""
        x = torch.empty((len(index), self.channels, *self.size), dtype=torch.uint8)
        readable = torch.ones(len(index), dtype=torch.bool)
        for k, i in enumerate(index.tolist()):
            try:
                x[k] = read_image(self.paths[i], self.size, self.channels, self.pad)
            except BadInput:
                if self.strict:
                    raise
                readable[k], x[k] = False, 0
        return x, readable


def read_rows(x: Rows, index: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of any reader, and which of them could be read."""
    while isinstance(x, Subset):
        index = x.index[index]
        x = x.x
    if isinstance(x, Images):
        return x.read(index)
    return x[index], torch.ones(len(index), dtype=torch.bool)


def unreadable(x: Rows) -> Tensor:
    """Which rows cannot be read, bool [N]; of a lazy reader all are tried."""
    if isinstance(x, Tensor):
        return torch.zeros(len(x), dtype=torch.bool)
    return ~torch.cat([read_rows(x, part)[1] for part in torch.arange(len(x)).split(256)])


def without_unreadable(data: Data) -> tuple[Data, list[str]]:
    """Rows whose files cannot be read lose their labels (-1 = ignore); and what to say of it."""
    lost = unreadable(data.x)
    if not lost.any():
        return data, []
    first = row_name(data.x, int(lost.nonzero()[0]))
    count = plural(int(lost.sum()), "image")
    note = f"Left out because unreadable: {count}, the first {first}."
    return replace(data, y=data.y.masked_fill(lost, IGNORE)), [note]


def row_name(x: Rows, row: int) -> str:
    """The file of a row, or its number."""
    while isinstance(x, Subset):
        row = int(x.index[row])
        x = x.x
    return x.paths[row] if isinstance(x, Images) else f"row {row}"


def read_images(
    paths: Sequence[str],
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    lazy: bool | None = None,
    strict: bool = False,
    notes: list[str] | None = None,
) -> Tensor | Images:
    """All these files as uint8 [N, C, H, W]: a tensor up to 2 GB, else (or if `lazy`) `Images`.

    Without `size` pictures of equal size stay as they are; others become squares with the median of
    their shorter sides, at most 224. `channels` is 1 where all are grey, else 3.
    If some cannot be read they are refused (`strict`), or stay lazy, where they can be told.
    notes: gets a line where the pictures differ in size.
    """
    if size is None or channels is None:
        sizes, guessed_channels = _probe(paths, strict)
        channels = channels or guessed_channels
        if size is None and len(set(sizes)) > 1 and notes is not None:
            notes.append(_said(sizes, _common(sizes)))
        size = size or _common(sizes)
    square = (size, size) if isinstance(size, int) else size
    images = Images(paths, square, channels, strict=strict)
    if lazy is None:
        lazy = int(np.prod(images.shape)) > LIMIT
    if lazy:
        return images
    x, readable = images.read(torch.arange(len(paths)))
    if not readable.any():
        read_image(paths[0], square, channels)  # says what is wrong with it
    return x if readable.all() else images


def _probe(paths: Sequence[str], strict: bool) -> tuple[list[tuple[int, int]], int]:
    """The sizes of the pictures, as far as they are looked at, and their channels."""
    step = -(-len(paths) // _PROBED)
    headers, first = [], None
    for path in paths[::step]:
        try:
            headers.append(_header(path))
        except BadInput as error:
            first = first or error
    if first and (strict or not headers):
        raise first
    return [size for size, _ in headers], 1 if all(grey for _, grey in headers) else 3


def _common(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    if len(set(sizes)) == 1:
        return sizes[0]
    side = min(_LARGEST, int(np.median([min(size) for size in sizes])))
    return side, side


def _said(sizes: Sequence[tuple[int, int]], frame: tuple[int, int]) -> str:
    order = sorted(set(sizes), key=lambda size: size[0] * size[1])
    low, high = (f"{height} x {width}" for height, width in (order[0], order[-1]))
    return (
        f"{len(sizes)} images have {len(order)} sizes (height x width {low} to {high}): each is "
        f"scaled to cover {frame[0]} x {frame[1]} and cropped at its centre"
    )


def _header(path: str) -> tuple[tuple[int, int], bool]:
    try:
        with open_image(path) as image:
            return upright_size(image), image.mode in ("L", "1")
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
