"""`ytilde embed`: pictures or texts as the vectors of a pretrained model."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..archives import real_file
from ..errors import BadInput, plural, shorten_list
from .console import Bar, say
from .options import DATA, METHOD, OUTPUT, DataRoot, Force, IdColumn, ImageColumn, Source

if TYPE_CHECKING:
    from ..encoders.embed import Reader
from .stopping import work_folder


def embed(
    source: Source,
    model: Annotated[
        str,
        typer.Option(
            help="folder of a model, or its name on the Hugging Face hub, e.g. "
            "facebook/dinov2-small",
            rich_help_panel=METHOD,
        ),
    ],
    out_file: Annotated[
        Path, typer.Option("--out", help="parquet file to write", rich_help_panel=OUTPUT)
    ] = Path("embeddings.parquet"),
    text: Annotated[
        str | None, typer.Option(help="column of texts to embed", rich_help_panel=DATA)
    ] = None,
    image_column: ImageColumn = None,
    id_column: IdColumn = None,
    split: Annotated[
        str, typer.Option(help="split of a named set", rich_help_panel=DATA)
    ] = "train",
    data_root: DataRoot = None,
    batch_size: Annotated[
        int, typer.Option(help="rows that the model takes at once", min=1, rich_help_panel=METHOD)
    ] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=METHOD)] = "auto",
    force: Force = False,
) -> None:
    """Embed pictures or texts with a pretrained model (Hugging Face transformers).

    For `fit`, `audit`, `diagnose` and `predict --features`. Run the same command to continue one
    that was stopped.
    """
    from ..data.readers import TABLES
    from ..encoders.embed import embed as embed_rows
    from ..encoders.embed import write_embeddings
    from ..encoders.pretrained import Pretrained
    from ..engine.device import choose_device
    from ..files import is_stream
    from ..outputs import check_outputs
    from ..runfolder import RunFolder
    from .reading import check_suffix, input_paths

    check_outputs([(out_file, "embeddings")], input_paths(source, data_root, model), force)
    check_suffix(out_file, ".parquet")
    if is_stream(out_file):
        raise BadInput(
            f"cannot write {out_file}: its parts are kept beside it, so give a regular file"
        )
    _check_pyarrow()
    if text is not None and Path(source).suffix.lower() not in TABLES:
        raise BadInput(f"--text names a column of a table, and {source} is none")
    items = (
        _texts(source, text, id_column)
        if text is not None
        else _pictures(source, image_column, id_column, split, data_root)
    )
    rows = items.rows
    check_outputs([(out_file, "embeddings")], items.paths, force)
    made = Pretrained(model, choose_device(device))
    made.check_texts() if text is not None else made.check_pictures()
    say(f"{plural(rows, 'text' if text else 'picture')}, {made.kind} on {made.device}")
    with work_folder(out_file, "the last part") as work, Bar() as bar:

        def on_rows(done: int, of: int) -> None:
            bar.show({"stage": "embedding", "epoch": done, "epochs": of})

        found = embed_rows(
            items.read, rows, made, work, [source, text, items.names, items.state],
            pictures=text is None, batch_size=batch_size, on_rows=on_rows,
        )  # fmt: skip
    write_embeddings(out_file, items.names, found, {"model": model, "digest": made.digest})
    RunFolder(work).remove()
    if found.kept:
        say(f"note: {plural(found.kept, 'row')} had been embedded before")
    if found.missing:
        why = "empty text" if text else "unreadable picture"
        rows_without = plural(len(found.missing), "row")
        say(f"note: no embedding for {rows_without} ({why}); `fit` leaves them out")
    if made.filled:
        say(
            f"note: {plural(made.filled, 'text')} cut after {made.tokens} tokens, the model's limit"
        )
    say(f"written: {out_file}, {found.x.shape[1]} numbers a row")
    column = f" --image-column {quote(image_column)}" if image_column else ""
    say(f"next: ytilde audit {quote(source)}{column} --features {quote(str(out_file))}")


class Items(NamedTuple):
    """What is embedded: how to read a row, how many there are, their names; the files that were
    read, and what shows that they have not changed since."""

    read: Reader
    rows: int
    names: dict[str, Any]
    paths: list[str]
    state: Any


def _texts(source: str, column: str, id_column: str | None) -> Items:
    from ..data.ids import NONE, find_ids
    from ..data.readers import file_texts
    from ..encoders.embed import text_reader
    from ..files import check_no_stream

    path = Path(source)
    check_no_stream(path)
    if not path.is_file():
        raise BadInput(f"There is no file {source!r}.")
    frame = file_texts(path, None, None)
    for name in (column, id_column):
        if name not in (None, NONE, *frame.columns):
            raise BadInput(
                f"There is no column {name!r} in {source}; its columns: "
                f"{shorten_list(frame.columns, 20)}."
            )
    ids = [id_column] if id_column else find_ids(frame.drop(columns=column), all_may_be=True)
    names = {"id": frame[ids[0]].tolist()} if ids and ids[0] != NONE else {}
    texts = frame[column].tolist()
    if not texts:
        raise BadInput(f"There are no rows in {source}.")
    names = names or {"index": list(range(len(texts)))}
    return Items(text_reader(texts), len(texts), names, [], texts)


def _pictures(
    source: str,
    image_column: str | None,
    id_column: str | None,
    split: str,
    data_root: Path | None,
) -> Items:
    from ..auditing.items import picture_of
    from ..data.readers import TABLES, relative_name
    from ..encoders.embed import file_reader
    from .reading import read_source

    options: dict[str, Any] = {"labelled": False, "strict": False, "lazy": True, "split": split}
    options |= {"image_column": image_column, "id_column": id_column}
    try:
        found = read_source(source, data_root, **options)
    except BadInput as error:
        if Path(source).suffix.lower() not in TABLES:
            raise
        raise BadInput(f"{error} To embed texts, name their column with --text.") from error
    if len(found.data.shape) != 3:
        raise BadInput(
            f"{source} holds no pictures; name its column of texts with --text, or give its "
            "numbers to `ytilde fit` as they are"
        )
    rows = len(found.data)
    names: dict[str, Any] = {} if found.ids is None else {"id": found.ids}
    if found.paths is None:
        x = found.data.x
        names = names or {"index": list(range(rows))}
        return Items(lambda row: picture_of(x, row), rows, names, [], found.fingerprint)
    root = Path(source) if Path(source).is_dir() else Path(source).parent
    names["path"] = [relative_name(path, root) for path in found.paths]
    state = [_file_state(path) for path in found.paths]
    return Items(file_reader(found.paths), rows, names, found.paths, state)


def _file_state(path: str) -> list[int]:
    try:
        status = os.stat(real_file(path))
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def _check_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise BadInput("embed writes parquet: pip install 'ytilde[embed]'") from error
