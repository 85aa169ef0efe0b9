"""`ytilde diagnose`: how much noise there is, and of what kind, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import make_table, say, show
from .options import (
    CleanLabel,
    DataRoot,
    Drop,
    Features,
    Force,
    IdColumn,
    ImageColumn,
    Label,
    Noise,
    Source,
    TextColumn,
)

if TYPE_CHECKING:
    from ..auditing import Audit


def diagnose(
    source: Source,
    label: Label = None,
    clean_label: CleanLabel = None,
    drop: Drop = None,
    noise_text: Noise = None,
    rows: Annotated[int, typer.Option(help="examine at most this many rows", min=2)] = 20_000,
    seed: Annotated[int, typer.Option(help="seed for all random draws")] = 0,
    image_column: ImageColumn = None,
    id_column: IdColumn = None,
    features: Features = None,
    text_column: TextColumn = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="json to write")] = None,
    data_root: DataRoot = None,
    force: Force = False,
) -> None:
    """Estimate how many labels are wrong, and in what way.

    In which classes, whether it depends on the input, and what to do about it.
    """
    from ..auditing.diagnosis import diagnose_data
    from ..engine import Recipe
    from ..outputs import check_outputs
    from .reading import corrupt, input_paths, read_source, say_noise

    outputs = [(out_file, "diagnosis")] if out_file else []
    check_outputs(outputs, input_paths(source, data_root, features), force)
    read = {"label": label, "clean_label": clean_label, "image_column": image_column, "drop": drop}
    how = {"id_column": id_column, "features": features, "text_column": text_column}
    given = read_source(source, data_root, **how, **read)
    check_outputs(outputs, given.paths or (), force)
    data, noise_summary = corrupt(given.data, noise_text, Recipe(seed=seed))
    result = diagnose_data(data, most=rows, seed=seed)
    say_noise(noise_summary, len(data))
    for sentence in result.reasons:
        say(f"- {sentence}")
    if not result.audit.at_chance:
        _show_classes(result.audit)
    notes = list(result.notes)
    if rows < len(data):
        notes.append(f"{result.rows} of {len(data)} rows were examined; --rows takes more")
    for note in notes:
        say(f"note: {note}")
    if out_file is not None:
        result.to_json(out_file, force)
        say(f"written: {out_file}")


def _show_classes(found: Audit) -> None:
    """How many labels of each class are wrong."""
    rows = []
    for line in found.per_class.to_dict("records"):
        mostly = found.pairs[found.pairs.given_label == line["label"]].predicted_label.tolist()[:1]
        share = f"{100 * line['noise_rate']:.1f} %"
        errors = f"{line['expected_errors']:.0f}"
        rows.append((line["label"], line["given"], errors, share, *(mostly or ["-"])))
    show(make_table(("label", "given", "expected wrong", "share", "most often in truth"), rows))
