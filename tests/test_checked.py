"""Rows checked by hand: the count holds whatever the model is, and every decision is used."""

import itertools
import json
from shutil import copy, copytree

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, logit
from scipy.stats import hypergeom, norm

from browser import start
from test_cli import refused, ytilde
from test_review import Server
from ytilde import BadInput, Classifier, Data, audit, readers
from ytilde.auditing.checked import (
    CHOSEN,
    DRAWN,
    GOALS,
    NONE,
    OPEN,
    Checked,
    _in_order,
    check_checked,
    count,
    groups_by,
    interval,
)
from ytilde.auditing.readings import Evidence
from ytilde.auditing.recalibration import fit, recalibrate
from ytilde.auditing.review import Log, Review
from ytilde.auditing.review.log import Choice
from ytilde.auditing.sampling import Reviewed, Sample, draw, known_rows, sequence
from ytilde.auditing.verdict import judge
from ytilde.data import IGNORE


def simulated(model, rate, n, random):
    """Is each of n labels wrong, and what does the model say?"""
    wrong = np.zeros(n, bool)
    wrong[random.choice(n, round(rate * n), replace=False)] = True
    seen = wrong & (random.random(n) < 0.5) if model == "blind" else wrong
    auc = 0.7 if model == "weak" else 0.99
    d = np.sqrt(2) * norm.ppf(auc)
    p = expit(logit(rate) + d * (d * seen + random.normal(size=n)) - d * d / 2)
    return wrong, {"reversed": 1 - p, "constant": np.full(n, 0.999)}.get(model, p)


def drawn_count(wrong, p, n, seed):
    group = groups_by(p, seed)
    rows = sequence(group, seed)[:n]
    role, truth = np.full(len(p), NONE, np.int8), np.full(len(p), IGNORE)
    role[rows], truth[rows] = DRAWN, wrong[rows]
    return count(Checked(truth, role, group, np.full(len(p), n / len(p))), wrong, p)


def covers(model, rate, audits, n=100, rows=1000):
    random = np.random.default_rng(round(100 * rate))
    found, width = [], []
    for seed in range(audits):
        wrong, p = simulated(model, rate, rows, random)
        told = drawn_count(wrong, p, n, seed)
        found.append(told.low - 1e-6 <= wrong.sum() <= told.high + 1e-6)
        width.append((told.high - told.low) / rows)
    return np.mean(found), np.mean(width)


# 300 audits: 95 % is missed by 3.8 points once in a thousand times. With normal quantiles of the
# sample's own variance, as prediction-powered inference has them, the first case covers in 83 %.
@pytest.mark.parametrize(
    ("model", "rate"),
    [("weak", 0.03), ("strong", 0.3), ("reversed", 0.3), ("constant", 0.2), ("blind", 0.1)],
)
def test_the_interval_holds_whatever_the_model_is(model, rate):
    share, _ = covers(model, rate, 300)
    assert 0.912 <= share <= 0.988


def test_a_strong_model_halves_the_width_of_the_sample_alone():
    _, width = covers("strong", 0.3, 60, rows=4000)
    k = np.arange(4001)  # the exact interval of a sample with the expected 30 of 100
    held = k[(hypergeom.sf(29, 4000, k, 100) > 0.025) & (hypergeom.cdf(30, 4000, k, 100) > 0.025)]
    assert width < 0.5 * (held.max() - held.min()) / 4000
    _, alone = covers("constant", 0.3, 60, rows=4000)
    assert width < 0.55 * alone


def one_group(size, checked, wrong):
    return interval(*(np.array([float(v)]) for v in (size, checked, wrong)))


def test_the_interval_of_one_group():
    assert one_group(100, 100, 7) == pytest.approx((7, 7, 7), abs=1e-3)  # nothing is left to know
    value, low, high = one_group(10_000, 100, 0)
    assert (value, low) == (0, 0) and 250 < high < 370  # the rule of three
    assert one_group(10_000, 100, 100)[2] == pytest.approx(10_000)
    value, low, high = one_group(1e6, 400, 80)
    assert (low, high) == pytest.approx((163_700, 242_000), rel=0.01)  # Wilson's
    narrow = one_group(500, 400, 80)  # most are known
    assert (narrow[2] - narrow[1]) / 500 < 0.5 * (high - low) / 1e6


