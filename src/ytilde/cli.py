"""The command line. `ytilde COMMAND --help` says what each command takes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import signal
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from torch import Tensor

from . import __version__, datasets, noise, parallel, readers
from .auditing import Audit
from .auditing.diagnosis import diagnose_data
from .auditing.exporters import label_studio_outputs
from .auditing.items import table
from .auditing.relabel import relabel
from .backbones import about_backbone, list_backbones
from .bench_cli import bench_app
from .contrastive import PROBES, Settings
from .data import IGNORE, BadInput, Data, few, plural, unknown, which_rows
from .data.ids import NONE
from .encoder import Encoder
from .engine import (
    REFIT_FIELDS,
    Diverged,
    Recipe,
    Record,
    Trainer,
    choices,
    default_recipe,
)
from .estimator import Classifier
from .files import is_stream, write_atomic, write_csv
from .flags import field_comments, parse_flags, read_flags
from .hashing import hash_of
from .images import row_name, unreadable
from .method import create, list_methods, lookup, pretrained
from .outputs import check_no_links, check_outputs
from .protocols import KEEP, PROTOCOLS, best_epoch, protocols
from .runfolder import (
    AUDIT,
    FOLDS,
    ISSUES,
    LABELS,
    MODEL,
    PREDICTIONS,
    REPORT,
    REVIEW,
    RunFolder,
)
from .runs import Run
from .versions import versions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
BACKBONE = "name[:option=value,...], see `ytilde methods backbones`; or auto"
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}
TASKS = ("classification", "segmentation")


def console(**where: Any) -> Console:
    """Prints sentences as they are: a path may hold brackets, and a cut one cannot be copied."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, **where)


out = console()
app.add_typer(bench_app, name="bench", help="The papers' tables: run them, compare.")


# ---- commands ------------------------------------------------------------------------------------


def _say_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ytilde {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="print it and stop"),
    ] = False,
) -> None:
    """Learning from labels that are wrong in ways that depend on the input."""


