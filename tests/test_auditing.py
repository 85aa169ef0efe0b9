"""auditing: Bayes against loops, calibration and coverage by simulation, files, bad input."""

import copy
import importlib
import itertools
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

from ytilde import auditing, metrics
from ytilde.auditing import audit, inputs, notes, readings, report, verdict
from ytilde.auditing.audit import overlap
from ytilde.auditing.issues import worst_first
from ytilde.data import BadInput
from ytilde.selection import two_component_mixture


def simulate(seed, *, n=3000, k=5, rate=0.25, kind="symmetric", temperature=1.0, of="clean"):
    """Labels with class-level noise and the exact posterior of the clean or the noisy label."""
    rng = np.random.default_rng(seed)
    z = 10.0 * rng.normal(size=(n, k))
    f = np.exp(z - z.max(1, keepdims=True))
    f /= f.sum(1, keepdims=True)
    clean = (f.cumsum(1) > rng.random((n, 1))).argmax(1)
    T = (1 - rate) * np.eye(k)
    T += (
        rate / (k - 1) * (1 - np.eye(k)) if kind == "symmetric" else rate * np.roll(np.eye(k), 1, 1)
    )
    y = (T[clean].cumsum(1) > rng.random((n, 1))).argmax(1)
    p = f if of == "clean" else f @ T
    p = p ** (1 / temperature)
    return p / p.sum(1, keepdims=True), y, clean, T


def test_given_transition_is_bayes_by_loops():
    p, y, _, T = simulate(0, n=40)
    rng = np.random.default_rng(1)
    per_row = rng.dirichlet(np.ones(5), (40, 5))
    for transition in (T, per_row):
        found = audit(p, y, transition=transition).issues
        for n in range(40):
            t = transition if transition.ndim == 2 else transition[n]
            joint = [p[n, i] * t[i, y[n]] for i in range(5)]
            assert found.label_quality[n] == pytest.approx(joint[y[n]] / sum(joint))
            assert found.p_wrong[n] == pytest.approx(1 - joint[y[n]] / sum(joint))
            top = sorted(p[n])[-2:]
            assert found.ambiguity[n] == pytest.approx(1 - (top[1] - top[0]))
            if found.is_label_issue[n]:
                joint[y[n]] = -1
            else:
                joint = [v / sum(joint) for v in joint]
            assert found.predicted_label[n] == np.argmax(joint)


def test_transition_is_the_expected_confusion():
    p, y, _, T = simulate(0, n=200)
    found = audit(p, y, transition=T)
    joint = np.zeros((5, 5))
    for n in range(200):
        post = p[n] * T[:, y[n]]
        joint[:, y[n]] += post / post.sum()
    np.testing.assert_allclose(found.transition, joint / joint.sum(1, keepdims=True))
    np.testing.assert_allclose(found.to_cleanlab().sum(0), 1)
    np.testing.assert_allclose(found.to_cleanlab(), found.transition.T)
    errors = joint.sum() - np.trace(joint)
    assert float(found.num_errors) == pytest.approx(errors)
    assert found.per_class.expected_errors.sum() == pytest.approx(errors)
    flagged = found.issues[found.issues.is_label_issue]
    for c, row in found.per_class.iterrows():
        assert row.given == (y == c).sum() and row.issues == (flagged.given_label == c).sum()
        wrong = joint[:, c].sum() - joint[c, c]
        assert row.expected_errors == pytest.approx(wrong)
        assert row.noise_rate == pytest.approx(wrong / (y == c).sum())
        assert row.expected_true == pytest.approx(joint[c].sum())
        assert row.lost_rate == pytest.approx(1 - joint[c, c] / joint[c].sum())
    for _, row in found.pairs.iterrows():
        i, j = int(row.predicted_label), int(row.given_label)
        assert row.expected_errors == pytest.approx(joint[i, j])
        own = (flagged.given_label == j) & (flagged.predicted_label == i)
        assert row.issues == own.sum()
    kept = [joint[i, j] for i in range(5) for j in range(5) if i != j and joint[i, j] >= 0.5]
    assert found.pairs.expected_errors.sum() == pytest.approx(sum(kept))
    assert found.pairs.expected_errors.is_monotonic_decreasing


def test_pairs_are_those_of_half_a_row_at_least():
    joint = np.array([[9.0, 0.5, 0.6], [0.49, 8.0, 0.0], [2.0, 0.1, 7.0]])  # [true, given]
    flagged = np.array([[0, 1, 3], [2, 0, 0], [1, 0, 0]])  # [given, suggested]
    counts = verdict.Counts(*[np.zeros(3, np.int64)] * 2, flagged, *[np.zeros(3, np.int64)] * 2)
    table = verdict.pairs(joint, counts, np.array(["a", "b", "c"]))
    assert [tuple(row) for row in table.to_numpy()] == [
        ("a", "c", 2.0, 3), ("c", "a", 0.6, 1), ("b", "a", 0.5, 2)
    ]  # fmt: skip


def test_an_impossible_label_is_wrong():
    p = np.array([[1.0, 0.0], [0.9, 0.1], [0.2, 0.8]])
    found = audit(p, [1, 0, 1], transition=np.eye(2)).issues
    assert found.p_wrong.tolist() == [1.0, 0.0, 0.0]
    assert found.predicted_label.tolist() == [0, 0, 1]


@pytest.mark.parametrize("of", ["clean", "noisy"])
@pytest.mark.parametrize("kind", ["symmetric", "pair"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.6])
def test_p_wrong_is_calibrated_and_finds_errors(of, kind, temperature):
    p, y, clean, T = simulate(3, kind=kind, temperature=temperature, of=of)
    wrong = y != clean
    found = audit(p, y)
    assert metrics.calibration_error(found.issues.p_wrong, wrong) < 0.06
    assert metrics.auroc(found.issues.p_wrong, wrong) > 0.94
    assert metrics.f1(found.issues.is_label_issue, wrong) > 0.83
    assert found.noise_rate.low < wrong.mean() < found.noise_rate.high
    assert np.abs(found.transition - T).sum(1).mean() < 0.25
    bayes = audit(*simulate(3, kind=kind)[:2], transition=T)
    assert metrics.calibration_error(bayes.issues.p_wrong, wrong) < 0.02