@pytest.mark.parametrize(
    ("size", "checked", "wrong"), [(1000, 100, 3), (1000, 100, 95), (300, 120, 4), (150, 60, 30)]
)
def test_the_interval_of_one_group_is_a_score_test_of_the_hypergeometric_law(size, checked, wrong):
    """Every number of wrong rows, with the sd and the skewness of what would be found."""
    number = np.arange(1, size)
    mean, variance, skewness = hypergeom.stats(size, number, checked, moments="mvs")
    quantile = 1.96 + np.where(wrong > mean, 1, -1) * skewness * (1.96**2 - 1) / 6
    held = number[np.abs(wrong - mean) <= quantile * variance**0.5]
    value, low, high = one_group(size, checked, wrong)
    assert value == pytest.approx(size * wrong / checked)
    assert (low, high) == pytest.approx((held[0], held[-1]), abs=1.1)


def test_rows_of_which_none_was_drawn_may_all_be_right_or_wrong():
    """As may those left open; for the estimate they are like the others."""
    role = np.repeat([DRAWN, NONE, OPEN], [40, 50, 10]).astype(np.int8)
    wrong = np.arange(100) < 20
    truth = np.where(role == DRAWN, wrong, IGNORE)
    probability = np.where(role == DRAWN, 0.5, 0.1)
    checked = Checked(truth, role, np.zeros(100, np.int64), probability)
    found = count(checked, wrong, np.linspace(0, 1, 100))
    assert found[:3] == pytest.approx((20 + 60 * 20 / 40, 20, 20 + 60))


def test_groups_in_no_order_become_one_and_the_estimate_stays():
    def total(groups):
        return sum(size * wrong / seen for size, seen, wrong in groups)

    rising = [[100, 5, 0], [100, 5, 1], [100, 5, 4]]
    assert _in_order(rising) == rising and _in_order(rising[::-1]) == rising
    mixed = [[100, 5, 0], [100, 5, 3], [100, 5, 1], [100, 5, 5]]
    found = _in_order(mixed)
    assert len(found) == 3 and total(found) == pytest.approx(total(mixed))
    assert found[1] == pytest.approx([200, 10, 4])
    uneven = [[100, 8, 4], [300, 2, 0], [100, 5, 3], [100, 10, 3]]
    found = _in_order(uneven)
    assert len(found) < 4 and total(found) == pytest.approx(total(uneven))
    assert sum(seen for _, seen, _ in found) < 25  # unevenly drawn rows count less
    assert len(_in_order([[100, 5, 1]] * 7)) == 1


@pytest.mark.parametrize(("each", "sizes"), [(5, [50] * 4), (4, [100] * 2), (1, [200])])
def test_groups_with_fewer_than_five_checked_rows_are_joined(each, sizes):
    group = np.repeat(np.arange(4), 50)
    drawn = np.arange(200) % 50 < each
    wrong = drawn & (np.arange(200) % 50 < np.array([0, 1, 3, 4])[group])
    role = np.where(drawn, DRAWN, NONE).astype(np.int8)
    checked = Checked(np.where(drawn, wrong, IGNORE), role, group, np.full(200, each / 50))
    size, seen, _ = count(checked, wrong, group / 4).groups
    assert size.tolist() == sizes and seen.tolist() == [each * s / 50 for s in sizes]


def test_groups_of_equal_p_wrong_are_not_put_in_the_order_of_what_was_found():
    """A model that says the same of all rows has about the interval of the sample alone."""
    group = np.repeat(np.arange(20), 50)
    drawn = np.arange(1000) % 50 < 5
    wrong = drawn & (group % 2 == 0) & (np.arange(1000) % 50 < 4)
    role = np.where(drawn, DRAWN, NONE).astype(np.int8)
    truth = np.where(drawn, wrong, IGNORE)
    found = count(Checked(truth, role, group, np.full(1000, 0.1)), wrong, np.full(1000, 0.999))
    _, low, high = one_group(1000, 100, 40)
    assert found.value == pytest.approx(400)
    assert found.high - found.low > 0.9 * (high - low)


@pytest.fixture(scope="module")
def sure():
    """A good model of 2,000 rows, the truth, and the given labels."""
    random = np.random.default_rng(0)
    clean = random.integers(0, 3, 2000)
    y = np.where(random.random(2000) < 0.2, (clean + 1) % 3, clean)
    p = 0.7 * np.eye(3)[clean] + 0.3 * random.dirichlet(np.ones(3), 2000)
    return p, y, clean


