"""The site as `make docs` built it: no dead link, nothing from elsewhere, readable for all."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from browser import start
from test_accessibility import AXE, violations

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
FRONT = SITE / "index.html"
NAMES = ("reference/methods/elr", "reference/api/ytilde", "tutorials/audit_csv", "gallery/index",
         "quickstart", "explanation/transition", "reference/methods/index", "results")  # fmt: skip
PAGES = (FRONT, *(SITE / f"{name}.html" for name in NAMES))


def sources():
    for folder in ("docs", "examples"):
        yield from (p for p in (ROOT / folder).rglob("*") if p.suffix in (".md", ".py", ".css"))


@pytest.fixture(scope="module", autouse=True)
def _built():
    if not FRONT.exists():
        pytest.skip("no site: make docs")
    if any(path.stat().st_mtime > FRONT.stat().st_mtime for path in sources()):
        pytest.skip("the site is older than its pages: make docs")


class Links(HTMLParser):
    """What a page points to, what it loads, and the places in it that can be pointed to."""

    def __init__(self, text):
        super().__init__()
        self.to, self.loads, self.ids = [], [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if tag == "a" and attrs.get("href"):
            self.to.append(attrs["href"])
        if attrs.get("src"):
            self.loads.append(attrs["src"])
        if tag == "link" and attrs.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(attrs["href"])


def test_no_dead_link():
    found = {path.resolve(): Links(path.read_text("utf-8")) for path in SITE.rglob("*.html")}
    assert len(found) > 80
    dead = []
    for path, page in found.items():
        for address in page.to + page.loads:
            if re.match(r"[a-z]+:", address):
                continue
            target, place = urldefrag(address)
            at = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            at = at / "index.html" if at.is_dir() else at
            if not at.exists() or (at in found and unquote(place) not in found[at].ids):
                dead.append(f"{path.relative_to(SITE.resolve())}: {address}")
    assert not dead


def test_nothing_is_loaded_from_elsewhere():
    for path in SITE.rglob("*.html"):
        outside = [at for at in Links(path.read_text("utf-8")).loads if re.match(r"(\w+:)?//", at)]
        assert not outside, path
    for path in SITE.rglob("*.css"):
        assert not re.search(r"@import\s+url\(.?http|url\(.?http", path.read_text("utf-8")), path


def test_every_method_has_a_page():
    from ytilde.method import list_methods

    told = {path.stem: path.read_text("utf-8") for path in PAGES[1].parent.glob("*.html")}
    for name in list_methods():
        assert any(f">{name}<" in text for text in told.values()), name


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from start(tmp_path_factory.mktemp("chromium"))


def test_the_front_page_loads_without_a_network(browser):
    browser.ask("Network.emulateNetworkConditions", offline=True, latency=0,
                downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
    browser.open(FRONT.as_uri())
    asked = [e["request"]["url"] for e in browser.said("Network.requestWillBeSent")]
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)
    assert not browser.said("Network.loadingFailed")
    assert browser.eval("[...document.images].every((i) => i.complete && i.naturalWidth)")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400)])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_axe_finds_nothing_serious(browser, page, scheme, width):
    if not AXE.is_file():
        pytest.skip("no axe-core: npm install axe-core, or set AXE_CORE to its axe.min.js")
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.ask("Emulation.setEmulatedMedia", features=[feature])
    browser.resize(width, 900)
    browser.open(page.as_uri())
    found = [each for each in violations(browser) if each[1] in ("serious", "critical")]
    assert found == []