def test_interval_covers_and_says_something():
    inside, width = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p, y, clean, _ = simulate(
            seed,
            n=600,
            rate=rng.uniform(0, 0.4),
            kind=["symmetric", "pair"][seed % 2],
            temperature=rng.uniform(0.6, 1.6),
            of=["clean", "noisy"][seed // 2 % 2],
        )
        rate = audit(p, y).noise_rate
        inside += rate.low <= (y != clean).mean() <= rate.high
        width.append(rate.high - rate.low)
    assert inside >= 54
    assert np.mean(width) < 0.25


def test_the_interval_of_a_sure_model_is_the_binomial_one():
    """A model without doubt of its own leaves only chance: a 95 % interval of 30 in 200."""
    y = np.arange(200) % 2
    p = np.eye(2)[np.where(np.arange(200) < 30, 1 - y, y)]
    rate = audit(p, y, transition=np.array([[0.8, 0.2], [0.2, 0.8]])).noise_rate
    half = 1.96 * np.sqrt(0.15 * 0.85 / 200)
    assert (float(rate), rate.low, rate.high) == pytest.approx((0.15, 0.15 - half, 0.15 + half))


def test_an_interval_stays_among_the_shares():
    for wrong in (0, 1, 9, 10):
        rate, low, high = verdict.interval(wrong, np.array([wrong / 10]), 0.3, 10)
        assert 0 <= low <= rate <= high <= 1


def test_what_is_said_of_a_label_adds_up():
    """A suspect's own probability, its suggestion's and the rest's are one; p_wrong is modest."""
    p, y, _, _ = simulate(0, temperature=1.6, of="noisy")
    issues = audit(p, y).issues
    np.testing.assert_allclose(issues.p_wrong + issues.label_quality, 1)
    suspects = issues[issues.is_label_issue]
    assert len(suspects) > 100 and (suspects.predicted_prob <= suspects.p_wrong + 1e-12).all()


def test_clean_labels_are_left_alone():
    p, y, _, _ = simulate(0, rate=0.0)
    found = audit(p, y)
    assert found.noise_rate.low < 0.01
    assert found.issues.is_label_issue.mean() < 0.03


def test_finds_a_wrong_block_in_real_digits():
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    x, clean = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(clean)) < 0.2
    y = np.where(wrong, (clean + rng.integers(1, 10, len(clean))) % 10, clean)
    model = LogisticRegression(C=0.01, max_iter=50)
    p = cross_val_predict(model, x / 16, y, method="predict_proba", cv=5)
    found = audit(p, y)
    flagged = found.issues.is_label_issue
    assert metrics.f1(flagged, wrong) > 0.86
    assert metrics.auroc(found.issues.p_wrong, wrong) > 0.99
    assert metrics.calibration_error(found.issues.p_wrong, wrong) < 0.06
    fixed = found.issues.predicted_label[flagged & wrong]
    assert (fixed == clean[flagged & wrong]).mean() > 0.9


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_relabelling_classes_commutes(seed):
    p, y, _, _ = simulate(seed, n=300, k=4)
    order = np.random.default_rng(seed).permutation(4)
    place = np.argsort(order)
    one, two = audit(p, y), audit(p[:, order], place[y])
    np.testing.assert_allclose(one.issues.p_wrong, two.issues.p_wrong, atol=1e-6)
    np.testing.assert_allclose(one.transition[np.ix_(order, order)], two.transition, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.02, 1.0, 30.0]))
def test_columns_stay_in_range_on_any_probabilities(seed, concentration):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(3, concentration), 40)
    y = rng.integers(-1, 3, 40)
    y[0] = 0
    found = audit(p, y)
    for name in ("label_quality", "p_wrong", "ambiguity", "predicted_prob"):
        assert found.issues[name].between(0, 1).all()
    assert found.issues["index"].tolist() == np.flatnonzero(y >= 0).tolist()
    np.testing.assert_allclose(found.issues.label_quality, 1 - found.issues.p_wrong, atol=1e-12)
    np.testing.assert_allclose(found.transition.sum(1), 1)
    assert 0 <= found.noise_rate.low <= found.noise_rate <= found.noise_rate.high <= 1
    bad = found.issues[found.issues.is_label_issue]
    assert (bad.predicted_label != bad.given_label).all()
    p_wrong = found.issues.p_wrong
    likely = p_wrong[p_wrong > 0.5]
    assert set(likely.index) <= set(bad.index) and (bad.p_wrong >= 1 / 3).all()
    f1, f1_of_likely = (
        2 * some.sum() / (len(some) + p_wrong.sum()) for some in (bad.p_wrong, likely)
    )
    assert f1 >= f1_of_likely - 1e-9


def test_ambiguous_items_are_told_from_wrong_labels():
    p = np.array(
        [[0.98, 0.01, 0.01]] * 60 + [[0.01, 0.98, 0.01]] * 60 + [[0.495, 0.495, 0.01]] * 20
    )
    y = np.array([0] * 55 + [1] * 5 + [1] * 60 + [0, 1] * 10)
    found = audit(p, y, transition=np.full((3, 3), 0.05) + 0.85 * np.eye(3)).issues
    assert found.ambiguity[120:].min() > 0.95 > 0.1 > found.ambiguity[:120].max()
    assert found.p_wrong[55:60].min() > 0.8 > 0.2 > found.p_wrong[120:].max()


def test_chunks_and_subsample_change_little(monkeypatch):
    p, y, _, _ = simulate(5)
    whole = audit(p, y)
    monkeypatch.setattr(inputs, "CHUNK", 700)
    parts = audit(p, y)
    pd.testing.assert_frame_equal(whole.issues, parts.issues)
    np.testing.assert_allclose(whole.transition, parts.transition)
    monkeypatch.setattr(readings, "FIT_ROWS", 1500)
    sample = audit(p, y)
    assert np.abs(sample.issues.p_wrong - whole.issues.p_wrong).mean() < 0.03


def sure(n=3000, k=6, seed=0):
    """A float32 softmax that is nearly always sure, as a network's is; and labels, some wrong."""
    rng = np.random.default_rng(seed)
    clean = rng.integers(0, k, n)
    y = np.where(rng.random(n) < 0.2, (clean + 1) % k, clean)
    logits = 4 * rng.normal(size=(n, k)) + 30 * np.eye(k)[clean]
    return torch.tensor(logits, dtype=torch.float32).softmax(1).numpy(), y


def test_the_worst_labels_of_a_sure_model_are_still_ordered(tmp_path):
    """Hundreds had p_wrong 1, and came in the order of the file."""
    p, y = sure()
    found = audit(p, y)
    worst = worst_first(found.issues)
    assert (worst.p_wrong.iloc[:100] > 0.85).all()  # not 1: the model alone says so
    assert worst.label_quality.is_monotonic_increasing and worst.p_wrong.is_monotonic_decreasing
    assert worst.label_quality.iloc[:300].is_unique  # all that were made wrong, at least
    assert worst.p_wrong.iloc[-1000:].is_unique  # and so are the best
    # of two labels with the same suggestion, both beyond doubt, the one comes first whose
    # suggestion is surer: what the model leaves to all the other classes is less
    doubt = p[worst["index"]].astype(float)
    doubt[np.arange(len(doubt)), worst.predicted_label] = 0
    own = np.log(doubt.sum(1))
    for _, pair in (
        worst.iloc[:300].assign(own=own[:300]).groupby(["given_label", "predicted_label"])
    ):
        if len(pair) > 30:
            assert pair.own.corr(pair.label_quality, method="spearman") > 0.85
    found.to_csv(tmp_path / "issues.csv")
    assert pd.read_csv(tmp_path / "issues.csv")["index"].tolist() == worst["index"].tolist()
    found.to_json(tmp_path / "audit.json")
    told = json.loads((tmp_path / "audit.json").read_text())["issues"]
    assert [row["index"] for row in told] == worst["index"].tolist()[: len(told)]
    assert [row["label_quality"] for row in told] == worst.label_quality.tolist()[: len(told)]


