"""What is wrong with these labels: how much, in which classes, and does it depend on the input?

Everything is answered from features and labels alone, by ridge regressions of the labels whose
leave-one-out predictions cost one matrix product, so the whole chain of estimates can be run again
on simulated labels, and the test of dependence is calibrated by that (parametric bootstrap).

Without an assumption the question has no answer, for T = I and a blurred truth explain any labels.
Here it is that the truth is a function of the input wherever the prediction is clear.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from scipy.stats import ttest_1samp
from torch import Tensor
from torch.nn.functional import one_hot

from ..data import IGNORE, BadInput, Batch, Data
from ..data.images import without_unreadable
from ..data.precision import narrow
from ..data.readers import as_array, as_tensor, encode, plain_tensor, read_features, split
from ..engine import Trainer, default_recipe
from ..files import write_text
from ..fitting import fit_method
from ..method import create
from ..outputs import check_replaceable
from .audit import audit
from .dependence import Dependence, dependence
from .kernel import fit_kernel
from .notes import unlabelled, weakness
from .result import Audit

__all__ = ["Dependence", "Diagnosis", "Paired", "dependence", "diagnose", "diagnose_data"]

LEVEL = 0.05
HEAD_ROWS = 2000  # that two heads are compared on
LITTLE = 0.03  # of the labels are wrong, at most: no method is needed against it

ASSUMPTION = (
    "Assumes that the truth is a function of the input where the prediction is clear; without such "
    "an assumption no labels can tell noise that depends on the input from a blurred truth."
)


@dataclass(frozen=True)
class Paired:
    """A paired comparison on held-out noisy labels: nats a label gained, and the t-test's p."""

    gain: float
    p_value: float
    rows: int


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        rows: how many were examined.
        of: how many there are.
        audit: the noise rate with its interval, classes and pairs.
        dependence: the test whether the noise depends on the input.
        heteroscedastic: a heteroscedastic head against a softmax, on held-out labels; None where
            it was not asked for.
        method: a method that fits these labels; None where our comparisons name none.
        reasons: the findings, a sentence each.
        notes: what a reader should know, a sentence each.

    Example:
        >>> x, y = torch.randn(200, 4), torch.arange(200) % 2
        >>> found = diagnose(x + 6 * y[:, None], y, draws=19, heads=False)
        >>> found.rows, found.method
        (200, None)
    """

    rows: int
    of: int
    audit: Audit
    dependence: Dependence
    heteroscedastic: Paired | None
    method: str | None
    reasons: list[str]
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The findings, a sentence each."""
        return "\n".join(self.reasons)

    def to_json(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes all of it.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "diagnosis", force)
        rate = self.audit.noise_rate
        everything = {
            "rows": self.rows,
            "of": self.of,
            "at_chance": self.audit.at_chance,
            "noise_rate": {"value": float(rate), "low": rate.low, "high": rate.high},
            "per_class": json.loads(self.audit.per_class.to_json(orient="records")),
            "pairs": json.loads(self.audit.pairs.to_json(orient="records")),
            "transition": self.audit.transition.tolist(),
            "instance_dependence": asdict(self.dependence),
            "heteroscedastic": asdict(self.heteroscedastic) if self.heteroscedastic else None,
            "method": self.method,
            "reasons": self.reasons,
            "notes": self.notes,
        }
        write_text(Path(path), json.dumps(everything, ensure_ascii=False, indent=1))


def diagnose(
    features: ArrayLike | Tensor | pd.DataFrame,
    y: ArrayLike | Tensor,
    *,
    names: Sequence[str] | None = None,
    most: int = 20_000,
    draws: int = 99,
    heads: bool = True,
    seed: int = 0,
) -> Diagnosis:
    """How much noise is in the labels, of which classes, and does it depend on the input?

    Args:
        features: [N, D]; columns of texts in a DataFrame count as categories, as in the readers.
            They must not come from a network that was trained on these same labels.
        y: labels [N], classes or names, -1 = none.
        names: of the classes.
        most: maximum number of rows to examine.
        draws: of the bootstrap; the smallest p-value is 1 / (draws + 1).
        heads: also compare a heteroscedastic head with a softmax on held-out labels.
        seed: for all random draws.

    Returns:
        The findings, and a method that fits them, if any.

    Example:
        >>> x, y = torch.randn(200, 4), torch.arange(200) % 2
        >>> found = diagnose(x + 6 * y[:, None], y, draws=19, heads=False)
        >>> float(found.audit.noise_rate) < 0.05
        True
    """
    x, label, names, left_out = _checked(features, y, names)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:most].sort().values
    x, label, of = x[chosen], label[chosen], len(x)
    k = int(label.max()) + 1 if names is None else len(names)
    model = fit_kernel(x, label, k, generator)
    probs = _probabilities(model.leave_one_out(one_hot(label, k).float()))
    found = audit(probs, label, names=names)
    test = dependence(x, label, k, model=model, draws=draws, generator=generator)
    paired = _compare_heads(Data(x, label, k), seed) if heads else None
    method, reasons = _recommend(found, test, paired)
    notes = [*left_out, ASSUMPTION, *weakness(probs, label.numpy())]
    if len(x) < of:
        notes.append(f"From {len(x)} of {of} rows, drawn at random; `most` takes more.")
    return Diagnosis(len(x), of, found, test, paired, method, reasons, notes)


