"""The audit as one HTML file that opens offline: what is wrong, shown; what to do next.

Everything that comes from the data reaches the page as escaped text. The page's policy lets
nothing run but the one script whose hash it names, and lets nothing be loaded at all.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import pandas as pd
import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from .auditing import NOTE_WEAK, Audit
from .checkpoint import write_text
from .data import Rows
from .engine import History
from .metrics import Reliability

__all__ = ["write"]

TEMPLATES = Path(__file__).parent / "templates"
PICTURES = 1_500_000  # bytes that all pictures of a page may take together, as base64
SIZES = ((96, 85), (96, 60), (64, 60), (40, 50), (24, 40))  # (side, JPEG quality) to try in turn
FULL_MATRIX = 20  # classes up to which T is drawn whole
PAIRS, CLASSES = 40, 300  # rows of the two tables
COLUMNS = 12  # values of a table's row that a card shows
SURE = (0.95, 0.9, 0.8)  # p_wrong above which labels may be fixed unseen: the first that has any
FREQUENT = 3  # rows that make a mistake worth a sentence in the labelling guide
AMBIGUOUS = 0.5  # above this an item counts as hard
LONGEST = 120  # characters of any text from the data


def write(
    audit: Audit,
    path: str | os.PathLike[str],
    *,
    images: Rows | np.ndarray | None = None,
    rows: pd.DataFrame | np.ndarray | Tensor | None = None,
    paths: Sequence[object] | None = None,
    history: History | Mapping[str, History] | None = None,
    title: str | None = None,
    reliability: Reliability | None = None,
    examples: int = 60,
    measured: Mapping[str, str] | None = None,
    method: str = "",
) -> None:
    """Write the report of an audit; the row `index` of its issues is a row of images and rows.

    images: [N, C, H, W], uint8 or float in [0, 1], in memory or lazy; rows: a table's values [N,
    D]; paths: a file name for each row. history: a run's records, or those of several runs by
    name. reliability: of p_wrong, where the truth is known; measured: figures (name: text) against
    the truth. examples: wrong labels shown; the ambiguous ones come on top. method: what the model
    that judged was trained with; it is not advised again.
    """
    target = Path(path)
    wrong, unclear = _choose(audit.issues, examples)
    quota = PICTURES // max(1, len(wrong) + len(unclear))
    source = _Source(images, None if rows is None else table(rows), paths, quota)
    context = {
        "title": _title(title, target.parent),
        "at_chance": audit.at_chance,
        "figures": _figures(audit),
        "measured": {_text(name): _text(value) for name, value in (measured or {}).items()},
        "wrong": [_card(issue, source) for issue in _each(wrong)],
        "unclear": [_card(issue, source) for issue in _each(unclear)],
        "matrix": _matrix(audit) if len(audit.transition) <= FULL_MATRIX else None,
        "pairs": _pairs(audit.pairs),
        "classes": _classes(audit.per_class),
        "histograms": _histograms(audit.issues),
        "curves": _curves(history),
        "reliability": _reliability_chart(reliability),
        "advice": _advice(audit, target, method),
        "notes": [_text(note, 600) for note in audit.notes],
        "weak": NOTE_WEAK.partition("{")[0],  # that note, or NOTE_CHANCE, stands at the top
    }
    # A file name may hold bytes that are no text: they become "?" instead of an error.
    write_text(target, _render(context).encode("utf-8", "replace").decode())


def _title(title: str | None, folder: Path) -> str:
    """With the name of the data, where the report goes to the folder of a run."""
    config = folder / "config.json"
    source = json.loads(config.read_text("utf-8")).get("source") if config.exists() else None
    shown = _text(title or "Which labels are wrong?")
    return f"{_text(Path(source).name)}: {shown}" if source else shown


def _render(context: Mapping[str, Any]) -> str:
    own = own_parts("report")
    return template("report.html.j2").render(
        context, style=own.style, script=own.script, digest=digest(own.script)
    )


class _Parts(NamedTuple):
    style: Markup
    script: Markup


def own_parts(page: str) -> _Parts:
    """A page's style and script: they hold nothing from the data, so they alone go in as is."""
    palette, style, script = (
        (TEMPLATES / name).read_text("utf-8")
        for name in ("palette.css", f"{page}.css", f"{page}.js")
    )
    return _Parts(Markup(palette + style), Markup(script))


