"""`ytilde pretrain`: features without labels, for `fit --encoder`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ..errors import BadInput, plural
from .console import Bar, say
from .flags import read_flags
from .options import (
    OUTPUT,
    Backbone,
    CleanLabel,
    DataRoot,
    Drop,
    Force,
    IdColumn,
    ImageColumn,
    ImageSize,
    Label,
    Source,
)
from .stopping import work_folder


def pretrain(
    ctx: typer.Context,
    source: Source,
    label: Label = None,
    clean_label: CleanLabel = None,
    image_column: ImageColumn = None,
    image_size: ImageSize = None,
    drop: Drop = None,
    id_column: IdColumn = None,
    data_root: DataRoot = None,
    backbone: Backbone = "auto",
    out_file: Annotated[
        Path, typer.Option("--out", help="encoder to write", rich_help_panel=OUTPUT)
    ] = Path("encoder.safetensors"),
    force: Force = False,
) -> None:
    """Learn features without labels (SimCLR), for `fit --encoder`.

    Its settings are options: --epochs 200 --batch-size 512 --augment simclr --seed 0 --device auto.
    Run the same command to continue one that was stopped. Labels, if any, are only used to
    measure the features. `fit --pretrain`, and methods that pre-train by themselves, share
    encoders in the folder that $YTILDE_CACHE names.
    """
    from ..data import IGNORE
    from ..encoders.simclr import PROBES, Settings
    from ..engine import Recipe
    from ..files import is_stream
    from ..fitting import load_or_pretrain
    from ..outputs import check_outputs
    from ..runfolder import RunFolder
    from .reading import check_image_size, input_paths, read_source

    check_outputs([(out_file, "encoder")], input_paths(source, data_root), force)
    if is_stream(out_file):
        raise BadInput(
            f"cannot write {out_file}: its checkpoints are kept beside it, so give a regular file"
        )
    known = {
        f.name: f
        for f in dataclasses.fields(Recipe)
        if f.name in ("device", "precision", "compile")
    }
    flags = read_flags(ctx.args, known | {f.name: f for f in dataclasses.fields(Settings)})
    recipe = Recipe(**{name: flags.pop(name) for name in known if name in flags})
    text = "simclr:" + ",".join(f"{name}={value}" for name, value in flags.items())
    read: dict[str, Any] = {"image_column": image_column, "clean_label": clean_label, "drop": drop}
    read |= {"id_column": id_column, "size": image_size}
    try:
        found = read_source(source, data_root, label=label, **read)
    except BadInput as error:
        if label:
            raise
        found = read_source(source, data_root, labelled=False, **read)
        say(f"note: read as data without labels. {error}")
    data = found.data
    check_image_size(image_size, data, source)
    check_outputs([(out_file, "encoder")], found.paths or (), force)
    with work_folder(out_file, "the last checkpoint (every 30 s)") as work, Bar() as bar:
        made = load_or_pretrain(data, backbone, recipe, text, work, bar.show)
    made.save(out_file, force)
    RunFolder(work).remove()
    if unread := len(data) - made.about["rows"]:
        say(f"note: {plural(unread, 'unreadable image')} skipped")
    for name in PROBES:
        if name in made.about:
            say(f"{name.replace('_', ' ')} on noisy labels: {100 * made.about[name]:.1f} %")
    say(f"written: {out_file}")
    labelled = quote(source) if bool((data.y != IGNORE).any()) else "LABELLED_DATA"
    columns = {"--label": label, "--clean-label": clean_label, "--image-column": image_column}
    columns |= {"--id": id_column, "--image-size": str(image_size or "")}
    _say_next(labelled, columns, drop, out_file)


def _say_next(source: str, columns: dict[str, Any], drop: Any, encoder: Path) -> None:
    """The fit that starts from the encoder, of the same columns."""
    given = [f"{flag} {quote(value)} " for flag, value in columns.items() if value]
    given += [f"--drop {quote(name)} " for name in drop or ()]
    say(f"next: ytilde fit {source} {''.join(given)}--encoder {quote(str(encoder))}")
