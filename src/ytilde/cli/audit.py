"""`ytilde audit`: which labels are wrong, of a run, of data, or of anybody's probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..errors import BadInput, duration, shorten_list
from .flags import flag_of, refuse_mistyped
from .options import (
    DATA,
    OUTPUT,
    Annotations,
    Annotator,
    Backbone,
    CleanLabel,
    DataRoot,
    Drop,
    EncoderFile,
    Features,
    Force,
    GroupColumn,
    IdColumn,
    ImageColumn,
    ImageSize,
    Item,
    Label,
    MethodName,
    Noise,
    Pretrain,
    Strict,
    TestData,
    TextColumn,
    votes_asked,
)

if TYPE_CHECKING:
    from ..auditing import Audit
    from ..data.readers import Source
    from ..engine import Record

OF_DATA = {  # options that say how to read or to train, by the name of their parameter
    "label": "--label", "clean_label": "--clean-label", "image_column": "--image-column",
    "image_size": "--image-size", "text_column": "--text", "group_column": "--group",
    "drop": "--drop", "id_column": "--id", "features": "--features", "test": "--test",
    "noise_text": "--noise", "data_root": "--data-root", "strict": "--strict", "method": "--method",
    "backbone": "--backbone", "encoder": "--encoder", "pretrain": "--pretrain",
    "out_folder": "--out", "probabilities": "--probabilities", "ray": "--ray",
    "annotations": "--annotations", "item": "--item", "annotator": "--annotator",
}  # fmt: skip
OF_PROBABILITIES = ("label", "id_column", "out_folder", "probabilities", "ray")


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
        """Refuse what there is not for labels of pixels."""
        asked = self.fix_above is not None or self.label_studio or self.argilla
        if found.data.y.dim() > 1 and asked:
            raise BadInput("of pixel labels regions.csv says where to look; leave out the others")


def audit(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="run folder; or data, as of `ytilde fit`, which is fitted first"),
    ],
    label: Label = None,
    clean_label: CleanLabel = None,
    image_column: ImageColumn = None,
    image_size: ImageSize = None,
    drop: Drop = None,
    id_column: IdColumn = None,
    features: Features = None,
    text_column: TextColumn = None,
    group_column: GroupColumn = None,
    test: TestData = None,
    annotations: Annotations = None,
    item: Item = None,
    annotator: Annotator = None,
    noise_text: Noise = None,
    data_root: DataRoot = None,
    strict: Strict = False,
    probabilities: Annotated[
        str | None,
        typer.Option(
            help="columns of a table that hold a model's probabilities, e.g. 'p_*', the star being "
            "the class, or one column of lists; nothing is trained. With --label 'y_*' several "
            "labels a row are judged",
            rich_help_panel=DATA,
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="work on a Ray cluster, or else on a local one; with --probabilities and a "
            "parquet file as --out",
            rich_help_panel="Audit",
        ),
    ] = False,
    method: MethodName = "elr",
    backbone: Backbone = "auto",
    encoder: EncoderFile = None,
    pretrain: Pretrain = None,
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
            help="json to write: the suspects as Label Studio tasks", rich_help_panel=OUTPUT
        ),
    ] = None,
    argilla: Annotated[
        Path | None,
        typer.Option(help="json to write: the suspects as Argilla records", rich_help_panel=OUTPUT),
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

    Writes issues.csv and report.html to the run folder; if stopped, the same command goes on.
    """
    from ..runfolder import CONFIG

    if fix_above is not None and not 0 <= fix_above < 1:
        raise BadInput(f"--fix-above is {fix_above:g}; give a probability from 0 to below 1")
    wanted = Wanted(fix_above, label_studio, argilla, force)
    wanted.check(source, annotations, features, test, encoder, run=out_folder)
    given = [name for name in OF_DATA if ctx.get_parameter_source(name).name != "DEFAULT"]  # type: ignore[union-attr]
    if probabilities is not None:
        _refuse(
            given, ctx.args, OF_PROBABILITIES, "probabilities are given, and nothing is trained"
        )
        if _several_labels(source, label, wanted):
            from .multilabel import audit_matrix

            audit_matrix(source, probabilities, str(label), id_column, out_folder, force)
        elif ray or Path(source).is_dir() or (out_folder and out_folder.suffix == ".parquet"):
            _audit_files(source, probabilities, label, id_column, out_folder, ray, wanted)
        else:
            _audit_probabilities(source, probabilities, label, id_column, out_folder, wanted)
        return
    if ray:
        raise BadInput("--ray is for --probabilities; leave it out")
    run, found = Path(source), None
    if not (run / CONFIG).exists() and run.suffix != ".safetensors":
        refuse_mistyped(ctx.args, "ce" if method == "auto" else method, ctx.command.params)
        from .reading import input_paths
        from .training import FitRequest, train_run

        voted = votes_asked(annotations, item, annotator, label, noise_text)
        label = None if voted else label  # `read_annotated` finds out whose column it is
        asked = FitRequest(
            source, label, clean_label, image_column, drop, id_column, test, noise_text, None,
            data_root, strict, method, backbone, encoder, pretrain, ctx.args, out_folder, force,
            voted, features, image_size, text_column, group_column,
        )  # fmt: skip

        def check(found: Source, folder: Path) -> None:
            _check_data(found, folds)
            wanted.check_pixels(found)
            wanted.check(*input_paths(source, data_root), *(found.paths or ()), run=folder)

        run, found = train_run(asked, goes_on=True, check=check)
    else:
        _refuse(
            given, ctx.args, (), f"{run} is a run, which was read and trained as its config says"
        )
    _audit_run(run, folds, wanted, found)


