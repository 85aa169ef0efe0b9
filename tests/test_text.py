"""A column of texts: found, made numbers of in the same way again, and shown as it is."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from browser import start
from test_cli import ytilde
from test_review import Server
from ytilde import Classifier
from ytilde.auditing import review
from ytilde.data import BadInput
from ytilde.data.columns import count_words, is_long
from ytilde.data.readers import Schema, read
from ytilde.data.tfidf import LONGEST, TfIdf

GOOD = ["lovely", "great", "wonderful", "happy", "perfect", "charming", "superb", "delightful"]
BAD = ["awful", "broken", "terrible", "sad", "useless", "dreadful", "boring", "horrible"]
COMMON = ["the", "film", "was", "and", "it", "had", "a", "story", "with", "people", "who", "went"]
RARE = [f"{a}{b}{c}" for a in ("bra", "klu", "pri") for b in "aeiou" for c in ("st", "nd", "rm")]
SCRIPTS = {
    "Japanese": "この映画はとても素晴らしかったので、もう一度見に行きたいと思います。",
    "Arabic": "كان هذا الفيلم جميلا جدا وأود أن أشاهده مرة أخرى مع أصدقائي",
    "Hindi": "यह फिल्म बहुत अच्छी थी और मैं इसे फिर से देखना चाहूंगा",
    "Thai": "ภาพยนตร์เรื่องนี้ยอดเยี่ยมมากและฉันอยากดูอีกครั้ง",
    "Emoji": "👩‍🚀 a film 🎬 that went to the moon 🌕 and came back <b>again</b>",
}
FAST = ["--epochs", "60", "--lr", "0.005"]


def reviews(n=240, seed=0, wrong=8):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    texts = [
        " ".join(rng.permutation([*rng.choice(COMMON, 6), *rng.choice(GOOD if k else BAD, 9)]))
        for k in y
    ]
    given = np.where(np.arange(n) < wrong, 1 - y, y)
    stars = np.array(["bad", "good"])[given]
    return pd.DataFrame({"review": texts, "year": rng.integers(2000, 2020, n), "stars": stars})


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Reviews in several scripts, one of them long, with a line end and a tag."""
    folder = tmp_path_factory.mktemp("texts")
    table = reviews()
    for row, text in enumerate(SCRIPTS.values()):  # among those whose label is wrong
        table.loc[row, "review"] = f"{text} {table.review[row]}"
    table.loc[5, "review"] = "one line\nanother <img src=x> " + table.review[5] + " word" * 4000
    table.to_csv(folder / "reviews.csv", index=False)
    told = ytilde(
        "audit", folder / "reviews.csv", "--label", "stars", *FAST, "--folds", "2",
        "--out", folder / "r",
    ).stdout  # fmt: skip
    assert "features are 1 number and 1 text (review, year)" in told
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from start(tmp_path_factory.mktemp("chromium"))


def suspected(folder):
    """How the texts of the suspects begin: those of other scripts and the long one among them."""
    issues = pd.read_csv(folder / "r" / "issues.csv")
    begin = [text[:12] for text in issues[issues.is_label_issue].text]
    assert len(begin) >= 6 and "one line ano" in begin
    assert sum(not text.isascii() for text in begin) >= 4
    return begin


def test_a_text_is_told_from_a_name():
    assert count_words("Braund, Mr. Owen Harris") == 4
    assert [count_words(text) >= 5 for text in SCRIPTS.values()] == [True] * 5
    names = pd.Series([f"Braund, Mr. Owen {k}" for k in range(50)])
    assert not is_long(names) and not is_long(reviews().year)
    assert is_long(reviews().review) and not is_long(reviews().review.iloc[:15])


def test_labels_are_found_by_their_texts(audited):
    issues = pd.read_csv(audited / "r" / "issues.csv")
    assert set(issues["index"][:8]) == set(range(8))  # the eight wrong ones come first
    table = pd.read_csv(audited / "reviews.csv")
    shown = issues.set_index("index").text
    assert shown[20] == table.review[20] and shown[0].startswith("この映画は")
    assert shown[5].startswith("one line another <img src=x>") and len(shown[5]) == 1000


