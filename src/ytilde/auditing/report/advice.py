"""What to do next: sentences, and commands to copy; never what the audit's notes warn of."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import NamedTuple

from ...runfolder import CONFIG
from ..notes import doubts
from ..pages import count, plural, text_of
from ..result import Audit
from ..totals import SURE

CONFIDENT = 1.645  # standard deviations: 95 %, one-sided
LOOKS_RIGHT = 0.01  # share of wrong labels up to which none must be fixed
SAMPLE = 100  # rows of a first look
UNSEEN = "Correct no label unseen: it is not sure that more of them would get better than worse"
FREQUENT = 3  # rows that make a mistake worth a sentence in the labelling guide


class Advice(NamedTuple):
    text: str
    command: str | None = None


def looks_right(audit: Audit) -> bool:
    """Are next to no labels wrong, by rows checked by hand or by a model that is not in doubt?"""
    is_sure = audit.checked is not None or not doubts(audit.notes)
    return audit.noise_rate.high < LOOKS_RIGHT and is_sure


def fix_threshold(audit: Audit) -> float | None:
    """The p_wrong above which labels may be fixed unseen; None: somebody should look first.

    Only here this is decided. A fix makes a label better with the probability of the suggestion,
    and worse with that of the given label; it is advised where the labels made better outnumber
    those made worse with 95 % confidence, and never by a model that is itself in doubt, or that
    judged alone: from its probabilities nobody can tell its own errors from the labels'.
    """
    if audit.at_chance or doubts(audit.notes) or looks_right(audit):
        return None
    if not audit.second_opinion and audit.checked is None:
        return None
    for above, (rows, gain, variance) in zip(SURE, audit.totals.sure, strict=True):
        if rows and gain > CONFIDENT * math.sqrt(max(0.0, variance)):
            return above
    return None


def advice(audit: Audit, target: Path, method: str) -> list[Advice]:
    """What to do next; the commands are those of the run whose folder the report goes to."""
    if audit.at_chance:
        return [
            *_counting(audit, target.parent),
            Advice("Leave the labels as they are: this model cannot judge them."),
            Advice("See whether the right column holds the labels and each input carries its own. "
                    "Then train longer, with more data, or with a better network or features."),
        ]  # fmt: skip
    suspects = int(audit.totals.flagged[0])
    if looks_right(audit):
        some = f" The {plural(suspects, 'suspect')} below may deserve a look." if suspects else ""
        right = "The labels look right. Train on them as they are; nothing must be fixed."
        return [Advice(right + some)]
    above, run, counting = (
        fix_threshold(audit),
        _run(target.parent),
        _counting(audit, target.parent),
    )
    if above is None:
        first = _sample(run) if audit.checked is None else Advice(f"{UNSEEN}.")
        more = [] if audit.checked is None else counting
        steps = [first, _decide(audit, "Then look", run), *more, _better_model(), _training(method)]
    else:
        steps = [_decide(audit, "Look", run), _fix(audit, above, run), *counting, _training(method)]
    frequent = len(audit.pairs) and round(audit.pairs.expected_errors.iloc[0]) >= FREQUENT
    if frequent and not doubts(audit.notes):
        worst = audit.pairs.iloc[0]
        given, true = text_of(worst.given_label), text_of(worst.predicted_label)
        steps.append(Advice(
            f"Clear up the most frequent mistake: about {count(worst.expected_errors)} rows that "
            f"say “{given}” are “{true}”. One sentence in the labelling guide may prevent most."
        ))  # fmt: skip
    if audit.totals.ambiguous[0]:
        steps.append(Advice(
            "Ask for a second opinion on the ambiguous items rather than relabelling them: they "
            "are hard, not wrong."
        ))  # fmt: skip
    return steps


def _run(folder: Path) -> str | None:
    """The run whose folder the report goes to, as a command names it; None where there is none: the
    audit was made in Python, or by a demo."""
    return shlex.quote(text_of(folder, 400)) if (folder / CONFIG).exists() else None


def _sample(run: str | None) -> Advice:
    why = (
        f"{UNSEEN}. Look at {SAMPLE} rows drawn at random first; they tell how many labels are "
        "wrong, however good or bad the model is"
    )
    return Advice(f"{why}.") if run is None else Advice(
        f"{why}:", f"ytilde review {run} --sample {SAMPLE}"
    )  # fmt: skip


def _decide(audit: Audit, look: str, run: str | None) -> Advice:
    order = ", the worst first" if audit.whole is None else ""
    text = (
        f"{look} through the suspects below. All are in {text_of(audit.context.table)}{order}. "
        "predicted_label is what the label should probably be."
    )
    if run is None:
        return Advice(text)
    return Advice(
        f"{text} Or decide on them one by one, with the keyboard:", f"ytilde review {run}"
    )


def _fix(audit: Audit, above: float, run: str | None) -> Advice:
    surest = plural(int(audit.totals.sure[SURE.index(above), 0]), "row")
    which = f"those it is surest of ({surest} with p_wrong above {above})"
    if audit.whole is not None:
        table = text_of(audit.context.table)
        return Advice(f"Correct only {which}: take predicted_label for them, from {table}.")
    sure = f"Let ytilde correct only {which}. The original labels stay untouched"
    if run is None:
        return Advice(f"{sure}. In Python, with the audit:", f"found.fixed_labels(above={above})")
    corrected = f"{sure}; the corrected ones go to labels.csv."
    return Advice(corrected, f"ytilde audit {run} --fix-above {above}")


def _better_model() -> Advice:
    return Advice(
        "A better model judges better: train longer, with more data, or with a better network or "
        "features, and audit again."
    )


def _counting(audit: Audit, folder: Path) -> list[Advice]:
    """How to know better how many labels are wrong."""
    run = _run(folder)
    command = f"ytilde review {run} --sample"
    if audit.checked is None:
        text = (
            f"Check {SAMPLE} rows drawn at random: the count then rests on them, and is valid "
            "however good or bad the model is."
        )
        return [Advice(text, f"{command} {SAMPLE}")] if run else []
    step = audit.checked.next_step()
    if step is None:
        return []
    more = f"{command} {audit.checked.drawn + step[0]}"
    return [Advice(audit.checked.advice(), more if run else None)]


def _training(method: str) -> Advice:
    if method in ("", "ce"):
        text = "Or leave the labels and train with a method that survives the wrong ones."
        return Advice(text, "ytilde fit DATA --label COLUMN --method second_opinion")
    return Advice(
        f"Or leave the labels: the model was trained with {text_of(method)}, which is made to "
        "survive wrong ones."
    )