def _several_labels(source: str, label: str | None, wanted: Wanted) -> bool:
    """Does --label mean several columns, or a matrix?"""
    from ..data.readers import is_multilabel

    several = is_multilabel(source, label)
    if several and (wanted.fix_above is not None or wanted.label_studio or wanted.argilla):
        raise BadInput("of several labels a row issues.csv says which to take away or add")
    return several


def _refuse(given: list[str], words: list[str], fitting: tuple[str, ...], why: str) -> None:
    wrong = [OF_DATA[name] for name in given if name not in fitting]
    wrong += [flag_of(word[2:].partition("=")[0]) for word in words if word.startswith("--")]
    if wrong or words:
        raise BadInput(f"{why}: leave out {shorten_list(wrong or words)}")


def _check_data(found: Source, folds: int) -> None:
    """Refuse before training what an audit would refuse after it."""
    from ..auditing.crossfit import check_folds

    if folds:
        check_folds(found.data.y.numpy(), folds, found.data.groups)


def _audit_run(run: Path, folds: int, wanted: Wanted, found: Source | None = None) -> None:
    """Judge the labels that a run was trained on; found: them, where they have just been read."""
    from ..auditing.items import table
    from ..auditing.sampling import known_rows
    from ..outputs import check_no_links
    from ..runfolder import (
        ANNOTATORS,
        AUDIT,
        FOLDS,
        ISSUES,
        LABELS,
        REGIONS,
        REPORT,
        VOTES,
        RunFolder,
    )
    from .console import Bar, say
    from .runs import Run
    from .trained import load_model, run_inputs, same_encoder, training_data
    from .training import GOES_ON, stop_on_sigterm

    if not run.is_dir():
        raise BadInput(f"{run} is a model without its data; give the folder of its run")
    names = (ISSUES, AUDIT, REPORT, LABELS, FOLDS, ANNOTATORS, VOTES, REGIONS)
    check_no_links(run / name for name in names)
    clf, config = load_model(run)
    wanted.check(run, *run_inputs(config))
    found = found or training_data(run, config)
    wanted.check(*(found.paths or ()))
    wanted.check_pixels(found)
    encoder = same_encoder(run, clf.encoder, config)
    history = Run.history(run, say)
    with Run.held(run), Bar(history) as bar:
        stop_on_sigterm(GOES_ON)
        RunFolder(run).remove_unfinished()

        def on_start(left: int) -> None:
            say(forecast(left, folds, history))

        if found.data.y.dim() > 1:
            from ..estimator.audits import audit_masks
            from .pixels import write_pixels

            masks = audit_masks(clf, found.data, folds, bar.show, encoder, run, on_start)
            write_pixels(replace(masks, paths=found.paths), run)
            return
        checked = known_rows(run, found.data)
        kept: Any = {"keep": run / FOLDS, "folder": run, "checked": checked}
        kept |= {"encoder": encoder, "on_start": on_start, "on_step": bar.step}
        result = clf.audit_data(found.data, folds, bar.show, **kept)
        if isinstance(checked, dict):
            known = f"The {len(checked)} rows whose clean label is known"
            result.notes.append(f"{known} are taken for a random sample of all rows.")
        context = result.context
        context.history, context.paths, context.title = history, found.paths, str(run)
        context.ids, context.texts = found.ids, found.texts
        if found.pictures is not None:  # the model saw embeddings of them
            context.images, context.rows = found.pictures, None
        context.text_column = found.schema.text_column
        if context.rows is not None and context.texts is None:
            context.rows = table(context.rows, found.schema.columns)
        _write(result, run, config, wanted)


