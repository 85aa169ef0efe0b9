"""How far can the model be trusted? Probabilities read against labels, in a few probable ways.

A model and a label that disagree: either may be wrong, and no probability says which. But label
noise leaves a floor of disagreement that confidence does not remove, while a model's own errors
become fewer the surer it is. So rows are put in the order of the judges' confidence, u = 0 the
surest and 1 the least sure, and the share that agrees with its label is read as

    P(agree | u) = (1 - r(u)) (1 - noise) + r(u) noise / (K - 1),  r(u) = (1 - 1/K) rise u^steepness

The floor is `noise`. The rise r(u) is the model's error m(u), or else noise where classes meet; the
model is taken to be wrong as often as its judges differ among themselves, and what the rise has
beyond that is such noise. Where the floor shows next to no noise, some of the rise is taken for it
all the same: labels without any are rare. The curve leaves its three numbers uncertain; a few
points of their posterior, equally probable, are the readings. p_wrong is the mean over them, and
their distance is the model's share of the interval (docs/decisions/0018).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .blocks import blocks
from .inputs import Array, Labels, chunks

FLOOR = 1e-6  # smallest probability that counts: nobody is surer than that
FIT_ROWS = 3_000  # rows that weights and T are fitted to; all rows are then judged by them
READINGS = 8
COUNTED = 2_000  # rows' worth of evidence at most: the curve is a simplification
NOISE = np.concatenate([[0.002, 0.005, 0.01], np.linspace(0.02, 0.7, 35)])
RISE = np.linspace(0.01, 1, 20)
STEEPNESS = np.geomspace(0.15, 8, 14)
BINS = 40
STEEPNESS_PRIOR = 1.0, 0.9  # median, and standard deviation of the logarithm
SPREAD = 0.01  # of what their first choice leaves, the judges spread evenly: they err there too
SHARE = 0.7  # of the rise at least, unless the judges agree more than that, is the model's error
HIDDEN = (
    0.08  # share of wrong labels expected anywhere: what the floor lacks may be where classes meet
)
PRIOR_ROWS = 20  # rows' worth of belief, in each class, that wrong labels are spread evenly
FLOOR_SAY = 2 / 3  # times the judges' error: what the floor weighs in the amount of noise in T
AHEAD = 2.0  # standard errors by which the panel must help the model, or else it has half a say


class Evidence(NamedTuple):
    """What is audited: the labelled rows of p [N, K] and y [N], T where it was given, the panel."""

    p: np.ndarray
    y: Labels
    rows: NDArray[np.int64]
    transition: np.ndarray | None
    panel: tuple[Array, ...] = ()

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """The first row of each block that has labels, and the labelled rows in it."""
        for rows in blocks(0, len(self.y), self.p.shape[1]):
            part = slice(*np.searchsorted(self.rows, (rows.start, rows.stop)))
            if part.start < part.stop:
                yield rows.start, part

    def bayes(self, part: slice) -> tuple[Array, Array]:
        """Of some labelled rows, where T was given: P(true class), and the same given y."""
        assert self.transition is not None
        at = self.rows[part]
        p = normalised(self.p[at].astype(np.float64))
        T = self.transition[at] if self.transition.ndim == 3 else self.transition
        return p, posterior(p, self.y[at], T)

    def views(self, at: NDArray[np.int64]) -> list[Array]:
        """What the model and the panel say of some rows: log-scores [n, K] each."""
        return [_log(normalised(self.p[at].astype(np.float64))), *(v[at] for v in self.panel)]


class Voice(NamedTuple):
    """Judges who speak as one: softmax(sum_v weight_v view_v + bias)."""

    weights: Array  # [V]
    bias: Array  # [K]

    def say(self, views: list[Array]) -> Array:
        z = sum(w * v for w, v in zip(self.weights, views, strict=True)) + self.bias
        return normalised(np.exp(z - z.max(1, keepdims=True)))


class Judges(NamedTuple):
    """The model and the panel in one voice; where the panel adds nothing, the mean of that and of
    the model alone.

    Neighbours' labels follow noise that depends on the input, so they may win the fit to the given
    labels against a model that knows better.
    """

    together: Voice
    model: Voice | None = None

    def say(self, views: list[Array]) -> Array:
        q = self.together.say(views)
        return q if self.model is None else (q + self.model.say(views[:1])) / 2

    @staticmethod
    def fit(views: list[Array], y: Labels, k: int) -> Judges:
        """By the given labels; the panel helps where the voices agree with more of them."""
        together = _fit_voice(views, y, k)
        if len(views) == 1:
            return Judges(together)
        model = _fit_voice(views[:1], y, k)
        with_it, without = together.say(views).argmax(1) == y, model.say(views[:1]).argmax(1) == y
        gained, lost = int((with_it & ~without).sum()), int((without & ~with_it).sum())
        is_ahead = gained - lost > AHEAD * (gained + lost) ** 0.5  # McNemar's test
        return Judges(together, None if is_ahead else model)


class Said(NamedTuple):
    """What the judges say of rows: their shares of all but the first choice, and that choice."""

    others: Array  # [n, K], rows sum to 1
    best: Labels

    @staticmethod
    def of(q: Array) -> Said:
        best, at = q.argmax(1), np.arange(len(q))
        others = q + 1e-12
        others[at, best] = 0
        others = normalised(others) + SPREAD / (q.shape[1] - 1)
        others[at, best] = 0
        return Said(normalised(others), best)

    def clean(self, m: Array) -> Array:
        """P(true class) [n, K]: m(u) is shared among the other classes as the judges have it."""
        f = self.others * m[:, None]
        f[np.arange(len(m)), self.best] = 1 - m
        return f


class Reading(NamedTuple):
    """One way to understand what the judges say."""

    rise: float
    steepness: float
    model_share: float  # of the rise: the model's error; the rest is noise where classes meet
    transition: Array  # [K, K]

    def model_error(self, u: Array) -> Array:
        """m(u)."""
        return self.model_share * self._rise(u)

    def _rise(self, u: Array) -> Array:
        return (1 - 1 / len(self.transition)) * self.rise * u**self.steepness

    def posterior(self, said: Said, u: Array, y: Labels) -> Array:
        """P(true class | the judges, the label) [n, K] by Bayes.

        Noise where classes meet: with probability b the label of a row whose truth is the judges'
        first choice is one of the others, as the judges have them; (1 - m) (1 - b) = 1 - r.
        """
        (others, best), at, rise = said, np.arange(len(u)), self._rise(u)
        m = self.model_share * rise
        b = 1 - (1 - rise) / (1 - m)
        joint = others * m[:, None]
        joint *= np.ascontiguousarray(self.transition.T)[y]
        joint[at, best] = (1 - m) * ((1 - b) * self.transition[best, y] + b * others[at, y])
        return normalised(joint)


class Readings(NamedTuple):
    """What judging a row needs: the judges, the scale of their confidence, the readings.

    Nothing of it grows with the number of rows, so rows can be judged in any parts, anywhere.
    """

    judges: Judges
    unsure: Array  # u of each row of the sample: the share of rows of which the judges are surer
    scale: Array  # what the judges leave to all but their first choice in these rows, sorted
    all: tuple[Reading, ...]
    doubt: float  # the share of rows at which the judges may be wrong, with no noise at borders

    def judge(self, evidence: Evidence, part: slice) -> tuple[Array, Array, Array, Array]:
        """Of some labelled rows: what the judges say [n, K], P(true class), the same given y, both
        the mean over the readings; and how many labels are right by each of these."""
        q = self.judges.say(evidence.views(evidence.rows[part]))
        y = evidence.y[evidence.rows[part]]
        said, u, at = Said.of(q), place_in(self.scale, _left(q)), np.arange(len(y))
        error, post, right = np.zeros(len(y)), np.zeros_like(q), []
        for reading in self.all:
            own = reading.posterior(said, u, y)
            right.append(own[at, y].sum())
            error += reading.model_error(u)
            post += own
        post /= len(self.all)
        return q, said.clean(error / len(self.all)), post, np.array(right)

    @property
    def model_error(self) -> float:
        """The expected share of rows whose likeliest class is not the truth."""
        return float(np.mean(self.model_errors))

    @property
    def model_errors(self) -> list[float]:
        """The same by each reading."""
        return [float(reading.model_error(self.unsure).mean()) for reading in self.all]


def fit_readings(evidence: Evidence) -> Readings:
    """The judges' weights, the curve of agreement and T, all from the given labels alone."""
    rows, y, k = evidence.rows, evidence.y, evidence.p.shape[1]
    few = rows
    if len(rows) > FIT_ROWS:
        few = np.sort(np.random.default_rng(0).choice(rows, FIT_ROWS, replace=False))
    judges = Judges.fit(evidence.views(few), y[few], k)
    left, agrees, differ = np.empty(len(rows)), np.empty(len(rows), dtype=bool), 0.0
    for part in chunks(len(rows), k * (1 + len(evidence.panel))):
        views = evidence.views(rows[part])
        q = judges.say(views)
        agrees[part], left[part] = q.argmax(1) == y[rows[part]], _left(q)
        differ += _differ(views) * len(q)
    scale = np.sort(left)
    u = place_in(scale, left)
    said, own = Said.of(judges.say(evidence.views(few))), u[np.searchsorted(rows, few)]
    found, doubts = [], []
    for noise, rise, steepness in _curve(u, agrees, k):
        whole = Reading(rise, steepness, 1.0, np.eye(k))
        errs = float(whole.model_error(u).mean())
        most = min(1.0, differ / len(rows) / errs)
        share = min(most, max(SHARE, 1 - max(HIDDEN - noise, 0) / errs))
        reading = _fit_transition(whole._replace(model_share=share), said, own, y[few], noise)
        found.append(_drawn_in(reading, said, own, y[few], noise, FLOOR_SAY * errs))
        doubts.append(most * errs)
    return Readings(judges, u, scale, tuple(found), float(np.mean(doubts)))