def test_checked_rows_are_known_and_the_others_keep_their_order(sure):
    p, y, clean = sure
    rows = np.random.default_rng(1).choice(2000, 100, replace=False)
    before, found = audit(p, y), audit(p, y, checked={int(r): int(clean[r]) for r in rows})
    wrong = y != clean
    assert found.num_errors.low <= wrong.sum() <= found.num_errors.high
    assert found.checked.drawn == 100 and found.checked.wrong == wrong[rows].sum()
    known = found.issues.loc[rows]
    assert (known.p_wrong == wrong[rows]).all() and (known.is_label_issue == wrong[rows]).all()
    assert (known.predicted_label == clean[rows]).all()
    others = np.setdiff1d(np.arange(2000), rows)
    order = before.issues.loc[others].sort_values("label_quality").index
    assert (np.diff(found.issues.label_quality[order]) > -1e-12).all()
    flagged = found.issues[found.issues.is_label_issue]
    assert (flagged.predicted_label != flagged.given_label).all()
    assert found.per_class.expected_errors.sum() == pytest.approx(found.issues.p_wrong.sum())
    assert found.transition.sum(1) == pytest.approx(1)
    assert "checked by hand: 100 rows" in found.summary()
    assert "whatever" not in found.summary() and "Checked by hand: 100 rows" in found.notes[0]
    assert not any("Without a clean sample" in note for note in found.notes)


def test_a_useless_model_still_counts(sure):
    _, y, clean = sure
    rows = np.random.default_rng(2).choice(2000, 150, replace=False)
    nothing = np.random.default_rng(3).dirichlet(np.ones(3), 2000)
    labels = [clean[r] if r in set(rows) else None for r in range(2000)]
    found = audit(nothing, y, checked=labels)
    assert found.at_chance and "Which ones cannot be told" in found.summary()
    assert found.num_errors.low <= (y != clean).sum() <= found.num_errors.high
    assert found.num_errors.high - found.num_errors.low < 300
    assert abs(found.issues.p_wrong.mean() - 0.2) < 0.07  # recalibrated by what was found


def test_names_arrays_and_all_rows(sure):
    p, y, clean = sure
    names = np.array(["a", "b", "c"])
    rows = range(0, 2000, 20)
    by_name = audit(p, names[y], checked={r: str(names[clean[r]]) for r in rows})
    by_number = audit(p, y, checked={r: int(clean[r]) for r in rows})
    assert by_name.num_errors == by_number.num_errors
    everything = audit(p, y, checked=clean)
    assert everything.num_errors.low == everything.num_errors.high == (y != clean).sum()
    frame = pd.DataFrame(p, columns=names)
    assert audit(frame, names[y], checked={0: "b"}).issues.predicted_label[0] == "b"


def test_chosen_rows_count_as_themselves(sure):
    """All suspects and a tenth of the rest: as one random sample they would say far too much."""
    p, y, clean = sure
    suspect = audit(p, y).issues.p_wrong.to_numpy() > 0.5
    random = np.random.default_rng(4)
    rest = random.choice(np.flatnonzero(~suspect), 160, replace=False)
    rows = [*np.flatnonzero(suspect), *rest]
    checked = {int(r): int(clean[r]) for r in rows}
    found = audit(p, y, checked=checked, drawn=np.where(suspect, 1.0, 0.1))
    wrong = y != clean
    assert found.num_errors.low <= wrong.sum() <= found.num_errors.high
    assert found.num_errors.high - found.num_errors.low < 60
    assert (found.checked.drawn, found.checked.chosen) == (160, suspect.sum())
    assert audit(p, y, checked=checked).num_errors.low > wrong.sum()


def test_groups_are_equal_parts_of_the_rows_with_a_label_and_a_probability():
    """By p_wrong, one for ten checked rows."""
    random = np.random.default_rng(0)
    y, order = np.where(np.arange(300) % 3 == 0, IGNORE, 1), random.random(300)
    drawn = random.choice([0.6, 0.3, 1.0], 300, p=[0.5, 0.4, 0.1])
    parts = {value: np.flatnonzero((y != IGNORE) & (drawn == value)) for value in (0.6, 0.3, 1.0)}
    known = [*parts[0.6][:55], *parts[0.3][:29], *parts[1.0]]
    found = check_checked({int(r): 0 for r in known}, drawn, y, None, 2, order)
    for value, groups in ((0.6, 5), (0.3, 2)):
        group = found.group[sorted(parts[value], key=lambda r: order[r])]
        sizes = np.bincount(group)
        assert (np.diff(group) >= 0).all() and len(sizes) == groups
        assert sizes.max() - sizes.min() <= 1
    roles = np.where(drawn[known] == 1, CHOSEN, DRAWN)
    assert (found.role[known] == roles).all() and (found.role == NONE).sum() == 300 - len(known)


