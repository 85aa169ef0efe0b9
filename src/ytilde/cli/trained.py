"""What commands do with a trained run: load it, and read again what it was trained on."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any

from .. import __version__, checkpoint
from ..auditing.review import given_votes
from ..data import BadInput, readers
from ..data.ids import NONE
from ..data.tfidf import TfIdf
from ..data.votes import Votes
from ..encoders.encoder import Encoder
from ..engine import Recipe
from ..estimator import Classifier
from ..hashing import hash_of
from ..runfolder import MODEL, TEXT
from ..versions import versions
from .annotated import read_annotated, row_votes
from .console import say
from .reading import corrupt, input_paths
from .runs import Run


def load_model(run: Path) -> tuple[Classifier, dict[str, Any]]:
    """The classifier of a run folder with the run's config, or of a model file with none."""
    if not run.is_dir():
        return Classifier.load(run), {}
    config = load_config(run)
    if config.get("probabilities"):
        raise BadInput(f"{run} audits probabilities that were made elsewhere; it has no model")
    if not (run / MODEL).exists():
        raise BadInput(
            f"{run} is unfinished and has no model yet; run the command that started it again "
            "(`fit` with --resume)"
        )
    clf = Classifier.load(run / MODEL)
    clf.encoder = from_start(clf.encoder, config)
    return clf, config


def load_config(run: Path) -> dict[str, Any]:
    """The config of a run; refused if another version of ytilde wrote it in another form."""
    config = Run.config(run)
    if config.get("multilabel"):
        raise BadInput(f"{run} audits several labels per row; see its issues.csv")
    try:
        for key in ("source", "data_root", "label", "clean_label", "image_column", "noise"):
            config[key]
        if not config.get("probabilities"):
            Recipe(**config["recipe"]), schema_of(config)
        config["fingerprint"]
    except (KeyError, TypeError) as error:
        by = config.get("versions", {}).get("ytilde", "another version")
        raise BadInput(
            f"{run} was made by ytilde {by}, and this is {__version__}: {error}; fit it again"
        ) from error
    return config


def schema_of(config: dict[str, Any]) -> readers.Schema | None:
    return readers.Schema(**config["schema"]) if config.get("schema") else None


def run_schema(run: Path, config: dict[str, Any]) -> readers.Schema | None:
    """How a run's table is read, exactly; None: it has no table, and the source says how."""
    schema = schema_of(config)
    if schema is None or not schema.columns:
        return None
    if schema.text_column is None:
        return schema
    if not (run / TEXT).exists():  # stopped before it was written
        return None
    try:
        return replace(schema, tfidf=TfIdf.from_tensors(checkpoint.load(run / TEXT)[0]))
    except (KeyError, ValueError) as error:
        raise BadInput(f"{run / TEXT} cannot be read ({error}); fit the run again") from error


def training_data(run: Path, config: dict[str, Any]) -> readers.Source:
    """What a run was trained on, with the labels it saw; or the probabilities that it audits."""
    source, pattern = from_start(config["source"], config), config.get("probabilities")
    ids = config.get("id_column", NONE)  # runs of 0.1 had ids among their features
    options: dict[str, Any] = {
        "data_root": from_start(config["data_root"], config),
        "drop": config.get("drop") or (),
        "id_column": ids,
        "features": from_start(config.get("features"), config),
        "size": config.get("image_size"),
        "group_column": config.get("group_column"),
        **{key: config[key] for key in ("clean_label", "image_column")},
    }
    assert source is not None
    if not pattern:
        options["schema"] = run_schema(run, config)
    if pattern:
        found = readers.read_probabilities(source, pattern, label=config["label"], id_column=ids)
    elif votes := config.get("annotations"):
        votes = votes | {"path": from_start(votes["path"], config)}
        found = read_annotated(source, votes, **options, strict=False)
    else:
        found = readers.read(source, **options, label=config["label"])
    if found.fingerprint != config["fingerprint"]:
        then, again = ("audited", "audit") if pattern else ("trained", "fit")
        raise BadInput(f"{config['source']} has changed since {run} was {then}; {again} it again")
    if pattern:
        return found
    data, _ = corrupt(found.data, config["noise"], Recipe(**config["recipe"]))
    return replace(found, data=data)


def training_votes(found: readers.Source, config: dict[str, Any]) -> Votes:
    """The votes on what a run was trained on; one label a row is a vote too."""
    if votes := config.get("annotations"):
        votes = votes | {"path": from_start(votes["path"], config)}
        return row_votes(found, votes, config["source"])
    names = found.ids or [str(row) for row in range(len(found.data))]
    return given_votes(found.data, names)


def run_inputs(config: dict[str, Any]) -> list[Path]:
    """The files that a run was trained on."""
    keys = ("source", "test", "encoder", "data_root")
    source, test, encoder, root = (from_start(config.get(key), config) for key in keys)
    votes = from_start((config.get("annotations") or {}).get("path"), config)
    seen = from_start(config.get("features"), config)
    return input_paths(source or "", Path(root) if root else None, test, encoder, votes, seen)


def load_encoder(path: str | Path | None) -> tuple[Encoder | None, str | None]:
    """An encoder and the digest of its content, by which a run knows it again."""
    encoder = None if path is None else Encoder.load(path)
    return encoder, None if encoder is None else hash_of(encoder.weights)


def same_encoder(run: Path, path: Any, config: dict[str, Any]) -> Encoder | None:
    """The encoder that a run started from, refused where it has changed since."""
    then = config.get("encoder_digest")
    encoder, digest = load_encoder(path) if then else (None, None)
    if digest != then:
        raise BadInput(f"{path} has changed since {run} was trained; fit it again")
    return encoder


def from_start(path: Any, config: dict[str, Any]) -> str | None:
    """A path of a run that is not here, as it was seen from where the run was started."""
    there = Path(config.get("started_in", ".")) / (path or "")
    return path if path is None or Path(path).exists() or not there.exists() else str(there)


def audit_config(
    source: str, asked: dict[str, Any], fingerprint: str | None, classes: list[str]
) -> dict[str, Any]:
    """The config of a run that audits probabilities made elsewhere."""
    absent = dict.fromkeys(("data_root", "clean_label", "image_column", "noise"))
    return {
        "source": source, **absent, **asked, "fingerprint": fingerprint, "classes": classes,
        "versions": versions(), "started_in": str(Path.cwd()),
    }  # fmt: skip


def say_relabel(config: dict[str, Any], labels: Path) -> None:
    """How the table itself gets its new labels."""
    source = Path(str(from_start(config["source"], config)))
    has_labels = not config["noise"] and not config.get("annotations")
    if (kind := readers.table_kind(source)) in readers.TABLES and has_labels:
        label = f" --label {quote(config['label'])}" if config["label"] else ""
        stem = f"{readers.table_stem(source)}-fixed"
        names = (f"{stem}{f'-{number}' if number > 1 else ''}{kind}" for number in count(1))
        # beside it: image paths may be relative
        fixed = next(path for path in map(source.with_name, names) if not path.exists())
        words = f"{quote(str(source))} {quote(str(labels))}{label} --out {quote(str(fixed))}"
        say(f"next: ytilde relabel {words}")