def _differ(views: list[Array]) -> float:
    """How often two judges have different first choices; of a judge alone, nothing is known: 1."""
    first = [view.argmax(1) for view in views]
    pairs = [(a != b).mean() for i, a in enumerate(first) for b in first[:i]]
    return float(np.mean(pairs)) if pairs else 1.0


def _fit_voice(views: list[Array], y: Labels, k: int) -> Voice:
    """Weights and biases by maximum likelihood of the given labels, P(y) = sum_i q_i T[i, y].

    T, with a rate for each class that is drawn to a common one, is only there so that noise does
    not blur the judges; the curve estimates it anew. Each prior is worth a row or two.
    """
    z, label = [torch.from_numpy(v) for v in views], torch.from_numpy(y)
    at, off = torch.arange(len(y)), ~torch.eye(k, dtype=torch.bool)
    first = torch.full((len(z),), -float(np.log(len(z))), dtype=torch.float64)
    shapes = [(k,), (k,), (k, k), ()]
    weight, bias, rates, spread, rate = (
        t.requires_grad_() for t in (first, *(torch.zeros(s, dtype=torch.float64) for s in shapes))
    )
    with torch.no_grad():
        rate.fill_(-2.0)

    def weights() -> torch.Tensor:  # bounded: of labels that a judge knows, no weight is enough
        return weight.clamp(max=7.0).exp()

    def voice() -> torch.Tensor:
        return sum(w * v for w, v in zip(weights(), z, strict=True)) + bias  # type: ignore

    fit = torch.optim.LBFGS([weight, bias, rate, rates, spread], max_iter=60, history_size=20,
                            line_search_fn="strong_wolfe")  # fmt: skip

    def loss() -> torch.Tensor:
        fit.zero_grad()
        q, eps = voice().softmax(1), torch.sigmoid(rate + rates)
        wrong = spread.masked_fill(~off, -torch.inf).softmax(1)
        given = q[at, label] * (1 - eps)[label] + ((q * eps) @ wrong)[at, label]
        prior = 0.5 * (bias**2).sum() + (rates**2).sum() + 0.5 * (spread**2).sum()
        value = prior + 0.05 * (rate + 2) ** 2 - given.clamp_min(1e-300).log().sum()
        value.backward()
        return value

    fit.step(loss)  # type: ignore[arg-type]
    return Voice(weights().detach().numpy(), bias.detach().numpy())


