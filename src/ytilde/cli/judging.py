"""What `ytilde audit` does: judge the labels, write the files, and say what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from ..auditing import Audit
from ..auditing import audit as judge
from ..auditing.audit import audit_files as judge_files
from ..auditing.items import table
from ..auditing.report.advice import fix_threshold
from ..auditing.sampling import known_rows
from ..data.readers import Source, read_probabilities, table_stem
from ..data.readers.stream import ProbabilityFiles
from ..engine import Record
from ..errors import BadInput, duration, shorten_list
from ..estimator.audits import audit_masks
from ..files import write_csv
from ..outputs import check_no_links, check_outputs
from ..runfolder import (
    ANNOTATORS,
    AUDIT,
    CONFIG,
    FOLDS,
    ISSUES,
    LABELS,
    REGIONS,
    REPORT,
    VOTES,
    RunFolder,
)
from .console import Bar, say
from .pixels import write_pixels
from .runs import Run
from .stopping import GOES_ON, stop_on_sigterm
from .summary import say_audit
from .trained import audit_config, load_model, run_inputs, same_encoder, say_relabel, training_data
from .training import default_folder

if TYPE_CHECKING:
    from .audit import Wanted


def audit_run(run: Path, folds: int, wanted: Wanted, found: Source | None = None) -> None:
    """Judge the labels that a run was trained on; found: its data, if they were just read."""
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
            masks = audit_masks(clf, found.data, folds, bar.show, encoder, run, on_start)
            write_pixels(replace(masks, paths=found.paths), run)
            return
        checked = known_rows(run, found.data)
        kept: Any = {"keep": run / FOLDS, "folder": run, "checked": checked}
        kept |= {"encoder": encoder, "on_start": on_start, "on_step": bar.step}
        result = clf.audit_data(found.data, folds, bar.show, **kept)
        if isinstance(checked, dict):
            known = f"The {len(checked)} rows whose clean label is known"
            result.notes.append(f"{known} are treated as a random sample of all rows.")
        context = result.context
        context.history, context.paths, context.title = history, found.paths, str(run)
        context.ids, context.texts = found.ids, found.texts
        if found.pictures is not None:  # the model saw embeddings of them
            context.images, context.rows = found.pictures, None
        context.text_column = found.schema.text_column
        if context.rows is not None and context.texts is None:
            context.rows = table(context.rows, found.schema.columns)
        _write(result, run, config, wanted)


def audit_probabilities(
    source: str,
    pattern: str,
    label: str | None,
    id_column: str | None,
    out_folder: Path | None,
    wanted: Wanted,
) -> None:
    """Judge labels by probabilities that were made elsewhere; the folder becomes a run's."""
    found = read_probabilities(source, pattern, label=label, id_column=id_column)
    for note in found.notes:
        say(f"data: {note}")
    data = found.data
    asked = {"label": label, "id_column": id_column, "probabilities": pattern}
    config = audit_config(source, asked, found.fingerprint, list(data.names or ()))
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


def audit_files(
    source: str,
    pattern: str,
    label: str | None,
    id_column: str | None,
    out: Path | None,
    ray: bool,
    wanted: Wanted,
) -> None:
    """Judge labels of parquet files larger than memory: a parquet file, figures and a report."""
    if out is None or out.suffix != ".parquet":
        raise BadInput(f"{source} is read in parts, as it may be larger than memory; name a "
                       "parquet file to write, e.g. --out issues.parquet")  # fmt: skip
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
    result = judge_files(table, out, ray, wanted.force)
    result.context.title, result.context.table = str(source), out.name
    result.to_json(figures, wanted.force)
    result.to_html(report, wanted.force)
    say_audit(result, [out, figures, report])


def _write(result: Audit, run: Path, config: dict[str, Any], wanted: Wanted) -> None:
    """Write all files of an audit, and print its summary."""
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
    say_audit(result)
    if fixed is not None:
        above = f"whose p_wrong is above {wanted.fix_above:g}"
        say(f"{int(fixed.fixed.sum())} of {len(fixed)} labels fixed, those {above}")
        advised = fix_threshold(result) or 1.0
        if fixed.fixed.any() and (wanted.fix_above or 0.0) < advised:
            say("note: this may break more labels than it fixes; look at some of them first")
    say(f"written: {', '.join(map(str, written))}")
    if fixed is not None and fixed.fixed.any():
        say_relabel(config, run / LABELS)
    if result.checked and (advice := result.checked.advice()):
        say(advice)
    if result.checked is None:
        say(f"next: ytilde review {quote(str(run))} --sample 100  # to count wrong labels yourself")
    if not result.at_chance:
        say(f"next: ytilde review {quote(str(run))}")


def forecast(left: int, folds: int, history: list[Record]) -> str:
    """How long the folds that are left will take, by how long the run itself took."""
    what = f"{folds} folds" if left == folds else f"{left} of {folds} folds"
    what += f" of {len(history)} epochs" if history else ""
    seconds = sum(record.get("seconds", 0.0) for record in history) * left * (folds - 1) / folds
    return f"about {duration(seconds)}: {what}" if seconds else what