def test_new_texts_are_read_as_the_old_ones_were(audited, tmp_path):
    new = reviews(40, seed=1, wrong=0)
    new.drop(columns="stars").to_csv(tmp_path / "new.csv", index=False)
    for model in (audited / "r", audited / "r" / "model.safetensors"):
        words = ["--probabilities", "--out", tmp_path / "p.csv", "--force"]
        ytilde("predict", model, tmp_path / "new.csv", *words)
        found = pd.read_csv(tmp_path / "p.csv")
        assert (found.predicted_label == new.stars).mean() > 0.9
    clf = Classifier.load(audited / "r" / "model.safetensors")
    probs = clf.predict_proba(new[["review", "year"]])
    assert np.allclose(probs, found[["prob_bad", "prob_good"]], atol=1e-5)
    told = ytilde("audit", audited / "r", "--folds", "2").stdout  # read again, to the bit
    assert "Nothing was trained again" in told
    new.loc[0, "review"] = None
    new.loc[1, "review"] = "x" * (LONGEST + 1)
    new.drop(columns="stars").to_csv(tmp_path / "new.csv", index=False)
    told = ytilde(
        "predict", audited / "r", tmp_path / "new.csv", "--out", tmp_path / "q.csv"
    ).stdout
    assert "row 1 (counting from 0) of column 'review'" in told
    assert pd.read_csv(tmp_path / "q.csv").predicted_label.notna().all()


def test_python_reads_texts_too(tmp_path):
    table = reviews()
    X, y = table[["year", "review"]], table.stars
    clf = Classifier("ce", "mlp:width=32,depth=1", epochs=15, batch_size=32, lr=0.01, device="cpu")
    clf.fit(X, y)
    assert clf.schema_.text_column == "review" and clf.schema_.one_scale == (1, clf.shape_[0])
    clf.save(tmp_path / "m")
    again = Classifier.load(tmp_path / "m")
    assert (again.predict_proba(X) == clf.predict_proba(X)).all()
    found = clf.audit(X, y, folds=2)
    assert list(found.context.shown([0]).columns) == ["review", "year"]
    found.to_csv(tmp_path / "issues.csv")
    assert pd.read_csv(tmp_path / "issues.csv").text.notna().all()


def test_components_are_of_the_tf_idf_that_scikit_learn_has():
    texts = reviews(40).review
    made, expected = TfIdf.learn(texts, "the texts"), []
    how = {
        "words": {"ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"},
        "pieces": {"ngram_range": (2, 4), "analyzer": "char_wb"},
    }
    for kind, part in made.terms.items():
        theirs = TfidfVectorizer(min_df=2, sublinear_tf=True, **how[kind])
        expected.append(theirs.fit_transform(texts) @ part.components.T)
        assert part.names == list(theirs.get_feature_names_out())
        np.testing.assert_allclose(part.idf, theirs.idf_, rtol=1e-5)
        assert len(part.components) == len(texts) // 5  # few texts have few components
        np.testing.assert_allclose(part.components @ part.components.T, np.eye(8), atol=1e-4)
    x = made.transform(texts, "the texts", [])
    np.testing.assert_allclose(x, np.concatenate(expected, 1), atol=1e-4)


def test_a_text_may_be_as_long_as_is_read():
    texts = pd.Series(["a short one", "another one", "a" * LONGEST])
    made, notes = TfIdf.learn(texts, "the texts"), []
    made.transform(texts, "the texts", notes)
    assert not notes
    made.transform(texts + "b", "the texts", notes)
    assert len(notes) == 1 and "row 2 (counting from 0) of the texts" in notes[0]


def test_texts_survive_a_file():
    texts = pd.Series([*SCRIPTS.values()] * 2 + [*reviews(25).review, ""])
    made = TfIdf.learn(texts, "the texts")
    again = TfIdf.from_tensors(made.tensors())
    x = made.transform(texts, "the texts", [])
    assert (again.transform(texts, "the texts", []) == x).all()
    assert x.shape == (36, made.width) and not x[-1].any() and x[:-1].any(1).all()
    broken = made.tensors() | {"words.idf": torch.zeros(3)}
    with pytest.raises(KeyError, match="differ in number"):
        TfIdf.from_tensors(broken)


def test_texts_that_cannot_be_read():
    table = reviews()
    with pytest.raises(BadInput, match=r"a text of 1,000,000 characters in row 3 .* not closed"):
        read(table.assign(review=table.review.where(table.index != 3, "x" * 10**6)), label="stars")
    for nothing in ("", "  ", None):
        with pytest.raises(BadInput, match="no text in column 'review'"):
            read(table[["stars"]].assign(review=nothing), label="stars", text_column="review")
    two = table.assign(body=table.review + " and so on")
    with pytest.raises(BadInput, match=r"several columns of long texts .*--text body, and"):
        read(two, label="stars")
    found = read(two, label="stars", text_column="review")
    assert list(found.schema.columns) == ["review", "year"]
    assert any("'body' (it holds long texts" in note for note in found.notes)
    with pytest.raises(BadInput, match=r"no text column 'reveiw' .*did you mean 'review'"):
        read(two, label="stars", text_column="reveiw")
    some = read(table.assign(review=table.review.where(table.index > 9, None)), label="stars")
    assert not some.data.x[:10, : some.schema.one_scale[1]].any()


