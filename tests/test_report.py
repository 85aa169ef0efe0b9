"""The report: complete, small, and nothing from the data is ever more than text."""

import base64
import hashlib
import io
import json
import math
import os
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from browser import start
from ytilde import auditing
from ytilde.auditing import Audit, Estimate, audit, report
from ytilde.auditing.issues import worst_first
from ytilde.auditing.pages import percent
from ytilde.auditing.report import cards, charts, tables
from ytilde.auditing.report.advice import fix_threshold
from ytilde.metrics import reliability

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "\"><img src=x onerror=document.title='pwned'>",
    "</title></style><svg onload=document.title='pwned'>",
    "{{ 7 * 7 }} ' onmouseover='document.title=1",
    "قطة \u202eسوداء",
    "👩‍🚀 emoji \x00\u2028 end",
)


def synthetic(n=600, k=6, names=None, seed=0, rate=0.3):
    """An audit of labels of which some are wrong, with the truth."""
    rng = np.random.default_rng(seed)
    clean = rng.integers(0, k, n)
    wrong = rng.random(n) < rate
    y = np.where(wrong, (clean + 1 + rng.integers(0, 2, n)) % k, clean)
    logits = rng.normal(size=(n, k))
    logits[np.arange(n), clean] += 6 * rng.random(n)
    p = np.exp(logits)
    found = audit(p / p.sum(1, keepdims=True), y, names=names)
    return replace(found, second_opinion=True), y != clean


def large(n, names):
    """An audit of n rows that nothing was computed for."""
    k, p = len(names), np.linspace(0, 1, n)
    shown = np.array(names, dtype=object)
    issues = pd.DataFrame({
        "index": np.arange(n), "given_label": shown[np.arange(n) % k],
        "predicted_label": shown[(np.arange(n) + 1) % k], "label_quality": 1 - p,
        "is_label_issue": p > 0.5, "predicted_prob": p, "p_wrong": p, "ambiguity": 1 - p,
        "runner_up_label": shown[(np.arange(n) + 2) % k],
    })  # fmt: skip
    columns = ("given", "issues", "expected_errors", "noise_rate", "expected_true", "lost_rate")
    per_class = pd.DataFrame({"label": shown} | {name: np.full(k, 0.5) for name in columns})
    true, given = (part.ravel() for part in np.mgrid[:k, :k])
    pairs = pd.DataFrame({"given_label": shown[given], "predicted_label": shown[true],
                          "expected_errors": 1.0, "issues": 1})  # fmt: skip
    rate = Estimate(0.5, 0.4, 0.6)
    return Audit(issues, rate, Estimate(n / 2, 0.4 * n, 0.6 * n), np.full((k, k), 1 / k),
                 per_class, pairs, names)  # fmt: skip


