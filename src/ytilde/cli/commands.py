"""All commands, as typer has them: one file each."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from .audit import audit
from .bench import bench_app
from .consensus import consensus
from .console import Interrupted, say
from .data import data
from .demo import demo
from .diagnose import diagnose
from .embed import embed
from .export import export
from .fit import FitCommand, fit
from .flags import docstring
from .methods import methods
from .noise import noise
from .options import EXTRA, GroupedCommand
from .predict import predict
from .pretrain import pretrain
from .relabel import relabel
from .review import review

INTERRUPTED = {  # what is done stays done
    "bench": "interrupted; run the same command again to continue",
    "audit": "stopped; run the same command to continue",
}


class Group(TyperGroup):
    """Lets Ctrl-C through, of which typer would make an exit without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(INTERRUPTED.get(ctx.invoked_subcommand, "interrupted")) from None


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        say(f"ytilde {__version__}")
        raise typer.Exit


@app.callback(help="Learn from labels that are wrong in ways that depend on the input.")
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="show the version and exit"
        ),
    ] = False,
) -> None: ...


GROUPED: dict[Any, Any] = {
    fit: {"cls": FitCommand, "context_settings": EXTRA},
    audit: {"cls": FitCommand, "context_settings": EXTRA},
    pretrain: {"cls": GroupedCommand, "context_settings": EXTRA},
    embed: {"cls": GroupedCommand},
}
COMMANDS = (
    fit, predict, audit, review, relabel, consensus, export, diagnose, noise, pretrain, embed,
    data, methods,
)  # fmt: skip
for command in (*COMMANDS, demo):
    app.command(command.__name__, help=docstring(command), **GROUPED.get(command, {}))(command)
app.add_typer(bench_app, name="bench")
