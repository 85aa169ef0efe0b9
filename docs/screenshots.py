"""Photograph the report and the review page in light and dark, with headless Chromium.

    ytilde demo && python docs/screenshots.py demo RUN

RUN: an audited run of pictures, for the review page (extra `app`), by a path from here.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from browser import start  # noqa: E402

LOADED = "(i) => !i.offsetParent || (i.complete && i.naturalWidth)"  # or not in view


def photograph(browser, url: str, name: str, height: int, ready: str) -> None:
    for scheme, end in (("light", ""), ("dark", "-dark")):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.ask("Emulation.setEmulatedMedia", features=[feature])
        browser.resize(1200, height)
        browser.ask("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(url)
        browser.until(f"{ready} && [...document.images].every({LOADED})")
        picture = Image.open(io.BytesIO(browser.picture())).convert("RGB")
        picture.quantize(256, Image.Quantize.MAXCOVERAGE, 3, dither=Image.Dither.NONE).save(
            HERE / f"{name}{end}.png", optimize=True
        )


def main(demo: Path, run: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        running = start(folder)
        browser = next(running)
        photograph(browser, (demo / "report.html").resolve().as_uri(), "report", 1500, "1")
        words = [sys.executable, "-u", "-m", "ytilde", "review", str(run)]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            url = next(found[0] for line in server.stdout if (found := re.search(r"http\S+", line)))
            photograph(
                browser, url, "review", 900, "document.querySelectorAll('#beside ul').length"
            )
        finally:
            server.terminate()
            server.wait()
        next(running, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
