"""Chromium without a window, driven through chromedriver in the W3C protocol, which takes no more than urllib."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_QUIET = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-default-browser-check", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--hide-scrollbars",
    "--disable-extensions", "--disable-features=Translate,OptimizationHints,MediaRouter",
)  # fmt: skip


def programs() -> tuple[str, str] | None:
    """Where chromium and chromedriver are; None where one is missing."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


#: Marks of a test that asks for one.
NEEDED = [
    pytest.mark.browser,
    pytest.mark.skipif(programs() is None, reason="chromium and chromedriver are not installed"),
]


class Browser:
    """One window. Raises RuntimeError with chromedriver's own words."""

    def __init__(self, address: str, binary: str, profile: Path) -> None:
        self._address = address
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        options = {"binary": binary, "args": [*_QUIET, *root, f"--user-data-dir={profile}"]}
        always = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": always}})
        self._session = f"/session/{answer['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def _do(self, path: str, **body: Any) -> Any:
        return self._call("POST", self._session + path, body)

    def devtools(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._do("/goog/cdp/execute", cmd=method, params=parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """The viewport in CSS pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def scheme(self, name: str) -> None:
        """The colour scheme that the reader prefers: "light" or "dark"."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def scripts(self, *, allowed: bool) -> None:
        """Whether pages opened from now on may run scripts."""
        self.devtools("Emulation.setScriptExecutionDisabled", value=not allowed)

    def open(self, page: Path) -> None:
        """Loads a file; what was logged before is forgotten."""
        self.logged("browser")
        self.logged("performance")
        self._do("/url", url=page.as_uri())

    def run(self, script: str, *args: Any) -> Any:
        """What a script's `return` gives."""
        return self._do("/execute/sync", script=script, args=list(args))

    def point_at(self, selector: str) -> None:
        """Moves the mouse to the middle of an element, by real events."""
        found = self._do("/element", using="css selector", value=selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
        move = {"type": "pointerMove", "duration": 0, "origin": {_ELEMENT: found[_ELEMENT]}, "x": 0, "y": 0}
        away = {"type": "pointerMove", "duration": 0, "origin": "viewport", "x": 1, "y": 1}
        self._do("/actions", actions=[{"type": "pointer", "id": "mouse", "actions": [away, move]}])

    def press(self, *keys: str) -> None:
        """Presses keys where the focus is, one after another: a letter, or a name such as "Tab"."""
        strokes = [{"type": kind, "value": _KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("/actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def logged(self, kind: str) -> list[str]:
        """Lines of the console ("browser") or events of the network ("performance") since the last call."""
        return [entry["message"] for entry in self._do("/se/log", type=kind)]

    def requested(self) -> list[str]:
        """The addresses that were asked for since the last call, the page's own among them."""
        events = (json.loads(line)["message"] for line in self.logged("performance"))
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def printed(self, file: Path) -> None:
        """The page as PDF on A4."""
        done = self.devtools("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        file.write_bytes(base64.b64decode(done["data"]))

    def close(self) -> None:
        """Ends the window."""
        self._call("DELETE", self._session)


_KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in a folder, ended with its driver."""
    found = programs()
    if found is None:
        raise RuntimeError("chromium or chromedriver is not installed")
    binary, driver = found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [driver, f"--port={port}", "--log-level=OFF"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port)
        window = Browser(f"http://127.0.0.1:{port}", binary, folder / "profile")
        try:
            yield window
        finally:
            window.close()
    finally:
        process.terminate()
        process.wait(timeout=10)


def _wait(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("chromedriver does not answer")
