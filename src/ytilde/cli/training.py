"""A run, trained: what `ytilde fit` does, and `ytilde audit` of data before it judges."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .. import checkpoint, datasets
from ..budget import FORECAST, plan_fit
from ..data import BadInput, readers
from ..encoders.patches import encode, seen_shape
from ..engine import REFIT_FIELDS, default_recipe
from ..engine.recipe import check_held_out
from ..errors import unknown_name_message
from ..estimator import Classifier
from ..fitting import of_texts
from ..method import create
from ..runfolder import CONFIG, MODEL, PREDICTIONS, TEXT
from ..tuning import told_race
from ..versions import versions
from . import console
from .console import say
from .flags import parse_flags
from .options import FitOptions
from .predictions import write_predictions
from .reading import check_image_size, class_sizes, corrupt, input_paths, read_source, true_labels
from .runs import Run
from .stopping import GOES_ON, RESUME, stop_on_sigterm
from .summary import against_truth, say_summary, summarise
from .trained import load_encoder, run_schema

if TYPE_CHECKING:
    import numpy as np

    from ..data import Data
    from ..engine import Record, Trainer

TASKS = ("classification", "segmentation")


@dataclass(frozen=True)
class FitRequest:
    """What is to be trained, and where; words: the options of the method and of the recipe."""

    source: str
    options: FitOptions
    words: list[str]
    out_folder: Path | None
    force: bool
    votes: dict[str, str | None] | None  # their path, and their columns
    task: str | None = None


def train_run(
    asked: FitRequest,
    *,
    resume: bool = False,
    goes_on: bool = False,
    check: Callable[[readers.Source, Path], None] = lambda found, folder: None,
) -> tuple[Path, readers.Source]:
    """Train what was asked for; the folder of the run, and what it was trained on.

    resume: continue the run in asked.out_folder.
    goes_on: continue wherever this very run has begun, in a default folder too; Ctrl-C then leaves
        checkpoints and no model.
    check: may refuse the data, or the folder of the run, before anything is trained.
    """
    source, options, out_folder, voted = asked.source, asked.options, asked.out_folder, asked.votes
    method, auto = options.method, options.method == "auto"
    fields, settings = parse_flags(asked.words, method)
    made = method if auto else create(method, **fields)  # refuses a wrong field before reading
    seed = settings.pop("seed", 0)
    columns = ("label", "clean_label", "image_column", "drop")
    read = {name: getattr(options, name) for name in columns}
    if voted:
        read["label"] = None  # it is a column of the votes
    resume = resume or (goes_on and _has_run(out_folder) and not asked.force)
    begun = Run.config(out_folder) if resume and out_folder and _has_run(out_folder) else None
    if begun is None:
        check_held_out(settings)
    ids = "none" if begun and "id_column" not in begun else options.id_column  # 0.1: as features
    how: dict[str, Any] = {"strict": options.strict, "id_column": ids, "features": options.features}
    how["size"] = options.image_size
    beside = {"text_column": options.text_column, "group_column": options.group_column}
    if begun and out_folder:  # a run that continues is read as it was
        how["schema"] = run_schema(out_folder, begun)
    found = read_source(source, options.data_root, annotations=voted, **how, **beside, **read)
    data = found.data
    check_image_size(options.image_size, data, source)
    if voted and method != "crowd":
        say(f"note: {method} trains on the consensus; --method crowd learns from the votes")
    if data.y.dim() == 1:
        say(f"data: {class_sizes(data)}")
    _check_task(asked.task, data, source)
    seen = read | {"features": options.features}
    test_data = _test_data(source, options.test, options.data_root, data.names, found.schema, seen)
    settings |= _as_begun(begun, settings)
    encoder, digest = load_encoder(options.encoder)
    network, settings = _network(options, data, made, settings, encoder, begun)
    shape = seen_shape(network, data.shape)
    kind = {"pixels": data.y.dim() > 1, "texts": of_texts(data)}
    kind["early_stopping"] = isinstance(made, str) or made.early_stopping
    recipe = default_recipe(shape, len(data), **kind, seed=seed, **settings)
    corrupted, noise_summary = corrupt(data, options.noise, recipe)
    config = {
        "source": source, "data_root": str(options.data_root) if options.data_root else None,
        **read, "id_column": options.id_column, **beside,
        "test": options.test, "noise": options.noise, "method": method, "fields": fields,
        "backbone": options.backbone, "network": network, "recipe": dataclasses.asdict(recipe),
        "encoder": str(options.encoder) if options.encoder else None, "pretrain": options.pretrain,
        "encoder_digest": digest,
        "fingerprint": found.fingerprint, "schema": found.schema.to_json(),
        "classes": list(data.names or ()), "versions": versions(),
        "realised_noise": noise_summary, "started_in": str(Path.cwd()),
    }  # fmt: skip
    config |= {"annotations": voted} if voted else {}
    config |= {"features": options.features} if options.features else {}
    config |= {"image_size": options.image_size} if options.image_size else {}
    folder = out_folder or default_folder(
        f"{readers.table_stem(Path(source))}-{method}", goes_on and config
    )
    check(found, folder)
    # --force is for outputs that exist too: this same run is not trained again for them
    resume = resume or (goes_on and Run.is_of(folder, config))
    paths = [value for value in fields.values() if isinstance(value, str)]
    paths += [
        word.removeprefix("weights=") for word in options.backbone.replace(":", ",").split(",")
    ]
    paths += [str(voted["path"])] if voted else []
    paths += [options.features] if options.features else []
    inputs = input_paths(source, options.data_root, options.test, options.encoder, *paths)
    with Run.open(folder, config, resume=resume, force=asked.force, inputs=inputs) as run:
        if found.schema.tfidf and not (folder / TEXT).exists():
            checkpoint.save(folder / TEXT, found.schema.tfidf.tensors(), {"kind": "text"})
        stop_on_sigterm(GOES_ON if goes_on else RESUME)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        own = {name: getattr(recipe, name) for name in REFIT_FIELDS}
        own |= {"encoder": options.encoder, "pretrain": options.pretrain}
        clf = Classifier(made, network, random_state=seed, **own)
        answers: dict[str, np.ndarray] = {}
        with console.Bar() as bar:

            def on_record(record: Record) -> None:
                if "race" not in record:
                    run.log(record)
                bar.show(record)

            in_file = options.features and not found.schema.features
            of_table = found.schema.columns or found.schema.image_column or found.schema.features
            try:
                trainer = clf.fit_data(
                    corrupted,
                    recipe=recipe,
                    schema=found.schema if of_table and not in_file else None,
                    encoder=encoder,
                    answers=answers,
                    folder=folder,
                    resume=resume,
                    monitor=_monitor(clf, test_data),
                    on_record=on_record,
                    on_step=bar.step,
                )
            except KeyboardInterrupt:
                if goes_on:
                    raise
                say(f"Interrupted before a model existed; {RESUME}")
                raise typer.Exit(130) from None
        if trainer is None and goes_on:
            raise KeyboardInterrupt
        if auto:
            say(f"note: {clf.method_.name} with {clf.backbone_} chosen; {told_race(clf.race_)}")
        for note in trainer.notes if trainer else []:
            say(f"note: {note}")
        clf.save(folder / MODEL, force=True)
        keep = clf.recipe_.keep if trainer else "last"  # what Ctrl-C leaves
        summary = summarise(clf.history_, keep) | {"backbone": clf.backbone_}
        found = dataclasses.replace(found, data=corrupted)
        if answers:
            probs, unreadable_rows = answers["probs"], answers["unreadable_rows"]
            write_predictions(folder / PREDICTIONS, found, clf.classes_, probs, unreadable_rows)
            summary |= against_truth(corrupted, probs, unreadable_rows)
        run.finish(summary)
    last = "" if goes_on else "audit"
    say_summary(clf.method_.name, summary, corrupted, noise_summary, folder, last)
    if trainer is None:
        say(f"Interrupted; {RESUME}")
        raise typer.Exit(130)
    return folder, found


def _network(
    options: FitOptions,
    data: Data,
    method: Any,
    settings: dict[str, Any],
    encoder: Any,
    begun: dict[str, Any] | None,
) -> tuple[str, dict[str, Any]]:
    """The network to train, and the recipe's settings; a run that continues keeps its own.

    On a CPU it says how long that will take, and what it chose where the choice was left to it.
    """
    if begun is not None:
        recipe = begun.get("recipe")
        precision = recipe.get("precision") if isinstance(recipe, dict) else None
        same = begun.get("backbone") == options.backbone
        network = begun.get("network", options.backbone) if same else options.backbone
        return network, {"precision": precision} | settings
    plan = plan_fit(data, method, options.backbone, settings, encoder, options.pretrain)
    if plan is None:
        return options.backbone, settings
    if plan.chosen or plan.seconds >= FORECAST:
        say(plan.sentence)
    return plan.backbone, settings | ({"precision": plan.precision} if plan.chosen else {})


def default_folder(stem: str, config: Any = None) -> Path:
    """The first folder of this name in runs/ that does not exist yet, or where this config's run
    has begun."""
    for number in count(1):
        folder = Path("runs") / f"{stem}-{number}"
        if not folder.exists() or (config and _has_run(folder) and Run.is_of(folder, config)):
            return folder
    raise AssertionError


def _has_run(folder: Path | None) -> bool:
    return folder is not None and (folder / CONFIG).exists()


def _as_begun(begun: dict[str, Any] | None, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run that continues holds out, where it is not said: 0.1 held out a tenth always."""
    recipe = begun.get("recipe") if begun else None
    if "val" in settings or not isinstance(recipe, dict) or "val" not in recipe:
        return {}
    return {"val": recipe["val"]}


def _check_task(task: str | None, data: Data, source: str) -> None:
    if task not in (None, *TASKS):
        raise BadInput(unknown_name_message("task", task, TASKS))
    if task and (task == "segmentation") != (data.y.dim() > 1):
        raise BadInput(f"--task {task} does not fit the labels of {source}")


def _test_data(
    source: str, test: str | None, root: Path | None, names: Any, schema: Any, read: dict[str, Any]
) -> Data | None:
    """The test data with its true labels: what --test names, or a named set's own test split."""
    if test:
        data = read_source(test, root, names=names, schema=schema, **read).data
    elif source in datasets.NAMES and not read["features"]:
        data = readers.read(source, data_root=root, split="test").data
    else:
        return None
    return dataclasses.replace(data, y=true_labels(data))


def _monitor(clf: Classifier, data: Data | None) -> Any:
    """Test figures for the record of an epoch; training never sees them."""

    @cache
    def seen() -> Data:  # as the method sees it, made once
        assert data is not None
        return data if clf.encoder_ is None else encode(clf.encoder_, data, clf.recipe_)

    def measure(trainer: Trainer) -> Record:
        return {f"test_{name}": value for name, value in trainer.score(seen()).items()}

    return None if data is None else measure
