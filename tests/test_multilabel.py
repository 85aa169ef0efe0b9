"""Several labels a row: every entry judged, one ranking over all classes, against a known truth."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_predict

from test_cli import refused, ytilde
from ytilde.auditing import audit_multilabel
from ytilde.data import BadInput

NAMES = [f"c{k}" for k in range(5)]


def made(seed, rows=900):
    """Five classes with 2 to 20 % of wrong entries, and out-of-fold probabilities."""
    rng = np.random.default_rng(seed)
    x, k = rng.normal(size=(rows, 10)), len(NAMES)
    scores = x @ rng.normal(size=(10, k)) * 2 + rng.normal(size=k)
    clean = (scores + 0.3 * rng.normal(size=(rows, k)) > 0).astype(int)
    y = clean ^ (rng.random((rows, k)) < np.linspace(0.02, 0.2, k))
    probs = np.stack([
        cross_val_predict(LogisticRegression(), x, y[:, j], cv=5, method="predict_proba")[:, 1]
        for j in range(k)
    ], 1)  # fmt: skip
    return x, clean, y, probs


@pytest.mark.parametrize("seed", range(3))
def test_the_joint_ranking_finds_what_was_made_wrong(seed):
    _, clean, y, probs = made(seed)
    wrong = clean != y
    found = audit_multilabel(probs, y, names=NAMES)
    at = found.issues["index"], [NAMES.index(name) for name in found.issues.label]
    precision = average_precision_score(wrong[at], found.issues.p_wrong)
    naive = average_precision_score(wrong.ravel(), np.where(y == 1, 1 - probs, probs).ravel())
    assert precision > 0.94 and precision > naive - 0.002
    flagged = (found.issues.p_wrong > 0.5).to_numpy()
    assert wrong[at][flagged].mean() > 0.9 and flagged[wrong[at]].mean() > 0.7
    assert found.num_errors.low <= wrong.sum() <= found.num_errors.high
    inside = [
        line.noise_rate_low <= wrong[:, k].mean() <= line.noise_rate_high
        for k, line in enumerate(found.per_class.itertuples())
    ]
    assert sum(inside) >= 4
    some = average_precision_score(wrong.any(1), found.rows.p_any_wrong)
    assert some > 0.9
    truth = clean[at] == 1
    assert (found.issues.predicted == truth)[flagged].mean() > 0.9


def test_unknown_entries_and_rare_classes():
    _, _, y, probs = made(0, rows=200)
    y[:50, 0] = -1
    y[:, 1] = 0
    found = audit_multilabel(pd.DataFrame(probs, columns=NAMES), y)
    assert (found.issues.label == "c0").sum() == 150 and len(found.issues) == 950
    assert not found.issues[found.issues.label == "c1"].is_label_issue.any()
    assert "Not audited" in found.notes[0] and "(c1)" in found.notes[0]
    assert found.per_class.audited.tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("probs", "labels", "match"),
    [
        (np.full((9, 2), 1.5), np.zeros((9, 2)), "no probability from 0 to 1 in 9 rows"),
        (np.full((9, 2), np.nan), np.zeros((9, 2)), "no probability from 0 to 1"),
        (np.full((9, 2), 0.5), np.zeros((9, 3)), "they must be alike"),
        (np.full((9, 2), 0.5), np.full((9, 2), 2), "Labels must be 1, 0 or -1"),
        (np.full((9, 2), 0.5), np.full((9, 2), "a"), "Labels must be 1, 0 or -1"),
        (np.full(9, 0.5), np.zeros(9), "must be numbers .rows, classes."),
    ],
)
def test_bad_input_is_one_sentence(probs, labels, match):
    with pytest.raises(BadInput, match=match):
        audit_multilabel(probs, labels)


@pytest.fixture
def table(tmp_path):
    _, clean, y, probs = made(1, rows=300)
    frame = pd.DataFrame({"key": [f"k{row}" for row in range(300)]})
    frame["text"] = [f"a <b>text</b> of row {row}" for row in range(300)]
    frame = frame.join(pd.DataFrame(y, columns=[f"y_{name}" for name in NAMES]))
    shuffled = NAMES[::-1]  # the columns of the two may be in another order
    frame = frame.join(pd.DataFrame(probs, columns=[f"p_{n}" for n in NAMES])[
        [f"p_{n}" for n in shuffled]])  # fmt: skip
    frame.to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv", frame, clean, y, probs


def test_the_command_line_audits_a_matrix(table, tmp_path):
    path, frame, _, y, probs = table
    words = "audit", path, "--probabilities", "p_*", "--label", "y_*", "--out", tmp_path / "run"
    said = ytilde(*words, "--id", "key").stdout
    assert "of 1500 entries (300 rows, 5 classes)" in said
    issues = pd.read_csv(tmp_path / "run" / "issues.csv")
    direct = audit_multilabel(probs, y, names=NAMES).issues
    assert np.allclose(issues.p_wrong, direct.p_wrong) and (issues.label == direct.label).all()
    assert (issues.id == frame.key[issues["index"]].to_numpy()).all()
    rows = pd.read_csv(tmp_path / "run" / "row_issues.csv")
    assert rows.p_any_wrong.is_monotonic_decreasing and "id" in rows
    page = (tmp_path / "run" / "report.html").read_text()
    assert "a &lt;b&gt;text" in page and "<b>text" not in page and "take away" in page
    ytilde(*words, "--id", "key")  # the same again
    refused("review", tmp_path / "run", match="audits several labels per row")
    refused("audit", tmp_path / "run", match="audits several labels per row")
    refused(*words, "--fix-above", 0.9, match="which of several labels to add or remove")


def test_the_command_line_refuses_what_does_not_fit(table, tmp_path):
    path, frame, *_ = table

    def tried(changed, match, label="y_*"):
        changed.to_csv(path, index=False)
        refused("audit", path, "--probabilities", "p_*", "--label", label, "--out",
                tmp_path / "none", match=match)  # fmt: skip
        assert not (tmp_path / "none").exists()

    tried(frame.drop(columns="y_c1"), "c1 is in one of them alone")
    tried(frame.assign(y_c2="maybe"), "must hold 1 or 0 (or nothing), but 'maybe'")
    tried(frame.assign(p_c2=1.2), "no probability from 0 to 1")
    tried(frame, "no column", label="z_*")


def test_matrices_of_an_npz(table, tmp_path):
    *_, y, probs = table
    np.savez(tmp_path / "d.npz", probs=probs, labels=y, names=np.array(NAMES))
    ytilde("audit", tmp_path / "d.npz", "--probabilities", "probs", "--label", "labels", "--out",
           tmp_path / "run")  # fmt: skip
    assert set(pd.read_csv(tmp_path / "run" / "issues.csv").label) == set(NAMES)