def _left(q: Array) -> Array:
    """What is left to all but the first choice; 1 minus the largest would be rounded to 0."""
    others = q.copy()
    others[np.arange(len(q)), q.argmax(1)] = 0
    return others.sum(1)


def place_in(scale: Array, left: Array) -> Array:
    """u of each row: its place among those of the scale, in (0, 1); equal rows share their mean."""
    order = np.argsort(left)  # in order, the search finds much of the scale in the cache
    ordered, n = left[order], len(scale)
    low, high = np.searchsorted(scale, ordered), np.searchsorted(scale, ordered, "right")
    u = np.empty(len(left))
    u[order] = np.clip(0.5 * (low + high), 0.5, n - 0.5) / n
    return u


def _curve(u: Array, agrees: NDArray[np.bool_], k: int) -> list[tuple[float, float, float]]:
    """Equally probable parts of the curve's posterior: their means (noise, rise, steepness)."""
    n = len(u)
    edges = np.concatenate([[0], np.geomspace(min(max(0.004, 1 / n), 0.5), 1, BINS)])
    bin_of = np.clip(np.searchsorted(edges, u) - 1, 0, BINS - 1)
    rows = np.bincount(bin_of, minlength=BINS)
    full = rows > 0
    agree = np.bincount(bin_of, agrees, minlength=BINS)[full]
    middle, rows = np.bincount(bin_of, u, minlength=BINS)[full] / rows[full], rows[full]
    steepness, noise, rise = (v.ravel() for v in np.meshgrid(STEEPNESS, NOISE, RISE, indexing="ij"))
    r = (1 - 1 / k) * rise[:, None] * middle ** steepness[:, None]
    share = (1 - r) * (1 - noise[:, None]) + r * noise[:, None] / (k - 1)
    share = np.clip(share, 1e-6, 1 - 1e-6)
    likelihood = np.log(share) @ agree + np.log1p(-share) @ (rows - agree)
    median, spread = STEEPNESS_PRIOR
    log = likelihood * min(1.0, COUNTED / n) - 0.5 * (np.log(steepness / median) / spread) ** 2
    order = np.lexsort((steepness, noise))
    mass = np.exp(log - log.max())[order]
    total = np.concatenate([[0.0], np.cumsum(mass / mass.sum())])
    points = []
    for start in np.arange(READINGS) / READINGS:  # the mean of each eighth of the posterior
        weight = np.diff(np.clip(total, start, start + 1 / READINGS)) * READINGS
        means = (weight @ noise[order], weight @ rise[order], weight @ np.log(steepness[order]))
        points.append((float(means[0]), float(means[1]), float(np.exp(means[2]))))
    return points


