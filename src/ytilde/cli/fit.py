"""`ytilde fit`: train a method into a run folder."""

from __future__ import annotations

import dataclasses
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadInput, unknown_name_message
from . import console
from .console import say
from .flags import method_help, parse_flags, recipe_help, refuse_mistyped
from .options import (
    DATA,
    METHOD,
    OUTPUT,
    TRAINING,
    Annotations,
    Annotator,
    Backbone,
    CleanLabel,
    DataRoot,
    Drop,
    GroupedCommand,
    IdColumn,
    ImageColumn,
    Item,
    Label,
    Noise,
    Source,
)

if TYPE_CHECKING:
    import numpy as np

    from ..data import Data
    from ..engine import Record, Trainer

TASKS = ("classification", "segmentation")
RESUME = "run the same command with --resume to continue"


class FitCommand(GroupedCommand):
    """Help with the recipe's flags, and with the method's own where the line names a method."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def add_fields(self, ctx: Any, groups: dict[str, list[tuple[str, str]]]) -> None:
        words = ctx.meta.get("words", [])
        pairs = pairwise(words)
        named = [word.partition("=")[2] for word in words if word.startswith("--method=")]
        named += [value for flag, value in pairs if flag == "--method"]
        if named and named[-1] != "auto":
            groups[METHOD] += method_help(named[-1])
        else:
            own = "list the options that this method has of its own"
            groups[METHOD].append(("--method NAME --help", own))
        groups[TRAINING] += recipe_help()


def fit(
    ctx: typer.Context,
    source: Source,
    label: Label = None,
    clean_label: CleanLabel = None,
    image_column: ImageColumn = None,
    drop: Drop = None,
    id_column: IdColumn = None,
    test: Annotated[
        str | None,
        typer.Option(help="test data, for evaluation only, never trained on", rich_help_panel=DATA),
    ] = None,
    annotations: Annotations = None,
    item: Item = None,
    annotator: Annotator = None,
    noise_text: Noise = None,
    task: Annotated[
        str | None, typer.Option(help="classification or segmentation", rich_help_panel=DATA)
    ] = None,
    data_root: DataRoot = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="refuse unreadable images", rich_help_panel=DATA)
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            help="see `ytilde methods`; auto tries a short list and keeps the best",
            rich_help_panel=METHOD,
        ),
    ] = "elr",
    backbone: Backbone = "auto",
    encoder: Annotated[
        Path | None,
        typer.Option(
            help="encoder to start the networks from, made by `ytilde pretrain`",
            rich_help_panel=METHOD,
        ),
    ] = None,
    pretrain: Annotated[
        str | None,
        typer.Option(
            help="make such an encoder first: simclr[:epochs=100,...]", rich_help_panel=METHOD
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="continue an unfinished run", rich_help_panel=TRAINING),
    ] = False,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="run folder; default: a new one in runs/", rich_help_panel=OUTPUT
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace an existing run", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train a method on data whose labels may be wrong.

    A method's fields and the recipe's are options too: --tau 0.5 --epochs 30 --seed 1.
    """
    auto = method == "auto"  # plain training has no fields, and neither has a choice
    named = "ce" if auto else method
    if os.environ.get("WORLD_SIZE", "1") == "1":  # of many processes one speaks, see below
        refuse_mistyped(ctx.args, named)

    from .. import parallel
    from ..engine import REFIT_FIELDS, default_recipe
    from ..estimator import Classifier
    from ..method import create
    from ..runfolder import MODEL, PREDICTIONS
    from ..versions import versions
    from .predictions import write_predictions
    from .reading import class_sizes, corrupt, input_paths, read_source
    from .runs import Run
    from .summary import against_truth, say_summary, summarise
    from .trained import load_encoder

    console.quiet = parallel.join().rank > 0
    ctx.call_on_close(parallel.leave)
    fields, settings = parse_flags(ctx.args, named)
    made = method if auto else create(method, **fields)  # refuses a wrong field before reading
    seed = settings.pop("seed", 0)
    read = {"label": label, "clean_label": clean_label, "image_column": image_column, "drop": drop}
    begun = _begun(out_folder) if resume else None
    ids = "none" if begun and "id_column" not in begun else id_column  # 0.1 had ids as features
    voted = _annotations(annotations, item, annotator, label, noise_text)
    if voted:  # --label is then a column of the votes
        read["label"] = None
    found = read_source(source, data_root, strict=strict, id_column=ids, annotations=voted, **read)
    data = found.data
    if voted and method != "crowd":
        say(f"note: {method} trains on the consensus; --method crowd learns from the votes")
    if data.y.dim() == 1:
        say(f"data: {class_sizes(data)}")
    _check_task(task, data, source)
    test_data = _test_data(source, test, data_root, data.names, found.schema, read)
    settings |= _as_begun(begun, settings)
    recipe = default_recipe(data.shape, len(data), data.y.dim() > 1, seed=seed, **settings)
    corrupted, noise_summary = corrupt(data, noise_text, recipe)
    loaded, digest = load_encoder(encoder)
    config = {
        "source": source, "data_root": str(data_root) if data_root else None, **read,
        "id_column": id_column,
        "test": test, "noise": noise_text, "method": method, "fields": fields,
        "backbone": backbone, "recipe": dataclasses.asdict(recipe),
        "encoder": str(encoder) if encoder else None, "pretrain": pretrain,
        "encoder_digest": digest,
        "fingerprint": found.fingerprint, "schema": dataclasses.asdict(found.schema),
        "classes": list(data.names or ()), "versions": versions(),
        "realised_noise": noise_summary, "started_in": str(Path.cwd()),
    }  # fmt: skip
    config |= {"annotations": voted} if voted else {}
    folder = out_folder or _free_folder(Path("runs"), f"{Path(source).stem}-{method}")
    paths = [value for value in fields.values() if isinstance(value, str)]
    paths += [word.removeprefix("weights=") for word in backbone.replace(":", ",").split(",")]
    inputs = input_paths(source, data_root, test, encoder, annotations, *paths)
    with Run.open(folder, config, resume=resume, force=force, inputs=inputs) as run:
        signal.signal(signal.SIGTERM, _terminated)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        own = {name: getattr(recipe, name) for name in REFIT_FIELDS}
        own |= {"encoder": encoder, "pretrain": pretrain}
        clf = Classifier(made, backbone, random_state=seed, **own)
        answers: dict[str, np.ndarray] = {}
        with console.Bar() as bar:

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
                    encoder=loaded,
                    answers=answers,
                    folder=folder,
                    resume=resume,
                    monitor=_monitor(test_data),
                    on_record=on_record,
                )
            except KeyboardInterrupt:
                say(f"Interrupted before a model existed; {RESUME}")
                raise typer.Exit(130) from None
        if auto:
            count, name = len({line["method"] for line in clf.race_}), clf.method_.name
            say(f"note: {name} chosen from {count} methods by noisy validation accuracy")
        for note in trainer.notes if trainer else []:
            say(f"note: {note}")
        clf.save(folder / MODEL, force=True)
        keep = recipe.keep if trainer else "last"  # what Ctrl-C leaves
        summary = summarise(clf.history_, keep) | {"backbone": clf.backbone_}
        if answers:
            found = dataclasses.replace(found, data=corrupted)
            probs, unreadable_rows = answers["probs"], answers["unreadable_rows"]
            write_predictions(folder / PREDICTIONS, found, clf.classes_, probs, unreadable_rows)
            summary |= against_truth(corrupted, probs.argmax(-1), unreadable_rows)
        run.finish(summary)
    say_summary(clf.method_.name, summary, corrupted, noise_summary, folder)
    if trainer is None:
        say(f"Interrupted; {RESUME}")
        raise typer.Exit(130)


