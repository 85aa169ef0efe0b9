"""`ytilde audit`: which labels are wrong, of a run, of data, or of anybody's probabilities."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..errors import BadInput, shorten_list
from ..runfolder import CONFIG
from .flags import flag_of, refuse_mistyped
from .options import DATA, OUTPUT, FitOptions, Force, unfold_options

if TYPE_CHECKING:
    from ..data.readers import Source

OF_FIT = tuple(field.name for field in fields(FitOptions))
OF_ROWS = "--fix-above, --label-studio and --argilla"  # outputs for one label per row
OF_DATA = ("out_folder", "probabilities", "ray")  # what else says how to read, or what to train


class Wanted(NamedTuple):
    """What is to be written beside issues.csv, audit.json and report.html."""

    fix_above: float | None
    label_studio: Path | None
    argilla: Path | None
    force: bool

    def check(self, *inputs: Any, run: Path | None = None) -> None:
        """Refuse, before the work, what must not be overwritten; run: a folder of a run to be."""
        from ..auditing.exporters import label_studio_outputs
        from ..outputs import check_outputs

        outputs = label_studio_outputs(self.label_studio) if self.label_studio else []
        outputs += [(self.argilla, "argilla")] if self.argilla else []
        check_outputs(outputs, inputs, self.force, run)

    def check_pixels(self, found: Source) -> None:
        """Refuse outputs that pixel labels do not have."""
        asked = self.fix_above is not None or self.label_studio or self.argilla
        if found.data.y.dim() > 1 and asked:
            raise BadInput(
                f"pixel labels are audited by regions (regions.csv); leave out {OF_ROWS}"
            )


@unfold_options
def audit(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="run folder; or data, as for `ytilde fit`: a model is trained first"),
    ],
    options: FitOptions,
    probabilities: Annotated[
        str | None,
        typer.Option(
            help="columns of a table that hold a model's probabilities, e.g. 'p_*', where * is the "
            "class, or one column of lists; nothing is trained. With --label 'y_*', rows may have "
            "several labels",
            rich_help_panel=DATA,
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="use a Ray cluster, or start a local one; needs --probabilities and a parquet "
            "file as --out",
            rich_help_panel="Audit",
        ),
    ] = False,
    folds: Annotated[
        int,
        typer.Option(
            help="number of models to train; each label is judged by one that never saw it; "
            "0: judge with the run's own model",
            rich_help_panel="Audit",
        ),
    ] = 5,
    fix_above: Annotated[
        float | None,
        typer.Option(
            help="write labels.csv, fixed where p_wrong is above this", rich_help_panel=OUTPUT
        ),
    ] = None,
    label_studio: Annotated[
        Path | None,
        typer.Option(
            help="json file to write: suspicious labels as Label Studio tasks",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    argilla: Annotated[
        Path | None,
        typer.Option(
            help="json file to write: suspicious labels as Argilla records", rich_help_panel=OUTPUT
        ),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="run folder; default: a new one in runs/. With --probabilities of parquet files "
            "larger than memory: the parquet file to write",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Find the wrong labels of a run's data, of a file, or of anybody's probabilities.

    Writes issues.csv and report.html to the run folder. Run the same command to continue one that
    was stopped.
    """
    if fix_above is not None and not 0 <= fix_above < 1:
        raise BadInput(f"--fix-above is {fix_above:g}; give a probability from 0 to below 1")
    wanted = Wanted(fix_above, label_studio, argilla, force)
    read = (options.annotations, options.features, options.test, options.encoder)
    wanted.check(source, *read, run=out_folder)
    if probabilities is not None:
        why = "probabilities are given, and nothing is trained"
        _refuse(ctx, why, but=("label", "id_column", "out_folder", "probabilities", "ray"))
        _audit_given(source, probabilities, options, out_folder, ray, wanted)
        return
    if ray:
        raise BadInput("--ray is for --probabilities; leave it out")
    run, found = Path(source), None
    if not (run / CONFIG).exists() and run.suffix != ".safetensors":
        refuse_mistyped(ctx.args, options.method, ctx.command.params)
        from .reading import input_paths
        from .training import FitRequest, train_run

        def check(found: Source, folder: Path) -> None:
            _check_folds(found, folds)
            wanted.check_pixels(found)
            inputs = input_paths(source, options.data_root)
            wanted.check(*inputs, *(found.paths or ()), run=folder)

        asked = FitRequest(source, options, ctx.args, out_folder, force, options.votes())
        run, found = train_run(asked, goes_on=True, check=check)
    else:
        _refuse(ctx, f"{run} is a run, which was read and trained as its config says")

    from .judging import audit_run

    audit_run(run, folds, wanted, found)


def _audit_given(
    source: str,
    pattern: str,
    options: FitOptions,
    out: Path | None,
    ray: bool,
    wanted: Wanted,
) -> None:
    """Judge labels by probabilities that were made elsewhere."""
    label, ids = options.label, options.id_column
    if _several_labels(source, label, wanted):
        from .multilabel import audit_matrix

        audit_matrix(source, pattern, str(label), ids, out, wanted.force)
        return
    from .judging import audit_files, audit_probabilities

    if ray or Path(source).is_dir() or (out and out.suffix == ".parquet"):
        audit_files(source, pattern, label, ids, out, ray, wanted)
    else:
        audit_probabilities(source, pattern, label, ids, out, wanted)


def _several_labels(source: str, label: str | None, wanted: Wanted) -> bool:
    """Does --label mean several columns, or a matrix?"""
    from ..data.readers import is_multilabel

    several = is_multilabel(source, label)
    if several and (wanted.fix_above is not None or wanted.label_studio or wanted.argilla):
        raise BadInput(
            f"issues.csv says which of several labels to add or remove; leave out {OF_ROWS}"
        )
    return several


def _refuse(ctx: typer.Context, why: str, but: tuple[str, ...] = ()) -> None:
    """Refuse options on how to read or to train, where nothing is; but: those that still count."""
    options = {p.name or "": p.opts[0] for p in ctx.command.params if p.name in (*OF_FIT, *OF_DATA)}
    given = [name for name in options if ctx.get_parameter_source(name).name != "DEFAULT"]  # type: ignore[union-attr]
    wrong = [options[name] for name in given if name not in but]
    wrong += [flag_of(word[2:].partition("=")[0]) for word in ctx.args if word.startswith("--")]
    if wrong or ctx.args:
        raise BadInput(f"{why}: leave out {shorten_list(wrong or ctx.args)}")


def _check_folds(found: Source, folds: int) -> None:
    """Refuse before training what an audit would refuse after it."""
    from ..auditing.crossfit import check_folds

    if folds:
        check_folds(found.data.y.numpy(), folds, found.data.groups)