class Page(HTMLParser):
    """Tags with their attributes, the text of the page, and what its scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words, self.inside = [], [], [], None
        self.data = ""  # of the suspects
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        is_data = ("type", "application/json") in attrs  # a browser does not run it
        self.inside = "data" if tag == "script" and is_data else tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside == "data":
            self.data += data
        elif self.inside != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)

    def all(self, tag, cls=""):
        found = [a for t, a in self.tags if t == tag]
        return [a for a in found if not cls or cls in (a.get("class") or "").split(" ")]


def written(tmp_path, found, **options):
    report.write(found, tmp_path / "report.html", **options)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


def everything(n=600, names=HOSTILE):
    found, wrong = synthetic(n, len(names), names)
    images = torch.randint(0, 256, (n, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    history = [{"stage": "main", "epoch": e, "loss": 2 / e, "val_accuracy": 0.5, "test_accuracy":
                0.6 + e / 100} for e in range(1, 9)]  # fmt: skip
    options = {
        "images": images.to(torch.uint8),
        "paths": [f"{names[k % len(names)]}/{k}.png" for k in range(n)],
        "rows": pd.DataFrame({names[0]: [names[1]] * n, "width": np.arange(n) / 7}),
        "history": {names[2]: history, "b": history},
        "title": names[0],
        "reliability": reliability(found.issues.p_wrong, wrong, bins=10),
        "measured": {names[1]: names[3]},
    }
    found.notes.append(names[0])
    return found, options


def assert_safe(page):
    """One script, ours, named by the policy; nothing is loaded; no handler; no address."""
    assert len(page.scripts) == 1
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert len(page.all("script")) == 2 and len(page.all("style")) == 1
    assert json.loads(page.data) is not None and not set(page.data) & set("<>&")
    for tag, attributes in page.tags:
        assert tag not in {"iframe", "object", "embed", "link", "base", "a"}
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"src", "href", "action", "srcset", "data"}:
                assert value.startswith("data:image/"), (tag, value)


def test_hostile_names_are_text(tmp_path):
    found, options = everything()
    text, page = written(tmp_path, found, **options)
    assert_safe(page)
    for name in HOSTILE[:4]:
        assert name in page.text
        assert name not in text or "<" not in name  # in the file it is escaped
    assert "قطة" in page.text and "👩‍🚀 emoji" in page.text
    assert "\u202e" not in text and "\x00" not in text and "\u2028" not in text


@settings(deadline=None, max_examples=20)
@given(name=st.text(min_size=1, max_size=30))
def test_any_text_stays_one_text(tmp_path_factory, name):
    """Whatever a class is called, the page has the same tags."""
    folder = tmp_path_factory.mktemp("report")
    tags = []
    for shown in ("plain", name):
        page = written(folder, large(40, (shown, "b", "c")), title=shown, examples=6)[1]
        tags.append([tag for tag, _ in page.tags])
    assert tags[0] == tags[1]


def test_file_names_that_are_no_text(tmp_path):
    found, _ = synthetic()
    paths = [os.fsdecode(b"bad\xff.png")] * 600
    assert "bad" in written(tmp_path, found, paths=paths)[0]


def test_the_figures_are_the_audits(tmp_path):
    found, _ = synthetic()
    _, page = written(tmp_path, found)
    for value in (found.num_errors, found.num_errors.low, found.num_errors.high):
        assert f"{round(value):,}" in page.text
    assert f"{100 * found.noise_rate:.1f}".removesuffix(".0") in page.text
    assert len(page.all("td", "wrong")) == 30 and len(page.all("td", "strong")) >= 6
    for a in page.all("td"):
        if "style" in a and (shade := float(a["style"].partition(":")[2])):
            promised = float(a["title"].rpartition(": ")[2])
            assert shade == pytest.approx(math.sqrt(promised), abs=0.01)


def test_gallery_shows_the_worst_and_apart_the_ambiguous(tmp_path):
    found, _ = synthetic(2000)
    _, page = written(tmp_path, found, examples=30)
    cards = page.all("li", "card")
    issues = found.issues.set_index("index")
    wrong = [a for a in cards if issues.is_label_issue[int(a["data-row"])]]
    unclear = [a for a in cards if not issues.is_label_issue[int(a["data-row"])]]
    assert (len(wrong), len(unclear)) == (30, 12)
    assert cards == wrong + unclear
    p = [float(a["data-p"]) for a in wrong]
    assert p == sorted(p, reverse=True)
    kept = issues[~issues.is_label_issue].ambiguity.nlargest(12)
    assert [float(a["data-ambiguity"]) for a in unclear] == pytest.approx(kept.to_list())
    for a in unclear:  # the class that ties with the given one is named
        row = issues.loc[int(a["data-row"])]
        other = {row.predicted_label, row.runner_up_label} - {row.given_label}
        assert any(f"{row.given_label}  or  {name}" in page.text for name in other)
    for a in cards:
        row = issues.loc[int(a["data-row"])]
        assert (a["data-given"], a["data-suggested"]) == (
            str(row.given_label), str(row.predicted_label))  # fmt: skip
        assert float(a["data-p"]) == row.p_wrong


def test_no_kind_of_mistake_fills_the_gallery():
    issues = pd.DataFrame({
        "index": np.arange(400), "given_label": ["a"] * 300 + ["b"] * 95 + ["c"] * 5,
        "predicted_label": "d", "is_label_issue": True, "p_wrong": np.linspace(1, 0.6, 400),
        "label_quality": np.linspace(0, 0.4, 400), "ambiguity": 0.0,
    })  # fmt: skip
    worst, unclear = cards.choose(issues, 30)
    assert worst.given_label.value_counts().to_dict() == {"a": 20, "b": 10}
    assert worst.p_wrong.is_monotonic_decreasing
    assert len(unclear) == 0
    only = cards.choose(issues[issues.given_label == "c"], 30)[0]
    assert len(only) == 5


def test_pictures_are_those_of_the_rows(tmp_path):
    found, _ = synthetic()
    shade = torch.arange(600) % 256
    images = shade.to(torch.uint8)[:, None, None, None].expand(600, 1, 12, 12)
    for x in (images, images.float() / 255, images.numpy()):
        page = written(tmp_path, found, images=x)[1]
        rows = [int(a["data-row"]) for a in page.all("li", "card")]
        assert len(rows) == len(page.all("img")) > 20
        for row, img in zip(rows, page.all("img"), strict=True):
            raw = base64.b64decode(img["src"].partition(",")[2])
            assert np.asarray(Image.open(io.BytesIO(raw))).ravel()[0] == shade[row]


class Noise:
    """A lazy reader of large pictures that cannot be compressed."""

    def __init__(self, n):
        self.shape, self.read = (n, 3, 224, 224), 0
        generator = torch.Generator().manual_seed(0)
        self.picture = torch.randint(0, 256, (1, 3, 224, 224), generator=generator).byte()

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        self.read += len(index)
        return self.picture


@pytest.mark.parametrize("examples", [60, 300])
def test_sixty_thousand_images_stay_within_the_budget(tmp_path, examples):
    """8 MB of pictures and 8 MB of texts at most; those without a picture are listed as well."""
    found = large(60_000, tuple(f"class {k} " + "long " * 40 for k in range(100)))
    images = Noise(60_000)
    _, page = written(tmp_path, found, images=images, paths=["p" * 300] * 60_000,
                         examples=examples)  # fmt: skip
    assert 8_000_000 < (tmp_path / "report.html").stat().st_size <= 17_000_000
    assert len(page.all("img")) == 1.4 * examples
    listed = json.loads(page.data)["suspects"]
    assert images.read <= 1.4 * examples + 1000  # every one may be a file on a slow disk
    with_pictures = [each for each in listed if each[-1]]
    assert 300 < len(with_pictures) <= 1000
    assert sum(len(each[-1]) for each in with_pictures) <= 8_000_000
    assert len(listed) == 30_000 or "of 30,000 suspects; all are in issues.csv" in page.text
    assert not page.all("table", "heat")  # 10,000 cells cannot be read: the largest pairs instead
    assert len(page.all("tr")) <= 2 + tables.PAIRS + 100


def test_every_suspect_is_in_the_page_the_worst_first(tmp_path):
    """60 of 446 were."""
    found, _ = synthetic(3000, names=tuple("abcdef"))
    ids = [str(10**17 + 7 * k) for k in range(3000)]
    rows = pd.DataFrame({"weight": np.arange(3000) / 4, "said": ["x" * 500] * 3000})
    data = json.loads(written(tmp_path, found, ids=ids, rows=rows)[1].data)
    flagged = worst_first(found.issues[found.issues.is_label_issue])
    assert len(flagged) > 500
    assert [each[0] for each in data["suspects"]] == flagged["index"].tolist()
    assert data["columns"] == ["weight", "said"]
    for each, issue in zip(data["suspects"], flagged.itertuples(), strict=True):
        row, given, suggested, p, ambiguity, own_id, path, values, picture = each
        assert (data["classes"][given], data["classes"][suggested]) == issue[2:4]
        assert p == pytest.approx(issue.p_wrong, abs=2e-6)
        assert ambiguity == pytest.approx(issue.ambiguity, abs=2e-6)
        assert own_id == ids[row] and path is None and picture is None
        assert values == [str(row / 4), "x" * 359 + "…"]  # a text is long enough to be read


def test_pictures_of_the_other_suspects_are_those_of_their_rows(tmp_path):
    found, _ = synthetic(2000)
    shade = torch.arange(2000) % 256
    images = shade.to(torch.uint8)[:, None, None, None].expand(2000, 1, 12, 12)
    _, page = written(tmp_path, found, images=images, examples=10)
    others = [each for each in json.loads(page.data)["suspects"] if each[-1]]
    assert len(others) == found.issues.is_label_issue.sum() - 10
    for each in others:
        raw = base64.b64decode(each[-1].partition(",")[2])
        assert np.asarray(Image.open(io.BytesIO(raw))).ravel()[0] == shade[each[0]]


def test_similar_rows_are_the_nearest_of_both_classes(tmp_path):
    found, _ = synthetic(1500, names=tuple("abcdef"))
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1500, 4)) + 1000.0  # far from the origin, as raw values are
    data = json.loads(written(tmp_path, found, features=features, examples=20)[1].data)
    assert len(data["similar"]) == 20
    issues = found.issues.set_index("index")
    trusted = issues[~issues.is_label_issue]
    for row, both in data["similar"].items():
        labels = issues.loc[int(row), ["given_label", "predicted_label"]]
        for label, near in zip(labels, both, strict=True):
            own = trusted.index[trusted.given_label == label].to_numpy()
            distance = np.linalg.norm(features[own] - features[int(row)], axis=1)
            assert near == own[distance.argsort()[:3]].tolist()
            assert all(str(each) in data["near"] for each in near)
    assert not json.loads(written(tmp_path, found)[1].data)["similar"]  # no features, no rows
    told = found.context
    told.features = lambda rows: torch.from_numpy(features[rows])  # of a network, row by row
    assert json.loads(written(tmp_path, found, examples=20)[1].data)["similar"] == data["similar"]


def test_tables_show_their_values(tmp_path):
    found, _ = synthetic()
    rows = pd.DataFrame({"weight": np.arange(600) + 0.25, "colour": ["red & blue"] * 600})
    _, page = written(tmp_path, found, rows=rows)
    first = int(page.all("li", "card")[0]["data-row"])
    assert f"{first + 0.25:.4g}" in page.text and "red & blue" in page.text
    assert "feature 1" in written(tmp_path, found, rows=rows[["weight"] * 2].to_numpy())[1].text


def test_curves(tmp_path):
    found, _ = synthetic()
    assert "Learning curves" not in written(tmp_path, found)[1].text
    history = [{"epoch": e, "loss": math.nan if e == 3 else 1.0 / e} for e in range(1, 6)]
    _, page = written(tmp_path, found, history=history)
    lines = [a["points"].split() for a in page.all("polyline", "line")]
    assert [len(line) for line in lines] == [4]
    heights = [float(point.partition(",")[2]) for point in lines[0]]
    assert heights == sorted(heights)  # the loss falls, and down the page y grows
    one = written(tmp_path, found, history=history[:1])[1]
    assert len(one.all("polyline", "line")) == 1


@pytest.mark.parametrize("values", [(0.795, 0.81), (0.99, 1.0), (0.0, 0.01), (0.3, 0.9)])
def test_a_row_more_or_less_is_no_leap_of_the_accuracy(values):
    (chart,) = charts.curves([{"epoch": e, "val_accuracy": v} for e, v in enumerate(values)])
    places, texts = zip(*chart["yticks"], strict=True)
    shown = [float(text.removesuffix(" %")) / 100 for text in texts]
    assert min(shown) >= 0 and max(shown) <= 1
    heights = [y for _, y in chart["lines"][0]["points"]]
    scale = (places[-1] - places[0]) / (shown[-1] - shown[0])  # of 174 pixels for the whole axis
    assert heights[1] - heights[0] == pytest.approx(scale * (values[1] - values[0]), abs=0.3)
    assert abs(scale) <= 174 / 0.1 + 1
    assert all(12 <= height <= 186 for height in heights)


def test_clean_labels_are_called_clean(tmp_path):
    eye = np.eye(4)[np.arange(4000) % 4] * 0.999 + 0.00025
    found = audit(eye, np.arange(4000) % 4)
    _, page = written(tmp_path, found)
    assert "The labels look right" in page.text
    assert "No label is more likely wrong than right" in page.text


def test_commands_name_the_run(tmp_path):
    found, _ = synthetic(rate=0.1)
    page = written(tmp_path, found)[1].text  # there is no run, so there is no command for one
    assert "ytilde audit" not in page and "ytilde review" not in page
    assert "found.fixed_labels(above=0.9" in page
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert f"ytilde audit '{run}' --fix-above" in written(run, found)[1].text


def test_the_title_names_the_folder_that_a_dot_stands_for(tmp_path, monkeypatch):
    found, _ = synthetic()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"source": "."}')
    assert f"{tmp_path.name}: runs/a" in written(tmp_path, found, title="runs/a")[1].text


def test_the_title_names_the_data(tmp_path):
    found, _ = synthetic()
    (tmp_path / "config.json").write_text('{"source": "some/where/pets.csv"}')
    assert "pets.csv: runs/a" in written(tmp_path, found, title="runs/a")[1].text


def test_few_mistakes_need_no_guide_and_why_two_numbers_differ(tmp_path):
    found, _ = synthetic(rate=0.1)
    more = replace(found, num_errors=Estimate(found.num_errors + 5, 1, 600))
    page = written(tmp_path, more)[1].text
    assert "labelling guide" in page and "need not agree" in page
    suspects = int(found.issues.is_label_issue.sum())
    same = replace(found, num_errors=Estimate(suspects, 1, 600), pairs=found.pairs.copy())
    same.pairs["expected_errors"] = 2.0
    page = written(tmp_path, same)[1].text
    assert "labelling guide" not in page and "need not agree" not in page


def test_one_is_no_plural(tmp_path):
    found, _ = synthetic(names=tuple("abcdef"))
    found.issues["is_label_issue"] = found.issues.p_wrong == found.issues.p_wrong.max()
    text, _ = written(tmp_path, found)
    assert "1 suspect. First" in text and "1 suspects" not in text
    found.issues["p_wrong"] = np.linspace(0, 0.01, 600)
    found.issues.loc[0, "p_wrong"] = 0.86
    assert "0.85 to 0.90: 1 row<" in written(tmp_path, found)[0]


@pytest.mark.parametrize(("largest", "above"), [(0.999, 0.95), (0.88, 0.8), (0.7, None)])
def test_the_threshold_that_is_advised_fixes_some_rows(tmp_path, largest, above):
    found, _ = synthetic(rate=0.1)
    found.issues.p_wrong *= largest / found.issues.p_wrong.max()
    page = written(tmp_path, found)[1].text
    assert ("fixed_labels" in page) == (above is not None)
    if above is not None:
        rows = int(found.fixed_labels(above).fixed.sum())
        assert f"above={above})" in page and f"({rows} row" in page and rows > 0


def test_a_robust_method_is_not_advised_to_who_has_one(tmp_path):
    found, _ = synthetic()
    for method in ("", "ce"):
        assert "--method second_opinion" in written(tmp_path, found, method=method)[1].text
    page = written(tmp_path, found, method="elr")[1].text
    assert "--method" not in page and "trained with elr" in page


def test_audit_writes_it(tmp_path):
    found, _ = synthetic()
    found.to_html(tmp_path / "report.html")
    assert_safe(Page((tmp_path / "report.html").read_text(encoding="utf-8")))
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_templates_and_tables_go_into_the_wheel():
    root = Path(__file__).parents[1]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    told = {
        path
        for package, patterns in data["package-data"].items()
        for pattern in patterns
        for path in (root / "src" / package.replace(".", "/")).glob(pattern)
    }
    files = (path for path in (root / "src" / "ytilde").rglob("*") if path.is_file())
    assert not [path for path in files if path.suffix not in (".py", ".pyc") and path not in told]


@settings(deadline=None)
@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-4, 1e6))
def test_ticks_are_few_and_inside(low, width):
    axis = charts.Axis(low, low + width, 0, 100)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(-1 <= place <= 101 for place, _ in ticks)


def test_percent():
    told = {0.5: "50 %", 0.12345: "12.3 %", 1: "100 %", 0.99999: "> 99.9 %", 1e-6: "< 0.1 %"}
    assert {share: percent(share) for share in told} == told


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from start(tmp_path_factory.mktemp("chromium"))


def test_in_a_browser_hostile_names_do_nothing(tmp_path, browser):
    found, options = everything()
    report.write(found, tmp_path / "report.html", **options)
    browser.open((tmp_path / "report.html").as_uri())
    browser.eval("document.querySelectorAll('*').forEach((e) => e.dispatchEvent("
                 "new Event('mouseover')))")  # fmt: skip
    assert browser.eval("document.title") == HOSTILE[0]
    assert browser.eval("document.querySelector('h1').textContent") == HOSTILE[0]
    assert browser.eval("[...document.scripts].map((s) => s.type)") == ["application/json", ""]
    asked = {
        p["request"]["url"].partition(":")[0] for p in browser.said("Network.requestWillBeSent")
    }
    assert asked <= {"file", "data"}
    errors = [p for p in browser.said("Log.entryAdded") if p["entry"]["level"] == "error"]
    assert not errors and not browser.said("Runtime.exceptionThrown")
    shown = browser.eval("[...document.querySelectorAll('select[name=pair]')][0].innerHTML")
    assert HOSTILE[0].replace("<", "&lt;").replace(">", "&gt;") in shown  # the script ran
    # every suspect's card, made by the script, and a closer look at the last
    browser.eval("while (more = document.querySelector('.more:not([hidden])')) more.click()")
    browser.eval("[...document.querySelectorAll('.open')].at(-1).click()")
    assert browser.eval("document.getElementById('closer').open")
    assert browser.eval("document.title") == HOSTILE[0]
    assert not browser.said("Runtime.exceptionThrown")


def test_in_a_browser_the_policy_stops_a_foreign_script(tmp_path, browser):
    """Were an escape ever missed, the page's policy is the second wall."""
    found, _ = synthetic()
    report.write(found, tmp_path / "report.html")
    page = tmp_path / "report.html"
    attack = "<script>document.title='pwned'</script><img src=x onerror=document.title='pwned'>"
    page.write_text(page.read_text("utf-8").replace("<footer", attack + "<footer"), "utf-8")
    browser.open(page.as_uri())
    assert browser.eval("document.title") == "Which labels are wrong?"
    assert any("Content Security Policy" in p["entry"]["text"]
               for p in browser.said("Log.entryAdded"))  # fmt: skip