def test_tensors_float32_and_strings():
    p, y, _, _ = simulate(2, n=400)
    expected = audit(p, y)
    tensors = audit(torch.tensor(p, dtype=torch.float32), torch.tensor(y))
    np.testing.assert_allclose(tensors.issues.p_wrong, expected.issues.p_wrong, atol=1e-3)
    names = ("ant", "bee", "cat", "dog", "eel")
    words = audit(p, [names[i] for i in y])
    numbers = audit(p, y, names=names)
    pd.testing.assert_frame_equal(words.issues, numbers.issues)
    assert words.names == names
    assert words.issues.given_label.tolist() == [names[i] for i in y]
    assert words.per_class.label.tolist() == list(names)


def test_nothing_is_done_row_by_row():
    """Ten times the rows need no more function calls."""

    def calls(n):
        p = np.random.default_rng(0).dirichlet(np.full(10, 0.2), n)
        seen = []
        sys.setprofile(lambda *event: seen.append(1))
        try:
            audit(p, p.argmax(1))
        finally:
            sys.setprofile(None)
        return len(seen)

    calls(50)  # what is imported and remembered the first time
    assert calls(5000) < 1.2 * calls(500)


# --- baselines -----------------------------------------------------------------------------


def test_simple_scores_match_loops():
    p, y, _, _ = simulate(0, n=30)
    for n in range(30):
        others = [p[n, i] for i in range(5) if i != y[n]]
        assert auditing.self_confidence(p, y)[n] == p[n, y[n]]
        assert auditing.margin(p, y)[n] == pytest.approx((p[n, y[n]] - max(others) + 1) / 2)


def test_confident_learning_prunes_the_joint_by_loops():
    p, y, clean, _ = simulate(0, n=300, of="noisy")
    threshold = [np.mean([p[n, i] for n in range(300) if y[n] == i]) for i in range(5)]
    counts = np.zeros((5, 5))
    for n in range(300):
        reached = [i for i in range(5) if p[n, i] >= threshold[i]]
        if reached:
            counts[max(reached, key=lambda i: p[n, i]), y[n]] += 1
    expected = set()
    for j in range(5):
        rows = [n for n in range(300) if y[n] == j]
        for i in range(5):
            how_many = round(counts[i, j] / counts[:, j].sum() * len(rows)) if i != j else 0
            expected |= set(sorted(rows, key=lambda n: p[n, j] - p[n, i])[:how_many])
    pruned = auditing.confident_learning(p, y) < 0.5
    assert set(np.flatnonzero(pruned)) == expected
    assert metrics.f1(pruned, y != clean) > 0.75


def test_agrees_with_cleanlab():
    cleanlab = pytest.importorskip("cleanlab")
    p, y, clean, _ = simulate(1, n=1500, of="noisy")
    theirs = cleanlab.filter.find_label_issues(y, p)
    ours = auditing.confident_learning(p, y) < 0.5
    assert (theirs == ours).mean() > 0.98
    found = audit(p, y)
    # Symmetric noise is confident learning's home ground.
    ours_f1 = metrics.f1(found.issues.is_label_issue, y != clean)
    assert ours_f1 > metrics.f1(theirs, y != clean) - 0.03


def test_neighbours_vote_without_the_row_itself():
    x, y = np.arange(5.0), np.array([0, 0, 1, 0, 0])
    assert auditing.knn_vote(x, y, k=2).tolist() == [0.5, 0.5, 0.0, 0.5, 0.5]
    assert auditing.knn_vote(x, y).tolist() == [0.75, 0.75, 0.0, 0.75, 0.75]  # all four others


def test_other_baselines_rank_errors_low():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) + 8])
    clean = np.repeat([0, 1], 100)
    wrong = rng.random(200) < 0.1
    y = np.where(wrong, 1 - clean, clean)
    assert metrics.auroc(-auditing.knn_vote(x, y), wrong) == 1.0
    p = np.clip(np.eye(2)[clean] + rng.normal(size=(200, 1)) * 0.02, 0.01, 0.99)
    p /= p.sum(1, keepdims=True)
    assert ((auditing.small_loss(p, y) < 0.5) == wrong).all()
    # how the mixture splits the losses does not depend on their scale
    for power in (0.1, 7.0):
        same = auditing.small_loss(p**power, y)
        np.testing.assert_allclose(same, auditing.small_loss(p, y), atol=1e-6)
    margins = rng.normal(size=(7, 200)) + np.where(wrong, -3, 3)
    scores = auditing.aum(margins)
    assert metrics.auroc(-scores, wrong) == 1.0
    np.testing.assert_allclose(np.log(scores / (1 - scores)), margins.mean(0))
    for name, score in auditing.BASELINES.items():
        values = score(p, y)
        assert ((values >= 0) & (values <= 1)).all(), name
        assert metrics.auroc(-values, wrong) == 1.0, name


def test_small_losses_are_told_by_dividemixs_mixture():
    rng = np.random.default_rng(0)
    loss = np.concatenate([rng.exponential(0.1, 150), rng.normal(1.5, 0.5, 50).clip(0.2)])
    p = np.stack([np.exp(-loss), 1 - np.exp(-loss)], 1)
    want = two_component_mixture(torch.from_numpy(loss), max_iter=1000, tol=1e-9)
    got = auditing.small_loss(p, np.zeros(200, int))
    np.testing.assert_allclose(got, want, atol=0.02)


# --- files and bad input -------------------------------------------------------------------


def test_csv_cannot_start_a_formula(tmp_path):
    p, y, _, _ = simulate(0, n=50)
    names = ["=1+1", "+a", "@SUM(A1)", "－x(", 'tab\there, "q"\n']
    audit(p, y, names=names).to_csv(tmp_path / "issues.csv")
    table = pd.read_csv(tmp_path / "issues.csv")
    safe = ["=1+1", "+a", "'@SUM(A1)", "'－x(", 'tab\there, "q"\n']
    assert table.given_label.tolist() == [safe[y[row]] for row in table["index"]]
    assert len(table) == 50 and table.columns[0] == "index"
    assert [f.name for f in tmp_path.iterdir()] == ["issues.csv"]


