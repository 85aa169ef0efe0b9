"""The pages in light and dark, for eyes, screen readers and the keyboard alone.

axe-core is the judge: `npm install axe-core` in the repository's folder, or $AXE_CORE is the path
of its axe.min.js.
"""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from browser import start
from test_report import everything, synthetic
from test_review import Server, make_run
from ytilde.auditing import NOTE_WEAK, audit, report

AXE = Path(os.environ.get("AXE_CORE") or "node_modules/axe-core/axe.min.js")
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not AXE.is_file():
        pytest.skip("no axe-core: npm install axe-core, or set AXE_CORE to its axe.min.js")
    yield from start(tmp_path_factory.mktemp("chromium"))


@pytest.fixture(params=["light", "dark"])
def page(request, browser):
    feature = {"name": "prefers-color-scheme", "value": request.param}
    browser.ask("Emulation.setEmulatedMedia", features=[feature])
    yield browser
    browser.resize(1000, 900)


def violations(browser):
    """What axe finds in the page as it is now: rule, how bad, and where."""
    browser.eval(AXE.read_text("utf-8") + ";0")
    browser.eval("""
        found = null;
        where = (rule) => rule.nodes.slice(0, 3).map((node) => node.html.slice(0, 150));
        axe.run().then(({ violations }) => {
          found = violations.map((rule) => [rule.id, rule.impact, where(rule)]);
        });
        0""")
    return json.loads(browser.until("found && JSON.stringify(found)", 60))


def reports():
    found, options = everything(names=NAMES)
    yield "pictures", found, options | {"features": np.eye(6)[np.arange(600) % 6]}
    rows = pd.DataFrame({"weight": np.arange(600) / 4, "said": ["a long text " * 20] * 600})
    found, _ = synthetic(names=NAMES, rate=0.1)
    yield "texts", found, {"rows": rows, "features": np.eye(6)[np.arange(600) % 6]}
    found.notes.append(NOTE_WEAK.format(share=60))
    yield "weak", found, {"ids": [str(10**17 + k) for k in range(600)]}
    rng = np.random.default_rng(0)
    yield "chance", audit(rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500)), {}


@pytest.mark.parametrize("kind", ["pictures", "texts", "weak", "chance"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_in_the_report(tmp_path, page, kind, width):
    found, options = next(rest for name, *rest in reports() if name == kind)
    report.write(found, tmp_path / "report.html", **options)
    page.resize(width, 900)
    page.open((tmp_path / "report.html").as_uri())
    assert violations(page) == []
    if kind != "chance":
        page.eval("document.querySelector('.open').click()")
        page.until("document.getElementById('closer').open")
        assert violations(page) == []


@pytest.mark.parametrize("kind", ["images", "table"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_in_the_review(tmp_path, page, kind, width):
    server = Server(make_run(tmp_path / "run", 40, NAMES, kind, features=True))
    try:
        page.resize(width, 900)
        page.open(server.url)
        page.until("document.querySelectorAll('#beside ul, #beside table').length")
        assert violations(page) == []
        for key, dialog in (("c", "choose"), ("f", "choose"), ("p", "confirm"), ("z", "large")):
            if key == "z" and kind == "table":
                continue
            page.press(key)
            page.until(f"document.getElementById('{dialog}').open")
            assert violations(page) == [], dialog
            page.press("Escape")
            page.until(f"!document.getElementById('{dialog}').open")
        page.press("b")
        page.until("document.getElementById('place').textContent.startsWith('2 of')")
        page.press("ArrowLeft")
        page.until("!document.getElementById('decided').hidden")
        assert violations(page) == []
    finally:
        server.kill()
