"""What a fit leaves behind as figures: summary.json, and the lines at its end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import NDArray

from ..data import IGNORE, Data, plural
from ..engine import Record
from ..engine.protocols import KEEP, PROTOCOLS, best_epoch, protocols
from ..runfolder import METRICS, MODEL, PREDICTIONS
from .console import make_table, say, show
from .reading import say_noise


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


def against_truth(data: Data, probs: NDArray[Any], unreadable_rows: NDArray[Any]) -> dict[str, Any]:
    """How many given and predicted labels of the training rows are right, where the truth is known.

    For evaluation only, after training.
    """
    if data.clean is None:
        return {}
    y, clean = data.y.numpy(), data.clean.numpy()
    known = (clean != IGNORE) & ~unreadable_rows
    right = {"given": y == clean, "predicted": probs.argmax(-1) == clean}
    shares = {f"train_{name}_right": float(hit[known].mean()) for name, hit in right.items()}
    return {"train_truth_known": int(known.sum()), **shares} if known.any() else {}


def say_audit(result: Any, written: Iterable[Path] = ()) -> None:
    """The lines at the end of an audit: what it found, what to know about it, its files."""
    say(result.summary())
    for note in result.notes:
        say(f"note: {note}")
    if paths := ", ".join(map(str, written)):
        say(f"written: {paths}")


def say_summary(
    method: str,
    summary: dict[str, Any],
    data: Data,
    noise_summary: dict[str, Any],
    folder: Path,
    following: str = "audit",
) -> None:
    """The lines at the end of a fit; data: as it was trained on; following: command to advise."""
    say(_what_was_done(method, len(data), summary))
    say_noise(noise_summary, len(data))
    _show_accuracies(summary)
    if rows := summary.get("train_truth_known"):
        given, predicted = (summary[f"train_{name}_right"] for name in ("given", "predicted"))
        say(
            f"of {rows} training rows with known true labels, {100 * given:.1f} % of the given "
            f"and {100 * predicted:.1f} % of the predicted labels are right"
        )
    predictions = f", {PREDICTIONS}" if data.y.dim() == 1 else ""
    say(f"run folder: {folder}  ({MODEL}, {METRICS}{predictions})")
    if _at_chance(summary, data):
        say(
            "warning: by this accuracy the model is no better than always predicting the largest "
            "class; train longer (--epochs), or check that the features are informative"
        )
    elif data.y.dim() == 1 and following:
        say(f"next: ytilde {following} {quote(str(folder))}")


def _what_was_done(method: str, rows: int, summary: dict[str, Any]) -> str:
    text = f"{method} with {summary['backbone']} on {rows} rows: "
    text += f"{plural(summary['epochs'], 'epoch')} in {summary['seconds']:.1f} s"
    if "val_accuracy" in summary:
        text += f", noisy validation accuracy {100 * summary['val_accuracy']:.2f} %"
    if "kept_epoch" in summary:
        text += f" in epoch {summary['kept_epoch']}, which is kept"
    return text


def _show_accuracies(summary: dict[str, Any]) -> None:
    lines = {
        "last": "last epoch",
        "chosen": f"chosen by noisy validation (epoch {summary.get('chosen_epoch')})",
        "mean_of_last_ten": "mean of the last ten epochs",
        "kept": f"the saved model (epoch {summary.get('kept_epoch')})",
        "miou": "mean IoU, last epoch",
    }
    rows = [(text, f"{100 * summary[key]:.2f} %") for key, text in lines.items() if key in summary]
    if rows:
        table = make_table(("test accuracy", ""), rows)
        table.columns[1].justify = "right"
        show(table)


def _at_chance(summary: dict[str, Any], data: Data) -> bool:
    """Is the accuracy, of the test or else the noisy validation, that of the largest class?"""
    accuracy = summary.get("kept", summary.get("last", summary.get("val_accuracy")))
    if accuracy is None or data.y.dim() > 1:
        return False
    known = data.y[data.y != IGNORE]
    return accuracy <= float(known.bincount().max()) / len(known)