def test_json_holds_the_figures(tmp_path):
    p, y, _, _ = simulate(0, n=300)
    found = audit(p, y, names=[*"abcd", "</script>"])
    found.to_json(tmp_path / "a.json")
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["noise_rate"]["value"] == float(found.noise_rate)
    assert told["noise_rate"]["low"] == found.noise_rate.low
    assert len(told["issues"]) == found.issues.is_label_issue.sum()
    assert told["names"][-1] == "</script>" and told["rows"] == 300
    np.testing.assert_allclose(told["transition"], found.transition)


def test_a_failed_write_leaves_nothing(tmp_path):
    found = audit(*simulate(0, n=50)[:2])
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="folder"):
        found.to_csv(tmp_path / "folder")
    assert [f.name for f in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("report", "auditing.report", "write"),
        ("review", "auditing.review", "Review"),
        ("diagnosis", "auditing.diagnosis", "diagnose"),
        ("relabel", "auditing.relabel", "relabel"),
        ("labelling", "auditing.exporters", "write_argilla"),
        ("pictures", "plotting", "plot_T"),
        ("demo", "cli.demo", "run_demo"),
        ("flags", "cli.flags", "parse_flags"),
        ("runs", "cli.runs", "Run"),
    ],
)
def test_old_import_paths_still_work_and_say_the_new_one(old, new, name):
    sys.modules.pop(f"ytilde.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"ytilde.{old} is now ytilde.{new}$"):
        module = importlib.import_module(f"ytilde.{old}")
    assert getattr(module, name) is getattr(importlib.import_module(f"ytilde.{new}"), name)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("contrastive", "encoders.simclr", "SimCLR"),
        ("encoder", "encoders.encoder", "Encoder"),
        ("images", "data.images", "read_image"),
        ("parallel", "engine.parallel", "Team"),
        ("protocols", "engine.protocols", "protocols"),
        ("readers", "data.readers", "read"),
        ("stats", "bench.stats", "mean_sd"),
    ],
)
def test_old_import_paths_lead_to_the_new_place(old, new, name):
    module = importlib.import_module(f"ytilde.{old}")
    assert getattr(module, name) is getattr(importlib.import_module(f"ytilde.{new}"), name)


def test_html_is_the_reports(tmp_path):
    found = audit(*simulate(0, n=50)[:2])
    found.to_html(tmp_path / "r.html")
    report.write(found, tmp_path / "same.html")
    page = (tmp_path / "r.html").read_text()
    assert (
        page.lstrip().startswith("<!doctype html>") and page == (tmp_path / "same.html").read_text()
    )


def test_estimate_is_a_number_with_an_interval():
    rate = auditing.Estimate(0.25, 0.2, 0.3)
    assert rate == 0.25 and (rate.low, rate.high) == (0.2, 0.3)
    again = copy.deepcopy(rate)
    assert (again, again.low, again.high) == (0.25, 0.2, 0.3)
    assert repr(rate) == "0.25 [0.2, 0.3]"


P = np.full((4, 2), 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(4), [0, 1, 0, 1]), "classes >= 2"),
        ((P, [0, 1]), "4 rows"),
        ((P, [0, 1, 2, 0]), "0 to 1"),
        ((P, [0, 1, 0.5, 0]), "0 to 1"),
        ((P, [-1, -1, -1, -1]), "nothing to audit"),
        ((P * 2, [0, 1, 0, 1]), "sum to 1"),
        ((np.array([[np.nan, 1.0]] * 4), [0, 1, 0, 1]), "sum to 1"),
        ((np.array([[-0.5, 1.5]] * 4), [0, 1, 0, 1]), "non-negative"),
        ((P, ["a", "b", "c", "a"]), "3 class names"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message):
    with pytest.raises(BadInput, match=message):
        audit(*arguments)


def test_votes_are_audited_alone_and_not_beside_what_is_for_labels():
    p, y, _, T = simulate(0, n=60)
    votes = np.stack([y, y, (y + 1) % 5], 1)
    found = audit(p, annotations=votes)
    assert len(found.issues) == 60 and len(found.annotators) == 4  # the model is one of them
    for beside in ({"transition": T}, {"features": p}):
        with pytest.raises(BadInput, match="are for y"):
            audit(p, annotations=votes, **beside)


def test_bad_names_and_transition():
    y = [0, 1, 0, 1]
    with pytest.raises(BadInput, match="3 class names"):
        audit(P, y, names=["a", "b", "c"])
    with pytest.raises(BadInput, match="'z' is not among"):
        audit(P, ["a", "z", "a", "b"], names=["a", "b"])
    with pytest.raises(BadInput, match="shape"):
        audit(P, y, transition=np.eye(3))
    with pytest.raises(BadInput, match="Rows of transition"):
        audit(P, y, transition=np.array([[0.9, 0.3], [0.1, 0.7]]))


def test_whole_numbers_kept_as_objects_are_classes_not_names():
    p, y, _, _ = simulate(0, n=300, k=12)
    as_objects = pd.Series(y, dtype=object)
    assert audit(p, as_objects).issues.equals(audit(p, y).issues)  # "10" sorts before "2"


def test_empty_labels_and_equal_names_are_refused():
    p, y, _, _ = simulate(0, n=40, k=3)
    names = np.array(["a", "b", "c"], dtype=object)[y]
    names[7] = None
    with pytest.raises(BadInput, match=r"no label in row 7 \(counting from 0\); fill it in"):
        audit(p, names)
    names[30] = None
    with pytest.raises(BadInput, match=r"no label in 2 rows \(7, 30; counting from 0\)"):
        audit(p, names)
    with pytest.raises(BadInput, match="all be different"):
        audit(p, y, names=["a", "a", "b"])
    with pytest.raises(BadInput, match="give names="):
        audit(p, np.where(y == 2, "b", "a"))


def test_a_model_that_seldom_agrees_is_said_to_be_weak():
    p, y, _, _ = simulate(0)
    assert not any("too weak" in note for note in audit(p, y).notes)
    rng = np.random.default_rng(0)
    dim = np.where(rng.random((len(y), 1)) < 0.5, p, rng.dirichlet(np.ones(5), len(y)))
    found = audit(dim, y)
    assert any("too weak" in note for note in found.notes) and not found.at_chance