Source = Annotated[
    str, typer.Argument(help="csv, parquet, npz, image folder, or a named set (`ytilde data`)")
]
Label = Annotated[
    str | None, typer.Option(help="column with the labels; if not given, the one called label or y")
]
CleanLabel = Annotated[
    str | None,
    typer.Option(
        help="column with true labels, never a feature; if not given, clean_label or clean"
    ),
]
ImageColumn = Annotated[str | None, typer.Option(help="column with image paths")]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", help="column that is no feature; repeatable")
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id", help="column that names the rows, carried along as written; or none"),
]
DataRoot = Annotated[Path | None, typer.Option(help="folder of the named sets ($YTILDE_DATA)")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing file, whatever wrote it")]


@app.command(context_settings=EXTRA)
def fit(
    ctx: typer.Context,
    source: Source,
    label: Label = None,
    method: Annotated[str, typer.Option(help="see `ytilde methods`; auto: a race")] = "elr",
    backbone: Annotated[str, typer.Option(help=BACKBONE)] = "auto",
    out_folder: Annotated[Path | None, typer.Option("--out", help="run folder")] = None,
    test: Annotated[str | None, typer.Option(help="test data, only measured on")] = None,
    clean_label: CleanLabel = None,
    drop: Drop = None,
    noise_text: Annotated[
        str | None, typer.Option("--noise", help="corrupt first, e.g. instance:0.4")
    ] = None,
    image_column: ImageColumn = None,
    id_column: IdColumn = None,
    task: Annotated[str | None, typer.Option(help="classification or segmentation")] = None,
    data_root: DataRoot = None,
    strict: Annotated[bool, typer.Option("--strict", help="stop at an unreadable image")] = False,
    encoder: Annotated[
        Path | None, typer.Option(help="start the networks from what `pretrain` made")
    ] = None,
    pretrain: Annotated[
        str | None, typer.Option(help="make such an encoder first: simclr[:epochs=100,...]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with an unfinished run")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a run of ytilde")] = False,
) -> None:
    """Train a method. Its fields and the recipe's are options too: --tau 0.5 --epochs 30 --seed 1.

    `ytilde methods NAME` lists the method's fields; `ytilde methods recipe` the recipe's.
    """
    out.quiet = parallel.join().rank > 0  # of the processes that torchrun starts one speaks
    auto = method == "auto"  # plain training has no fields, and neither has a choice
    fields, settings = parse_flags(ctx.args, "ce" if auto else method)
    made = method if auto else create(method, **fields)  # refuses a wrong field before reading
    seed = settings.pop("seed", 0)
    read = {"label": label, "clean_label": clean_label, "image_column": image_column, "drop": drop}
    ids = NONE if resume and _ids_are_features(out_folder) else id_column
    found = _read(source, data_root, strict=strict, id_column=ids, **read)
    data = found.data
    if data.y.dim() == 1:
        out.print(f"data: {_class_sizes(data)}")
    if task not in (None, *TASKS):
        raise BadInput(unknown("task", task, TASKS))
    if task and (task == "segmentation") != (data.y.dim() > 1):
        raise BadInput(f"--task {task} does not fit {source}: check its labels")
    names = data.names
    tests = _test_data(source, test, data_root, names, found.schema, read)
    if resume and out_folder:
        settings |= _as_begun(out_folder, settings)
    recipe = default_recipe(data.shape, len(data), data.y.dim() > 1, seed=seed, **settings)
    corrupted, told = _corrupt(data, noise_text, recipe)
    config = {
        "source": source, "data_root": str(data_root) if data_root else None, **read,
        "id_column": id_column,
        "test": test, "noise": noise_text, "method": method, "fields": fields,
        "backbone": backbone, "recipe": dataclasses.asdict(recipe),
        "encoder": str(encoder) if encoder else None, "pretrain": pretrain,
        "encoder_digest": _encoder_digest(encoder),
        "fingerprint": found.fingerprint, "schema": dataclasses.asdict(found.schema),
        "classes": list(names or ()), "versions": versions(), "realised_noise": told,
        "started_in": str(Path.cwd()),
    }  # fmt: skip
    folder = out_folder or _free_folder(Path("runs"), f"{Path(source).stem}-{method}")
    paths = [value for value in fields.values() if isinstance(value, str)]
    paths += [word.removeprefix("weights=") for word in backbone.replace(":", ",").split(",")]
    inputs = _inputs(source, data_root, test, encoder, *paths)
    with Run.open(folder, config, resume=resume, force=force, inputs=inputs) as run:
        signal.signal(signal.SIGTERM, _terminated)
        own = {name: getattr(recipe, name) for name in REFIT_FIELDS}
        own |= {"encoder": encoder, "pretrain": pretrain}
        clf = Classifier(made, backbone, random_state=seed, **own)
        monitor = (lambda trainer: _measure(trainer, tests)) if tests else None
        with _Bar() as bar:

            def on_record(record: Record) -> None:
                if "race" not in record:
                    run.log(record)
                bar.show(record)

            of_table = found.schema.columns or found.schema.image_column
            try:
                trainer = clf.fit_data(
                    corrupted,
                    recipe=recipe,
                    schema=found.schema if of_table else None,
                    folder=folder,
                    resume=resume,
                    monitor=monitor,
                    on_record=on_record,
                )
            except KeyboardInterrupt:
                out.print("interrupted, and no model yet: the same command with --resume goes on")
                raise typer.Exit(130) from None
        if auto:
            count, name = len({line["method"] for line in clf.race_}), clf.method_.name
            out.print(f"note: {name} chosen from {count} methods by noisy validation accuracy")
        for note in trainer.notes if trainer else []:
            out.print(f"note: {note}")
        clf.save(folder / MODEL, force=True)
        keep = recipe.keep if trainer else "last"  # what Ctrl-C leaves
        summary = summarise(clf.history_, keep) | {"backbone": str(clf._backbone_)}
        if corrupted.y.dim() == 1:
            lost = unreadable(data.x).numpy()
            found = dataclasses.replace(found, data=corrupted)
            predicted = _write_predictions(folder / PREDICTIONS, clf, found, lost)
            summary |= _against_truth(corrupted, predicted, lost)
        run.finish(summary)
    out.print(_what_was_done(clf.method_.name, len(corrupted), summary))
    _print_summary(summary, corrupted, told, folder)
    if trainer is None:
        out.print("interrupted: the same command with --resume goes on")
        raise typer.Exit(130)


def _as_begun(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run that goes on holds out, where it is not said: 0.1 held out a tenth of any rows."""
    if "val" in settings or not (folder / "config.json").exists():
        return {}
    recipe = Run.config(folder).get("recipe")
    return {"val": recipe["val"]} if isinstance(recipe, dict) and "val" in recipe else {}


def _ids_are_features(run: Path | None) -> bool:
    """Is it a run of 0.1, which had ids among its features?"""
    known = run is not None and (run / "config.json").exists()
    return known and "id_column" not in Run.config(run)  # type: ignore[arg-type]


def _encoder_digest(path: str | Path | None) -> str | None:
    """Of what is in it: a run must not go on with another encoder under the same name."""
    return hash_of(Encoder.load(path).weights) if path else None


def _class_sizes(data: Data) -> str:
    """The classes, the largest first, and how many rows have each."""
    count = torch.bincount(data.y[data.y != IGNORE], minlength=data.num_classes)
    order = count.argsort(descending=True, stable=True).tolist()
    sizes = few(f"{data.class_name(k)!r} {count[k]}" for k in order)
    return f"{data.num_classes} classes and their rows: {sizes}"


def _test_data(
    source: str,
    test: str | None,
    root: Path | None,
    names: Any,
    schema: Any,
    read: dict[str, Any],
) -> Data | None:
    """The test data: what --test names, or a named set's own test split."""
    if test:
        return _read(test, root, names=names, schema=schema, **read).data
    if source in datasets.NAMES:
        return readers.read(source, data_root=root, split="test").data
    return None


def _corrupt(data: Data, text: str | None, recipe: Recipe) -> tuple[Data, dict[str, Any]]:
    """Wrong labels on purpose: the given ones become the hidden truth."""
    if text is None:
        return data, {}
    truth = _truth(data)
    kind, options = noise.parse(text)
    made = noise.corrupt(
        kind, data.x, truth, data.num_classes, generator=recipe.generator("noise"), **options
    )
    told = {"rate": made.rate, **made.summary()}
    return dataclasses.replace(data, y=made.y, clean=truth), told


def _truth(data: Data) -> Tensor:
    return data.y if data.clean is None else data.clean


def _measure(trainer: Trainer, data: Data | None) -> Record:
    """Test figures for the record; training never sees them."""
    if data is None:
        return {}
    truth = data if data.clean is None else _with_truth(data)
    return {f"test_{name}": value for name, value in trainer.score(truth).items()}


_TRUTH: dict[int, tuple[Data, Data]] = {}


def _with_truth(data: Data) -> Data:
    """The data with its true labels in the place of the observed ones; one object a data set."""
    if id(data) not in _TRUTH:
        assert data.clean is not None
        _TRUTH[id(data)] = (data, dataclasses.replace(data, y=data.clean))
    return _TRUTH[id(data)][1]


def summarise(history: list[Record], keep: str = "last") -> dict[str, Any]:
    """The protocols side by side: last epoch, chosen by noisy validation, mean of the last ten.

    keep: which epoch of the last stage is the saved model, as in the recipe.
    """
    seconds = round(sum(record["seconds"] for record in history), 2)
    summary: dict[str, Any] = {"epochs": len(history), "seconds": seconds}
    if not history:
        return summary
    kept = history[-1]
    if "val_accuracy" in kept:
        if keep != "last":
            kept = best_epoch(history, KEEP[keep]) or kept
            summary["kept_epoch"] = kept["epoch"]
        summary["val_accuracy"] = kept["val_accuracy"]
    if not any("test_accuracy" in record for record in history):
        return summary
    found = protocols(history)
    summary |= {name: found[name]["test_accuracy"] for name in PROTOCOLS if name in found}
    summary["test_nll"] = found["last"]["test_nll"]
    if "test_miou" in found["last"]:
        summary["miou"] = found["last"]["test_miou"]
    if "chosen_epoch" in found:
        summary["chosen_epoch"] = found["chosen_epoch"]
    if "kept_epoch" in summary:
        summary["kept"] = kept["test_accuracy"]
    return summary


def _against_truth(data: Data, predicted: np.ndarray, lost: np.ndarray) -> dict[str, Any]:
    """How many given and predicted labels of the training rows are right, where the truth is known.

    Only measured, after training.
    """
    if data.clean is None:
        return {}
    y, clean = data.y.numpy(), data.clean.numpy()
    known = (clean != IGNORE) & ~lost
    right = {"given": y == clean, "predicted": predicted == clean}
    shares = {f"train_{name}_right": float(hit[known].mean()) for name, hit in right.items()}
    return {"train_truth_known": int(known.sum()), **shares} if known.any() else {}


def _what_was_done(method: str, rows: int, summary: dict[str, Any]) -> str:
    text = f"{method} with {summary['backbone']} on {rows} rows: "
    text += f"{plural(summary['epochs'], 'epoch')} in {summary['seconds']:.1f} s"
    if "val_accuracy" in summary:
        text += f", noisy validation accuracy {100 * summary['val_accuracy']:.2f} %"
    if "kept_epoch" in summary:
        text += f" in epoch {summary['kept_epoch']}, which is kept"
    return text


def _print_summary(summary: dict[str, Any], data: Data, told: dict[str, Any], folder: Path) -> None:
    table = Table(title=None, show_header=True, header_style="bold")
    table.add_column("test accuracy")
    table.add_column("", justify="right")
    lines = {
        "last": "last epoch",
        "chosen": f"chosen by noisy validation (epoch {summary.get('chosen_epoch')})",
        "mean_of_last_ten": "mean of the last ten epochs",
        "kept": f"the saved model (epoch {summary.get('kept_epoch')})",
        "miou": "mean IoU, last epoch",
    }
    for key, text in lines.items():
        if key in summary:
            table.add_row(text, f"{100 * summary[key]:.2f} %")
    if told:
        out.print(f"noise made: {100 * told['rate']:.1f} % of {len(data)} labels are wrong")
    if table.row_count:
        out.print(table)
    if rows := summary.get("train_truth_known"):
        given, predicted = (summary[f"train_{name}_right"] for name in ("given", "predicted"))
        out.print(
            f"of {rows} training rows with a known truth, {100 * given:.1f} % of the given labels "
            f"and {100 * predicted:.1f} % of the predicted ones are right"
        )
    predictions = ", predictions.csv" if data.y.dim() == 1 else ""
    out.print(f"run folder: {folder}  (model.safetensors, metrics.jsonl{predictions})")
    if _at_chance(summary, data):
        out.print(
            "warning: by this accuracy the model is no better than always saying the largest "
            "class; train for longer (--epochs), or check that the features tell of the labels"
        )
    elif data.y.dim() == 1:
        out.print(f"next: ytilde audit {quote(str(folder))}")


def _at_chance(summary: dict[str, Any], data: Data) -> bool:
    """Is the accuracy, of the test or else the noisy validation, that of the largest class?"""
    accuracy = summary.get("kept", summary.get("last", summary.get("val_accuracy")))
    if accuracy is None or data.y.dim() > 1:
        return False
    known = data.y[data.y != IGNORE]
    return accuracy <= float(torch.bincount(known).max()) / len(known)


@app.command(context_settings=EXTRA)
def pretrain(
    ctx: typer.Context,
    source: Source,
    label: Label = None,
    clean_label: CleanLabel = None,
    drop: Drop = None,
    backbone: Annotated[str, typer.Option(help=BACKBONE)] = "auto",
    out_file: Annotated[Path, typer.Option("--out", help="encoder to write")] = Path(
        "encoder.safetensors"
    ),
    image_column: ImageColumn = None,
    id_column: IdColumn = None,
    data_root: DataRoot = None,
    force: Force = False,
) -> None:
    """Learn features without labels (SimCLR), for `fit --encoder`; a stopped command goes on.

    Its settings are options: --epochs 200 --batch-size 512 --augment simclr --seed 0 --device auto.
    Labels, where there are any, are only probed on the way. `fit --pretrain`, and methods that
    pre-train by themselves, share encoders in the folder that $YTILDE_CACHE names.
    """
    check_outputs([(out_file, "encoder")], _inputs(source, data_root), force)
    if is_stream(out_file):
        raise BadInput(f"cannot write {out_file}: its checkpoints lie beside it; name a file")
    known = {
        f.name: f
        for f in dataclasses.fields(Recipe)
        if f.name in ("device", "precision", "compile")
    }
    flags = read_flags(ctx.args, known | {f.name: f for f in dataclasses.fields(Settings)})
    recipe = Recipe(**{name: flags.pop(name) for name in known if name in flags})
    text = "simclr:" + ",".join(f"{name}={value}" for name, value in flags.items())
    read = {"image_column": image_column, "clean_label": clean_label, "drop": drop}
    read["id_column"] = id_column
    try:
        found = _read(source, data_root, label=label, **read)
    except BadInput as error:
        if label:
            raise
        found = _read(source, data_root, labelled=False, **read)
        out.print(f"note: taken for data without labels. {error}")
    data = found.data
    check_outputs([(out_file, "encoder")], found.paths or (), force)
    work = out_file.parent / f".{out_file.name}.work"
    new = not work.exists()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_stopped("stopped by SIGTERM", 143)))
    try:
        with _Bar() as bar:
            made = pretrained(data, backbone, recipe, text, work, bar.show)
    except KeyboardInterrupt:
        raise typer.Exit(_stopped("interrupted", 130)) from None
    except BadInput:
        if new:
            RunFolder(work).remove()
        raise
    made.save(out_file, force)
    RunFolder(work).remove()
    if lost := len(data) - made.about["rows"]:
        out.print(f"note: {plural(lost, 'image')} cannot be read and took no part")
    for name in PROBES:
        if name in made.about:
            out.print(f"{name.replace('_', ' ')} on noisy labels: {100 * made.about[name]:.1f} %")
    out.print(f"written: {out_file}")
    labelled = quote(source) if bool((data.y != IGNORE).any()) else "LABELLED_DATA"
    flags = {"--label": label, "--clean-label": clean_label, "--image-column": image_column}
    flags["--id"] = id_column
    given = [f"{flag} {quote(value)} " for flag, value in flags.items() if value]
    given += [f"--drop {quote(name)} " for name in drop or ()]
    out.print(f"next: ytilde fit {labelled} {''.join(given)}--encoder {quote(str(out_file))}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="run folder or model file")],
    source: Source,
    out_file: Annotated[Path, typer.Option("--out", help="csv to write")] = Path("predictions.csv"),
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="a column for each class, prob_CLASS")
    ] = False,
    data_root: DataRoot = None,
    split: Annotated[str, typer.Option(help="of a named set")] = "test",
    force: Force = False,
) -> None:
    """Predict the labels of new data with a trained run; what cannot be read gets no label."""
    outputs = [(out_file, "predictions")]
    check_outputs(outputs, _inputs(source, data_root, run), force)
    clf, config = _load(run)
    options = {
        "schema": _schema(config) or clf.schema_,
        "split": split,
        "labelled": False,
        "strict": False,
    }
    found = _read(source, data_root, **options)
    check_outputs(outputs, found.paths or (), force)
    lost = unreadable(found.data.x).numpy()
    _write_predictions(out_file, clf, found, lost, given=False, probabilities=probabilities)
    if lost.any():
        first = row_name(found.data.x, int(lost.argmax()))
        count = plural(lost.sum(), "image")
        out.print(f"note: no label for {count} that cannot be read; first {first}")
    out.print(f"{plural(len(lost) - lost.sum(), 'prediction')} written to {out_file}")