def diagnose_data(data: Data, *, most: int = 20_000, seed: int = 0, **options: Any) -> Diagnosis:
    """Diagnose a Data. Pictures other than small grey ones are seen through a network's features.

    That network is trained plainly, and briefly, on half of the rows; the other half is diagnosed,
    so that the features know nothing of its labels.
    """
    if data.y.dim() > 1:
        raise BadInput("a diagnosis needs one label per row; pixel labels are not diagnosed")
    left_out = unlabelled(data.y.numpy(), data.num_classes)
    data, unread = without_unreadable(data.without_clean())
    shape, of = data.shape, len(data)
    data = data.rows((data.y != IGNORE).nonzero().squeeze(1))
    if len(shape) == 1 or (shape[0] == 1 and max(shape) <= 32):
        rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        rows = rows[:most].sort().values
        x = data.x[rows].flatten(1)
        found = diagnose(x, data.y[rows], names=_names(data), most=most, seed=seed, **options)
    else:
        if len(data) < 200:
            raise BadInput(
                "a diagnosis of pictures needs at least 200 labelled ones, as half of them train "
                f"the network it looks through, not {len(data)}"
            )
        recipe = default_recipe(shape, len(data) // 2, seed=seed, val=0.0)
        half, rest = split(data.y, 0.5, recipe.generator("split", "diagnosis"), data.groups)
        recipe = default_recipe(
            shape, len(data) // 2, seed=seed, val=0.0, epochs=max(5, recipe.epochs // 4)
        )
        method = create("ce")
        trainer = fit_method(method, data.rows(half), recipe)
        kept = data.rows(rest[torch.randperm(len(rest), generator=recipe.generator("split", "d"))])
        kept = kept.rows(torch.arange(min(most, len(kept))))
        x = trainer.map(lambda batch: method.net.features(batch.x).float(), kept).cpu()
        found = diagnose(x, kept.y, names=_names(data), most=most, seed=seed, **options)
        found.notes.append("Seen through the features of a network trained on the other half.")
    return Diagnosis(
        found.rows, of, found.audit, found.dependence, found.heteroscedastic,
        found.method, found.reasons, [*left_out, *found.notes, *unread],
    )  # fmt: skip


def _names(data: Data) -> tuple[str, ...]:
    return tuple(data.names or (str(k) for k in range(data.num_classes)))


def _probabilities(scores: Tensor) -> np.ndarray:
    p = scores.double().clamp(min=1e-3)
    return (p / p.sum(1, keepdim=True)).numpy()


# --- does a heteroscedastic head pay? -------------------------------------------------------------


def _compare_heads(data: Data, seed: int, folds: int = 3) -> Paired:
    """Held-out log-likelihood of the noisy labels: a heteroscedastic head minus a softmax."""
    data = data.rows(torch.arange(min(len(data), HEAD_ROWS)))
    recipe = default_recipe(data.shape, len(data), seed=seed, val=0.1, keep="best_nll", epochs=15)
    fold = torch.randperm(len(data), generator=recipe.generator("split", "folds")) % folds
    gains = []
    for part in range(folds):
        train, held = (
            data.rows((hit).nonzero().squeeze(1)) for hit in (fold != part, fold == part)
        )
        het, softmax = (_log_likelihood(name, train, held, recipe) for name in ("het", "ce"))
        gains.append(het - softmax)
    gain = torch.cat(gains).double().numpy()
    return Paired(float(gain.mean()), float(ttest_1samp(gain, 0.0).pvalue), len(gain))


def _log_likelihood(name: str, train: Data, held: Data, recipe: Any) -> Tensor:
    method = create(name, **({"train_samples": 20, "eval_samples": 200} if name == "het" else {}))
    trainer: Trainer = fit_method(method, train, recipe)

    def own(batch: Batch) -> Tensor:
        return method.noisy_proba(batch.x).gather(1, batch.y[:, None]).clamp_min(1e-12).log()

    return trainer.map(own, held).flatten().cpu()


# --- what to do -----------------------------------------------------------------------------------


def _recommend(
    found: Audit, test: Dependence, paired: Paired | None
) -> tuple[str | None, list[str]]:
    """A method, if our comparisons name one, and the evidence in sentences."""
    if found.at_chance:
        return None, [found.summary(), _AT_CHANCE]
    rate = found.noise_rate
    reasons = [
        f"About {100 * rate:.1f} % of the labels are wrong "
        f"(95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %)."
    ]
    worst = int(found.per_class.noise_rate.to_numpy().argmax())
    label, share = found.per_class.label[worst], float(found.per_class.noise_rate[worst])
    if share > 0.01:
        reasons.append(f"Most often wrong are labels {label}: {100 * share:.0f} % of them.")
    depends = test.p_value <= LEVEL and test.conclusive
    if not test.conclusive:
        reasons.append(
            "Whether the noise depends on the input cannot be told: "
            "there are too few wrong labels, or two labels of one class are about as frequent."
        )
    elif depends:
        shared = test.p_neighbours <= test.p_place
        why = (
            f"neighbours share their wrong labels more than one transition matrix allows "
            f"({test.gain - test.expected:.3f} nats a label"
            if shared
            else "wrong labels are likelier in some places than the classes and the model's own "
            f"doubt explain ({test.score:.1f} standard deviations"
        )
        reasons.append(f"The noise depends on the input: {why}, p = {test.p_value:.3f}).")
    else:
        reasons.append(
            f"No sign that the noise depends on the input (p = {test.p_value:.2f}): one transition "
            "matrix is enough for these labels, which is no proof that it is the truth."
        )
    if paired is not None:
        better = paired.p_value <= LEVEL and paired.gain > 0
        how = "better" if better else "no better"
        reasons.append(
            f"A heteroscedastic head predicts held-out labels {how} "
            f"than a softmax ({paired.gain:+.3f} nats a label, p = {paired.p_value:.2g})."
        )
    method, advice = _advice(found, depends)
    return method, [*reasons, advice]


# What docs/findings.md bears out, and no more. second_opinion: the best average rank over 20
# settings, first under strong uniform noise and noise that depends on the input. Where labels go to
# one other class none leads with certainty.
_AT_CHANCE = "No method is advised: look whether inputs and labels belong together."
_LITTLE = "No method is needed: look at the few suspects (`ytilde audit`)."
_DEFAULT = (
    "Use second_opinion, the default of `ytilde fit`: over the 20 settings of our study it has the "
    "best average rank, under uniform noise and noise that depends on the input (docs/findings.md)."
)
_FOCUSED = (
    "Most wrong labels of a class go to one other class. No method leads under such noise in our "
    "comparisons, so none is advised: look at the pairs, or compare on these labels "
    "(`ytilde fit --method auto`)."
)


def _advice(found: Audit, depends: bool) -> tuple[str | None, str]:
    if found.noise_rate.high < LITTLE:
        return None, _LITTLE
    flipped = found.transition * (1 - np.eye(len(found.transition)))
    # one wrong class takes most of the errors of the classes that have errors
    focused = flipped.max(1).sum() > 0.7 * flipped.sum() and flipped.max() > 0.2
    several = len(found.transition) > 2  # of two classes there is but one other
    return (None, _FOCUSED) if focused and several and not depends else ("second_opinion", _DEFAULT)


# --- input ----------------------------------------------------------------------------------------


def _checked(
    features: ArrayLike | Tensor | pd.DataFrame,
    y: ArrayLike | Tensor,
    names: Sequence[str] | None,
) -> tuple[Tensor, Tensor, tuple[str, ...] | None, list[str]]:
    """Features and labels of the labelled rows, the classes' names, and a note on the others."""
    x = _numbers(features)
    given = as_array(y, "the labels")
    if x.dim() < 2 or given.shape != (len(x),):
        raise BadInput(
            f"features must be [rows, numbers] with one label per row, not {tuple(x.shape)} "
            f"with {given.shape} labels"
        )
    x = narrow(x.flatten(1))
    if not x.isfinite().all():
        raise BadInput("the features hold NaN or infinite values; remove or fill them")
    if given.dtype.kind not in "iu":
        coded, names = encode(given, names)
        given = coded.numpy()
    label = torch.from_numpy(given.astype(np.int64))
    low, high = (int(label.min()), int(label.max())) if len(label) else (0, 0)
    if low < IGNORE or (names is not None and high >= len(names)):
        known = "from 0 on" if names is None else f"0 to {len(names) - 1}"
        raise BadInput(
            f"labels must be names or classes {known}, or -1 for none, not {low}..{high}"
        )
    left_out = unlabelled(label.numpy(), high + 1 if names is None else len(names))
    keep = label != IGNORE
    x, label = x[keep], label[keep]
    if len(label) < 100 or len(label.unique()) < 2:
        raise BadInput(
            f"a diagnosis needs at least 100 labelled rows of two classes, not {len(label)} "
            f"of {len(label.unique())}"
        )
    return x, label, None if names is None else tuple(str(name) for name in names), left_out


def _numbers(features: ArrayLike | Tensor | pd.DataFrame) -> Tensor:
    if isinstance(features, Tensor):
        return plain_tensor(features, "the features")
    if not isinstance(features, pd.DataFrame):
        array = as_array(features, "the features")
        if array.dtype.kind not in "biuf":
            raise BadInput(f"the features hold {array.dtype} instead of numbers")
        return as_tensor(array, "the features")
    found = read_features(features).data.x
    if not isinstance(found, Tensor):
        raise BadInput("the features are a column of images; `ytilde diagnose` reads them")
    return found
