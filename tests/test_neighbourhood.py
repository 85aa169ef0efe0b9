"""Near-duplicates with different labels and rows like no other, against planted ones."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import average_precision_score

from test_cli import FAST, ytilde
from ytilde import Classifier, Data, audit
from ytilde.auditing.crossfit import out_of_fold
from ytilde.auditing.duplicates import copies
from ytilde.auditing.neighbourhood import conflicts, neighbourhood
from ytilde.auditing.panel import panel


def with_copies(x, y, scale, number=20):
    """Noisy copies of some rows at the end, the first half of them with another label."""
    rng = np.random.default_rng(1)
    rows = rng.choice(len(x), number, replace=False)
    near = x[rows] + rng.normal(0, 1, (number, x.shape[1])) * scale * x.std(0)
    label = y[rows].copy()
    label[: number // 2] = (label[: number // 2] + 1) % (y.max() + 1)
    return np.concatenate([x, near]), np.concatenate([y, label]), rows


@pytest.mark.parametrize("load", [load_digits, load_wine, load_breast_cancer])
@pytest.mark.parametrize("scale", [0, 0.01, 0.02])
def test_planted_copies_are_found_and_nothing_else(load, scale):
    x, y = load(return_X_y=True)
    n = len(x)
    plain = neighbourhood(x, y).columns
    assert (plain["near_duplicate"] == -1).all() and not plain["is_duplicate_conflict"].any()
    more, labels, rows = with_copies(x, y, scale)
    found = neighbourhood(more, labels).columns
    of = found["near_duplicate"]
    assert (of[n:] == rows).all() and (of[rows] == np.arange(n, n + 20)).all()
    assert (of >= 0).sum() == 40
    wanted = {*range(n, n + 10), *rows[:10].tolist()}
    assert set(np.flatnonzero(found["is_duplicate_conflict"])) == wanted


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 50])
def test_chance_makes_few_duplicates_and_outliers(dim):
    found = [
        neighbourhood(np.random.default_rng(seed).normal(size=(500, dim)), np.arange(500) % 2)
        for seed in range(5)
    ]
    assert sum((each.columns["near_duplicate"] >= 0).sum() for each in found) <= 6
    assert sum(each.columns.get("is_outlier", np.zeros(1)).sum() for each in found) <= 2


@pytest.mark.parametrize(("dim", "least", "found"), [(3, 0.85, 0.5), (5, 0.97, 0.8), (20, 1, 1)])
def test_planted_outliers_come_first(dim, least, found):
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.normal(size=(980, dim)), rng.uniform(-6, 6, (20, dim))])
    strange = np.arange(1000) >= 980
    columns = neighbourhood(x, np.arange(1000) % 2).columns
    assert average_precision_score(strange, columns["outlier_score"]) >= least
    flagged = columns["is_outlier"]
    assert strange[flagged].mean() > 0.95 and flagged[strange].mean() >= found


def test_large_sets_of_copies_and_rows_without_a_label():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    x[:30] = x[0]
    y = np.zeros(200, dtype=np.int64)
    y[3] = 1
    y[5] = -1
    found = neighbourhood(x, y)
    assert len(found.columns["near_duplicate"]) == 199  # the judged rows
    assert found.columns["is_duplicate_conflict"].sum() == 29
    assert "29 rows in 1 set of near-duplicates" in found.notes[0]
    assert neighbourhood(x[:10], y[:10]).columns == {}


def test_many_rows_are_compared_with_a_sample(monkeypatch):
    from ytilde.auditing import nearest

    monkeypatch.setattr(nearest, "REFERENCE", 100)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    x[7], x[9] = x[250], 40
    found = neighbourhood(x, np.arange(300) % 2)
    assert np.flatnonzero(found.columns["near_duplicate"] >= 0).tolist() == [7, 250]
    assert found.columns["outlier_score"].argmax() == 9
    assert "only exact copies" in found.notes[-1]


def test_an_audit_with_features_has_the_columns_and_the_report_the_sections(tmp_path):
    x, y, _ = with_copies(*load_wine(return_X_y=True), scale=0.01)
    x[5] += 40 * x.std(0)
    probs = np.full((len(x), 3), 0.05)
    probs[np.arange(len(x)), y] = 0.9
    found = audit(probs, y, features=x)
    assert found.issues.is_outlier[5] and found.issues.is_duplicate_conflict.sum() == 20
    assert len(conflicts(found.issues)) == 10
    found.to_html(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Nearly the same, labelled differently" in page and "Unlike all others" in page
    without = audit(probs, y)
    assert "is_outlier" not in without.issues
    without.to_html(tmp_path / "s.html")
    assert "Unlike all others" not in (tmp_path / "s.html").read_text()
    found.to_csv(tmp_path / "i.csv")
    assert "near_duplicate" in pd.read_csv(tmp_path / "i.csv")


def test_twenty_rows_have_neighbours_and_fewer_have_not():
    x = np.random.default_rng(0).normal(size=(22, 3))
    y = np.arange(22) % 2
    y[:2] = -1
    assert len(neighbourhood(x, y).columns["outlier_score"]) == 20
    y[2] = -1
    assert neighbourhood(x, y) == ({}, [])


def test_conflicts_come_with_the_likeliest_error_first():
    """A set counts by its likeliest error; within a set rows are in their order."""
    issues = pd.DataFrame({
        "index": [7, 1, 2, 9, 4, 5, 6],
        "p_wrong": [0.9, 0.3, 0.6, 0.5, 0.1, 0.7, 0.95],
        "duplicate_set": [0, 1, 2, 2, 0, 1, 3],
        "is_duplicate_conflict": [True] * 6 + [False],
    })  # fmt: skip
    assert [part["index"].tolist() for part in conflicts(issues)] == [[4, 7], [1, 5], [2, 9]]
    assert conflicts(issues.drop(columns="is_duplicate_conflict")) == []


def test_copies_of_pictures_are_shown(tmp_path):
    rng = np.random.default_rng(0)
    for row in range(40):
        given = "ab"[row % 2]
        folder = tmp_path / "pictures" / given
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{row:02}.png")
    Image.fromarray(pixels).save(tmp_path / "pictures" / "a" / "copy.png")  # of b/39.png
    run = tmp_path / "run"
    ytilde("audit", tmp_path / "pictures", "--out", run, "--folds", 2, *FAST)
    issues = pd.read_csv(run / "issues.csv").set_index("index")
    same = issues[issues.is_duplicate_conflict]
    assert sorted(path.rpartition("/")[2] for path in same.path) == ["39.png", "copy.png"]
    assert set(same.near_duplicate) == set(same.index) and "is_outlier" not in issues
    page = (run / "report.html").read_text()
    assert "Nearly the same, labelled differently" in page


# ---- copies --------------------------------------------------------------------------------------


def test_copies_lead_to_the_first_of_them():
    x = load_digits(return_X_y=True)[0][:50].astype(np.float32)
    assert copies(x).tolist() == list(range(50))
    twice = np.concatenate([x, x[10:14], x[12:13]])
    twice[50, twice[50] == 0] = -0.0
    assert copies(twice)[50:].tolist() == [10, 11, 12, 13, 12]
    pictures = twice.reshape(-1, 1, 8, 8)
    assert copies(pictures).tolist() == copies(twice).tolist()


def test_rows_that_are_equal_by_chance_or_recur_are_no_copies():
    rng = np.random.default_rng(0)
    few = rng.integers(0, 2, (400, 12)).astype(np.float32)  # 4,096 different rows
    encoded = np.eye(30, dtype=np.float32)[rng.integers(0, 30, 300)]
    for x in (few, encoded):
        assert len(np.unique(x, axis=0)) < len(x)
        assert copies(x).tolist() == list(range(len(x)))
    x = rng.normal(size=(40, 6))
    often = np.concatenate([x, np.repeat(x[:1], 10, 0), np.repeat(x[1:2], 9, 0)])
    assert copies(often).tolist() == [*range(50), *[1] * 9]


def test_judges_of_copies_do_not_hear_their_labels():
    x, y = load_digits(return_X_y=True)
    x, y = x[:200].astype(np.float32), y[:200]
    rows = np.arange(0, 200, 3)
    thrice, labels = np.concatenate([x, x[rows], x[rows]]), np.concatenate([y, y[rows], y[rows]])
    labels[0] = (labels[0] + 1) % 10  # two of its three say y[0]
    labels[-1] = -1
    once, more = panel(x, y, 10), panel(thrice, labels, 10)
    for a, b in zip(once, more, strict=True):
        np.testing.assert_allclose(b, np.concatenate([a, a[rows], a[rows]]))


def test_copies_are_in_one_fold_and_their_wrong_labels_are_found():
    x, truth = load_digits(return_X_y=True)
    x, truth = x[:500].astype(np.float32), truth[:500]
    y = truth.copy()
    y[::10] = (y[::10] + 3) % 10
    rows = np.r_[0:500, 0:500, 100:500]
    asked = []

    def fit(data, listen, folder):
        def ask(held):
            seen = {row.numpy().tobytes() for row in data.x}
            asked.extend(row.numpy().tobytes() in seen for row in held.x)
            return np.full((len(held), 10), 0.1)

        return ask

    data = Data(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), 10)
    out_of_fold(data, 3, 0, fit)
    assert sum(asked) > 1000
    asked.clear()
    out_of_fold(data, 3, 0, fit, first=copies(x[rows]))
    assert len(asked) == len(rows) and not any(asked)

    clf = Classifier(epochs=30, random_state=0)
    found = clf.audit(x[rows], y[rows], folds=3)
    wrong = (y != truth)[rows]
    flagged = found.issues.is_label_issue.to_numpy()
    assert flagged[wrong].mean() > 0.9 and wrong[flagged].mean() > 0.85
    assert any(note.startswith("1400 of 1400 rows are copies") for note in found.notes)


def test_copies_in_tables_of_few_columns():
    """Values that lie close together are equal by copying, ages and rounded ones by chance."""
    rng = np.random.default_rng(0)
    fine, rows = rng.normal(size=(300, 2)), np.arange(300)
    for x in (fine, fine[:, :1]):
        for times in (2, 3, 15):
            assert (copies(np.tile(x, (times, 1))) == np.tile(rows, times)).all()
    ages, rounded = rng.integers(0, 80, (300, 1)), fine[:, :1].round(2)
    for x in (ages, rounded, np.c_[ages, rng.integers(0, 2, 300)]):
        assert len(np.unique(x, axis=0)) < 300
        assert (copies(x.astype(np.float32)) == rows).all()
    same = np.ones((30, 4))
    assert (copies(same) == np.arange(30)).all()
    assert len(panel(same, np.arange(30) % 2, 2)[0]) == 30


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_near_copies_of_most_rows_are_found(share):
    rng = np.random.default_rng(0)
    x, k = rng.normal(size=(500, 6)), int(500 * share)
    near = np.concatenate([x, x[:k] + 1e-4 * rng.normal(size=(k, 6))])
    found = neighbourhood(near, np.arange(500 + k) % 2).columns["near_duplicate"]
    assert (found[500:] == np.arange(k)).all() and (found[k:500] == -1).all()


@pytest.mark.parametrize("kind", ["ratings", "counts", "one row", "a whole table"])
def test_an_audit_of_rows_that_are_mostly_equal_ends(kind):
    """Where most rows have ten equal ones, a kernel is as wide as the next different row is far."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 6))
    x = {
        "ratings": rng.integers(1, 6, (800, 2)).astype(float),
        "counts": 0.37 * rng.poisson(0.15, (1000, 6)),
        "one row": np.concatenate([x, np.repeat(x[:1], 400, 0)]),
        "a whole table": np.tile(x[:, :2].round(1), (15, 1)),
    }[kind]
    y = (x.sum(1) > np.median(x.sum(1))).astype(int)
    wrong = rng.random(len(y)) < 0.05
    p = np.where(y == 1, 0.9, 0.1)
    found = audit(np.c_[1 - p, p], np.where(wrong, 1 - y, y), features=x).issues
    assert found.is_label_issue[wrong].mean() > 0.9


def test_equal_rows_that_are_no_copies_are_not_called_so():
    rng = np.random.default_rng(0)
    x = np.eye(3)[rng.integers(0, 3, 300)]
    y = np.where(rng.random(300) < 0.1, 1 - x[:, 0], x[:, 0]).astype(int)
    found = Classifier("ce", epochs=5, random_state=0).audit(x, y, folds=2)
    assert (found.issues.near_duplicate >= 0).all()
    assert not any("copies" in note for note in found.notes)