@pytest.mark.parametrize("model", ["blind", "nearly blind", "largest class"])
def test_a_model_at_chance_level_is_said_to_know_nothing(model):
    rng = np.random.default_rng(0)
    y = rng.choice(4, 2000, p=(0.7, 0.1, 0.1, 0.1))
    p = rng.dirichlet(np.ones(4), len(y))
    if model == "nearly blind":  # surely better than chance, and of no use
        p[np.arange(len(y)), y] += 0.02
        p /= p.sum(1, keepdims=True)
    if model == "largest class":  # right in 70 % of the rows
        p = np.tile([0.7, 0.1, 0.1, 0.1], (len(y), 1))
    found = audit(p, y)
    assert found.at_chance and "no more than chance" in found.summary()
    assert not found.fixed_labels(0.5).fixed.any() and (found.issues.p_wrong > 0.5).any()
    assert any("Change no label" in note for note in found.notes)
    assert not any("too weak" in note for note in found.notes)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4])
def test_wrong_labels_do_not_make_a_good_model_one_of_chance(rate):
    """Nor does a rare class that it knows, where always saying the other one is right as often."""
    rng = np.random.default_rng(0)
    clean = np.arange(1000) % 2
    y = np.where(rng.random(1000) < rate, 1 - clean, clean)
    assert not audit(np.eye(2)[clean] * 0.9 + 0.05, y).at_chance
    rare = (rng.random(2000) < 0.05).astype(int)
    guess = np.where(rng.random(2000) < 0.07, 1, rare)
    assert (guess == rare).mean() <= (rare == 0).mean()
    assert not audit(np.eye(2)[guess] * 0.9 + 0.05, rare).at_chance


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2])
def test_a_perfect_model_of_rare_classes_is_not_one_of_chance(rate):
    rng = np.random.default_rng(0)
    clean = rng.choice(5, 1000, p=(0.99, *[0.0025] * 4))
    y = np.where(rng.random(1000) < rate, rng.integers(0, 5, 1000), clean)
    assert not audit(np.eye(5)[clean] * 0.9 + 0.02, y).at_chance
    assert audit(np.eye(5)[rng.permutation(clean)] * 0.9 + 0.02, y).at_chance


def test_the_error_of_chance_agreement_is_that_of_shuffled_labels():
    rng = np.random.default_rng(0)
    y, guess = (rng.choice(3, 400, p=p) for p in ((0.8, 0.15, 0.05), (0.6, 0.3, 0.1)))
    found = notes.Agreement.of(np.eye(3)[guess], y)
    shares = [(guess == rng.permutation(y)).mean() for _ in range(4000)]
    assert np.mean(shares) == pytest.approx(found.chance, abs=0.002)
    assert np.std(shares) == pytest.approx(found.error, rel=0.05)


def test_rows_that_are_not_judged_are_counted():
    p, y, _, _ = simulate(0, n=100)
    assert "rows" not in audit(p, y).summary()
    y[:2] = -1
    assert "2 of 100 rows could not be judged" in audit(p, y).summary()