def _begun(folder: Path | None) -> dict[str, Any] | None:
    """The config of the run that is to be continued, where there is one."""
    from ..runfolder import CONFIG
    from .runs import Run

    return Run.config(folder) if folder and (folder / CONFIG).exists() else None


def _as_begun(begun: dict[str, Any] | None, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run that continues holds out, where it is not said: 0.1 held out a tenth always."""
    recipe = begun.get("recipe") if begun else None
    if "val" in settings or not isinstance(recipe, dict) or "val" not in recipe:
        return {}
    return {"val": recipe["val"]}


def _annotations(
    path: Path | None, item: str | None, annotator: str | None, label: str | None, noise: str | None
) -> dict[str, str | None] | None:
    """Where the votes are, as a run remembers it."""
    if path is None:
        if item or annotator:
            raise BadInput("--item and --annotator are columns of the votes; give --annotations")
        return None
    if noise:
        raise BadInput("--noise corrupts one label a row; votes are wrong enough, leave it out")
    return {"path": str(path), "item": item, "annotator": annotator, "label": label}


def _check_task(task: str | None, data: Data, source: str) -> None:
    if task not in (None, *TASKS):
        raise BadInput(unknown_name_message("task", task, TASKS))
    if task and (task == "segmentation") != (data.y.dim() > 1):
        raise BadInput(f"--task {task} does not fit the labels of {source}")


def _test_data(
    source: str, test: str | None, root: Path | None, names: Any, schema: Any, read: dict[str, Any]
) -> Data | None:
    """The test data with its true labels: what --test names, or a named set's own test split."""
    from .. import datasets
    from ..data import readers
    from .reading import read_source, true_labels

    if test:
        data = read_source(test, root, names=names, schema=schema, **read).data
    elif source in datasets.NAMES:
        data = readers.read(source, data_root=root, split="test").data
    else:
        return None
    return dataclasses.replace(data, y=true_labels(data))


def _monitor(data: Data | None) -> Any:
    """Test figures for the record of an epoch; training never sees them."""

    def measure(trainer: Trainer) -> Record:
        assert data is not None
        return {f"test_{name}": value for name, value in trainer.score(data).items()}

    return None if data is None else measure


def _free_folder(root: Path, stem: str) -> Path:
    """The first folder of this name that does not exist yet."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def _terminated(*_: Any) -> None:
    say(f"Stopped by SIGTERM; the last epoch is saved: {RESUME}")
    raise SystemExit(143)
