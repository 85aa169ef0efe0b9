"""Every search by noisy validation: those behind "auto", and the grids of the benchmark.

Methods are compared on the same held-out rows (`choose_method`). Fields run a race: successive
halving. Jamieson & Talwalkar, AISTATS 2016: train all candidates briefly, go
on with the better third for three times as long, and so on. Each length is a training of its own,
from scratch: schedules are fractions of training, so a short run ends annealed, like the long one
it stands for. The benchmark trains all of a grid to the end, or what Optuna proposes of it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .data import BadInput
from .engine import Diverged, Recipe, Record, Trainer
from .engine.protocols import SIGN
from .files import write_text
from .hashing import digest_of
from .method import Method
from .runfolder import METHODS, RACE

Candidate = dict[str, Any]  # field -> value
Fit = Callable[[Any, Recipe, str], Trainer]  # the str names the training in its records
Score = Callable[[Candidate, int], Record]  # (candidate, epochs) -> {"accuracy": ..., "nll": ...}
WORDS = {"accuracy": "accuracy", "nll": "log-likelihood"}
FRACTIONS = (1 / 9, 1 / 3, 1.0)  # of the epochs: the lengths of the rungs
KEPT = 1 / 3  # of the candidates, after each rung
FINALISTS = 2  # that are trained to the end
HELD = 0.1  # of the rows: the search's noisy validation where the recipe has none
# What method="auto" tries besides the method that comes first (for vectors whose network nobody
# chose the ensemble, else the default): what wins elsewhere in docs/findings.md's study; and where
# pixels have labels.
RIVALS = ("elr_plus", "mixup", "dividemix", "ce")
PIXEL_LIST = ("ce", "elr", "gce", "volminnet", "co_teaching")
FOLDS = 3  # that a method is tried on, each held out once
ENOUGH = 3000  # held-out rows that tell methods apart; more folds are not looked at
MOST = 20_000  # rows of a fold that are looked at
AHEAD = 3.0  # standard errors by which a method must be ahead of the first one: there are several
BEHIND = 2.0  # as many behind it, a method is not tried again


def rungs(epochs: int) -> list[int]:
    """The lengths of training of a search, shortest first."""
    return sorted({max(1, round(fraction * epochs)) for fraction in FRACTIONS})


def candidates(grid: Mapping[str, Sequence[Any]]) -> list[Candidate]:
    """Every combination of a grid's values; of no grid the one without fields."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def ranked(scores: Sequence[float | None]) -> list[int]:
    """The places of the scores, the highest first; equals in their order, None and NaN last."""
    values = [-math.inf if s is None or math.isnan(s) else s for s in scores]
    return sorted(range(len(values)), key=lambda k: -values[k])  # stable


def race(
    rivals: Sequence[Candidate], score: Score, epochs: int, by: str
) -> tuple[Candidate, list[Record]]:
    """The candidate that wins, and what was seen: one line for each training.

    Costs about 2 + 2n/9 fits of `epochs` for n candidates: 6 for 18, 4 for 9 (more under 9 epochs,
    for a rung has at least one). Two at least are trained to the end; a rung that would drop
    nobody is left out. Ties go to the earlier candidate; one that diverges is last.
    """
    if by not in SIGN:
        raise BadInput(f"a search goes by {' or '.join(SIGN)}, not by {by!r}")
    alive, seen = list(rivals), []
    for length in rungs(epochs):
        kept = 1 if length == epochs else max(FINALISTS, math.ceil(KEPT * len(alive)))
        if len(alive) <= kept:
            continue
        values = []
        for candidate in alive:
            figures = score(candidate, length)
            seen.append({**candidate, "epochs": length, **figures})
            values.append(SIGN[by] * figures.get(by, math.nan))
        if all(math.isnan(value) or value == -math.inf for value in values):
            raise Diverged(f"none of the {len(alive)} settings tried could be trained")
        alive = [alive[k] for k in sorted(ranked(values)[:kept])]
    return alive[0], seen


def resolve_auto_fields(
    method: Method,
    recipe: Recipe,
    fit: Fit,
    folder: Path | None = None,
    resume: bool = False,
) -> list[str]:
    """Give the method's fields that are "auto" and in its `grid` the values that win a race.

    Goes by `grid_by` on noisy validation: the recipe's, or rows held out for the search only.
    fit: the usual one, on data without clean labels. The candidates share their
    initialisation and order, which are not those of the fit that follows. `method.race_` is what
    was seen, kept in the folder so that a search can be continued. Returns notes for the user.
    """
    cls = type(method)
    fields = method.get_params()
    auto = {name: values for name, values in cls.grid.items() if fields[name] == "auto"}
    if not auto:
        return []
    recipe = _for_search(recipe)

    def score(candidate: Candidate, epochs: int) -> Record:
        made, name = cls(**(fields | candidate)), _words(candidate)
        return _noisy_score(fit, made, replace(recipe, epochs=epochs), name)

    rivals = candidates(auto)
    ask = _remembering(score, folder / RACE, resume) if folder else score
    best, seen = race(rivals, ask, recipe.epochs, cls.grid_by)
    for name, value in best.items():
        setattr(method, name, value)
    method.race_ = seen  # type: ignore[assignment]
    by = WORDS[cls.grid_by]
    return [f"{_words(best)} chosen from {len(rivals)} settings by noisy validation {by}"]


