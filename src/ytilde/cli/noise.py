"""`ytilde noise`: a data set with labels made wrong, and the truth beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput, which_rows
from .console import say
from .options import CleanLabel, DataRoot, Drop, Force, Label, Source


def noise(
    source: Source,
    kind: Annotated[
        str, typer.Option(help="symmetric, pair, asymmetric, instance or classwise")
    ] = "instance",
    rate: Annotated[
        float | None,
        typer.Option(
            help="share of labels made wrong (symmetric: drawn anew, so that 1 of K stays "
            "right); default: 0.4, or what --kind says, as in pair:0.2"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed for all random draws")] = 0,
    features: Annotated[
        str | None, typer.Option(help="for instance noise: standardized or raw255")
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", help="npz to write")] = Path("noisy.npz"),
    label: Label = None,
    clean_label: CleanLabel = None,
    drop: Drop = None,
    data_root: DataRoot = None,
    force: Force = False,
) -> None:
    """Corrupt the labels of a data set.

    Writes x, y, clean and the true rows of T to an npz file. The column of true labels is corrupted
    where there is one, else the given labels.
    """
    import numpy as np

    from .. import noise as making
    from ..data import IGNORE
    from ..engine import Recipe
    from ..files import write_atomic
    from ..outputs import check_outputs
    from .reading import check_suffix, input_paths, read_source, true_labels, why_lazy

    check_suffix(out_file, ".npz")
    check_outputs([(out_file, "noise")], input_paths(source, data_root), force)
    name, own = making.parse(kind)
    if rate is not None and rate != rate:
        raise BadInput("--rate nan is no share; give a number from 0 to 1")
    if rate is not None and own.get("rate", rate) != rate:
        raise BadInput(f"--kind {kind} and --rate {rate:g} give different rates; leave one out")
    if rate is None and name != "classwise" and "rate" not in own:
        rate = 0.4
    given = {"rate": rate, "features": features}
    options = {key: value for key, value in given.items() if value is not None}
    data = read_source(source, data_root, label=label, clean_label=clean_label, drop=drop).data
    if data.lazy:
        raise BadInput(f"{why_lazy(data)}; or use `ytilde fit --noise`, which writes no images")
    generator = Recipe(seed=seed).generator("noise")
    truth = true_labels(data)
    if data.y.dim() == 1 and (missing := (truth == IGNORE).nonzero()[:, 0]).numel():
        rows = which_rows(missing.tolist())
        raise BadInput(f"there is no true label in {rows}; fill it in or leave the row out")
    made = making.corrupt(kind, data.x, truth, data.num_classes, generator=generator, **options)
    arrays: dict[str, Any] = {"x": np.asarray(data.x), "y": made.y.numpy(), "clean": truth.numpy()}
    arrays |= {"rows": made.rows.numpy(), "names": np.asarray(data.names or [])}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_atomic(out_file, write)
    say(f"{100 * made.rate:.2f} % of {len(data)} labels are wrong now: {out_file}")
    say(json.dumps(made.summary()))