def test_in_a_browser_no_number_of_a_chart_is_cut(tmp_path, browser):
    """79.5 % was read as 9.5 %."""
    found = large(90_000, ("a", "b"))
    history = [{"epoch": e, "loss": -1234.5 * e, "val_accuracy": 0.95 + e / 100} for e in range(5)]
    written(tmp_path, found, history=history)
    browser.open((tmp_path / "report.html").as_uri())
    left = browser.eval("[...document.querySelectorAll('svg text')].map((t) => t.getBBox().x)")
    assert len(left) > 20 and min(left) >= 0
    low = browser.eval("""[...document.querySelectorAll('svg text')].map((t) => t.getBBox())
        .map((box) => box.y + box.height)""")
    assert max(low) <= 220  # p_wrong lost its underscore


def test_in_a_browser_no_line_hides_the_sign_of_a_label(tmp_path, browser):
    """A struck-out -1 looked like 1."""
    found, _ = synthetic(k=2, names=("-1", "1"))
    written(tmp_path, found)
    browser.open((tmp_path / "report.html").as_uri())
    lines = browser.eval("""[...document.querySelectorAll('.card .given')]
        .map((e) => getComputedStyle(e).textDecorationLine)""")
    assert set(lines) == {"none"}


GALLERY = """
    box = document.querySelector('section.gallery');
    visible = () => [...box.querySelectorAll('.card')];
    said = () => box.querySelector('.shown').textContent;
    set = (name, value) => { const e = box.querySelector(`[name=${name}]`); e.value = value;
      const began = performance.now(); e.dispatchEvent(new Event('input', {bubbles: true}));
      return performance.now() - began; };0"""