def choose_method(
    names: Sequence[str],
    right: Callable[[str, int], Sequence[float]],
    count: int,
    folder: Path | None = None,
    resume: bool = False,
) -> tuple[str, list[Record]]:
    """The first of these methods, unless another one is clearly better at held-out noisy labels.

    Wrong labels cost every method the same there on average, but where they follow the input, noise
    prefers the method that follows it: a small lead says nothing, so that the first method is left
    only for one ahead by `AHEAD` standard errors (of these, the best). One behind by `BEHIND` is
    not tried on the next fold.

    Args:
        names: of the methods; the first is what a user would get without asking.
        right: of a method and a fold 0, 1, ...: whether it predicts the noisy label of each row
            held out, by a fit to the others; nothing where it diverged.
        count: the folds there are.
        folder: where the answers are kept, so that a search can be continued.
        resume: from what is there.

    Returns:
        The name, and what was seen: a line for each method and fold.
    """

    def score(candidate: Candidate, fold: int) -> Record:
        return {"right": [round(float(value), 4) for value in right(candidate["method"], fold)]}

    ask = _remembering(score, folder / METHODS, resume) if folder else score
    rows: dict[str, list[float]] = {name: [] for name in names}
    alive, seen = list(names), list[Record]()
    for fold in range(count):
        found = {name: ask({"method": name}, fold)["right"] for name in alive}
        held = max(map(len, found.values()))
        if not held:
            raise Diverged(f"none of the {len(names)} methods tried could be trained")
        for name, values in found.items():
            rows[name] += values or [0.0] * held
            lead = _lead(rows[name], rows[names[0]])
            figures = {"accuracy": sum(values) / held, "ahead": lead}
            seen.append({"method": name, "fold": fold + 1, **figures})
        alive = [name for name in alive if _lead(rows[name], rows[names[0]]) > -BEHIND]
    better = [name for name in alive if _lead(rows[name], rows[names[0]]) > AHEAD]
    return max(better, key=lambda name: sum(rows[name]), default=names[0]), seen


def told_race(seen: Sequence[Record]) -> str:
    """What `choose_method` saw, in words."""
    names = list(dict.fromkeys(line["method"] for line in seen))
    parts = []
    for name in names:
        own = [line for line in seen if line["method"] == name]
        share = sum(line["accuracy"] for line in own) / len(own)
        ahead = f" ({own[-1]['ahead']:+.1f} standard errors)" if name != names[0] else ""
        parts.append(f"{name} {100 * share:.1f} %{ahead}")
    return "held-out noisy labels predicted: " + ", ".join(parts)


def _lead(own: Sequence[float], other: Sequence[float]) -> float:
    """The mean difference of two methods on the same rows, in its standard errors."""
    differences = [a - b for a, b in zip(own, other, strict=True)]
    square = sum(d * d for d in differences)
    return sum(differences) / math.sqrt(square) if square else 0.0


def propose(
    grid: Mapping[str, Sequence[Any]],
    score: Callable[[list[Candidate]], Sequence[float | None]],
    trials: int,
    *,
    journal: Path,
    study: str,
    at_once: int = 1,
    known: Callable[[Candidate], bool] = lambda candidate: True,
) -> None:
    """Have this many points of a grid scored, each chosen by Optuna after those before it.

    score: of several points at once, higher is better; None: it could not be trained. The journal
    remembers a study by its name, and points already scored count, unless they are not `known`.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise BadInput("--trials needs Optuna: pip install 'ytilde[tune]'") from None
    journal.parent.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        made = optuna.create_study(
            study_name=study,
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
            sampler=optuna.samplers.TPESampler(seed=0),
            direction="maximize",
            load_if_exists=True,
        )
        finished = made.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    except Exception as error:  # whatever Optuna makes of a damaged file
        raise BadInput(
            f"{journal} cannot be read ({error!r}); delete it: the runs are kept in the results"
        ) from error
    left = trials - sum(known(trial.params) for trial in finished)
    while left > 0:
        asked = [made.ask() for _ in range(min(left, at_once))]
        points = [
            {name: trial.suggest_categorical(name, values) for name, values in grid.items()}
            for trial in asked
        ]
        for trial, value in zip(asked, score(points), strict=True):
            if value is None:
                made.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                made.tell(trial, value)
        left -= len(asked)


def _for_search(recipe: Recipe) -> Recipe:
    """With noisy validation, and an initialisation and order that the fit that follows has not."""
    init, order = recipe.seed_of("init", "search"), recipe.seed_of("order", "search")
    return replace(recipe, val=recipe.val or HELD, init_seed=init, order_seed=order)


def tag_trial(name: str, on_record: Callable[[Record], None]) -> Callable[[Record], None]:
    """Shows the records of a training that only tries something; none of the fit's history."""
    return lambda record: on_record({**record, "race": name})


def _words(candidate: Candidate) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in candidate.items())


def _noisy_score(fit: Fit, method: Method, recipe: Recipe, name: str) -> Record:
    try:
        trainer = fit(method, recipe, name)
    except Diverged:
        return {}
    assert trainer.val is not None
    return trainer.score(trainer.val, noisy=True)


def _remembering(score: Score, path: Path, resume: bool) -> Score:
    """The same score, which writes its answers down; resumed, it gives those it knows."""
    answers = _read_answers(path) if resume and path.exists() else []

    def remembered(candidate: Candidate, epochs: int) -> Record:
        for known, length, figures in answers:
            if (known, length) == (candidate, epochs):
                return figures
        figures = score(candidate, epochs)
        answers.append([candidate, epochs, figures])
        text = json.dumps(answers)
        write_text(path, json.dumps({"answers": answers, "digest": digest_of(text)}))
        return figures

    return remembered


def _read_answers(path: Path) -> list[Any]:
    """The answers in a file; none where it is damaged, so that what it held is asked again."""
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            whole = found["digest"] == digest_of(json.dumps(found["answers"]))
            return found["answers"] if whole else []
        for candidate, epochs, figures in found:  # of version 0.1: without a digest
            if not (isinstance(candidate, dict) and isinstance(figures, dict)):
                return []
            int(epochs)
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    return found
