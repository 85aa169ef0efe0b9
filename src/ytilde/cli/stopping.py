"""What a command does when it is stopped: it says how to continue."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from ..errors import BadInput
from ..runfolder import RunFolder
from .console import say

RESUME = "run the same command with --resume to continue"
GOES_ON = "run the same command to continue"


def stop_on_sigterm(again: str) -> None:
    """Let SIGTERM end the process with a line on how to continue."""

    def terminated(*_: Any) -> None:
        say(f"Stopped by SIGTERM; the last epoch is saved: {again}")
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, terminated)


@contextmanager
def work_folder(out_file: Path, kept: str) -> Iterator[Path]:
    """A hidden folder beside a file to be written, from which a stopped command continues.

    It is removed after bad input, if it was new; the caller removes it once the file is written.
    kept: from what the command continues, as the last line says.
    """
    work = out_file.parent / f".{out_file.name}.work"
    new = not work.exists()

    def stopped(how: str, code: int) -> int:
        say(f"{how}; {GOES_ON} from {kept}")
        return code

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(stopped("Stopped by SIGTERM", 143)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield work
    except KeyboardInterrupt:
        raise typer.Exit(stopped("Interrupted", 130)) from None
    except BadInput:
        if new:
            RunFolder(work).remove()
        raise