def digest(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": _count, "percent": _percent, "plural": _plural}
    return environment.get_template(name)


# --- text ------------------------------------------------------------------------------------


def _text(value: object, longest: int = LONGEST) -> str:
    """What the data calls something, of bounded length and without control characters."""
    text = f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
    text = "".join(c if c.isprintable() or c == " " else _visible(c) for c in text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _visible(character: str) -> str:
    """Joiners hold emoji together and stay; other invisible characters are spelled out."""
    return character if character == "\u200d" else character.encode("unicode_escape").decode()


def _count(value: float) -> str:
    return f"{round(value):,}"


def _plural(number: int, noun: str, nouns: str = "") -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def _percent(value: float) -> str:
    """0.123 as 12.3 %; never 100 % or 0 % for what is merely close."""
    shown = f"{100 * value:.1f}"
    if shown == "100.0" and value < 1:
        shown = "> 99.9"
    if shown == "0.0" and value > 0:
        shown = "< 0.1"
    return f"{shown.removesuffix('.0')} %"


# --- figures and advice ----------------------------------------------------------------------


def _figures(audit: Audit) -> dict[str, Any]:
    flagged = audit.issues.is_label_issue
    return {
        "rows": len(audit.issues),
        "unjudged": audit.unjudged,
        "classes": len(audit.transition),
        "errors": audit.num_errors,
        "rate": audit.noise_rate,
        "flagged": int(flagged.sum()),
        "differ": round(audit.num_errors) != int(flagged.sum()),
        "ambiguous": int((~flagged & (audit.issues.ambiguity > AMBIGUOUS)).sum()),
    }


class _Advice(NamedTuple):
    text: str
    command: str | None = None


def _advice(audit: Audit, target: Path, method: str) -> list[_Advice]:
    """What to do next; the commands are those of the run whose folder the report goes to."""
    if audit.at_chance:
        return [
            _Advice("Leave the labels as they are: this model cannot judge them."),
            _Advice("See whether the right column holds the labels and each input carries its own. "
                    "Then train longer, with more data, or with a better network or features."),
        ]  # fmt: skip
    if audit.noise_rate.high < 0.01:
        return [_Advice("The labels look right. Train on them as they are; nothing must be fixed.")]
    advice = [*_corrections(audit, target.parent), _training(method)]
    if len(audit.pairs) and round(audit.pairs.expected_errors.iloc[0]) >= FREQUENT:
        worst = audit.pairs.iloc[0]
        given, true = _text(worst.given_label), _text(worst.predicted_label)
        advice.append(_Advice(
            f"Clear up the most frequent mistake: about {_count(worst.expected_errors)} rows that "
            f"say “{given}” are “{true}”. One sentence in the labelling guide may prevent most."
        ))  # fmt: skip
    if (audit.issues.ambiguity[~audit.issues.is_label_issue] > AMBIGUOUS).any():
        advice.append(_Advice(
            "Ask for a second opinion on the ambiguous items rather than relabelling them: they "
            "are hard, not wrong."
        ))  # fmt: skip
    return advice


def _corrections(audit: Audit, folder: Path) -> list[_Advice]:
    look = (
        "Look through the suspects below. All are in issues.csv, the worst first. "
        "predicted_label is what the label should probably be."
    )
    above = next((t for t in SURE if (audit.issues.p_wrong > t).any()), None)
    surest = _plural(int((audit.issues.p_wrong > (above or 0)).sum()), "row")
    sure = (
        f"Let ytilde correct only those it is surest of ({surest} with p_wrong above {above}). "
        "The original labels stay untouched"
    )
    if not (folder / "config.json").exists():  # no run: the audit was made in Python, or by a demo
        decide = _Advice(look)
        fix = _Advice(f"{sure}. In Python, with the audit:", f"found.fixed_labels(above={above})")
    else:
        run = shlex.quote(_text(folder, 400))
        one_by_one = f"{look} Or decide on them one by one, with the keyboard:"
        decide = _Advice(one_by_one, f"ytilde review {run}")
        corrected = f"{sure}; the corrected ones go to labels.csv."
        fix = _Advice(corrected, f"ytilde audit {run} --fix-above {above}")
    return [decide, fix] if above else [decide]


def _training(method: str) -> _Advice:
    if method in ("", "ce"):
        text = "Or leave the labels and train with a method that survives the wrong ones."
        return _Advice(text, "ytilde fit DATA --label COLUMN --method elr")
    return _Advice(
        f"Or leave the labels: the model was trained with {_text(method)}, which is made to "
        "survive wrong ones."
    )


# --- galleries -------------------------------------------------------------------------------


class _Source(NamedTuple):
    """Where a card takes its picture or values from."""

    images: Any
    rows: pd.DataFrame | None
    paths: Sequence[object] | None
    quota: int  # bytes a picture


def table(
    rows: pd.DataFrame | np.ndarray | Tensor, columns: Mapping[str, list[str] | None] | None = None
) -> pd.DataFrame:
    """Features [N, D] under the names of a Schema's columns; a category as its one value again."""
    if isinstance(rows, pd.DataFrame):
        return rows
    values = np.asarray(rows)
    parts: dict[str, Any] = {}
    start = 0
    for name, categories in (columns or {}).items():
        width = len(categories) if categories else 1
        part = values[:, start : start + width]
        parts[name] = np.array(categories, object)[part.argmax(1)] if categories else part[:, 0]
        start += width
    rest = {f"feature {k}": values[:, k] for k in range(start, values.shape[1])}
    return pd.DataFrame(parts | rest)


def _choose(issues: pd.DataFrame, examples: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The worst labels, a few of every kind of mistake, and the most ambiguous others.

    One pair of classes could otherwise fill the page; places left over go to the worst anyway.
    """
    flagged = issues[issues.is_label_issue].sort_values(
        ["p_wrong", "index"], ascending=[False, True]
    )
    kinds = flagged.groupby(["given_label", "predicted_label"], sort=False)
    within = kinds.cumcount() < max(3, math.ceil(2 * examples / max(1, kinds.ngroups)))
    first = pd.concat([flagged[within], flagged[~within]]).head(examples)
    worst = first.sort_values(["p_wrong", "index"], ascending=[False, True])
    others = issues[~issues.is_label_issue & (issues.ambiguity > AMBIGUOUS)]
    hardest = others.sort_values(["ambiguity", "index"], ascending=[False, True])
    return worst, hardest.head(math.ceil(0.4 * examples))


def _card(issue: Any, source: _Source) -> dict[str, Any]:
    row = int(issue.index)
    values: list[tuple[str, str]] = []
    if source.rows is not None:
        shown = source.rows.iloc[row, :COLUMNS]
        values = [(_text(name, 40), _text(value, 60)) for name, value in shown.items()]
    return {
        "row": row,
        "given": _text(issue.given_label),
        "suggested": _text(issue.predicted_label),
        "runner_up": _text(issue.runner_up_label),
        "p_wrong": float(issue.p_wrong),
        "sure": float(issue.predicted_prob),
        "ambiguity": float(issue.ambiguity),
        "path": _text(source.paths[row], 200) if source.paths is not None else "",
        "image": None if source.images is None else _picture(source.images, row, source.quota),
        "values": values,
    }


def _picture(images: Any, row: int, quota: int) -> str | None:
    """The picture of a row as a data: address of at most `quota` characters."""
    picture = picture_of(images, row)
    if max(picture.size) <= SIZES[0][0]:
        address = _address(picture, "png", optimize=True)
        if len(address) <= quota:
            return address
    for side, quality in SIZES:
        small = picture.copy()
        small.thumbnail((side, side))
        address = _address(small, "jpeg", quality=quality)
        if len(address) <= quota:
            return address
    return None


def picture_of(images: Any, row: int) -> Image.Image:
    """The picture of a row of images [N, C, H, W], grey or in colour."""
    images = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
    x = torch.as_tensor(images[torch.tensor([row])])[0].cpu()
    x = x if x.dtype == torch.uint8 else (x.float().nan_to_num() * 255).clamp(0, 255).byte()
    x = x[None] if x.dim() == 2 else x
    x = x[:3] if len(x) in (3, 4) else x[:1]
    return Image.fromarray(x[0].numpy() if len(x) == 1 else x.permute(1, 2, 0).numpy())


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _address(picture: Image.Image, kind: str, **options: Any) -> str:
    return data_address(encode(picture, kind, **options), kind)


def data_address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


# --- tables ----------------------------------------------------------------------------------


def _matrix(audit: Audit) -> dict[str, Any]:
    """T with a shade a cell: the square root, so that rare flips show beside the diagonal."""
    names = [_text(label) for label in audit.per_class.label]
    cells = [
        [{"p": float(p), "shade": round(float(np.sqrt(p)), 3), "text": _cell(p)} for p in row]
        for row in audit.transition
    ]
    return {"names": names, "rows": list(zip(names, cells, strict=True))}


def _cell(p: float) -> str:
    return "" if p < 0.005 else "1" if p > 0.995 else f"{p:.2f}".lstrip("0")


def _each(table: pd.DataFrame) -> Iterable[Any]:
    return table.itertuples()


def _pairs(pairs: pd.DataFrame) -> list[dict[str, Any]]:
    top = pairs.head(PAIRS)
    most = max(float(top.expected_errors.max()), 1e-9) if len(top) else 1.0
    return [
        {
            "given": _text(pair.given_label),
            "true": _text(pair.predicted_label),
            "expected": float(pair.expected_errors),
            "issues": int(pair.issues),
            "width": round(100 * float(pair.expected_errors) / most, 1),
        }
        for pair in _each(top)
    ]


def _classes(per_class: pd.DataFrame) -> dict[str, Any]:
    top = per_class.sort_values("expected_errors", ascending=False, kind="stable").head(CLASSES)
    rows = [
        {
            "label": _text(c.label),
            "given": int(c.given),
            "issues": int(c.issues),
            "noise_rate": float(c.noise_rate),
            "expected_true": float(c.expected_true),
            "lost_rate": float(c.lost_rate),
        }
        for c in _each(top)
    ]
    return {"rows": rows, "left_out": len(per_class) - len(rows)}


# --- charts: lines, points and bars in a box of WIDTH x HEIGHT ---------------------------------

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 12, 34


class _Axis(NamedTuple):
    """From values to places on the page; ticks at round numbers."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, percent: bool = False) -> list[tuple[float, str]]:
        step = 10 ** math.floor(math.log10((self.high - self.low) or 1.0))
        step = next(s for s in (step / 5, step / 2, step, 2 * step) if self._number(s) <= 6)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [k * step for k in range(first, last + 1)]
        return [(self.at(v), f"{100 * v:g} %" if percent else f"{v:g}") for v in values]

    def _number(self, step: float) -> float:
        return (self.high - self.low) / step + 1


def _axes(x: tuple[float, float], y: tuple[float, float]) -> tuple[_Axis, _Axis]:
    return _Axis(*x, LEFT, WIDTH - RIGHT), _Axis(*y, HEIGHT - BOTTOM, TOP)


def _chart(title: str, across: _Axis, up: _Axis, percent: bool, **parts: Any) -> dict[str, Any]:
    empty = {"lines": [], "bars": [], "points": [], "xlabel": "", "note": "", "ideal": ""}
    ticks = {"xticks": across.ticks(), "yticks": up.ticks(percent)}
    return empty | ticks | {"title": title} | parts


CURVES = {
    "loss": "Training loss",
    "val_accuracy": "Accuracy on held-out given labels",
    "test_accuracy": "Accuracy on test data",
}


def _curves(history: History | Mapping[str, History] | None) -> list[dict[str, Any]]:
    """A chart for each figure that the records hold, with a line for each run."""
    runs = history if isinstance(history, Mapping) else {"this run": history or []}
    charts = []
    for key, title in CURVES.items():
        lines = {name: [r[key] for r in run if _known(r, key)] for name, run in runs.items()}
        lines = {name: values for name, values in lines.items() if values}
        if not lines:
            continue
        values = [v for line in lines.values() for v in line]
        longest = max(len(line) for line in lines.values())
        percent = key != "loss"
        around = _around_share if percent else _around
        across, up = _axes((1, max(2, longest)), around(min(values), max(values)))
        drawn = [
            {
                "name": _text(name),
                "points": [(across.at(k), up.at(v)) for k, v in enumerate(line, 1)],
                "last": _percent(line[-1]) if percent else f"{line[-1]:.3g}",
            }
            for name, line in lines.items()
        ]
        charts.append(_chart(title, across, up, percent, lines=drawn, xlabel="epoch"))
    return charts


def _known(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), (int, float)) and math.isfinite(record[key])


def _around(low: float, high: float) -> tuple[float, float]:
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room


def _around_share(low: float, high: float) -> tuple[float, float]:
    """Ten points of a hundred at least, or a row more or less would look like a leap."""
    middle = (low + high) / 2
    low, high = _around(low, high)
    return max(0.0, min(low, middle - 0.05, 0.9)), min(1.0, max(high, middle + 0.05, 0.1))


def _histograms(issues: pd.DataFrame) -> list[dict[str, Any]]:
    told = {
        "p_wrong": ("How likely each label is wrong", "p_wrong; flagged above 0.5"),
        "ambiguity": ("How ambiguous each item is", "ambiguity; 1: two classes tie"),
    }
    charts = []
    for column, (title, label) in told.items():
        number, edges = np.histogram(issues[column], bins=20, range=(0, 1))
        across, up = _axes((0, 1), (0, float(number.max()) * 1.05))
        bars = [
            {
                "x": across.at(edges[k]) + 0.5,
                "width": round(across.at(edges[k + 1]) - across.at(edges[k]) - 1, 1),
                "y": up.at(n),
                "height": round(up.at(0) - up.at(n), 1),
                "marked": column == "p_wrong" and edges[k] >= 0.5,
                "told": f"{edges[k]:.2f} to {edges[k + 1]:.2f}: {_plural(n, 'row')}",
            }
            for k, n in enumerate(number)
        ]
        charts.append(_chart(title, across, up, False, bars=bars, xlabel=label))
    return charts


def _reliability_chart(curve: Reliability | None) -> dict[str, Any] | None:
    if curve is None or not len(curve.size):
        return None
    across, up = _axes((0, 1), (0, 1))
    largest = float(np.max(curve.size))
    points = [
        {
            "x": across.at(float(c)),
            "y": up.at(float(a)),
            "r": round(3 + 7 * math.sqrt(float(n) / largest), 1),
            "told": f"promised {c:.2f}, came true {a:.2f}, {_plural(int(n), 'row')}",
        }
        for c, a, n in zip(curve.confidence, curve.accuracy, curve.size, strict=True)
    ]
    line = {"name": "", "points": [(p["x"], p["y"]) for p in points], "last": ""}
    gap = np.abs(np.asarray(curve.confidence) - np.asarray(curve.accuracy))
    ece = float((gap * curve.size).sum() / np.sum(curve.size))
    title = "Can p_wrong be believed?"
    ideal = f"{across.at(0)},{up.at(0)} {across.at(1)},{up.at(1)}"
    note = f"Calibration error {ece:.3f} (0 is perfect). On the dashed line promises come true."
    parts = {"lines": [line], "points": points, "ideal": ideal, "note": note}
    return _chart(title, across, up, False, xlabel="promised p_wrong", **parts)