def test_in_a_browser_sort_and_filter(tmp_path, browser):
    found, options = everything(names=("a", "b", "c", "d", "e", "f"))
    report.write(found, tmp_path / "report.html", **options)
    browser.open((tmp_path / "report.html").as_uri())
    browser.eval(GALLERY)
    suspects = int(found.issues.is_label_issue.sum())
    assert browser.eval("visible().length") == 24
    browser.eval("while (!box.querySelector('.more').hidden) box.querySelector('.more').click()")
    assert browser.eval("visible().length") == suspects > 100
    assert browser.eval("new Set(visible().map((c) => c.dataset.row)).size") == suspects
    for row, p, shown in browser.eval("""visible().map((c) => [+c.dataset.row, +c.dataset.p,
            c.querySelector('[data-slot=p]').textContent])"""):
        assert p == pytest.approx(found.issues.p_wrong[row], abs=2e-6)
        assert shown in (percent(p), percent(found.issues.p_wrong[row]))  # p has six digits
    browser.eval("set('order', 'row:1')")
    rows = browser.eval("visible().map((c) => +c.dataset.row)")
    assert rows == sorted(rows) and len(rows) == 24
    browser.eval("set('pair', '[\"b\",null]')")
    given = browser.eval("visible().map((c) => c.dataset.given)")
    assert given and set(given) == {"b"}
    browser.eval("set('text', 'nowhere to be found')")
    assert browser.eval("said()") == f"0 found, 0 of {suspects} shown"
    browser.eval("head = [...document.querySelectorAll('th button')].find((b) => "
                 "b.textContent === 'given'); head.click()")  # fmt: skip
    column = "[...head.closest('table').tBodies[0].rows].map((r) => +r.cells[1].dataset.v)"
    falling = browser.eval(column)
    assert falling == sorted(found.per_class.given, reverse=True)
    browser.eval("head.click()")
    assert browser.eval(column) == falling[::-1]