def _schema(config: dict[str, Any]) -> readers.Schema | None:
    return readers.Schema(**config["schema"]) if config.get("schema") else None


def _load(run: Path) -> tuple[Classifier, dict[str, Any]]:
    if run.is_dir():
        config = _config(run)
        if not (run / MODEL).exists():
            raise BadInput(
                f"{run} is unfinished, it has no model yet; go on with it by the command that "
                "started it and --resume"
            )
        clf = Classifier.load(run / MODEL)
        clf.encoder = _from_start(clf.encoder, config)
        return clf, config
    return Classifier.load(run), {}


def _config(run: Path) -> dict[str, Any]:
    """What a run was asked for; refused where another version of ytilde wrote it otherwise."""
    config = Run.config(run)
    try:
        for key in ("source", "data_root", "label", "clean_label", "image_column", "noise"):
            config[key]
        Recipe(**config["recipe"]), _schema(config), config["fingerprint"]
    except (KeyError, TypeError) as error:
        by = config.get("versions", {}).get("ytilde", "another version")
        raise BadInput(
            f"{run} was made by ytilde {by}, and this is {__version__}: {error}; fit it again"
        ) from error
    return config


def _write_predictions(
    path: Path,
    clf: Classifier,
    found: readers.Source,
    lost: np.ndarray,
    given: bool = True,
    probabilities: bool = False,
) -> np.ndarray:
    """A line a row; those that are lost have no predicted label. Returns the predicted classes."""
    data, probs = found.data, clf.predict_proba(found.data)
    if probs.ndim > 2:
        raise BadInput("a run of pixel labels has no table of predictions; see Classifier.load")
    columns: dict[str, Any] = {"index": np.arange(len(data))}
    if found.ids:
        columns["id"] = found.ids
    if found.paths:
        columns["path"] = found.paths
    if given:
        columns["given_label"] = [data.class_name(k) for k in data.y.tolist()]
    best = probs.argmax(-1)
    predicted: dict[str, Any] = {"predicted_label": clf.classes_[best].astype(object)}
    predicted["predicted_prob"] = probs.max(-1).round(6)
    if probabilities:
        names = [f"prob_{name}" for name in clf.classes_]
        predicted |= dict(zip(names, probs.T.round(6), strict=True))
    write_csv(path, pd.DataFrame(columns).join(pd.DataFrame(predicted)[~lost]))
    return best


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="run folder")],
    folds: Annotated[int, typer.Option(help="0: judge with the run's own model")] = 5,
    fix_above: Annotated[
        float | None, typer.Option(help="write labels.csv, fixed where p_wrong is above this")
    ] = None,
    label_studio: Annotated[
        Path | None, typer.Option(help="json to write: the suspects as Label Studio tasks")
    ] = None,
    argilla: Annotated[
        Path | None, typer.Option(help="json to write: the suspects as Argilla records")
    ] = None,
    force: Force = False,
) -> None:
    """Find the wrong labels of a run's data: issues.csv and report.html in the run folder."""
    if fix_above is not None and not 0 <= fix_above < 1:
        raise BadInput(f"--fix-above is {fix_above:g}: give a probability from 0 to below 1.")
    outputs = label_studio_outputs(label_studio) if label_studio else []
    outputs += [(argilla, "argilla")] if argilla else []
    check_outputs(outputs, [run], force)
    if run.is_dir():
        check_no_links(run / name for name in (ISSUES, AUDIT, REPORT, LABELS, FOLDS))
    with _Bar() as bar:
        clf, config = _load(run)
        check_outputs(outputs, _run_inputs(config), force)
        found = _run_data(run, config)
        check_outputs(outputs, found.paths or (), force)
        _check_encoder(run, clf.encoder, config)
        keep = run / FOLDS if run.is_dir() else None
        result = clf.audit_data(found.data, folds=folds, on_record=bar.show, keep=keep)
    history = Run.history(run)
    context = result.context
    context.history, context.paths, context.title = history, found.paths, str(run)
    context.ids, context.texts = found.ids, found.texts
    if context.rows is not None and context.texts is None:
        context.rows = table(context.rows, found.schema.columns)
    if label_studio is not None:
        result.to_label_studio(label_studio, force)
    if argilla is not None:
        result.to_argilla(argilla, force)
    result.to_csv(run / ISSUES, force=True)
    result.to_json(run / AUDIT, force=True)
    result.to_html(run / REPORT, force=True)
    written = [run / ISSUES, run / REPORT]
    fixed = None if fix_above is None else result.fixed_labels(fix_above)
    if fixed is not None:
        written.append(run / LABELS)
        write_csv(written[-1], fixed)
    written += filter(None, (label_studio, argilla))
    out.print(result.summary())
    for note in result.notes:
        out.print(f"note: {note}")
    if fixed is not None:
        above = f"whose p_wrong is above {fix_above:g}"
        out.print(f"{int(fixed.fixed.sum())} of {len(fixed)} labels fixed, those {above}")
    out.print(f"written: {', '.join(map(str, written))}")
    if fixed is not None and fixed.fixed.any():
        _say_relabel(config, run / LABELS)
    if not result.at_chance:
        out.print(f"next: ytilde review {quote(str(run))}")