def test_short_texts_may_be_named():
    words = [f"{'good' if k % 2 else 'bad'} {k % 30}" for k in range(60)]
    table = pd.DataFrame({"words": words, "label": [*"ab"] * 30})
    assert read(table, text_column="words").schema.text_column == "words"


def test_a_run_without_texts_keeps_its_schema():
    schema = read(pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})).schema
    assert schema.text_column is None and schema.one_scale == (0, 0)
    assert Schema(**schema.to_json()) == schema


def test_texts_under_wrong_labels():
    """Not below scikit-learn's own way, by more than chance; benchmarks/text.py has the figures."""
    table = reviews(400, wrong=0)
    rng = np.random.default_rng(1)
    rare = [f"{text} {' '.join(rng.choice(RARE, 12))}" for text in table.review]
    X, y = pd.DataFrame({"review": rare}), (table.stars == "good").to_numpy()
    given = np.where(rng.random(400) < 0.3, ~y, y)[:270]
    clf = Classifier("elr", device="cpu").fit(X[:270], given)
    plain = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(X.review[:270], given)
    ours, theirs = clf.score(X[270:], y[270:]), plain.score(X.review[270:], y[270:])
    assert ours > 0.9 and ours > theirs - 0.04


def test_texts_alone_are_read_by_a_linear_model():
    table = reviews(60, wrong=0)
    fast = {"device": "cpu", "epochs": 1}
    clf = Classifier("ce", **fast).fit(table[["review"]], table.stars)
    assert clf.backbone_ == "identity" and clf.recipe_.batch_size == 32
    mixed = table[["review"]].assign(**{f"n{k}": np.arange(60.0) for k in range(40)})
    assert Classifier("ce", **fast).fit(mixed, table.stars).backbone_ == "mlp:width=128,depth=1"


def test_in_a_browser_texts_are_read(audited, browser):
    """Of any length and script; nothing in them is run, and the page stays as wide as it is."""
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    for size in ((1000, 900), (400, 800)):
        browser.resize(*size)
        browser.open((audited / "r" / "report.html").as_uri())
        text = browser.eval("document.querySelector('.cards').textContent")
        for part in suspected(audited):
            assert part in text
        assert browser.eval(fits)
        browser.eval("document.querySelector('.open').click()")
        assert browser.eval("document.getElementById('closer').open") and browser.eval(fits)
    assert not browser.said("Runtime.exceptionThrown")


def serve_texts(run, pipe):
    found = read(run.parent / "reviews.csv", label="stars")
    shown = {"texts": found.texts, "text_column": found.schema.text_column}
    session = review.Review(run, found.data, columns=found.schema.columns, **shown)
    review.serve(session, 0, pipe.send)


def test_in_a_browser_texts_are_reviewed(audited, browser, monkeypatch):
    monkeypatch.setattr("test_review.serve", serve_texts)
    server = Server(audited / "r")
    try:
        browser.resize(400, 800)
        browser.open(server.url)
        seen = []
        for _ in suspected(audited):
            browser.until("document.getElementById('values').textContent.length > 30")
            seen.append(browser.eval("document.getElementById('values').innerText"))
            fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert browser.eval(fits)
            place = browser.eval("document.getElementById('values').textContent")
            browser.press("k")
            browser.until(
                "document.getElementById('end').hidden === false || document.getElementById("
                f"'values').textContent !== {place!r}"
            )
        told = " ".join(seen)
        assert all(part in told for part in suspected(audited))
        assert max(map(len, seen)) > 3500 and seen[0].startswith("review")
        assert not browser.said("Runtime.exceptionThrown")
    finally:
        server.kill()


def test_bare_texts_are_told_to_be_a_column():
    for texts in (["one text", "another"] * 20, pd.Series(["one text", "another"] * 20)):
        with pytest.raises(BadInput, match="give them as a column"):
            Classifier("ce", epochs=1).fit(texts, [0, 1] * 20)