def test_in_a_browser_ten_thousand_suspects_are_searched(tmp_path, browser):
    n = 20_000
    found = large(n, tuple(f"class {k}" for k in range(10)))
    ids = [str(900_000_000_000_000_000 + 7 * k) for k in range(n)]  # 18 digits: no float holds them
    rows = pd.DataFrame(
        {"amount": [f"{k}.50" for k in range(n)], "colour": ["red", "blue"] * 10_000}
    )
    written(tmp_path, found, ids=ids, rows=rows)
    browser.open((tmp_path / "report.html").as_uri())
    browser.eval(GALLERY)
    assert browser.eval("said()") == "24 of 10,000 shown"
    seconds = browser.eval(f"set('text', '{ids[12_345]}')") / 1000
    assert seconds < 2
    assert browser.eval("said()") == "1 found, 1 of 10,000 shown"
    card = browser.eval("visible()[0].textContent")
    assert ids[12_345] in card and "12345.50" in card and "blue" in card
    assert "class 5 → class 6" in " ".join(card.split())
    assert browser.eval("set('text', 'CLASS 5 → class 6')") < 2000
    assert browser.eval("said()") == "1,000 found, 24 of 10,000 shown"
    browser.eval("set('text', '')")
    assert browser.eval("""set('pair', '["class 3","class 4"]')""") < 2000
    assert browser.eval("said()") == "1,000 found, 24 of 10,000 shown"
    pairs = browser.eval("visible().map((c) => [c.dataset.given, c.dataset.suggested])")
    assert pairs == [["class 3", "class 4"]] * 24
    options = browser.eval("[...box.querySelectorAll('optgroup')[0].children].map((o) => o.text)")
    assert sorted(options) == sorted(f"class {k} → class {(k + 1) % 10} (1,000)" for k in range(10))
    browser.eval("box.querySelector('.more').click()")
    assert browser.eval("visible().length") == 120  # the page never holds them all
    assert browser.eval("set('order', 'rank:-1')") < 2000
    least = [int(row) for row in browser.eval("visible().map((c) => c.dataset.row)")]
    flagged = found.issues[found.issues.is_label_issue & (found.issues.given_label == "class 3")]
    assert least == flagged.sort_values("p_wrong")["index"].head(24).tolist()