def _say_relabel(config: dict[str, Any], labels: Path) -> None:
    """How the table itself gets its new labels."""
    source = Path(str(_from_start(config["source"], config)))
    if source.suffix.lower() in readers.TABLES and not config["noise"]:
        label = f" --label {quote(config['label'])}" if config["label"] else ""
        fixed = source.with_stem(f"{source.stem}-fixed")  # beside it: image paths may be relative
        words = f"{quote(str(source))} {quote(str(labels))}{label} --out {quote(str(fixed))}"
        out.print(f"next: ytilde relabel {words}")


def _run_data(run: Path, config: dict[str, Any]) -> readers.Source:
    """What a run was trained on, with the labels it saw."""
    found = readers.read(
        _from_start(config["source"], config),
        data_root=_from_start(config["data_root"], config),
        drop=config.get("drop") or (),
        id_column=config.get("id_column", NONE),  # runs of 0.1 had ids among their features
        **{key: config[key] for key in ("label", "clean_label", "image_column")},
    )
    if found.fingerprint != config["fingerprint"]:
        raise BadInput(f"{config['source']} has changed since {run} was trained; fit it again")
    data, _ = _corrupt(found.data, config["noise"], Recipe(**config["recipe"]))
    return dataclasses.replace(found, data=data)


def _check_encoder(run: Path, encoder: Any, config: dict[str, Any]) -> None:
    then = config.get("encoder_digest")
    if then and _encoder_digest(encoder) != then:
        raise BadInput(f"{encoder} has changed since {run} was trained; fit it again")


