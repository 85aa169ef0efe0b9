"""The random sample of a review: drawn once, kept in the run folder, extended when more is asked.

The rows are cut into twenty equal groups by p_wrong. Round after round one row of each group is
drawn, the groups in a random order; so the first n rows of this sequence are a random sample for
every n, spread evenly over p_wrong, in which every row has the same chance to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .. import checkpoint
from ..data import IGNORE, BadInput, Data, plural
from ..runfolder import REVIEW, SAMPLE
from .checked import CHOSEN, DRAWN, NO_CLASS, NONE, OPEN, Checked, groups_by
from .inputs import Array

Rows = NDArray[np.int64]


class Sample(NamedTuple):
    """The first `size` rows of `sequence`, of which each row's group in `rows` is known."""

    rows: Rows  # that could be drawn
    group: Rows  # of each of these
    sequence: Rows  # all of these, as they are drawn
    size: int
    seed: int

    @property
    def drawn(self) -> Rows:
        return self.sequence[: self.size]

    @property
    def probability(self) -> float:
        """Of every row to be drawn."""
        return self.size / len(self.rows)

    def save(self, run: Path) -> None:
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in Sample._fields[:3]}
        meta = {"size": self.size, "seed": self.seed, "probability": self.probability}
        checkpoint.save(run / SAMPLE, tensors, meta)

    @staticmethod
    def load(run: Path) -> Sample | None:
        """What was drawn in a run folder, if anything was."""
        path = run / SAMPLE
        if not path.exists():
            return None
        tensors, meta = checkpoint.load(path)
        try:
            rows, group, order = (
                tensors[name].numpy().astype(np.int64) for name in Sample._fields[:3]
            )
            found = Sample(rows, group, order, int(meta["size"]), int(meta["seed"]))
            whole = np.array_equal(np.sort(found.sequence), np.sort(found.rows))
            fits = whole and len(found.group) == len(found.rows) >= found.size > 0
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path} holds no sample ({error!r}); move it away") from error
        if not fits:
            raise BadInput(f"{path} holds no sample; move it away")
        return found


def draw(run: Path, size: int, rows: Rows, p_wrong: Array, seed: int = 0) -> Sample:
    """A random sample of a run's rows, the same as before where one was drawn, extended if it was
    smaller.

    Args:
        run: the run folder, which keeps it.
        size: of the sample.
        rows: that have a label and were judged.
        p_wrong: of each.
        seed: of the draw, where it is the first.
    """
    before = Sample.load(run)
    n = len(rows) if before is None else len(before.rows)
    if not 1 <= size <= n:
        raise BadInput(f"--sample is {size}; give a number from 1 to {n}, the rows with a label")
    if before is not None:
        if size <= before.size:
            return before
        sample = before._replace(size=size)
    else:
        group = groups_by(p_wrong, seed)
        sample = Sample(rows, group, rows[sequence(group, seed)], size, seed)
    sample.save(run)
    return sample


def sequence(group: Rows, seed: int) -> Rows:
    """Places of the rows as they are drawn: round after round one of each group."""
    random = np.random.default_rng([seed, 1])
    shuffled = random.permutation(len(group))
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    sizes = np.bincount(group)
    turn = np.empty(len(group), dtype=np.int64)
    turn[by_group] = np.concatenate([np.arange(size) for size in sizes])
    return np.lexsort((random.random(len(group)), turn))


