"""Headless Chromium for the tests of pages, without a driver or a package."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time

import pytest


class Browser:
    """Headless Chromium over its debugging pipe: commands on 3, answers on 4, NUL between."""

    def __init__(self, program, folder):
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (*os.pipe(), *os.pipe())]
        theirs_in, self.out, self.into, theirs_out = ends

        def place():
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                 f"--user-data-dir={folder}", "--window-size=1000,900", "about:blank")  # fmt: skip
        self.process = subprocess.Popen(
            [program, *flags], pass_fds=(3, 4), preexec_fn=place,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.count, self.rest, self.events, self.session = 0, b"", [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def read(self):
        while b"\0" not in self.rest:
            self.rest += os.read(self.into, 1 << 16)
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, url):
        self.events.clear()
        self.ask("Page.navigate", url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.read())

    def eval(self, code):
        answer = self.ask("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, code, seconds=120):
        """The value of this code once it is true; it fails when that takes too long."""
        end = time.monotonic() + seconds
        while not (value := self.eval(code)):
            assert time.monotonic() < end, f"never true: {code}"
            time.sleep(0.02)
        return value

    def press(self, key):
        """A key of the keyboard, down and up, as a person presses it."""
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}.get(key, 0)
        typed = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code,
                 **typed)  # fmt: skip
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def resize(self, width, height, scale=1):
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 500,
        )  # fmt: skip
        self.ask("Emulation.setTouchEmulationEnabled", enabled=width < 500)

    def picture(self):
        """A screenshot of what is in view, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def said(self, method):
        return [e["params"] for e in self.events if e.get("method") == method]


def start(folder):
    """For a fixture: a running browser, or a skip that says why there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser: install chromium to run the tests of pages")
    browser = Browser(program, folder)
    yield browser
    browser.process.terminate()
    browser.process.wait(120)
