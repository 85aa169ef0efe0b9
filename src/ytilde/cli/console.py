"""What the command line prints: sentences as they are, tables, progress bars, errors in one line.

rich is imported when a table or a bar is drawn; a sentence needs none.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, Diverged, is_out_of_memory

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..engine import Record

quiet = False  # of the processes that torchrun starts one speaks
FIGURES = {"loss": "loss", "val_accuracy": "noisy val", "test_accuracy": "test"}
STILL_THERE = 30.0  # seconds without a word, at most
FIGURES |= {"knn_accuracy": "k-NN", "linear_accuracy": "linear"}


class Interrupted(Exception):
    """Ctrl-C, under a name that typer does not take for itself."""


def prepare() -> None:
    """Print the number of a character that the terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # another object in its place, or closed
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str) -> None:
    """Print a sentence unchanged: paths may contain brackets, and must not be cut."""
    if not quiet:
        print(plain(text), flush=True)


def plain(text: object) -> str:
    """Escape control characters, and bytes of file names that are not text."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else ascii(c)[1:-1]
        for c in str(text)
    )


# ---- tables --------------------------------------------------------------------------------------


def rich_console(**options: Any) -> Console:
    """A console that treats no text as markup and cuts none; as wide as the terminal is now."""
    from rich.console import Console

    return Console(
        **{"highlight": False, "markup": False, "emoji": False, "soft_wrap": True} | options
    )


def make_table(header: Sequence[str], rows: Iterable[Sequence[object]], **columns: Any) -> Table:
    """A table with this header; columns: rich's options for every column."""
    from rich.table import Column, Table

    table = Table(*(Column(head, **columns) for head in header))
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def show(table: Table) -> None:
    if not quiet:
        rich_console().print(table)


# ---- progress ------------------------------------------------------------------------------------


class Bar:
    """A progress bar with the time left; in a file or a pipe, a line for each tenth of the way.

    The folds of an audit share one bar.
    """

    def __init__(self, history: Sequence[Record] = ()) -> None:
        """history: of the fit that each fold repeats."""
        self.before: dict[str, int] = {}  # epochs of a fit before each of its stages
        self.of_fit = 0
        for record in history:
            if record["stage"] not in self.before:
                self.before[record["stage"]] = self.of_fit
                self.of_fit += record.get("epochs", 0)

    def __enter__(self) -> Bar:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total}"), TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )  # fmt: skip
        out = rich_console()
        self.bar = Progress(*columns, console=out, disable=quiet or not out.is_terminal)
        self.tasks: dict[str, Any] = {}
        self.said = time.monotonic()
        self.bar.start()
        return self

    def step(self, record: Record) -> None:
        """Move within an epoch; in a file or a pipe, say so every half minute."""
        stage, key, done, total = self._place(record)
        if key not in self.tasks:
            self.tasks[key] = self.bar.add_task(stage, total=total, figures="")
        share = record["share"]
        self.bar.update(self.tasks[key], completed=done - 1 + share, description=stage, total=total)
        if self.bar.disable and time.monotonic() - self.said > STILL_THERE:
            self.said = time.monotonic()
            say(f"{stage} {record['epoch']}/{record['epochs']}  {100 * share:.0f} % of the epoch")

    def _place(self, record: Record) -> tuple[str, str, int, int]:
        """The name and the key of a record's line, and how many of its epochs have begun."""
        trial = record.get("race")  # one line for all that are tried
        stage = f"trying {trial}" if trial else record["stage"]
        if "fold" in record and not trial:
            return stage, "folds", *self._of_all_folds(record)
        return stage, "race" if trial else stage, record["epoch"], record["epochs"]

    def show(self, record: Record) -> None:
        epoch, epochs, trial = record["epoch"], record["epochs"], record.get("race")
        stage, key, done, total = self._place(record)
        self.said = time.monotonic()
        if key not in self.tasks:
            self.tasks[key] = self.bar.add_task(stage, total=total, figures="")
        figures = "  ".join(f"{text} {record[k]:.3f}" for k, text in FIGURES.items() if k in record)
        shown: dict[str, Any] = {"description": stage, "total": total, "figures": figures}
        self.bar.update(self.tasks[key], completed=done, **shown)
        tenth = epoch == epochs if trial else 10 * epoch // epochs > 10 * (epoch - 1) // epochs
        if self.bar.disable and tenth:
            say(f"{stage} {epoch}/{epochs}  {figures}")

    def _of_all_folds(self, record: Record) -> tuple[int, int]:
        """Epochs done and in all; a fold that stopped early is whole once the next begins."""
        of_fit = self.of_fit or record["epochs"]
        stage = record["stage"].partition(": ")[2]
        done = min(of_fit, self.before.get(stage, 0) + record["epoch"])
        return (record["fold"] - 1) * of_fit + done, record["folds"] * of_fit

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()


# ---- errors --------------------------------------------------------------------------------------


def explain(error: Exception) -> tuple[str, int] | None:
    """One line and the exit code; None for a bug in ytilde, whose traceback should be seen."""
    if isinstance(error, BadInput):
        return f"ytilde: {error}", 2
    if isinstance(error, Diverged):
        return f"ytilde: {error}", 1
    if isinstance(error, Interrupted):
        return f"ytilde: {error}", 130
    if is_out_of_memory(error):
        return f"ytilde: {OUT_OF_MEMORY}", 1
    if isinstance(error, OSError):
        told = BadInput(f"cannot use {error.filename or 'a file'}: {error.strerror or error}")
        return f"ytilde: {told}", 2
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message(), 0  # type: ignore[attr-defined]
    if type(error).__module__.partition(".")[0] in ("click", "typer"):
        if not hasattr(error, "format_message"):
            return "ytilde: stopped", getattr(error, "exit_code", 1)
        return f"ytilde: {error.format_message()}", getattr(error, "exit_code", 2)
    return None


OUT_OF_MEMORY = (
    "out of memory; use a smaller --batch-size, a smaller --backbone or fewer rows, "
    "or end other programs"
)