@pytest.mark.parametrize("kind", ["pictures", "values"])
def test_in_a_browser_a_closer_look_has_similar_items(tmp_path, browser, kind):
    found, _ = synthetic(names=tuple("abcdef"))
    shade = np.arange(600) % 251
    images = np.broadcast_to(shade[:, None, None, None], (600, 1, 200, 150)).astype(np.uint8)
    rows = pd.DataFrame({"weight": np.arange(600) / 4})
    shown = {"images": images} if kind == "pictures" else {"rows": rows}
    ids = [str(10**17 + k) for k in range(600)]
    page = written(tmp_path, found, features=np.eye(251)[shade], ids=ids, **shown)[1]
    data = json.loads(page.data)
    browser.open((tmp_path / "report.html").as_uri())
    browser.eval(GALLERY)
    row = browser.eval("visible()[1].dataset.row")
    browser.eval("visible()[1].querySelector('.open').focus()")
    browser.press("Enter")
    browser.until("document.getElementById('closer').open")
    browser.eval("dialog = document.getElementById('closer');0")
    told = browser.eval("document.getElementById('closer-place').textContent")
    assert f"row {row}, id {ids[int(row)]}," in told
    assert data["similar"][row] != [[], []]
    words = browser.eval("dialog.textContent")
    for near in data["similar"][row]:
        for each in near:
            assert f"row {each}" in words and ids[each] in words
    if kind == "pictures":
        picture = "dialog.querySelector('.frame img')"
        browser.until(f"{picture}.complete && {picture}.getBoundingClientRect().width")
        assert browser.eval(f"[{picture}.naturalWidth, {picture}.naturalHeight]") == [150, 200]
        assert browser.eval(f"{picture}.getBoundingClientRect().width") == 150  # its own size
        number = len([*data["similar"][row][0], *data["similar"][row][1]])
        assert browser.eval("dialog.querySelectorAll('#beside img').length") == number
    else:
        cells = browser.eval("[...dialog.querySelectorAll('.frame td')].map((t) => t.textContent)")
        both = [*data["similar"][row][0], *data["similar"][row][1]]
        assert cells == ["", *(str(each / 4) for each in (int(row), *both))]
    browser.press("ArrowRight")
    other = browser.eval("visible()[2].dataset.row")
    browser.until(f"document.getElementById('closer-place').textContent.includes('row {other},')")
    browser.press("Escape")
    browser.until("!dialog.open")
    focus = browser.eval("document.activeElement.closest('.card').dataset.row")
    assert focus == row  # the keyboard goes on where it was


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_in_a_browser_nothing_sticks_out(tmp_path, browser, width):
    names = ("short", "averyverylongclassnamewithoutanyspace" * 3, "c", "d", "e", "f")
    found, options = everything(names=names)
    report.write(found, tmp_path / "report.html", **options)
    browser.resize(width, 800)
    browser.open((tmp_path / "report.html").as_uri())
    try:
        assert browser.eval("document.documentElement.scrollWidth") <= width
        heights = browser.eval("""[...document.querySelectorAll('input, select, .more')]
            .map((e) => e.getBoundingClientRect().height).filter((h) => h)""")
        assert min(heights) >= 40  # a finger's width
    finally:
        browser.resize(1000, 900)