def test_a_weak_model_has_suspects_too():
    """Of noise where classes meet nothing is more likely wrong than right; F1 was 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    clean = (x[:, 0] > 0).astype(int)
    wrong = rng.random(2000) < 0.5 * np.exp(-3 * np.abs(x[:, 0]))
    p = 1 / (1 + np.exp(-1.5 * x[:, 0] - 2 * rng.normal(size=2000)))
    issues = audit(np.c_[1 - p, p], np.where(wrong, 1 - clean, clean)).issues
    flagged = issues.is_label_issue.to_numpy()
    assert flagged.sum() > 1.5 * (issues.p_wrong > 0.5).sum()
    assert wrong[flagged].mean() > 1.2 * wrong.mean()
    assert (issues.predicted_label != issues.given_label)[flagged].all()


def test_a_label_that_is_more_likely_wrong_than_right_is_a_suspect_whatever_the_cut():
    p_wrong = np.array([0.34, 0.4, 0.5, 0.6, 0.9])
    assert verdict.suspects(p_wrong, 0.9).tolist() == [False, False, False, True, True]
    assert verdict.suspects(p_wrong, 0.4).tolist() == [False, True, True, True, True]


def test_suspects_are_cut_where_the_expected_f1_is_largest():
    p_wrong = np.random.default_rng(0).beta(0.5, 0.8, 200)

    def expected_f1(flagged):
        return 2 * p_wrong[flagged].sum() / (flagged.sum() + p_wrong.sum())

    cut = verdict.cut_of(p_wrong)
    best = max(expected_f1(p_wrong >= other) for other in p_wrong)
    assert expected_f1(p_wrong >= cut) == pytest.approx(best)
    assert 1 / 3 < cut < 0.5 and cut == pytest.approx(best / 2, abs=0.02)
    assert verdict.cut_of(p_wrong / 10) == 1 / 3  # hardly any label is wrong: none is worth a look


def test_the_curve_is_read_by_eighths_of_its_posterior(monkeypatch):
    """Against loops over a small grid: likelihood of bins, prior of the steepness, eighths."""
    rng = np.random.default_rng(0)
    noises, rises, steeps = [0.05, 0.2, 0.4], [0.1, 0.5, 0.9], [0.3, 1.0, 4.0]
    for name, grid in (("NOISE", noises), ("RISE", rises), ("STEEPNESS", steeps)):
        monkeypatch.setattr(readings, name, np.array(grid))
    n, k = 300, 4
    u = (np.arange(n) + 0.5) / n
    agrees = rng.random(n) < 0.8 - 0.3 * u
    edges = [0, *np.geomspace(0.004, 1, 40)]
    bins = [(u > low) & (u <= high) for low, high in itertools.pairwise(edges)]
    for counted, part in ((10**6, 1.0), (30, 0.1)):
        monkeypatch.setattr(readings, "COUNTED", counted)
        cells = []
        for noise in noises:
            for steep in steeps:
                for rise in rises:
                    log = -0.5 * (math.log(steep) / 0.9) ** 2
                    for rows in bins:
                        if rows.any():
                            r = (1 - 1 / k) * rise * u[rows].mean() ** steep
                            share = (1 - r) * (1 - noise) + r * noise / (k - 1)
                            right = agrees[rows].sum()
                            log += part * right * math.log(share)
                            log += part * (rows.sum() - right) * math.log(1 - share)
                    cells.append((math.exp(log), noise, rise, math.log(steep)))
        total = sum(mass for mass, *_ in cells)
        want, at = np.zeros((8, 3)), 0.0
        for mass, *point in cells:
            for eighth in range(8):
                low, high = max(at, eighth / 8), min(at + mass / total, (eighth + 1) / 8)
                want[eighth] += 8 * max(0.0, high - low) * np.array(point)
            at += mass / total
        want[:, 2] = np.exp(want[:, 2])
        got = np.array(readings._curve(u, agrees, k))
        np.testing.assert_allclose(got[:, [0, 2]], want[:, [0, 2]], rtol=1e-6)
        assert got[:, 1].mean() == pytest.approx(want[:, 1].mean(), rel=1e-6)


def test_the_grid_of_the_curve_has_no_gap():
    """Of noise two in 1,000 can be told, and then every fiftieth; up to 70 %."""
    noise, rise, steepness = readings.NOISE, readings.RISE, readings.STEEPNESS
    assert noise[0] <= 0.002 and noise[-1] == pytest.approx(0.7)
    assert (np.diff(noise) > 0.001).all() and np.diff(noise).max() <= 0.02 + 1e-9
    assert (noise[1:] / noise[:-1]).max() <= 2.5 + 1e-9
    assert np.diff(rise) == pytest.approx(np.full(19, rise[1] - rise[0])) and rise[-1] == 1
    assert rise[0] <= 0.01 and steepness[0] < 1 / 6 and steepness[-1] > 6


def test_a_reading_is_bayes_over_truth_and_borders():
    """Truth by the judges, then noise where classes meet, then T; the label as observed."""
    rng = np.random.default_rng(0)
    k, n = 3, 5
    T = rng.dirichlet(np.ones(k), k)
    reading = readings.Reading(0.8, 1.5, 0.6, T)
    q, u, y = rng.dirichlet(np.ones(k), n), rng.random(n), rng.integers(0, k, n)
    said = readings.Said.of(q.copy())
    got = reading.posterior(said, u, y)
    for i in range(n):
        best = q[i].argmax()
        others = [0.0 if c == best else q[i, c] for c in range(k)]
        others = [o / sum(others) for o in others]
        others = [0.0 if c == best else o + 0.01 / (k - 1) for c, o in enumerate(others)]
        others = [o / sum(others) for o in others]
        np.testing.assert_allclose(said.others[i], others, rtol=1e-9)
        rise = (1 - 1 / k) * 0.8 * u[i] ** 1.5
        m = 0.6 * rise
        b = 1 - (1 - rise) / (1 - m)
        joint = [m * others[c] * T[c, y[i]] for c in range(k)]
        joint[best] = (1 - m) * ((1 - b) * T[best, y[i]] + b * others[y[i]])
        np.testing.assert_allclose(got[i], np.array(joint) / sum(joint), rtol=1e-9)
        clean = [1 - m if c == best else m * others[c] for c in range(k)]
        np.testing.assert_allclose(said.clean(reading.model_error(u))[i], clean, rtol=1e-9)


def test_confidence_is_the_share_of_rows_that_are_surer():
    scale = np.array([0.1, 0.2, 0.2, 0.4])
    asked = np.array([0.4, 0.2, 0.0, 0.1, 0.9, 0.3])
    got = readings.place_in(scale, asked)
    assert got.tolist() == [3.5 / 4, 2 / 4, 0.5 / 4, 0.5 / 4, 3.5 / 4, 3 / 4]


def test_judges_differ_as_often_as_pairs_of_first_choices_do():
    first = np.array([[0, 0, 1, 2], [0, 1, 1, 2], [1, 1, 1, 2]])
    views = [np.eye(3)[row] for row in first]
    assert readings._differ(views) == pytest.approx((1 + 2 + 1) / 4 / 3)
    assert readings._differ(views[:1]) == 1.0


def test_the_transition_of_a_reading_leans_on_even_noise_where_rows_are_few():
    """A model that never errs: T is the counts of its rows and 20 rows' worth of even noise."""
    rng = np.random.default_rng(0)
    k, noise = 3, 0.3
    truth = np.repeat(np.arange(k), [400, 40, 0])
    y = np.where(rng.random(440) < noise, (truth + 1) % k, truth)
    said = readings.Said.of(0.98 * np.eye(k)[truth] + 0.01)
    never = readings.Reading(1e-9, 1.0, 1.0, np.eye(k))
    T = readings._fit_transition(never, said, np.full(440, 0.5), y, noise).transition
    for i in range(k):
        counts = np.bincount(y[truth == i], minlength=k)
        even = np.where(np.arange(k) == i, 1 - noise, noise / (k - 1))
        np.testing.assert_allclose(T[i], (counts + 20 * even) / (counts.sum() + 20), atol=1e-6)


def test_probabilities_below_the_floor_keep_their_order():
    p = np.array([1.0, 0.3, 2e-6, 1e-6, 1e-9, 1e-30, 0.0])
    logs = readings._log(p)
    np.testing.assert_allclose(logs[:3], np.log(p[:3]))
    assert (np.diff(logs) < 0).all() and np.abs(logs[3:] - np.log(1e-6)).max() <= 1.1e-4