def _from_start(path: Any, config: dict[str, Any]) -> str | None:
    """A path of a run that is not here, as it was seen from where the run was started."""
    there = Path(config.get("started_in", ".")) / (path or "")
    return path if path is None or Path(path).exists() or not there.exists() else str(there)


@app.command()
def review(
    run: Annotated[Path, typer.Argument(help="run folder, audited")],
    export: Annotated[
        Path | None, typer.Option(help="csv to write: the labels as decided so far; no page")
    ] = None,
    port: Annotated[int, typer.Option(help="0: any that is free", min=0, max=65535)] = 0,
    force: Force = False,
) -> None:
    """Go through the suspicious labels of an audited run in the browser, with the keyboard."""
    from .auditing import review as reviewing

    outputs = [(export, "labels")] if export else []
    check_outputs(outputs, [run], force)
    check_no_links([run / REVIEW])
    config = _config(run)
    check_outputs(outputs, _run_inputs(config), force)
    found = _run_data(run, config)
    check_outputs(outputs, found.paths or (), force)
    if found.data.y.dim() > 1:
        raise BadInput("a review needs one label a row; pixel labels are not audited yet")
    columns = found.schema.columns
    shown: dict[str, Any] = {"paths": found.paths, "ids": found.ids, "texts": found.texts}
    session = reviewing.Review(run, found.data, columns=columns, **shown)
    if export is not None:
        number, changed = reviewing.export(session, export)
        out.print(f"{number} labels written to {export}, {changed} of them changed by hand")
        if changed:
            _say_relabel(config, export)
        return
    reviewing.serve(session, port, _say_address)
    done = session.progress()
    out.print(f"{done['total'] - done['open']} of {done['total']} decided; all of it is saved")
    out.print(f"next: ytilde review {quote(str(run))} --export labels.csv")


