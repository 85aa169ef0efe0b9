"""`ytilde demo`: real images, wrong labels, and what can be done about them, in a few minutes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadInput
from ..runfolder import ISSUES, REPORT
from .console import rich_console

if TYPE_CHECKING:
    from rich.console import Console

    from ..auditing import Audit
    from ..data import Data
    from ..engine import Record, Trainer
    from ..estimator import Classifier

# Chosen by clean test accuracy on this very task (one seed, these settings): elr .844, sop .820,
# gce .805, co_teaching .699, ln .691, ce .637; another order of summation alone moves these by .01.
# A choice for showing, not evidence of a ranking.
ROBUST = "elr"
NAMES = {"ce": "plain training", ROBUST: "robust training"}
SETTINGS: dict[str, Any] = {"backbone": "lenet5", "augment": "none", "random_state": 0}
SETTINGS["val"] = 0.0  # all rows to the last epoch, where learning by heart shows
EPOCHS = 30
FOLDS = 3
RATE = 0.4
MARK = "demo.json"  # the figures; a folder that holds it may be written again


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="folder to write")] = Path("demo"),
    epochs: Annotated[
        int | None, typer.Option(help=f"epochs per training; default: {EPOCHS}")
    ] = None,
) -> None:
    """Find the wrong labels of real images, and write a report.

    Takes a few minutes, and needs no download.
    """
    run_demo(out_folder, epochs)


def run_demo(out: Path, epochs: int | None = None) -> dict[str, float]:
    """Train twice on wrong labels, audit them, write report.html, issues.csv and demo.json.

    Returns the figures, measured against the truth that neither training nor the audit saw.
    """
    from .. import datasets
    from ..estimator import Classifier

    _check_folder(out)
    console = rich_console(markup=True, soft_wrap=False)
    began = time.perf_counter()
    train, test = (datasets.load("fashion-mnist-small", split=s) for s in ("train", "test"))
    data = _corrupt(train)
    _say_task(console, data)
    settings = SETTINGS | {"epochs": EPOCHS if epochs is None else epochs}
    fitted = {}
    for number, (method, name) in enumerate(NAMES.items(), 1):
        fitted[name] = clf = Classifier(method, **settings)
        _fit(console, f"({number}) {name}", clf, data, test)
    with _step(console, "(3) judging every label with a model that never saw it", FOLDS) as show:
        clf = fitted[NAMES[ROBUST]]  # the folds are fits of their own, with its settings
        found = clf.audit_data(data.without_clean(), folds=FOLDS, on_record=show)
    figures = _measure(fitted, found, data)
    figures["seconds"] = round(time.perf_counter() - began, 1)
    _write(out, fitted, found, data, figures)
    _say_results(console, out, figures)
    return figures


def _check_folder(out: Path) -> None:
    from ..outputs import check_outputs

    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file; give --out another folder")
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise BadInput(f"{out} is not empty and contains no demo; give --out another folder")
    outputs = {MARK: "demo", REPORT: "report", ISSUES: "issues"}
    check_outputs([(out / name, kind) for name, kind in outputs.items()])


def _corrupt(train: Data) -> Data:
    """40 % of the labels made wrong, in a way that depends on the picture."""
    from .. import noise
    from ..engine import Recipe

    generator = Recipe(seed=0).generator("noise")
    made = noise.instance(train.x, train.y, train.num_classes, rate=RATE, generator=generator)
    return replace(train, y=made.y, clean=train.y)


@contextmanager
def _step(console: Console, text: str, fits: int = 1) -> Iterator[Callable[[Record], None]]:
    """One line for a step of this many fits: its progress, then how long it took.

    Yields a function to call with every epoch's record. A file or a pipe gets a dot per tenth.
    """
    began, epochs = time.perf_counter(), 0

    def show(record: Record) -> None:
        nonlocal epochs
        epochs, total = epochs + 1, fits * record["epochs"]
        left = (time.perf_counter() - began) / epochs * (total - epochs)
        status.update(f"{text}: {epochs} of {total} epochs, about {left:.0f} s left")
        dots = 10 * epochs // total - 10 * (epochs - 1) // total
        if not console.is_terminal:
            console.print("." * dots, end="")
            console.file.flush()

    if not console.is_terminal:
        console.print(text, end=" ")
    with console.status(f"{text} ...") as status:
        yield show
    taken = f"{time.perf_counter() - began:.0f} s"
    console.print(f"{text}: {taken}" if console.is_terminal else f" {taken}")


def _fit(console: Console, text: str, clf: Classifier, data: Data, test: Data) -> None:
    def monitor(trainer: Trainer) -> Record:
        return {"test_accuracy": trainer.score(test)["accuracy"]}

    with _step(console, text) as show:
        clf.fit_data(data.without_clean(), monitor=monitor, on_record=show)


def _measure(fitted: dict[str, Classifier], found: Audit, data: Data) -> dict[str, float]:
    import numpy as np

    from .. import metrics

    assert data.clean is not None
    wrong = (data.y != data.clean).numpy()
    flagged = found.issues.is_label_issue.to_numpy()
    suggested = found.issues.predicted_label.to_numpy()
    p_wrong = found.issues.p_wrong.to_numpy()
    truth = np.array([data.class_name(k) for k in data.clean.tolist()], dtype=object)
    figures = {f"{name}: accuracy": clf.history_[-1]["test_accuracy"]
               for name, clf in fitted.items()}  # fmt: skip
    return figures | {
        "labels": len(data),
        "wrong": int(wrong.sum()),
        "estimated wrong": float(found.num_errors),
        "suspects": int(flagged.sum()),
        "precision": float(wrong[flagged].mean()) if flagged.any() else 0.0,
        "recall": float(flagged[wrong].mean()),
        "f1": metrics.f1(flagged, wrong),
        "suggestion right": float((suggested == truth)[flagged & wrong].mean())
        if (flagged & wrong).any()
        else 0.0,
        "labels right before": float(1 - wrong.mean()),
        "labels right after": float((suggested == truth).mean()),
        "calibration error": metrics.calibration_error(p_wrong, wrong, bins=10),
    }


def _write(
    out: Path, fitted: dict[str, Classifier], found: Audit, data: Data, figures: dict[str, float]
) -> None:
    from .. import metrics
    from ..auditing import ReportContext
    from ..files import write_text

    assert data.clean is not None
    wrong = (data.y != data.clean).numpy()
    plain, robust = NAMES.values()
    before, usual = (_percent(figures[k]) for k in ("labels right before", f"{plain}: accuracy"))
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / MARK, json.dumps(figures, indent=1))
    context = ReportContext(
        title="Which of these 6,000 labels are wrong?",
        method=ROBUST,
        images=data.x,
        features=found.context.features,
        history={name: clf.history_ for name, clf in fitted.items()},
        reliability=metrics.reliability(found.issues.p_wrong.to_numpy(), wrong, bins=10),
        measured={
            "labels that really are wrong": f"{figures['wrong']:,.0f}",
            "wrong labels that were found": _percent(figures["recall"]),
            "suspects that really are wrong": _percent(figures["precision"]),
            f"labels right once corrected ({before} before)": _percent(
                figures["labels right after"]
            ),
            f"test accuracy, {robust} ({usual} with {plain})": _percent(
                figures[f"{robust}: accuracy"]
            ),
        },
    )
    replace(found, context=context).to_html(out / REPORT)
    found.to_csv(out / ISSUES)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _say_task(console: Console, data: Data) -> None:
    assert data.clean is not None
    share = float((data.y != data.clean).float().mean())
    console.print(
        f"\n[bold]{len(data):,} photographs of clothes, {_percent(share)} of their labels wrong."
        "[/bold]\nWhich ones went wrong depends on the picture, as it does when people are misled "
        "by what they see. ytilde now (1) trains a network as usual, (2) trains the same network "
        "with a method that survives wrong labels, and (3) looks for the wrong labels. Nobody "
        "tells it which they are; the truth is only used to measure it afterwards.\n"
    )


def _say_results(console: Console, out: Path, figures: dict[str, float]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    plain, robust = NAMES.values()
    lines = {
        f"{plain}: accuracy": f"of 2,000 new pictures are recognised after {plain}",
        f"{robust}: accuracy": f"are recognised after {robust} ({ROBUST}), same network and labels",
        "recall": f"of the {figures['wrong']:,.0f} wrong labels were found",
        "precision": f"of the {figures['suspects']:,.0f} suspects really are wrong",
        "labels right before": "of the labels are right as they were given",
        "labels right after": "are right once every suspect gets the suggested label",
    }
    for key, text in lines.items():
        table.add_row(_percent(figures[key]), text)
    console.print()
    console.print(table)
    console.print(
        f"\n{figures['seconds']:.0f} seconds. [bold]Look at the wrong labels:[/bold]\n"
        f"  {escape(str(out))}/report.html   open it in a browser; it needs no network\n"
        f"  {escape(str(out))}/issues.csv    every label with its chance of being wrong\n"
        "\n[bold]Now with your own data[/bold] (csv, parquet, npz, or a folder of images):\n"
        "  ytilde fit data.csv --label COLUMN --out runs/mine\n"
        "  ytilde audit runs/mine\n",
        soft_wrap=True,
    )
