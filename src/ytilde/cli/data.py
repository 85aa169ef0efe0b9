"""`ytilde data`: the named sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import make_table, say, show


def data(
    name: Annotated[
        str | None, typer.Argument(help="named set, e.g. cifar10; without one, all are listed")
    ] = None,
    to: Annotated[Path, typer.Option(help="folder to download to")] = Path("data"),
) -> None:
    """Download a named set from its publisher.

    Digests are checked; run the same command to continue a download that was cut off.
    """
    from .. import datasets

    if name is None:
        rows = [(n, ", ".join(datasets.splits(n)), datasets.origin(n)) for n in datasets.NAMES]
        show(make_table(("named set", "splits", "its files"), rows, overflow="fold"))
        return
    datasets.download(name, to)
    say(f"{name} is in {to}; use it with --data-root {to} or YTILDE_DATA={to}")