@pytest.mark.parametrize(
    ("checked", "drawn", "match"),
    [
        ({2000: 1}, None, "names row 2000, and the rows are 0 to 1999"),
        ({-1: 1}, None, "names row -1"),
        ({5: 3}, None, "label 3 of row 5 is no class"),
        ({5: "cat"}, None, "label 'cat' of row 5 is no class"),
        ([1, 2, 0], None, "3 labels for 2000 rows"),
        ({5: 1}, [0.5], "probabilities for 2000 rows"),
        ({5: 1}, np.zeros(2000), "above 0, at most 1"),
        ({5: 1}, np.ones(2000), "surely drawn, but checked has no label"),
        ({5: 1}, np.linspace(0.1, 0.9, 2000), "different probabilities"),
    ],
)
def test_bad_input_is_one_sentence(sure, checked, drawn, match):
    p, y, _ = sure
    with pytest.raises(BadInput, match=match):
        audit(p, y, checked=checked, drawn=drawn)


def test_a_classifier_takes_checked_rows():
    random = np.random.default_rng(0)
    clean = random.integers(0, 2, 200)
    X = random.normal(size=(200, 2)) + 3 * clean[:, None]
    y = np.where(random.random(200) < 0.2, 1 - clean, clean)
    clf = Classifier(method="ce", epochs=2, random_state=0).fit(X, np.array(["no", "yes"])[y])
    checked = {r: ["no", "yes"][clean[r]] for r in range(0, 200, 4)}
    found = clf.audit(X, np.array(["no", "yes"])[y], folds=0, checked=checked)
    assert found.checked.drawn == 50
    assert (found.issues.predicted_label[::4] == list(checked.values())).all()
    with pytest.raises(BadInput, match="'maybe' is no class"):
        clf.audit(X, np.array(["no", "yes"])[y], folds=0, checked={0: "maybe"})


# ---- recalibration ----------------------------------------------------------------------------


def test_recalibration_shrinks_to_what_it_was_and_learns_from_many():
    random = np.random.default_rng(0)
    x = random.normal(0, 6, 400)  # logits three times too sure
    wrong = random.random(400) < expit(x / 3)
    shift, slope = fit(x, wrong, np.ones(400))
    assert abs(shift) < 0.4 and 0.25 < slope < 0.45
    shift, slope = fit(x[:1], wrong[:1], np.ones(1))
    assert abs(shift) < 0.5 and abs(slope - 1) < 0.2
    assert fit(-x, wrong, np.ones(400))[1] > 0  # a reversed model loses its say, not its order


def test_recalibration_is_the_likeliest_under_its_prior():
    """a ~ N(0, 1) alone where all logits are 0; b alone where the rows are symmetric."""
    wrong = np.arange(12) < 9
    shift, slope = fit(np.zeros(12), wrong, np.full(12, 7.0))
    assert 9 - 12 * expit(shift) == pytest.approx(shift, abs=1e-3)  # the score is zero
    assert slope == pytest.approx(1, abs=1e-3)
    for right, sd in ((5, 1.0), (8, 0.25)):  # of 8 rows; log b has another sd above 0
        x = np.repeat([2.0, -2.0], 8)
        agrees = np.tile(np.arange(8) < right, 2)
        shift, slope = fit(x, np.where(agrees, x > 0, x < 0), np.ones(16))
        score = 2 * (right * expit(-2 * slope) - (8 - right) * expit(2 * slope)) * 2 * slope
        assert shift == pytest.approx(0, abs=1e-3) and (slope > 1) == (right == 8)
        assert score == pytest.approx(np.log(slope) / sd**2, abs=0.01)


def test_a_checked_row_has_its_truth_and_what_was_suggested_before_comes_second():
    """Where the truth was the runner-up the two change places; else the runner-up stays."""
    random = np.random.default_rng(0)
    p, y = random.dirichlet(np.ones(4), 60), random.integers(0, 4, 60)
    before = audit(p, y).issues
    truth = {r: int(before[("runner_up_label", "predicted_label")[r % 2]][r]) for r in range(30)}
    found = audit(p, y, checked=truth).issues
    for r in range(30):
        assert found.predicted_label[r] == truth[r] and found.predicted_prob[r] == 1
        assert found.runner_up_prob[r] == 0
        second = before[("predicted_label", "runner_up_label")[r % 2]][r]
        assert found.runner_up_label[r] == second != truth[r]