def _say_address(address: str) -> None:
    print(f"open {address} in a browser; Ctrl-C ends the review", flush=True)


@app.command("relabel")
def relabel_command(
    data: Annotated[Path, typer.Argument(help="csv, tsv or parquet")],
    labels: Annotated[
        Path, typer.Argument(help="labels.csv of `audit --fix-above` or `review --export`")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="table to write, of the same kind")],
    label: Annotated[str | None, typer.Option(help="label column; label or y if not given")] = None,
    force: Force = False,
) -> None:
    """Write a table again with corrected labels; all else in it stays as it is."""
    rows, changed = relabel(data, labels, out_file, label, force)
    out.print(f"{changed} of {rows} labels changed; written: {out_file}")


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(help="run folder or model file")],
    out_file: Annotated[Path, typer.Option("--out", help="onnx to write")] = Path("model.onnx"),
    force: Force = False,
) -> None:
    """Write a run's network as an ONNX file, for programs without Python or torch."""
    from .export import to_onnx

    _check_suffix(out_file, ".onnx")
    check_outputs([(out_file, "onnx")], [run], force)
    clf, _ = _load(run)
    to_onnx(clf, out_file, force)
    shape = ", ".join(map(str, ("N", *clf.shape_)))
    out.print(f"written: {out_file}  (x [{shape}] float32 -> log_probs)")


@app.command()
def diagnose(
    source: Source,
    label: Label = None,
    clean_label: CleanLabel = None,
    drop: Drop = None,
    noise_text: Annotated[
        str | None, typer.Option("--noise", help="corrupt first, e.g. instance:0.4")
    ] = None,
    rows: Annotated[int, typer.Option(help="look at so many rows at most", min=2)] = 4000,
    seed: Annotated[int, typer.Option()] = 0,
    image_column: ImageColumn = None,
    id_column: IdColumn = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="JSON file to write")] = None,
    data_root: DataRoot = None,
    force: Force = False,
) -> None:
    """How much noise, which classes, does it depend on the input; and what to do about it."""
    outputs = [(out_file, "diagnosis")] if out_file else []
    check_outputs(outputs, _inputs(source, data_root), force)
    read = {"label": label, "clean_label": clean_label, "image_column": image_column, "drop": drop}
    given = _read(source, data_root, id_column=id_column, **read)
    check_outputs(outputs, given.paths or (), force)
    found, told = _corrupt(given.data, noise_text, Recipe(seed=seed))
    result = diagnose_data(found, most=rows, seed=seed)
    if told:
        out.print(f"noise made: {100 * told['rate']:.1f} % of {len(found)} labels are wrong")
    for sentence in result.reasons:
        out.print(f"- {sentence}")
    if not result.audit.at_chance:
        out.print(_classes(result.audit))
    notes = list(result.notes)
    if rows < len(found):
        notes.append(f"{result.rows} of {len(found)} rows were looked at; --rows takes more")
    for note in notes:
        out.print(f"note: {note}")
    if out_file is not None:
        result.to_json(out_file, force)
        out.print(f"written: {out_file}")


