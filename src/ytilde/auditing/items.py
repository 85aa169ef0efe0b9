"""What a person is shown of a row of the data: its picture, or its values."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from ..data.columns import Kind, width
from ..data.images import open_image, upright


def table(
    rows: pd.DataFrame | np.ndarray | Tensor, columns: Mapping[str, Kind] | None = None
) -> pd.DataFrame:
    """Features [N, D] under the names of a Schema's columns; a category as its one value again."""
    if isinstance(rows, pd.DataFrame):
        return rows
    values = np.asarray(rows)
    parts: dict[str, Any] = {}
    start = 0
    for name, kind in (columns or {}).items():
        part = values[:, start : start + width(kind)]
        categories = isinstance(kind, list)
        parts[name] = np.array(kind, object)[part.argmax(1)] if categories else part[:, 0]
        start += width(kind)
    rest = {f"feature {k}": values[:, k] for k in range(start, values.shape[1])}
    return pd.DataFrame(parts | rest)


def picture_of(images: Any, row: int) -> Image.Image:
    """The picture of a row of images [N, C, H, W], grey or in colour."""
    images = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
    x = torch.as_tensor(images[torch.tensor([row])])[0].cpu()
    x = x if x.dtype == torch.uint8 else (x.float().nan_to_num() * 255).clamp(0, 255).byte()
    x = x[None] if x.dim() == 2 else x
    x = x[:3] if len(x) in (3, 4) else x[:1]
    return Image.fromarray(x[0].numpy() if len(x) == 1 else x.permute(1, 2, 0).numpy())


def file_picture(path: object) -> Image.Image | None:
    """The picture of a file at its own size, upright; None where it cannot be read any more."""
    try:
        with open_image(str(path)) as picture:
            return upright(picture).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def data_address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