def test_views_are_weighed_by_what_they_know():
    """Fitted to given labels that follow softmax(1.5 a + 0.5 b + bias), the voice is that."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 20_000, 3)) * 1.5
    bias = np.array([0.4, 0.0, -0.4])
    q = np.exp(1.5 * a + 0.5 * b + bias)
    q /= q.sum(1, keepdims=True)
    y = (q.cumsum(1) < rng.random((20_000, 1))).sum(1)
    voice = readings._fit_voice([a, b], y, 3)
    np.testing.assert_allclose(voice.weights, [1.5, 0.5], rtol=0.1)
    np.testing.assert_allclose(voice.bias - voice.bias.mean(), bias, atol=0.1)
    got = voice.say([a, b])
    assert np.abs(got - q).mean() < 0.01 and np.allclose(got.sum(1), 1)


def test_the_voice_is_the_likeliest_under_its_priors():
    """A slow version; with so few rows the priors of bias, rates and confusions all count."""
    rng = np.random.default_rng(0)
    n, k, off = 12, 3, ~np.eye(3, dtype=bool)
    views = [rng.normal(size=(n, k)) for _ in range(2)]
    y = rng.integers(0, 2, n)

    def parts(at):
        return np.exp(at[:2]), at[2:5], at[5:8], at[8:17].reshape(k, k), at[17]

    def cost(at):
        weights, bias, rates, spread, rate = parts(at)
        q = softmax(sum(w * v for w, v in zip(weights, views, strict=True)) + bias, 1)
        eps = 1 / (1 + np.exp(-rate - rates))
        wrong = softmax(np.where(off, spread, -np.inf), 1)
        T = np.diag(1 - eps) + eps[:, None] * wrong
        prior = (bias @ bias + 2 * rates @ rates + (spread**2).sum() + (rate + 2) ** 2 / 10) / 2
        return prior - np.log((q @ T)[range(n), y]).sum()

    start = np.r_[np.full(2, -np.log(2)), np.zeros(15), -2.0]
    best = minimize(cost, start, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000}).x
    voice = readings._fit_voice(views, y, k)
    np.testing.assert_allclose(voice.weights, parts(best)[0], atol=2e-3)
    np.testing.assert_allclose(voice.bias, parts(best)[1], atol=2e-3)


def test_a_panel_that_adds_nothing_leaves_the_model_half_a_say():
    """One panel knows more than the model, another one knows nothing."""
    random = np.random.default_rng(0)
    clean = random.integers(0, 3, 1500)
    y = np.where(random.random(1500) < 0.2, (clean + 1) % 3, clean)

    def view(right, truth):
        said = np.where(random.random(1500) < right, truth, random.integers(0, 3, 1500))
        return np.log(0.7 * np.eye(3)[said] + 0.1)

    model = view(0.6, clean)
    helpful, useless = view(0.95, clean), view(0.3, random.integers(0, 3, 1500))
    alone = readings.Judges.fit([model], y, 3)
    assert alone.model is None
    assert readings.Judges.fit([model, helpful], y, 3).model is None
    both = readings.Judges.fit([model, useless], y, 3)
    own = alone.together.say([model])
    assert both.model is not None and both.model.say([model]) == pytest.approx(own, abs=1e-6)
    mean = (both.together.say([model, useless]) + own) / 2
    assert both.say([model, useless]) == pytest.approx(mean, abs=1e-6)


def test_noise_is_drawn_in_to_the_floor():
    """By the weight, with the same classes confused; a floor above it changes nothing."""
    random = np.random.default_rng(0)
    said = readings.Said.of(random.dirichlet(np.ones(3), 500))
    u, y = random.random(500), random.integers(0, 3, 500)
    T = np.array([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]])
    reading = readings.Reading(0.5, 1.0, 0.9, T)
    share = reading.posterior(said, u, y).mean(0)
    rate = share @ (1 - np.diag(T))
    drawn = readings._drawn_in(reading, said, u, y, 0.1, 0.25).transition
    assert share @ (1 - np.diag(drawn)) == pytest.approx(0.75 * rate + 0.25 * 0.1)
    assert drawn.sum(1) == pytest.approx(np.ones(3)) and drawn[0, 1] == pytest.approx(
        3 * drawn[0, 2]
    )
    same = readings._drawn_in(reading, said, u, y, rate + 0.1, 0.25).transition
    assert same == pytest.approx(T)


def test_a_weak_model_blames_fewer_labels_for_the_floor_that_it_sees(monkeypatch):
    """Its rate of wrong labels is drawn in; that of a model that is hardly ever wrong stays."""
    random = np.random.default_rng(0)
    clean = random.integers(0, 3, 1500)
    y = np.where(random.random(1500) < 0.2, (clean + 1) % 3, clean)

    def rates(spread):
        z = 2.5 * np.eye(3)[clean] + spread * random.normal(size=(1500, 3))
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        now = float(audit(p, y).noise_rate)
        with monkeypatch.context() as patch:
            patch.setattr(readings, "FLOOR_SAY", 0.0)
            return now, float(audit(p, y).noise_rate)

    now, before = rates(2.5)
    assert now < before - 0.01
    now, before = rates(0.5)
    assert now == pytest.approx(before, abs=0.005)


def test_the_margin_weighs_twice_the_label_itself_in_the_order():
    q, y = np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]]), np.array([0, 2])
    right = np.array([0.9, 0.4])
    own, margin = np.array([0.5, 0.2]), np.array([0.2, -0.5])
    odds = (np.log(v / (1 - v)) for v in (right, own, (1 + margin) / 2))
    mean = sum(w * z for w, z in zip((3, 1, 2), odds, strict=True)) / 6
    assert verdict._score(right, 1 - right, q, y) == pytest.approx(mean)


def test_an_audit_prints_as_a_sentence():
    p, y, _, _ = simulate(0)
    found = audit(p, y)
    flagged = int(found.issues.is_label_issue.sum())
    told = f" are more likely wrong than right; {flagged} are worth a look."
    assert told in found.summary()
    found.issues["is_label_issue"] = found.issues["index"] == 0
    assert " 1 is more likely wrong than right." in found.summary()
    assert repr(found) == f"<Audit: {found.summary()}>"


def test_files_name_the_images_of_the_rows(tmp_path):
    p, y, _, _ = simulate(0, n=30)
    y[3] = -1
    found = audit(p, y)
    found.context.paths = [f"pic{k}.png" for k in range(30)]
    found.to_csv(tmp_path / "issues.csv")
    table = pd.read_csv(tmp_path / "issues.csv")
    assert table.p_wrong.is_monotonic_decreasing and len(table) == 29
    assert table.path.tolist() == [f"pic{k}.png" for k in table["index"]]
    fixed = found.fixed_labels(0.9)  # in the order of the data
    assert fixed.path.tolist() == [f"pic{k}.png" for k in range(30) if k != 3]


def test_the_columns_of_a_frame_are_the_names():
    """Not the sorted labels: the classes of another library's frame stand in any order."""
    names = ["zebra", "ant", "cat"]
    y = np.array(names * 40)
    p = np.array([[0.9 if label == name else 0.05 for name in names] for label in y])
    found = audit(pd.DataFrame(p, columns=names), y)
    assert not found.issues.is_label_issue.any() and list(found.issues.given_label) == list(y)
    assert audit(pd.DataFrame(p), np.tile([0, 1, 2], 40)).names is None


def test_rows_without_a_label_are_told_and_minus_one_is_no_class():
    """Of y in {-1, 1} half of the rows were left out without a word."""
    p, y, _, _ = simulate(0, n=400, k=3)
    assert not any("no label" in note for note in audit(p, y).notes)
    some = np.where(np.arange(400) < 50, -1, y)
    assert "50 of 400 rows have no label (-1)." in audit(p, some).notes
    assert "1 of 400 rows has no label (-1)." in audit(p, [-1, *y[1:]]).notes
    with pytest.raises(BadInput, match=r"class 2 in no row; code the classes as 0 to 2\.$"):
        audit(p, y - 1)
    with pytest.raises(BadInput, match=r"class 0 in no row; code the classes as 0 to 1\.$"):
        audit(np.c_[p[:, 0], 1 - p[:, 0]], np.where(y > 0, 1, -1))
    few = np.where(y == 2, 0, y)  # a class that nobody gave
    few[:3] = -1
    assert "3 of 400 rows have no label (-1)." in audit(p, few).notes
    few[:19] = -1  # from a twentieth of the rows on it may be meant as that class
    assert "19 of 400 rows have no label (-1)." in audit(p, few).notes
    few[:20] = -1
    with pytest.raises(BadInput, match=r"class 2 in no row"):
        audit(p, few)