def _classes(found: Audit) -> Table:
    """How many labels of each class are wrong."""
    table = Table("label", "given", "wrong, expected", "share", "mostly in truth")
    for line in found.per_class.to_dict("records"):
        mostly = found.pairs[found.pairs.given_label == line["label"]].predicted_label.tolist()[:1]
        share = f"{100 * line['noise_rate']:.1f} %"
        errors = f"{line['expected_errors']:.0f}"
        cells = (line["label"], line["given"], errors, share, *(mostly or ["-"]))
        table.add_row(*map(str, cells))
    return table


@app.command("noise")
def noise_command(
    source: Source,
    kind: Annotated[str, typer.Option(help=", ".join(noise.KINDS))] = "instance",
    rate: Annotated[
        float | None, typer.Option(help="0.4 where the kind does not say it: pair:0.2")
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
    features: Annotated[str | None, typer.Option(help="standardized or raw255")] = None,
    out_file: Annotated[Path, typer.Option("--out", help="npz to write")] = Path("noisy.npz"),
    label: Label = None,
    clean_label: CleanLabel = None,
    drop: Drop = None,
    data_root: DataRoot = None,
    force: Force = False,
) -> None:
    """Corrupt the labels of a data set; writes x, y, clean, and the true rows of T.

    The truth is the column of true labels where there is one, else the labels as they are.
    """
    _check_suffix(out_file, ".npz")
    check_outputs([(out_file, "noise")], _inputs(source, data_root), force)
    name, own = noise.parse(kind)
    if rate is not None and own.get("rate", rate) != rate:
        raise BadInput(f"--kind {kind} and --rate {rate:g} say different rates; leave one out")
    if rate is None and name != "classwise" and "rate" not in own:
        rate = 0.4
    given = {"rate": rate, "features": features}
    options = {key: value for key, value in given.items() if value is not None}
    data = _read(source, data_root, label=label, clean_label=clean_label, drop=drop).data
    if data.lazy:
        raise BadInput(f"{_why_lazy(data)}; or use `ytilde fit --noise`, which writes no images")
    generator = Recipe(seed=seed).generator("noise")
    truth = _truth(data)
    if data.y.dim() == 1 and (missing := (truth == IGNORE).nonzero()[:, 0]).numel():
        rows = which_rows(missing.tolist())
        raise BadInput(f"there is no truth in {rows}; fill it in or leave the row out")
    made = noise.corrupt(kind, data.x, truth, data.num_classes, generator=generator, **options)
    arrays: dict[str, Any] = {"x": np.asarray(data.x), "y": made.y.numpy(), "clean": truth.numpy()}
    arrays |= {"rows": made.rows.numpy(), "names": np.asarray(data.names or [])}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_atomic(out_file, write)
    out.print(f"{100 * made.rate:.2f} % of {len(data)} labels are wrong now: {out_file}")
    out.print(json.dumps(made.summary()))


def _why_lazy(data: Data) -> str:
    """Why the images of a data set cannot be written as one array, and what to do."""
    lost = unreadable(data.x)
    if not lost.any():
        return "the images fill more than 2 GB, too much for one npz: give fewer"
    first = row_name(data.x, int(lost.nonzero()[0]))
    return f"cannot read {plural(int(lost.sum()), 'image')}, the first {first}: leave it out"


@app.command()
def data(
    name: Annotated[
        str | None, typer.Argument(help="named set, for example cifar10; if not given, all listed")
    ] = None,
    to: Annotated[Path, typer.Option(help="folder")] = Path("data"),
) -> None:
    """Download a named set from its publisher; digests are checked, a cut download goes on."""
    if name is None:
        header = ("named set", "splits", "its files")
        table = Table(*(Column(head, overflow="fold") for head in header))
        for each in datasets.NAMES:
            table.add_row(each, ", ".join(datasets.splits(each)), datasets.origin(each))
        out.print(table)
        return
    datasets.download(name, to)
    out.print(f"{name} is in {to}; use it with --data-root {to} or YTILDE_DATA={to}")


@app.command()
def methods(name: Annotated[str | None, typer.Argument()] = None) -> None:
    """List the methods, or one method's paper, fields and defaults.

    `methods recipe`: what every method can be trained with; `methods backbones`: the networks.
    """
    if name is None:
        table = Table("method", "what it is")
        for each in list_methods():
            table.add_row(each, _first_line(each))
        out.print(table)
        return
    if name == "backbones":
        table = Table("backbone", "what it is", "options")
        for each in list_backbones():
            what, given = about_backbone(each)
            table.add_row(each, what, _settings(given))
        out.print(table)
        return
    if name == "recipe":
        _print_fields(Recipe, {})
        chosen = ", ".join(name.replace("_", "-") for name in _chosen_by_data())
        out.print(f"These are not what every `fit` takes: it chooses {chosen}")
        out.print("by the data where they are not given; a run's config.json says which.")
        return
    entry = lookup(name)
    out.print(inspect.getdoc(sys.modules[entry.cls.__module__]) or "")
    _print_fields(entry.cls, entry.preset)


def _first_line(name: str) -> str:
    """What a method is; of those that one file holds, also what tells them apart."""
    entry = lookup(name)
    text = (inspect.getdoc(sys.modules[entry.cls.__module__]) or "").splitlines()[0]
    if entry.preset:
        return f"{text} Here {_settings(entry.preset)}."
    others = {lookup(each).cls for each in list_methods()} - {entry.cls}
    beside = any(other.__module__ == entry.cls.__module__ for other in others)
    return f"{text} {inspect.getdoc(entry.cls)}" if beside else text


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _chosen_by_data() -> list[str]:
    """The recipe's fields whose defaults are not the same for all kinds of data."""
    kinds: tuple[tuple[tuple[int, ...], bool], ...] = (
        ((8,), False), ((3, 32, 32), False), ((3, 224, 224), False), ((3, 224, 224), True),
    )  # fmt: skip
    recipes = [default_recipe(shape, n, pixels) for shape, pixels in kinds for n in (500, 50_000)]
    recipes.append(Recipe())
    names = [field.name for field in dataclasses.fields(Recipe)]
    return [name for name in names if len({getattr(r, name) for r in recipes}) > 1]


def _print_fields(cls: Any, preset: dict[str, Any]) -> None:
    comments, words = field_comments(cls), choices(cls)
    table = Table("option", "default", "meaning")
    for field in dataclasses.fields(cls):
        default = preset.get(field.name, field.default)
        flag = f"--{field.name.replace('_', '-')}"
        meaning = [", ".join(words.get(field.name, ())), comments.get(field.name, "")]
        table.add_row(flag, str(default), "; ".join(filter(None, meaning)))
    out.print(table)


@app.command()
def demo(
    out_folder: Annotated[Path, typer.Option("--out")] = Path("demo"),
    epochs: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Train on real images with wrong labels, find the wrong ones, write a report."""
    from .demo import run_demo

    run_demo(out_folder, epochs)


# ---- shared --------------------------------------------------------------------------------------


def _read(source: str, root: Path | None, *, drop: Any = None, **options: Any) -> readers.Source:
    """What a command was given, with lines on how it was read."""
    found = readers.read(source, data_root=root, drop=drop or (), **options)
    for note in found.notes:
        out.print(f"data: {note}")
    return found


def _inputs(source: str, root: Path | None, *others: Any) -> list[Path]:
    """What a command reads: of a named set the folder with its files."""
    named = [datasets.home(root)] if source in datasets.NAMES else []
    return [*named, *(Path(each) for each in (source, *others) if each)]


def _run_inputs(config: dict[str, Any]) -> list[Path]:
    """What a run was trained on."""
    keys = ("source", "test", "encoder", "data_root")
    source, test, encoder, root = (_from_start(config.get(key), config) for key in keys)
    return _inputs(source or "", Path(root) if root else None, test, encoder)


def _check_suffix(path: Path, suffix: str) -> None:
    """Refuse a file that could not be read as what it is called."""
    if path.suffix.lower() != suffix:
        raise BadInput(f"--out {path}: this writes {suffix[1:]} alone; call the file NAME{suffix}")


class _Bar:
    """A progress bar with the time left; in a file or a pipe a line for each tenth of the way."""

    def __enter__(self) -> _Bar:
        columns = (
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )  # fmt: skip
        self.bar = Progress(*columns, console=out, disable=not out.is_terminal)
        self.tasks: dict[str, Any] = {}
        self.bar.start()
        return self

    def show(self, record: Record) -> None:
        stage, epoch, epochs = record["stage"], record["epoch"], record["epochs"]
        trial = record.get("race")  # one line for all that are tried
        stage = f"trying {trial}" if trial else stage
        key = "race" if trial else stage
        if key not in self.tasks:
            self.tasks[key] = self.bar.add_task(stage, total=epochs, figures="")
        shown = {"loss": "loss", "val_accuracy": "noisy val", "test_accuracy": "test"}
        shown |= {"knn_accuracy": "k-NN", "linear_accuracy": "linear"}
        figures = "  ".join(f"{text} {record[k]:.3f}" for k, text in shown.items() if k in record)
        told: dict[str, Any] = {"description": stage, "total": epochs, "figures": figures}
        self.bar.update(self.tasks[key], completed=epoch, **told)
        tenth = epoch == epochs if trial else 10 * epoch // epochs > 10 * (epoch - 1) // epochs
        if self.bar.disable and tenth:
            out.print(f"{stage} {epoch}/{epochs}  {figures}")

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()


def _free_folder(root: Path, stem: str) -> Path:
    """The first folder of this name that does not exist yet."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def _stopped(how: str, code: int) -> int:
    out.print(f"{how}; the same command goes on from the last checkpoint (one in 30 s)")
    return code


def _terminated(*_: Any) -> None:
    out.print("stopped by SIGTERM; the last epoch is saved: the same command with --resume goes on")
    raise SystemExit(143)


def main() -> None:
    """Run a command; wrong input ends in one sentence and exit code 2."""
    try:
        if code := app(standalone_mode=False):  # what typer.Exit was raised with
            sys.exit(code)
    except BadInput as error:
        _fail(str(error), 2)
    except Diverged as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted; `fit` goes on from its last epoch with --resume", 130)
    except OSError as error:
        _fail(f"cannot use {error.filename or 'a file'}: {error.strerror or error}", 2)
    except Exception as error:
        if "click" not in type(error).__module__ and "typer" not in type(error).__module__:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]
            sys.exit(0)
        if hasattr(error, "format_message"):
            _fail(error.format_message(), getattr(error, "exit_code", 2))
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        parallel.leave()


def _fail(message: str, code: int) -> None:
    if not parallel.team().rank:
        print(f"ytilde: {message}", file=sys.stderr)
    sys.stdout.flush()
    os._exit(code) if code == 130 else sys.exit(code)
