"""Near-duplicates with different labels and rows like no other, against planted ones."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import average_precision_score

from test_cli import FAST, ytilde
from ytilde import audit
from ytilde.auditing.neighbourhood import conflicts, neighbourhood


def with_copies(x, y, scale, copies=20):
    """Noisy copies of some rows at the end, the first half of them with another label."""
    rng = np.random.default_rng(1)
    rows = rng.choice(len(x), copies, replace=False)
    near = x[rows] + rng.normal(0, 1, (copies, x.shape[1])) * scale * x.std(0)
    label = y[rows].copy()
    label[: copies // 2] = (label[: copies // 2] + 1) % (y.max() + 1)
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
