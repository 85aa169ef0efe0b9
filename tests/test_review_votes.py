"""Votes in one step, and a review that becomes one more annotator."""

import numpy as np
import pandas as pd
import pytest

from test_cli import FAST, refused, ytilde
from ytilde.auditing.review import Choice, Log
from ytilde.data.readers import read_votes


@pytest.fixture
def files(tmp_path, monkeypatch):
    """90 rows of three clouds; three annotators, of whom the third is wrong on the first rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    clean = np.arange(90) % 3
    x = rng.normal(0, 1, (90, 4)) + 5 * np.eye(4)[clean]
    names, ids = np.array(["ant", "bee", "cow"]), [f"r{row}" for row in range(90)]
    data = pd.DataFrame(x, columns=list("abcd")).assign(id=ids, y=names[clean])
    data.to_csv("data.csv", index=False)
    wrong = np.where(np.arange(90) < 9, (clean + 1) % 3, clean)
    by = {"Ann": clean, "Bo": wrong, "Cy": wrong}
    votes = [pd.DataFrame({"task": ids, "worker": who, "says": names[k]}) for who, k in by.items()]
    pd.concat(votes).rename(columns={"says": "label"}).to_csv("votes.csv", index=False)
    return tmp_path


def test_an_audit_of_votes_is_one_step(files):
    said = ytilde("audit", "data.csv", "--label", "y", "--annotations", "votes.csv", "--out", "run",
                  "--folds", 3, *FAST, "--epochs", 10, "--lr", 0.1).stdout  # fmt: skip
    assert "270 votes of 3 annotators" in said
    assert "column 'y' left out: the labels are the votes" in said
    issues = pd.read_csv("run/issues.csv")
    assert set(issues.head(9)["id"]) == {f"r{row}" for row in range(9)}
    assert "Ann" in pd.read_csv("run/annotators.csv").annotator.tolist()
    words = "audit", "data.csv", "--annotations", "votes.csv"
    refused(*words, "--label", "z", match="no column 'z' in votes.csv, nor in data.csv")
    refused("audit", "run", "--annotations", "votes.csv", match="leave out --annotations")
    renamed = pd.read_csv("votes.csv").rename(columns={"label": "says"})
    renamed.to_csv("other.csv", index=False)
    words = "fit", "data.csv", "--annotations", "other.csv", "--label", "says", *FAST
    ytilde(*words, "--drop", "y", "--out", "run2")


def test_a_review_votes_as_one_more_annotator(files):
    ytilde("audit", "data.csv", "--annotations", "votes.csv", "--drop", "y", "--out", "run",
           "--folds", 3, *FAST, "--epochs", 10, "--lr", 0.1)  # fmt: skip
    log = Log(files / "run" / "review.sqlite")
    log.decide("1", "tab", 0, "accept", 0, 0)
    log.decide("2", "tab", 1, "choose", 1, 0)
    log.decide("3", "tab", 2, "skip", None, 0)
    log.decide("4", "tab", 3, "bad", None, 0)
    log.decide("5", "tab", 30, "keep", 0, 0)
    log.decide_all("6", "tab", [Choice(4, "accept", 1), Choice(5, "accept", 2)])
    said = ytilde("review", "run", "--export-votes", "more.csv").stdout
    assert "273 votes written to more.csv, 3 by review" in said
    assert "no vote for 2 suggestions that were accepted all at once" in said
    assert "ytilde audit data.csv --annotations more.csv" in said
    before, votes = read_votes("votes.csv"), read_votes("more.csv")
    assert len(votes) == len(before) + 3 and "review" in votes.annotators
    table = pd.read_csv("more.csv")
    own = table[table.annotator == "review"]
    assert dict(zip(own["item"], own["label"], strict=True)) == {
        "r0": "ant", "r1": "bee", "r30": "ant",
    }  # fmt: skip
    ytilde("review", "run", "--export-votes", "more.csv", "--annotator", "me")  # its own output
    assert "me" in read_votes("more.csv").annotators
    refused("review", "run", "--export-votes", "new.csv", "--annotator", "Ann",
            match="there are votes of 'Ann' already")  # fmt: skip
    for name, match in {"Ann": "there are votes of 'Ann' already", " ": "has no name"}.items():
        words = "--export", "labels.csv", "--export-votes", "new.csv", "--annotator", name
        refused("review", "run", *words, match=match)
        assert not (files / "labels.csv").exists()
    refused("review", "run", "--export-votes", "votes.csv", "--force", match="is an input")
    assert len(read_votes("votes.csv")) == len(before) and not (files / "new.csv").exists()


def test_one_label_a_row_is_a_vote_too(files):
    ytilde("audit", "data.csv", "--label", "y", "--out", "run", "--folds", 2, *FAST)
    Log(files / "run" / "review.sqlite").decide("1", "tab", 7, "choose", 2, 0)
    ytilde("review", "run", "--export-votes", "votes2.csv")
    votes = read_votes("votes2.csv")
    assert list(votes.annotators) == ["given", "review"] and len(votes) == 91
    assert votes.in_order_of([f"r{row}" for row in range(90)], "data").per_item[7] == 2
