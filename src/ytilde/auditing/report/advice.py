"""What to do next: sentences, and commands to copy."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from ...runfolder import CONFIG
from ..audit import Audit
from ..pages import count, plural, text_of
from .cards import AMBIGUOUS

SURE = (0.95, 0.9, 0.8)  # p_wrong above which labels may be fixed unseen: the first that has any
FREQUENT = 3  # rows that make a mistake worth a sentence in the labelling guide


class Advice(NamedTuple):
    text: str
    command: str | None = None


def advice(audit: Audit, target: Path, method: str) -> list[Advice]:
    """What to do next; the commands are those of the run whose folder the report goes to."""
    if audit.at_chance:
        return [
            *_counting(audit, target.parent),
            Advice("Leave the labels as they are: this model cannot judge them."),
            Advice("See whether the right column holds the labels and each input carries its own. "
                    "Then train longer, with more data, or with a better network or features."),
        ]  # fmt: skip
    if audit.noise_rate.high < 0.01:
        return [Advice("The labels look right. Train on them as they are; nothing must be fixed.")]
    counting = _counting(audit, target.parent)
    steps = [*_corrections(audit, target.parent), *counting, _training(method)]
    if len(audit.pairs) and round(audit.pairs.expected_errors.iloc[0]) >= FREQUENT:
        worst = audit.pairs.iloc[0]
        given, true = text_of(worst.given_label), text_of(worst.predicted_label)
        steps.append(Advice(
            f"Clear up the most frequent mistake: about {count(worst.expected_errors)} rows that "
            f"say “{given}” are “{true}”. One sentence in the labelling guide may prevent most."
        ))  # fmt: skip
    if (audit.issues.ambiguity[~audit.issues.is_label_issue] > AMBIGUOUS).any():
        steps.append(Advice(
            "Ask for a second opinion on the ambiguous items rather than relabelling them: they "
            "are hard, not wrong."
        ))  # fmt: skip
    return steps


def _corrections(audit: Audit, folder: Path) -> list[Advice]:
    look = (
        "Look through the suspects below. All are in issues.csv, the worst first. "
        "predicted_label is what the label should probably be."
    )
    above = next((t for t in SURE if (audit.issues.p_wrong > t).any()), None)
    surest = plural(int((audit.issues.p_wrong > (above or 0)).sum()), "row")
    sure = (
        f"Let ytilde correct only those it is surest of ({surest} with p_wrong above {above}). "
        "The original labels stay untouched"
    )
    if not (folder / CONFIG).exists():  # no run: the audit was made in Python, or by a demo
        decide = Advice(look)
        fix = Advice(f"{sure}. In Python, with the audit:", f"found.fixed_labels(above={above})")
    else:
        run = shlex.quote(text_of(folder, 400))
        one_by_one = f"{look} Or decide on them one by one, with the keyboard:"
        decide = Advice(one_by_one, f"ytilde review {run}")
        corrected = f"{sure}; the corrected ones go to labels.csv."
        fix = Advice(corrected, f"ytilde audit {run} --fix-above {above}")
    return [decide, fix] if above else [decide]


def _counting(audit: Audit, folder: Path) -> list[Advice]:
    """How to know better how many labels are wrong."""
    is_run = (folder / CONFIG).exists()
    command = f"ytilde review {shlex.quote(text_of(folder, 400))} --sample"
    if audit.checked is None:
        text = (
            "Check 100 rows that are drawn at random: the count then rests on them, and holds "
            "whatever the model is worth."
        )
        return [Advice(text, f"{command} 100")] if is_run else []
    step = audit.checked.next_step()
    if step is None:
        return []
    return [
        Advice(
            audit.checked.advice(), f"{command} {audit.checked.drawn + step[0]}" if is_run else None
        )
    ]


def _training(method: str) -> Advice:
    if method in ("", "ce"):
        text = "Or leave the labels and train with a method that survives the wrong ones."
        return Advice(text, "ytilde fit DATA --label COLUMN --method elr")
    return Advice(
        f"Or leave the labels: the model was trained with {text_of(method)}, which is made to "
        "survive wrong ones."
    )