class Reviewed(NamedTuple):
    """What was decided in a review, and the sample that was drawn for it."""

    decisions: Mapping[int, int | None]  # the true class of a row, or NO_CLASS; None: skipped
    sample: Sample | None

    @staticmethod
    def of(run: Path) -> Reviewed | None:
        """The decisions that a run folder holds, if any.

        Rows accepted all at once are left to the model: nobody looked at each of them. A bad item
        has no true class, so its label is a wrong one.
        """
        from .review.log import Log  # the review stands above the audit

        if not (run / REVIEW).exists():
            return None
        log = Log(run / REVIEW)
        decided = {
            row: NO_CLASS if decision.action == "bad" else decision.label
            for row, decision in log.current().items()
            if log.is_by_hand(decision)
        }
        return Reviewed(decided, Sample.load(run)) if decided else None

    def of_rows(self, rows: Rows, total: int, num_classes: int, worst: Rows) -> Checked:
        """What is known of these judged rows of so many.

        A decision counts as one on a random row where all rows that were drawn before it have
        one. Suspects that were reviewed from the worst down are known beside the sample, as are
        those of the sample among them: they would have been reviewed anyway.

        Args:
            rows: their numbers, rising.
            total: N.
            num_classes: K.
            worst: places in rows, the worst label by the model first.
        """
        place = {int(row): k for k, row in enumerate(rows)}
        truth = np.full(len(rows), IGNORE, dtype=np.int64)
        seen = np.zeros(len(rows), dtype=bool)
        for row, label in self.decisions.items():
            if label not in (None, NO_CLASS) and not 0 <= label < num_classes:
                raise BadInput(f"the review's class {label} of row {row} is no class of the data")
            if not 0 <= row < total:
                raise BadInput(
                    f"the review has a decision on row {row}, but there are {total} rows"
                )
            if row not in place:
                continue
            seen[place[row]] = True
            truth[place[row]] = IGNORE if label is None else label
        role = np.full(len(rows), NONE, dtype=np.int8)
        group, probability = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows))
        if self.sample is not None:
            group, drawn = self._drawn(place, seen)
            role[drawn[truth[drawn] != IGNORE]] = DRAWN
            probability[:] = max(len(drawn), 1) / len(rows)
        first = _first_open(seen[worst])
        reviewed = worst[:first]
        if len(reviewed):
            role[reviewed] = np.where(truth[reviewed] == IGNORE, OPEN, CHOSEN)
        return Checked(truth, role, group, probability)

    def notes(self) -> list[str]:
        """What is missing in the sample."""
        if self.sample is None:
            return []
        drawn = self.sample.drawn.tolist()
        open_rows = sum(row not in self.decisions for row in drawn)
        skipped = sum(self.decisions.get(row, 0) is None for row in drawn)
        told = []
        if open_rows:
            told.append(f"Of the {len(drawn)} rows drawn for the sample {open_rows} are open yet.")
        if skipped:
            told.append(
                f"{plural(skipped, 'row')} of the sample {'was' if skipped == 1 else 'were'} "
                "skipped; the count takes them to be like the others."
            )
        if bad := sum(self.decisions.get(row) == NO_CLASS for row in drawn):
            are = "is a bad item and counts" if bad == 1 else "are bad items and count"
            told.append(f"{plural(bad, 'row')} of the sample {are} as wrong.")
        return told

    def _drawn(self, place: Mapping[int, int], seen: NDArray[np.bool_]) -> tuple[Rows, Rows]:
        """The group of each row, and the places of those drawn and seen without a gap."""
        assert self.sample is not None
        group = np.full(len(place), -1, dtype=np.int64)
        for row, own in zip(self.sample.rows.tolist(), self.sample.group.tolist(), strict=True):
            if row in place:
                group[place[row]] = own
        if (group < 0).any():
            raise BadInput(f"{SAMPLE} was drawn when fewer rows could be judged; move it away")
        drawn = np.array([place[row] for row in self.sample.drawn.tolist() if row in place])
        return group, drawn[: _first_open(seen[drawn])]


def _first_open(seen: NDArray[np.bool_]) -> int:
    return len(seen) if seen.all() else int(np.argmin(seen))


def known_rows(run: Path, data: Data) -> Reviewed | dict[int, int] | None:
    """What is known of a run's rows: by its review, or by the clean labels where some are known.

    All of them known is a study, and the audit must not see them.
    """
    reviewed = Reviewed.of(run) if run.is_dir() else None
    if reviewed is not None or data.clean is None or data.clean.dim() > 1:
        return reviewed
    known = ((data.clean != IGNORE) & (data.y != IGNORE)).nonzero()[:, 0].tolist()
    if not 0 < len(known) < int((data.y != IGNORE).sum()):
        return None
    return {row: int(data.clean[row]) for row in known}