def test_weights_undo_how_the_rows_were_drawn():
    """Suspects are reviewed ten times as often; the fit is that of all rows."""
    random = np.random.default_rng(1)
    x = random.normal(-2, 2, 6000)
    wrong = random.random(6000) < np.where(x > 0, 0.5, 0.02)  # no logistic fits both parts
    chance = np.where(x > 0, 0.5, 0.05)
    drawn = random.random(6000) < chance
    whole = fit(x, wrong, np.ones(6000))
    weighted = fit(x[drawn], wrong[drawn], 1 / chance[drawn])
    assert np.abs(np.subtract(whole, weighted)).max() < 0.35


def test_a_rarely_drawn_row_stands_for_more_rows_in_the_recalibration():
    """100 rows, half of them checked and all wrong; 1,000, one in twenty checked and all right."""
    drawn = np.repeat([0.5, 0.05], [100, 1000])
    known = np.r_[0:50, 100:150]
    y = np.arange(1100) % 2
    p, T = np.full((1100, 2), 0.5), np.array([[0.7, 0.3], [0.3, 0.7]])
    truth = {int(r): int(1 - y[r] if r < 50 else y[r]) for r in known}
    found = audit(p, y, transition=T, checked=truth, drawn=drawn).issues.p_wrong
    others = found.drop(known)
    assert others.std() < 1e-9  # the model says the same of all
    assert others.mean() == pytest.approx(100 / 1100, abs=0.04)  # as many are wrong


def test_a_chosen_row_weighs_as_much_as_one_that_was_surely_drawn():
    random = np.random.default_rng(0)
    p, y = random.dirichlet(np.ones(3), 200), random.integers(0, 3, 200)
    found, group = judge(Evidence(p, y, np.arange(200), None)), np.zeros(200, np.int64)
    truth = np.where(np.arange(200) < 80, (y + random.integers(0, 2, 200)) % 3, IGNORE)
    chosen = np.arange(200) < 30

    def p_wrong(role, probability):
        role = np.where(truth == IGNORE, NONE, np.where(chosen, role, DRAWN)).astype(np.int8)
        chance = np.where(chosen, probability, 0.2)
        return recalibrate(found, y, Checked(truth, role, group, chance)).p_wrong

    assert np.array_equal(p_wrong(CHOSEN, 0.2), p_wrong(DRAWN, 1.0))
    assert not np.allclose(p_wrong(CHOSEN, 0.2), p_wrong(DRAWN, 0.2))


# ---- how many more ----------------------------------------------------------------------------


def test_more_rows_come_true():
    random = np.random.default_rng(0)
    wrong, p = simulated("weak", 0.2, 20_000, random)
    now = drawn_count(wrong, p, 100, 0)
    more = now.more_rows(0.03)
    then = drawn_count(wrong, p, 100 + more, 0)
    assert (then.high - then.low) / 2 / 20_000 == pytest.approx(0.03, rel=0.15)
    assert now.more_rows(0.5) == 0 and now.more_rows(0.01) > more
    told = now.advice()
    assert told.startswith("Check about ") and told.endswith(
        "more rows to know the share within ±5 points."
    )
    with pytest.raises(BadInput, match="above 0"):
        now.more_rows(0)


# ---- the sample of a review -------------------------------------------------------------------


def test_the_next_widths_are_round_and_about_half_of_each_other():
    assert all(float(f"{goal:.0e}") == goal for goal in GOALS)  # one digit
    steps = np.divide(GOALS[:-1], GOALS[1:])
    assert steps.min() > 1.4 and steps.max() < 2.6