def _audit_probabilities(
    source: str,
    pattern: str,
    label: str | None,
    id_column: str | None,
    out_folder: Path | None,
    wanted: Wanted,
) -> None:
    """Judge labels by probabilities that were made elsewhere; the folder becomes a run's."""
    import numpy as np

    from ..auditing import audit as judge
    from ..auditing.sampling import known_rows
    from ..data.readers import read_probabilities, table_stem
    from ..runfolder import CONFIG
    from ..versions import versions
    from .console import say
    from .runs import Run
    from .training import default_folder

    found = read_probabilities(source, pattern, label=label, id_column=id_column)
    for note in found.notes:
        say(f"data: {note}")
    data = found.data
    config = {
        "source": source, "data_root": None, "label": label, "clean_label": None,
        "image_column": None, "id_column": id_column, "noise": None, "probabilities": pattern,
        "fingerprint": found.fingerprint, "classes": list(data.names or ()),
        "versions": versions(), "started_in": str(Path.cwd()),
    }  # fmt: skip
    folder = out_folder or default_folder(f"{table_stem(Path(source))}-audit", config)
    checked = known_rows(folder, data)
    # as an array: a tensor's numbers would be rounded to float32
    result = judge(np.asarray(data.x), data.y, names=data.names, checked=checked)
    result.context.ids, result.context.texts = found.ids, found.texts
    result.context.title = str(source)
    wanted.check(run=folder)
    again = Run.is_of(folder, config) if wanted.force else (folder / CONFIG).exists()
    with Run.open(folder, config, resume=again, force=wanted.force, inputs=[Path(source)]):
        _write(result, folder, config, wanted)