def test_only_items_that_tie_are_called_hard(tmp_path):
    found, _ = synthetic(2000)
    tied = found.issues[~found.issues.is_label_issue].nlargest(3, "ambiguity").index
    found.issues.loc[found.issues.index.difference(tied), "ambiguity"] = 0.1
    found.issues.loc[tied, "ambiguity"] = 0.9
    _, page = written(tmp_path, found, examples=30)
    unclear = [a for a in page.all("li", "card") if float(a["data-ambiguity"]) > 0.5]
    assert len(page.all("li", "card")) == 33 and len(unclear) == 3


def test_a_weak_model_is_told_at_the_top(tmp_path):
    found, _ = synthetic(2000)
    found.notes[:] = ["Something else."]
    _, page = written(tmp_path, found)
    assert "too weak" not in page.text
    found.notes.append(auditing.NOTE_WEAK.format(share=54))
    _, page = written(tmp_path, found)
    assert page.text.count("too weak") == 1
    assert page.text.index("too weak") < page.text.index("What to do next")


def doubtful(share=54, **figures):
    """An audit whose notes say that the model may be too weak."""
    found, _ = synthetic(2000, rate=0.1)
    found.notes[:] = [auditing.NOTE_WEAK.format(share=share)]
    return replace(found, **figures)


