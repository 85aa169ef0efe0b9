"""`main`: runs a command; whatever goes wrong ends in one sentence and an exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "ytilde: interrupted"
GARBAGE = 50_000  # new objects before Python looks for garbage; at its own 700 a start takes longer


def main() -> None:
    """Run the command of sys.argv. Exit code 2: wrong input; 1: a failed run; 130: Ctrl-C."""
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
    with _stops_while_importing(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fit was interrupted")  # the commands say it themselves
        try:
            from . import console
            from .commands import app
        except KeyboardInterrupt:
            _stop(INTERRUPTED, 130)
        console.prepare()
        try:
            if code := app(standalone_mode=False):  # what typer.Exit was raised with
                sys.exit(code)
        except KeyboardInterrupt:
            _stop(INTERRUPTED, 130)
        except Exception as error:
            told = console.explain(error)
            if told is None:
                raise
            _stop(*told)


# Python keeps the frames of calls in chunks of 16 KiB and gives a chunk back as soon as its first
# frame returns: imports below typer's many frames map and unmap one thousands of times (.25 s of a
# `fit`). Asking for a large frame brings a chunk of a MiB, in which all later frames have room.
main.__code__ = main.__code__.replace(co_stacksize=1 << 16)


def _stop(message: str, code: int) -> None:
    from . import console

    if not console.quiet:
        print(message, file=sys.stdout if code == 0 else sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code) if code == 130 else sys.exit(code)  # 130: no thread or process is waited for


@contextmanager
def _stops_while_importing() -> Iterator[None]:
    """Ctrl-C while a library is loaded ends the process at once, with one line.

    Libraries that are interrupted half-way swallow it, or say so in a page of their own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        while frame and frame.f_code is not main.__code__:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                os.write(2, f"{INTERRUPTED}\n".encode())
                os._exit(130)
            frame = frame.f_back
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