def test_a_sample_is_drawn_once_and_extended(tmp_path):
    random = np.random.default_rng(0)
    rows, p = np.arange(0, 1000, 2), random.random(500)
    first = draw(tmp_path, 40, rows, p)
    assert first.probability == 0.08 and len(set(first.drawn)) == 40
    tenth = np.argsort(np.argsort(p)) // 50
    assert (np.bincount(tenth[first.drawn // 2]) == 4).all()  # spread over p_wrong
    assert (draw(tmp_path, 40, rows, p[::-1]).drawn == first.drawn).all()
    assert len(draw(tmp_path, 20, rows, p).drawn) == 40  # what was drawn stays drawn
    more = draw(tmp_path, 90, rows, p)
    assert (more.drawn[:40] == first.drawn).all() and len(set(more.drawn)) == 90
    assert (Sample.load(tmp_path).drawn == more.drawn).all()
    for size in (0, 501):
        with pytest.raises(BadInput, match="from 1 to 500"):
            draw(tmp_path, size, rows, p)
    (tmp_path / "sample.safetensors").write_bytes(b"no sample")
    with pytest.raises(BadInput, match="damaged"):
        draw(tmp_path, 40, rows, p)


def test_every_row_is_as_likely_as_any_other():
    hits = np.zeros(60)
    for seed in range(400):
        hits[sequence(groups_by(np.arange(60.0), seed), seed)[:15]] += 1
    assert hits.min() > 60 and hits.max() < 145  # 100 expected, sd 8.7


def reviewed_count(wrong, p, sample, decided):
    """The count after these rows were decided on, the truth being 1 where a 0 is wrong."""
    found = Reviewed(dict.fromkeys(decided, 0) | {r: int(wrong[r]) for r in decided}, sample)
    checked = found.of_rows(np.arange(len(p)), len(p), 2, np.lexsort((-p, 1 - p)))
    return checked, count(checked, wrong & (checked.truth != IGNORE), p)


def test_reviewed_suspects_do_not_bias_the_count(tmp_path):
    """Rows of the sample among the worst would have been reviewed anyway."""
    random = np.random.default_rng(0)
    wrong, p = simulated("strong", 0.2, 1000, random)
    worst = np.argsort(-p)[:150]
    values, held = [], []
    for seed in range(150):
        group = groups_by(p, seed)
        sample = Sample(np.arange(1000), group, sequence(group, seed), 60, seed)
        _, told = reviewed_count(wrong, p, sample, {*sample.drawn.tolist(), *worst.tolist()})
        values.append(told.value)
        held.append(told.low <= wrong.sum() <= told.high)
    assert np.mean(values) == pytest.approx(wrong.sum(), abs=4 * np.std(values) / 150**0.5)
    assert np.mean(held) > 0.9


def test_only_decisions_without_a_gap_are_a_sample():
    wrong, p = simulated("weak", 0.2, 500, np.random.default_rng(0))
    group = groups_by(p)
    sample = Sample(np.arange(500), group, sequence(group, 0), 50, 0)
    order = sample.drawn.tolist()
    checked, told = reviewed_count(wrong, p, sample, order[:20] + order[30:])
    least_worst = [r for r in order[30:] if checked.role[r] == DRAWN]
    assert not least_worst and told.drawn + (checked.role[order[:20]] == CHOSEN).sum() == 20
    assert (checked.truth[order[30:]] != IGNORE).all()  # known all the same
    assert Reviewed(dict.fromkeys(order[:20], 0) | {order[0]: None}, sample).notes() == [
        "Of the 50 rows drawn for the sample 30 are open yet.",
        "1 row of the sample was skipped; the count takes them to be like the others.",
    ]


def test_a_skipped_suspect_may_be_either():
    wrong, p = simulated("strong", 0.2, 500, np.random.default_rng(0))
    group = groups_by(p)
    sample = Sample(np.arange(500), group, sequence(group, 0), 50, 0)
    worst = np.argsort(-p)[:40].tolist()
    decided = {r: int(wrong[r]) for r in {*worst, *sample.drawn.tolist()}}
    rows = np.arange(500), 500, 2, np.lexsort((-p, 1 - p))
    whole, part = (
        Reviewed(d, sample).of_rows(*rows) for d in (decided, decided | dict.fromkeys(worst[:3]))
    )
    assert (part.role[worst[:3]] == OPEN).all()
    told, vague = (count(c, wrong & (c.truth != IGNORE), p) for c in (whole, part))
    assert vague.high - vague.low == pytest.approx(told.high - told.low + 3, abs=1)


def decided_in_a_review(run, decisions, **at_once):
    """The review of a run after these rows got a class, were called bad, or were accepted."""
    log = Log(run / "review.sqlite")
    for row, label in decisions.items():
        action = "bad" if label is None else "choose"
        log.decide(f"row{row}", "tab", row, action, label, 0)
    for request, rows in at_once.items():
        log.decide_all(request, "tab", [Choice(row, "accept", label) for row, label in rows])
    return Reviewed.of(run)


def test_a_bad_item_counts_as_a_wrong_label_and_is_not_fixed(sure, tmp_path):
    p, y, clean = sure
    sample = draw(tmp_path, 100, np.arange(2000), audit(p, y).issues.p_wrong.to_numpy())
    truth = {row: int(clean[row]) for row in sample.drawn.tolist()}
    right = [row for row in truth if y[row] == clean[row]][:3]
    without = audit(p, y, checked=decided_in_a_review(tmp_path, truth))
    (tmp_path / "review.sqlite").unlink()
    found = audit(p, y, checked=decided_in_a_review(tmp_path, truth | dict.fromkeys(right)))
    assert found.checked.wrong == without.checked.wrong + 3
    assert found.num_errors > without.num_errors
    assert "3 rows of the sample are bad items and count as wrong." in found.notes
    bad = found.issues.loc[right]
    assert (bad.p_wrong == 1).all() and (bad.predicted_prob == 0).all() and bad.is_label_issue.all()
    fixed = found.fixed_labels(above=0.5)
    assert not fixed.fixed[right].any() and fixed.fixed.any()
    assert (fixed.label[right] == fixed.given_label[right]).all()


def test_rows_accepted_all_at_once_were_not_checked(sure, tmp_path):
    p, y, clean = sure
    plain = audit(p, y)
    worst = plain.issues.sort_values("label_quality")["index"][:30].tolist()
    first = {worst[0]: int(clean[worst[0]])}
    rest = [(row, int((y[row] + 1) % 3)) for row in worst[1:]]
    found = decided_in_a_review(tmp_path, first, all=rest)
    assert found.decisions == first
    assert (audit(p, y, checked=found).issues.label_quality[worst[1:]] > 0).all()


def test_decisions_on_nothing_are_refused():
    rows = np.arange(10), 10, 2, np.arange(10)
    with pytest.raises(BadInput, match="row 10, but there are 10 rows"):
        Reviewed({10: 1}, None).of_rows(*rows)
    with pytest.raises(BadInput, match="class 2 of row 3"):
        Reviewed({3: 2}, None).of_rows(*rows)


def test_clean_labels_of_some_rows_are_checked_rows(tmp_path):
    y = torch.tensor([0, 1, 0, 1])
    data = Data(torch.zeros(4, 2), y, 2, clean=torch.tensor([0, -1, 1, -1]))
    assert known_rows(tmp_path, data) == {0: 0, 2: 1}
    study = Data(torch.zeros(4, 2), y, 2, clean=torch.tensor([0, 0, 1, 1]))
    assert known_rows(tmp_path, study) is None  # all are known: the audit must not see them
    assert known_rows(tmp_path, Data(torch.zeros(4, 2), y, 2)) is None


# ---- from the command line --------------------------------------------------------------------


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    random = np.random.default_rng(0)
    clean = random.integers(0, 3, 300)
    x = random.normal(size=(300, 3)) + 4 * np.eye(3)[clean]
    y = np.where(random.random(300) < 0.2, (clean + 1) % 3, clean)
    names = np.array(["=cmd()", "cat", "dog"])
    frame = pd.DataFrame(x, columns=list("abc")).assign(label=names[y])
    frame.to_csv(folder / "d.csv", index=False)
    enough = ("--method", "ce", "--epochs", "20")  # for a model that suspects somebody
    ytilde("fit", folder / "d.csv", *enough, "--out", folder / "run")
    told = ytilde("audit", folder / "run", "--folds", "2").stdout
    assert f"next: ytilde review {folder / 'run'} --sample 100" in told
    return folder / "run", clean, y


def page(run, sample):
    found = readers.read(str(run.parent / "d.csv"))
    return Review(run, found.data, columns=found.schema.columns, sample=sample)


def test_drawn_rows_are_in_no_pair_and_have_nothing_beside_them(audited, tmp_path):
    run = tmp_path / "run"
    copytree(audited[0], run)
    copy(audited[0].parent / "d.csv", tmp_path / "d.csv")
    plain = page(run, None)
    suspects = set(plain.position)
    pair = max(plain.pairs()["pairs"], key=lambda each: each["total"])
    accepted = {"tab": "tab", "kind": "open", "request": "all", "only": None}
    plain.accept_pair(accepted | {"pair": list(pair["pair"]), "open": pair["open"]})
    view = page(run, 150)
    drawn = {item["index"] for item in view.sample}
    assert drawn & suspects and suspects - drawn
    assert sum(each["total"] for each in view.pairs()["pairs"]) == len(suspects - drawn)
    answer = view.next("tab")
    seen = []
    while (item := answer["item"]) and item["drawn"]:
        assert answer["pair"] is None and not item["similar"]
        seen.append(item["row"])
        asked = {"tab": "tab", "kind": "open", "request": f"r{item['row']}", "row": item["row"]}
        answer = view.decide(asked | {"seen": item["seen"], "action": "keep"})
    assert set(seen) == drawn  # those accepted at once, unseen, come again
    assert set(Reviewed.of(run).decisions) == drawn


def test_the_sample_comes_first_and_the_audit_counts_by_it(audited):
    run, clean, y = audited
    refused("review", run, "--sample", "301", match="--sample is 301; give a number from 1 to 300")
    refused("review", run, "--sample", "5", "--export", "x.csv", match="give one of them")
    plain = page(run, None)
    suspects = [item["index"] for item in plain.issues]
    view = page(run, 60)
    assert view.overview()["sample"] == 60
    rows = [item["index"] for item in view.issues]
    assert len(set(rows)) == len(rows) and set(suspects) <= set(rows)
    assert rows[60:] == [row for row in suspects if row not in rows[:60]]
    assert not set(rows[:60]) <= set(suspects)
    names = [f"r{k}" for k in range(len(rows))]
    answer = view.next("tab")
    for number, name in enumerate(names[:60]):
        item = answer["item"]
        assert item["drawn"] and item["position"] == number and item["predicted"] != item["given"]
        row = item["row"]
        asked = {"tab": "tab", "kind": "open", "request": name, "row": row, "seen": 0}
        answer = view.decide(asked | {"action": "choose", "label": int(clean[row])})
    assert not answer["item"] or not answer["item"]["drawn"]
    assert [i["index"] for i in page(run, 40).issues[:40]] == rows[:40]  # the same on every call
    told = ytilde("audit", run, "--folds", "2").stdout
    assert "checked by hand: 60 rows" in told and "note: Checked by hand: 60 rows" in told
    assert "more rows to know the share within" in told
    found = json.loads((run / "audit.json").read_text())
    wrong = (y != clean).sum()
    assert found["num_errors"]["low"] <= wrong <= found["num_errors"]["high"]
    assert found["checked"]["rows"] == 60
    issues = pd.read_csv(run / "issues.csv").set_index("index").loc[rows[:60]]
    assert (issues.p_wrong == (y != clean)[rows[:60]]).all()
    report = (run / "report.html").read_text()
    assert "checked by hand: 60 rows" in report and f"{run} --sample " in report
    more = page(run, 90)
    assert [item["index"] for item in more.issues[:60]] == rows[:60]
    assert more.next("tab")["item"]["position"] == 60
    exported = run.parent / "labels.csv"
    ytilde("review", run, "--export", exported)
    labels = pd.read_csv(exported).set_index("index")
    assert (labels.fixed[rows[:60]] == (y != clean)[rows[:60]]).all()


@pytest.fixture
def browser(tmp_path):
    yield from start(tmp_path / "chromium")


def test_in_a_browser_random_rows_come_without_the_models_opinion(audited, browser):
    run, _, _ = audited
    server = Server(run, sample=100)
    try:
        browser.open(server.url)
        browser.until("!document.getElementById('item').hidden")
        told = browser.eval("document.getElementById('drawn').textContent")
        assert told.startswith("Random sample, 61 of 100: it tells how many labels are wrong")
        ids = ["probably", "wrong", "accept-p", "keep-p"]
        hidden = f"{ids}.map((id) => document.getElementById(id).hidden)"
        assert browser.eval(hidden) == [True] * 4
        assert not browser.eval("document.getElementById('drawn').hidden")
        for _ in range(40):
            place = browser.eval("document.getElementById('place').textContent")
            browser.press("k")
            browser.until(f"document.getElementById('place').textContent !== {place!r}")
        assert browser.eval(hidden) == [False] * 4  # the suspects
        assert browser.eval("document.getElementById('drawn').hidden")
    finally:
        server.kill()


def test_a_decision_on_no_row_ends_in_one_sentence(audited, tmp_path):
    run, _, _ = audited
    log = Log(run / "review.sqlite")
    log.decide("nowhere", "tab", 300, "choose", 0, 0)
    refused("audit", run, "--folds", "2", match="a decision on row 300, but there are 300 rows")
    log.undo("back", "tab")
    (run / "issues.csv").unlink()
    refused("review", run, "--sample", "20", match="`ytilde audit")
    assert list(itertools.islice(log.current(), 1)) != [300]