def _fit_transition(
    reading: Reading, said: Said, u: Array, y: Labels, noise: float, steps: int = 15
) -> Reading:
    """The reading with its T, by EM from even noise, which is worth PRIOR_ROWS rows a class."""
    k = said.others.shape[1]
    prior = PRIOR_ROWS * np.where(np.eye(k, dtype=bool), 1 - noise, noise / (k - 1))
    reading = reading._replace(transition=prior / PRIOR_ROWS)
    given = np.eye(k)[y]
    for _ in range(steps):
        T = prior + reading.posterior(said, u, y).T @ given
        reading = reading._replace(transition=T / T.sum(1, keepdims=True))
    return reading


def _drawn_in(
    reading: Reading, said: Said, u: Array, y: Labels, noise: float, weight: float
) -> Reading:
    """The reading with less noise in its T, by so much of the way to the floor of the curve.

    Judges that are often wrong are often wrong in the same way, and T then takes what they share
    for noise.
    """
    T, k = reading.transition, len(reading.transition)
    off = T * (1 - np.eye(k))
    rate = float(reading.posterior(said, u, y).mean(0) @ off.sum(1))
    off *= 1 - weight * max(1 - noise / max(rate, 1e-9), 0.0)
    return reading._replace(transition=off + np.diag(1 - off.sum(1)))


def normalised(f: Array) -> Array:
    f /= f.sum(1, keepdims=True)
    return f


def _log(p: Array) -> Array:
    """log p, at the FLOOR where p is less; there the order of p stays, within 0.01 %.

    Without that, all labels that a sure model contradicts would share one value.
    """
    with np.errstate(divide="ignore"):
        order = 1e-4 / (1 - 0.1 * np.log(p))  # rises with p: 0 where it is 0, 1e-4 where it is 1
    return np.log(np.where(p > FLOOR, p, FLOOR * (1 - 1e-4 + order)))


def posterior(f: Array, y: Labels, T: np.ndarray) -> Array:
    """P(clean = i | x, y) by Bayes, [N, K]; f itself where T calls the label impossible."""
    column = T.T[y] if T.ndim == 2 else np.take_along_axis(T, y[:, None, None], 2)[..., 0]
    joint = f * column
    total = joint.sum(1, keepdims=True)
    return np.divide(joint, total, out=f.astype(joint.dtype), where=total > 0)