def _audit_files(
    source: str,
    pattern: str,
    label: str | None,
    id_column: str | None,
    out: Path | None,
    ray: bool,
    wanted: Wanted,
) -> None:
    """Judge labels of parquet files larger than memory: a parquet file, figures and a report."""
    from ..auditing.audit import audit_files
    from ..data import shorten_list
    from ..data.readers.stream import ProbabilityFiles
    from ..outputs import check_outputs
    from .console import say

    if out is None or out.suffix != ".parquet":
        raise BadInput(f"{source} is judged in parts, as it may be larger than memory; give a "
                       "parquet file to write, as in --out issues.parquet")  # fmt: skip
    if wanted.fix_above is not None or wanted.label_studio or wanted.argilla:
        raise BadInput("--fix-above, --label-studio and --argilla are for tables that fit into "
                       f"memory; take what you need from {out}")  # fmt: skip
    if Path(source).resolve() in out.resolve().parents:
        raise BadInput(f"{out} would lie among the files of {source}, and be read as one of them; "
                       "give another folder")  # fmt: skip
    figures, report = out.with_suffix(".json"), out.with_suffix(".html")
    outputs = [(out, "issues parquet"), (figures, "audit"), (report, "report")]
    check_outputs(outputs, [source], wanted.force)
    table = ProbabilityFiles(source, pattern, label, id_column)
    check_outputs(outputs, table.files, wanted.force)
    say(f"data: {table.rows} rows; {len(table.names)} classes: {shorten_list(table.names)}")
    result = audit_files(table, out, ray, wanted.force)
    result.context.title, result.context.table = str(source), out.name
    result.to_json(figures, wanted.force)
    result.to_html(report, wanted.force)
    say(result.summary())
    for note in result.notes:
        say(f"note: {note}")
    say(f"written: {out}, {figures}, {report}")


def _write(result: Audit, run: Path, config: dict[str, Any], wanted: Wanted) -> None:
    """All files of an audit, and what there is to say of it."""
    from ..auditing.report.advice import fix_threshold
    from ..files import write_csv
    from ..runfolder import ANNOTATORS, AUDIT, ISSUES, LABELS, REPORT, VOTES
    from .console import say
    from .trained import say_relabel

    if wanted.label_studio is not None:
        result.to_label_studio(wanted.label_studio, wanted.force)
    if wanted.argilla is not None:
        result.to_argilla(wanted.argilla, wanted.force)
    result.to_csv(run / ISSUES, force=True)
    result.to_json(run / AUDIT, force=True)
    result.to_html(run / REPORT, force=True)
    written = [run / ISSUES, run / REPORT]
    for name, crowd in ((ANNOTATORS, result.annotators), (VOTES, result.votes)):
        if crowd is not None:
            ids = result.context.ids
            if ids and "item" in crowd:  # the audit knows rows by their numbers
                crowd = crowd.assign(item=[ids[int(row)] for row in crowd["item"]])
            write_csv(run / name, crowd.round(6))
            written.append(run / name)
    fixed = None if wanted.fix_above is None else result.fixed_labels(wanted.fix_above)
    if fixed is not None:
        written.append(run / LABELS)
        write_csv(written[-1], fixed)
    written += filter(None, (wanted.label_studio, wanted.argilla))
    say(result.summary())
    for note in result.notes:
        say(f"note: {note}")
    if fixed is not None:
        above = f"whose p_wrong is above {wanted.fix_above:g}"
        say(f"{int(fixed.fixed.sum())} of {len(fixed)} labels fixed, those {above}")
        advised = fix_threshold(result) or 1.0
        if fixed.fixed.any() and (wanted.fix_above or 0.0) < advised:
            say("note: more labels may be worse than better for it; look at some of them first")
    say(f"written: {', '.join(map(str, written))}")
    if fixed is not None and fixed.fixed.any():
        say_relabel(config, run / LABELS)
    if result.checked and (advice := result.checked.advice()):
        say(advice)
    if result.checked is None:
        say(f"next: ytilde review {quote(str(run))} --sample 100  # a count whatever the model is")
    if not result.at_chance:
        say(f"next: ytilde review {quote(str(run))}")


def forecast(left: int, folds: int, history: list[Record]) -> str:
    """How long the folds that are left will take, by how long the run itself took."""
    what = f"{folds} folds" if left == folds else f"{left} of {folds} folds"
    what += f" of {len(history)} epochs" if history else ""
    seconds = sum(record.get("seconds", 0.0) for record in history) * left * (folds - 1) / folds
    return f"about {duration(seconds)}: {what}" if seconds else what
