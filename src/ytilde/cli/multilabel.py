"""`ytilde audit` of probabilities where rows may have several labels."""

from __future__ import annotations

from pathlib import Path

from ..auditing.multilabel import audit_multilabel
from ..data.readers import read_multilabel
from ..files import write_csv
from ..runfolder import AUDIT, CONFIG, ISSUES, REPORT, ROWS
from .console import say
from .runs import Run
from .summary import say_audit
from .trained import audit_config
from .training import default_folder


def audit_matrix(
    source: str,
    pattern: str,
    label: str,
    id_column: str | None,
    out_folder: Path | None,
    force: bool,
) -> None:
    """Judge every entry of a label matrix; the folder becomes a run's."""
    found = read_multilabel(source, pattern, label, id_column)
    for note in found.notes:
        say(f"data: {note}")
    made = audit_multilabel(found.probs, found.labels, names=found.names)
    result = type(made)(**{**vars(made), "ids": found.ids, "texts": found.texts})
    asked = {"label": label, "id_column": id_column, "probabilities": pattern, "multilabel": True}
    config = audit_config(source, asked, found.fingerprint, found.names)
    folder = out_folder or default_folder(f"{Path(source).stem}-audit", config)
    again = (folder / CONFIG).exists() and not force
    with Run.open(folder, config, resume=again, force=force, inputs=[Path(source)]):
        result.to_csv(folder / ISSUES, force=True)
        rows = result.rows
        if found.ids is not None:
            rows.insert(1, "id", found.ids)
        write_csv(folder / ROWS, rows.sort_values("p_any_wrong", ascending=False, kind="stable"))
        result.to_json(folder / AUDIT, force=True)
        result.to_html(folder / REPORT, force=True, title=str(source))
    say_audit(result, [folder / name for name in (ISSUES, ROWS, REPORT)])
