"""The command line. `ytilde COMMAND --help` says what each command takes.

Whoever asks for help should not wait for torch: the files of the commands import what they use
inside the command's function, and only the files that they share the work with import it at the
top (reading, trained, runs, predictions, summary, bench_view).
"""

from typing import Any

from .main import main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """`app`: all commands, as typer has them; `main` is there before typer is imported."""
    if name == "app":
        from .commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