def test_a_weak_model_is_not_advised_to_fix(tmp_path):
    """The note said to look before fixing any, and the advice printed --fix-above 0.95."""
    (tmp_path / "config.json").write_text("{}")
    strong, _ = synthetic(2000, rate=0.1)
    strong.issues.loc[strong.issues.is_label_issue, ["p_wrong", "predicted_prob"]] = 0.99
    assert fix_threshold(strong) == 0.95
    assert "--fix-above 0.95" in written(tmp_path, strong)[1].text
    alone = replace(strong, second_opinion=False)  # nobody but the model judged
    assert fix_threshold(alone) is None and "--fix-above" not in written(tmp_path, alone)[1].text
    assert "Correct no label unseen" not in written(tmp_path, strong)[1].text
    weak = doubtful(issues=strong.issues)  # the same rows, as sure
    assert fix_threshold(weak) is None
    page = written(tmp_path, weak)[1].text
    assert f"ytilde review {tmp_path} --sample 100" in page and "A better model" in page
    assert "If this model can be trusted" in page
    for word in ("--fix-above", "labelling guide", "labels are probably wrong"):
        assert word not in page
    (tmp_path / "config.json").unlink()
    page = written(tmp_path, weak)[1].text
    assert "100 rows drawn at random" in page and "fixed_labels" not in page


def test_labels_that_look_right_by_a_weak_model_are_not_called_right(tmp_path):
    few = {"noise_rate": Estimate(0.001, 0, 0.005), "num_errors": Estimate(2, 0, 10)}
    page = written(tmp_path, doubtful(**few))[1].text
    assert "too weak" in page and "The labels look right" not in page
    strong = doubtful(notes=[], **few)
    page = written(tmp_path, strong)[1].text
    assert page.count("The labels look right") == 2  # above, and in the advice
    assert fix_threshold(strong) is None and "fixed_labels" not in page
    assert "below may deserve a look" in page  # the suspects are shown all the same


def test_fixing_is_advised_only_where_it_surely_makes_more_labels_better():
    found, _ = synthetic(2000, rate=0.1)
    found.issues["p_wrong"] = 0.0
    found.issues.loc[:9, "p_wrong"] = 0.81
    found.issues.loc[:9, "predicted_prob"] = 0.80
    assert fix_threshold(found) == 0.8
    found.issues.loc[:9, "predicted_prob"] = 0.25  # wrong for sure, but which class it is?
    assert fix_threshold(found) is None
    found.issues.loc[1:9, "p_wrong"] = 0.0
    found.issues.loc[:9, "predicted_prob"] = 0.80
    assert fix_threshold(found) is None  # one row says too little


def test_a_model_at_chance_level_changes_no_label(tmp_path):
    rng = np.random.default_rng(0)
    found = audit(rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500))
    assert found.issues.is_label_issue.any()
    _, page = written(tmp_path, found)
    assert "no more than chance" in page.text and "Change no label" in page.text
    for word in ("--fix-above", "ytilde review", "The suspects", "labels are probably wrong"):
        assert word not in page.text


def test_rows_that_could_not_be_judged_are_counted(tmp_path):
    found, _ = synthetic()
    assert "of 600 rows" not in written(tmp_path, found)[1].text
    p, y = np.eye(3)[np.arange(600) % 3] * 0.9 + 1 / 30, np.arange(600) % 3
    y[:2] = -1
    assert "of 600 rows, in 3 classes" in written(tmp_path, audit(p, y))[1].text
