"""Labels of pixels: which pictures, and which regions of them, are labelled wrongly.

A sample of pixels is audited as rows are; how sure a label is wrong at a given distance between it
and the best other class is learnt from that audit and applied to every pixel. Single pixels along
edges are always in doubt, so what counts is a region: neighbours of one given class that are wrong
on average.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from sklearn.isotonic import IsotonicRegression

from ..data import IGNORE, BadInput
from ..data.types import Rows
from ..files import write_csv, write_text
from ..outputs import check_replaceable
from ..signing import sign
from .audit import audit
from .estimate import Estimate
from .inputs import as_numpy
from .items import data_address, encode, picture_of
from .pages import own_parts, template, text_of

SAMPLE = 40_000  # pixels that are audited
PARTS = 40  # of a picture's shorter side: how wide doubts are averaged
SMALL, LARGE = 0.0025, 0.01  # of a picture's labelled pixels: a region; one that makes it suspect
SHOWN, SIDE = 40, 320  # pictures of the report, and their longer side
TINT = np.array([220, 30, 30])  # of a suspicious region

Maps = Callable[[int], NDArray[Any]]  # of a picture by its number: probabilities [H, W, K]


@dataclass(frozen=True, repr=False)
class PixelAudit:
    """What `audit_pixels` found.

    Attributes:
        issues: a row for every picture, the worst first: index, label_quality in [0, 1] (low =
            bad; 1 - the share of its labelled pixels that are expected to be wrong, in regions),
            wrong_pixels (expected, in regions), regions, is_label_issue (one of them covers 1 % of
            the labelled pixels or more), mean_p_wrong of its labelled pixels.
        regions: the suspicious regions, the largest expected error first: index (the picture),
            top, left, bottom, right (pixels, the last two exclusive), pixels, given_label,
            predicted_label and mean_p_wrong, over its pixels. It is not the probability that the
            region is wrong: a model errs in whole regions too.
        noise_rate: the share of wrong pixels with an interval, of the sampled pixels.
        maps: p_wrong of every pixel [N, H, W], 0 where there is no label.
        names: of the classes.
        notes: what a reader should know, a sentence each.
    """

    issues: pd.DataFrame
    regions: pd.DataFrame
    noise_rate: Estimate
    maps: NDArray[np.float16]
    names: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    at_chance: bool = False
    images: Rows | None = None
    paths: Sequence[str] | None = None

    def __repr__(self) -> str:
        return f"<PixelAudit: {self.summary()}>"

    def summary(self) -> str:
        """A few sentences for a person."""
        n, found = len(self.issues), int(self.issues.is_label_issue.sum())
        if self.at_chance:
            return f"Nothing can be said of these {n} masks: the model knows no more than chance."
        low, high = (100 * each for each in (self.noise_rate.low, self.noise_rate.high))
        return (
            f"About {100 * self.noise_rate:.1f} % of the labelled pixels are wrong (95 % interval "
            f"{low:.1f} to {high:.1f} %). {found} of {n} pictures have a suspicious region of 1 % "
            f"of their pixels or more; there are {len(self.regions)} regions in all."
        )

    def to_csv(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes `issues`.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "pixel issues", force)
        write_csv(Path(path), self._named(self.issues))

    def regions_to_csv(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes `regions`.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "regions", force)
        write_csv(Path(path), self._named(self.regions))

    def _named(self, table: pd.DataFrame) -> pd.DataFrame:
        if self.paths is None:
            return table
        return table.assign(path=[str(self.paths[row]) for row in table["index"]])

    def to_json(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes the figures and the regions.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "pixel audit", force)
        rate = self.noise_rate
        everything = {
            "pictures": len(self.issues), "at_chance": self.at_chance,
            "noise_rate": {"value": float(rate), "low": rate.low, "high": rate.high},
            "names": list(self.names), "notes": self.notes,
            "regions": json.loads(self._named(self.regions).to_json(orient="records")),
        }  # fmt: skip
        write_text(Path(path), json.dumps(sign(everything), ensure_ascii=False, indent=1))

    def to_html(
        self, path: str | os.PathLike[str], force: bool = False, title: str = "pixel audit"
    ) -> None:
        """Writes a page with the worst pictures, their suspicious regions tinted.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
            title: of the page.
        """
        check_replaceable(Path(path), "report", force)
        worst = self.issues[self.issues.is_label_issue].head(SHOWN)
        by_picture = dict(list(self.regions.groupby("index", sort=False)))
        entries = [
            {
                "row": row,
                "path": text_of(self.paths[row], 200) if self.paths is not None else None,
                "quality": float(quality),
                "image": self._picture(row, tinted=False),
                "heat": self._picture(row, tinted=True),
                "regions": [
                    {k: text_of(v) if isinstance(v, str) else v for k, v in region.items()}
                    for region in by_picture[row].head(5).to_dict("records")
                ],
                "more": max(0, len(by_picture[row]) - 5),
            }
            for row, quality in zip(worst["index"].tolist(), worst.label_quality, strict=True)
        ]
        page = template("report/pixels.html.j2").render(
            title=text_of(title), summary=self.summary(), notes=map(text_of, self.notes),
            entries=entries, found=int(self.issues.is_label_issue.sum()),
            style=own_parts("report").style,
        )  # fmt: skip
        write_text(Path(path), page.encode("utf-8", "replace").decode())

    def heat_map(self, row: int) -> NDArray[np.uint8]:
        """A picture in grey, its doubtful pixels in red, uint8 [H, W, 3]."""
        heat = self.maps[row].astype(np.float32)
        if self.images is None:
            base = np.full((*heat.shape, 3), 128.0)
        else:
            grey = picture_of(self.images, row).convert("L").convert("RGB")  # so that red shows
            base = np.asarray(grey, dtype=np.float32)
        weight = np.clip(2 * heat - 0.5, 0, 1)[..., None] * 0.7  # from a p_wrong of 1/4 on
        return (base * (1 - weight) + TINT * weight).astype(np.uint8)

    def _picture(self, row: int, tinted: bool) -> str | None:
        if tinted:
            picture = Image.fromarray(self.heat_map(row))
        elif self.images is None:
            return None
        else:
            picture = picture_of(self.images, row).convert("RGB")
        scale = SIDE / max(picture.size)
        size = [max(1, round(scale * side)) for side in picture.size]
        how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
        picture = picture.resize((size[0], size[1]), how)
        return data_address(encode(picture, "jpeg", quality=80), "jpeg")


def audit_pixels(
    pred_probs: Any,
    y: Any,
    *,
    names: Sequence[str] | None = None,
    images: Rows | None = None,
    paths: Sequence[str] | None = None,
) -> PixelAudit:
    """Judges the labels of pixels by the probabilities of a model that did not see them.

    Args:
        pred_probs: [N, H, W, K], or a function that gives [H, W, K] of a picture by its number, so
            that not all need be in memory.
        y: labels [N, H, W], classes 0..K-1, -1 = no label.
        names: of the classes; None: their numbers.
        images: the pictures [N, C, H, W], for the report.
        paths: their files.
    """
    labels = as_numpy(y, "the labels")
    if labels.ndim != 3 or labels.dtype.kind not in "iu" or not labels.size:
        raise BadInput(f"Pixel labels must be whole numbers [N, H, W], not {labels.shape}.")
    get = pred_probs if callable(pred_probs) else _checked(pred_probs, labels.shape)
    k = int(np.shape(get(0))[-1])
    known = labels != IGNORE
    if not known.any():
        raise BadInput("Not one pixel has a label.")
    if labels.max() >= k or labels.min() < IGNORE:
        raise BadInput(f"Pixel labels must lie between 0 and {k - 1}, or be -1 for none.")
    shown = tuple(str(name) for name in (names if names is not None else range(k)))
    if len(shown) != k:
        raise BadInput(f"There are {len(shown)} names for {k} classes.")
    found = _sampled(get, labels, known)
    judge, notes = found.judge, found.notes
    maps = np.zeros(labels.shape, dtype=np.float16)
    pictures, regions = [], []
    for row in range(len(labels)):
        probs = _normal(get(row), row)
        if probs.shape != (*labels.shape[1:], k):
            raise BadInput(
                f"The probabilities of picture {row} have shape {probs.shape}, its labels "
                f"{labels.shape[1:]}; give one for each pixel and class."
            )
        wrong = np.where(known[row], judge(_margin(probs, labels[row])), 0.0)
        maps[row] = wrong
        own = [] if found.at_chance else _regions(row, wrong, probs, labels[row], known[row])
        regions += own
        expected = sum(each["pixels"] * each["mean_p_wrong"] for each in own)
        pictures.append({
            "index": row, "label_quality": 1 - expected / max(1, known[row].sum()),
            "wrong_pixels": expected, "regions": len(own),
            "is_label_issue": any(each["pixels"] >= LARGE * known[row].sum() for each in own),
            "mean_p_wrong": float(wrong.sum() / max(1, known[row].sum())),
        })  # fmt: skip
    order = {"label_quality": True, "mean_p_wrong": False, "index": True}
    issues = pd.DataFrame(pictures).sort_values(list(order), ascending=list(order.values()))
    columns = ["index", "top", "left", "bottom", "right", "pixels", "given_label",
               "predicted_label", "mean_p_wrong"]  # fmt: skip
    table = pd.DataFrame(regions, columns=columns)
    size = table.pixels * table.mean_p_wrong
    table = table.loc[size.sort_values(ascending=False, kind="stable").index]
    for column in ("given_label", "predicted_label"):
        table[column] = [shown[label] for label in table[column]]
    return PixelAudit(
        issues.reset_index(drop=True), table.reset_index(drop=True), found.rate, maps, shown,
        notes, found.at_chance, images, paths,
    )  # fmt: skip


def _checked(pred_probs: Any, shape: tuple[int, ...]) -> Maps:
    p = as_numpy(pred_probs, "pred_probs")
    if p.ndim != 4 or p.shape[:3] != shape or p.shape[3] < 2 or p.dtype.kind != "f":
        raise BadInput(
            f"pred_probs must be numbers [N, H, W, classes] with the labels' {shape}, not "
            f"{p.shape}."
        )
    return lambda row: p[row]


def _normal(probs: Any, row: int) -> NDArray[np.float32]:
    p = np.asarray(probs, dtype=np.float32)
    if not np.isfinite(p).all() or (p < 0).any():
        raise BadInput(f"There is no probability in some pixels of picture {row}.")
    return p / np.maximum(p.sum(-1, keepdims=True), 1e-12)


def _margin(probs: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
    """log of the given class's probability over the best other one's, [...]."""
    log = np.log(np.maximum(probs.astype(np.float64), 1e-6))
    at = np.maximum(y, 0)[..., None]
    own = np.take_along_axis(log, at, -1)[..., 0]
    np.put_along_axis(log, at, -np.inf, -1)
    return own - log.max(-1)


@dataclass(frozen=True)
class _Sampled:
    judge: Callable[[NDArray[np.float64]], NDArray[np.float64]]  # margin -> p_wrong
    rate: Estimate
    at_chance: bool
    notes: list[str]


def _sampled(get: Maps, labels: NDArray[Any], known: NDArray[np.bool_]) -> _Sampled:
    """The audit of some pixels, as many of each picture."""
    rng = np.random.default_rng(0)
    most = max(1, SAMPLE // len(labels))
    probs, given = [], []
    for row in range(len(labels)):
        spots = np.flatnonzero(known[row])
        spots = rng.choice(spots, min(most, len(spots)), replace=False)
        p = _normal(get(row), row)
        probs.append(p.reshape(-1, p.shape[-1])[spots])
        given.append(labels[row].reshape(-1)[spots])
    p, y = np.concatenate(probs), np.concatenate(given).astype(np.int64)
    found = audit(p, y)
    wrong = found.issues.p_wrong.to_numpy()
    curve = IsotonicRegression(increasing=False, out_of_bounds="clip").fit(_margin(p, y), wrong)
    notes = [
        f"Of {len(y)} sampled pixels; neighbours are alike, so the interval of the share is too "
        "narrow.",
        "A region is wrong as a whole or not: look at it before it is painted over.",
    ]
    return _Sampled(
        lambda m: curve.predict(m.ravel()).reshape(m.shape), found.noise_rate, found.at_chance,
        notes,
    )  # fmt: skip


def _regions(
    row: int,
    wrong: NDArray[np.float64],
    probs: NDArray[np.float32],
    y: NDArray[Any],
    known: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    """Connected pixels of one given class that are more likely wrong than right on average."""
    width = max(3, round(min(y.shape) / PARTS))
    found = []
    for label in np.unique(y[known]):
        own = (y == label) & known
        weight = ndimage.uniform_filter(own.astype(np.float64), width, mode="constant")
        mean = ndimage.uniform_filter(np.where(own, wrong, 0.0), width, mode="constant")
        doubtful = own & (mean > 0.5 * np.maximum(weight, 1e-9))
        numbers, _ = ndimage.label(doubtful)
        for number, box in enumerate(ndimage.find_objects(numbers), 1):
            inside = numbers[box] == number
            size = int(inside.sum())
            if size < max(width * width, SMALL * known.sum()):
                continue
            share = float(wrong[box][inside].mean())
            if share <= 0.5:
                continue
            other = probs[box][inside].sum(0)
            other[label] = -1
            found.append({
                "index": row, "top": box[0].start, "left": box[1].start, "bottom": box[0].stop,
                "right": box[1].stop, "pixels": size, "given_label": int(label),
                "predicted_label": int(other.argmax()), "mean_p_wrong": share,
            })  # fmt: skip
    return found