def test_labels_are_told_in_the_classes_own_values(tmp_path):
    p, y, _, _ = simulate(0, n=300, k=3)
    texts = audit(p, y, names=("-1", "4", "10"))
    found = texts.with_classes([-1, 4, 10])
    assert found.issues.given_label.tolist() == np.array([-1, 4, 10])[y].tolist()
    for table in (found.issues, found.pairs, found.per_class):
        labels = table[[name for name in table if name.endswith("label")]]
        assert len(labels.columns) and (labels.dtypes == np.int64).all()
    assert found.fixed_labels(0.5).label.dtype == np.int64
    assert found.notes is texts.notes and found.context is texts.context
    written = []
    for number, each in enumerate((texts, found)):
        each.to_csv(tmp_path / f"{number}.csv")
        written.append((tmp_path / f"{number}.csv").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("copies", [20, 120])
def test_features_may_have_more_columns_than_there_are_rows(copies):
    """Columns that repeat others say little new; an audit of 40 pictures ended in a traceback."""
    p, y, clean, _ = simulate(0, n=80, k=3)
    x = np.eye(3)[clean] + 0.3 * np.random.default_rng(0).normal(size=(80, 3))
    few = audit(p, y, features=x).issues.p_wrong
    many = audit(p, y, features=np.tile(x, copies)).issues.p_wrong
    assert np.corrcoef(few, many)[0, 1] > 0.75 and few.std() > 0.1


def test_checked_rows_take_the_assumptions_place_and_the_other_notes_stay():
    p, y, clean, _ = simulate(0, n=400, k=3)
    y[:5] = -1
    before = audit(p, y)
    found = audit(p, y, checked={row: int(clean[row]) for row in range(5, 400, 4)})
    others = [note for note in before.notes if note != notes.NOTE_ASSUMPTION]
    assert others and len(others) == len(before.notes) - 1
    assert found.notes == [found.checked.told(), *others]
    errors, rate = found.num_errors, found.noise_rate
    assert (errors, errors.low, errors.high) == found.checked[:3]
    assert [395 * v for v in (rate, rate.low, rate.high)] == pytest.approx(found.checked[:3])


def test_when_every_row_is_checked_the_count_is_what_was_found():
    p, y, clean, _ = simulate(0, n=120, k=3)
    found = audit(p, y, checked={row: int(clean[row]) for row in range(120)})
    wrong = int((clean != y).sum())
    assert 0 < wrong < 60
    assert [round(v) for v in found.checked[:3]] == [wrong] * 3


@pytest.mark.parametrize("k", [2, 4])
def test_no_label_is_surer_wrong_than_the_model_can_be_trusted(k):
    """Before rows are put in order; what is taken from the doubt goes back to the label."""
    random = np.random.default_rng(0)
    clean = random.integers(0, k, 600)
    p = np.exp(3 * np.eye(k)[clean] + 1.5 * random.normal(size=(600, k)))
    p /= p.sum(1, keepdims=True)
    y = np.where(random.random(600) < 0.3, random.integers(0, k, 600), clean)
    evidence = readings.Evidence(p, y, np.arange(600), None)
    fitted = readings.fit_readings(evidence)._replace(doubt=0.6)
    got, sums, _ = verdict.judge_rows(evidence, fitted, slice(0, 600))
    _, clean_p, post, right = fitted.judge(evidence, slice(0, 600))
    most = 1 - verdict.DOUBT * 0.6
    for n in range(600):
        wrong = 1 - post[n, y[n]]
        modest = wrong if wrong < 0.5 else 0.5 + (wrong - 0.5) * (most - 0.5) / 0.5
        scaled = post[n] * modest / wrong
        scaled[y[n]] = 1 - modest
        others = [c for c in np.argsort(-scaled, kind="stable") if c != y[n]]
        first = y[n] if wrong < 0.5 and post[n, y[n]] >= post[n].max() else others[0]
        second = y[n] if k == 2 and first != y[n] else next(c for c in others if c != first)
        assert (got.predicted[n], got.runner_up[n]) == (first, second)
        assert got.p_wrong[n] == pytest.approx(modest)
        assert got.quality[n] == pytest.approx(1 - modest)
        assert got.predicted_prob[n] == pytest.approx(scaled[first])
        assert got.runner_up_prob[n] == pytest.approx(scaled[second])
    assert (got.p_wrong > 0.5).sum() > 50 and got.p_wrong.max() < most
    assert sums.wrong == pytest.approx(600 - right)
    assert sums.model_wrong == pytest.approx([(1 - clean_p.max(1)).sum()])
    assert sums.joint == pytest.approx(post.T @ np.eye(k)[y])


def test_with_other_p_wrong_the_other_classes_keep_their_proportions():
    """By loops over whole posteriors of three classes; a tie leaves the label as it was given."""
    rng = np.random.default_rng(0)
    post = np.concatenate([rng.dirichlet(np.ones(3), 60), [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]])
    y = np.where(np.arange(62) < 60, rng.integers(0, 3, 62), 0)
    quality = np.where(np.arange(62) < 60, rng.random(62), 0.5)
    at, was = np.arange(62), post.copy()
    own = post[at, y]
    was[at, y] = np.where(own < 0.5, -1, own)  # one that is more likely wrong is not suggested
    first = was.argmax(1)
    was[at, y], was[at, first] = own, -1
    second = was.argmax(1)
    rows = verdict.Rows(1 - own, own, first, post[at, first], second, post[at, second], at / 62)
    found = rows.with_p_wrong(y, 1 - quality, quality)
    kept = 0
    for n in at:
        q = quality[n]
        scaled = [q if c == y[n] else post[n, c] * (1 - q) / (1 - own[n]) for c in range(3)]
        best = max((c for c in range(3) if c != y[n]), key=lambda c: scaled[c])
        assert found.predicted[n] == (y[n] if q >= 0.5 else best)
        assert found.predicted_prob[n] == pytest.approx(scaled[found.predicted[n]])
        assert found.runner_up[n] != found.predicted[n]
        assert found.runner_up_prob[n] == pytest.approx(scaled[found.runner_up[n]])
        kept += q >= 0.5
    assert 20 < kept < 50 and (found.predicted[60:] == 0).all()


def test_a_class_that_nobody_belongs_to_keeps_its_label():
    p = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]] * 20)
    found = audit(p, [0, 1] * 20, transition=0.7 * np.eye(3) + 0.1)
    assert found.transition[2].tolist() == [0, 0, 1] and found.per_class.lost_rate[2] == 0


def test_overlap_is_how_often_the_likeliest_class_is_not_the_truth():
    """However many labels are wrong; rows without a label have no part in it."""
    p, y, clean, _ = simulate(0, n=1000)
    assert overlap(p, y) == pytest.approx((p.argmax(1) != clean).mean(), abs=0.03)
    some = np.where(np.arange(1000) % 4, y, -1)
    assert overlap(p, some) == pytest.approx(overlap(p[some >= 0], y[some >= 0]))
