"""A chromium without a window, asked through a pipe by its DevTools protocol: pages, keys, files, and axe on a page."""

import fcntl
import importlib.util
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SECONDS = 100.0
"""Limit for one answer."""
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    " ": ("Space", 32, " "),
    "Home": ("Home", 36, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
}
"""Code, number and text of keys by their names."""
# The browser talks by the descriptors 3 and 4.
_AS_3_AND_4 = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"


def axe_source() -> str:
    """Return the script of axe-core, from a package that has it; skip the test if none has."""
    for package in ("axe_playwright_python", "axe_core_python"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (script := Path(place, "axe.min.js")).is_file():
                return script.read_text(encoding="utf-8")
    pytest.skip("axe-core is not installed: pip install axe-core-python")


class Browser:
    """A connection to one browser process; answers come in the order of questions, events in between."""

    def __init__(self, process: "subprocess.Popen[bytes]", to: int, of: int) -> None:
        self._process, self._to, self._of = process, to, of
        self._numbers, self._unread = itertools.count(1), b""
        self.events: list[Mapping[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send the browser a command; return its result.

        Raises:
            AssertionError: the browser refuses.
        """
        number = next(self._numbers)
        where = {} if session is None else {"sessionId": session}
        os.write(self._to, json.dumps({"id": number, "method": method, "params": params, **where}).encode() + b"\0")
        while (said := self._next()).get("id") != number:
            self.events.append(said)
        assert "error" not in said, f"{method}: {said['error']}"
        return said["result"]

    def event(self, method: str) -> Mapping[str, Any]:
        """Return the next event of this kind, or one that came earlier, and forget it."""
        while True:
            for place, said in enumerate(self.events):
                if said.get("method") == method:
                    found: Mapping[str, Any] = self.events.pop(place)["params"]
                    return found
            self.events.append(self._next())

    def _next(self) -> Mapping[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._of], [], [], SECONDS)
            assert ready, "the browser does not answer"
            more = os.read(self._of, 1 << 20)
            assert more, f"the browser has ended: {self._process.wait(30)}"
            self._unread += more
        said, _, self._unread = self._unread.partition(b"\0")
        found: Mapping[str, Any] = json.loads(said)
        return found

    def page(self, address: str) -> "Page":
        """Open a new page at `address`; return it once it is loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "DOM"):
            page.ask(f"{domain}.enable")
        page.ask("Page.navigate", url=address)
        self.event("Page.loadEventFired")
        return page


class Page:
    """A page as somebody at a keyboard has it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self._session = browser, session

    def ask(self, method: str, **params: Any) -> Any:
        """Send this page a command; return its result."""
        return self.browser.ask(method, self._session, **params)

    def run(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; wait for a promise."""
        said = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        steps = round(SECONDS / 0.05)
        wait = f"for (let n = 0; n < {steps} && !({condition}); n++) await new Promise((r) => setTimeout(r, 50));"
        assert self.run(f"(async () => {{ {wait} return Boolean({condition}); }})()"), (
            f"never: {condition}; the page says {self.run('document.body.innerText')[:2000]}"
        )

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys, one after the other."""
        for key in keys:
            code, number, text = KEYS[key]
            told = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 * shift}
            self.ask("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
            self.ask("Input.dispatchKeyEvent", type="keyUp", **told)

    def begin(self) -> None:
        """Put the focus before the first element."""
        self.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")

    def tab_to(self, selector: str, most: int = 200, *, backwards: bool = False) -> None:
        """Press Tab, or Shift and Tab, until an element has the focus."""
        for _ in range(most):
            if self.run(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            self.press("Tab", shift=backwards)
        raise AssertionError(f"Tab never comes to {selector}")

    def look(self, *, dark: bool = False, width: int = 1200) -> None:
        """Show the page in the dark scheme, or at the width of a telephone."""
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def problems(self, axe: str, impacts: Sequence[str] = ()) -> list[str]:
        """Return violations that axe finds, of these impacts or of all: the rule, the element, and what to do."""
        found = self.run(f"{axe}; axe.run({{ resultTypes: ['violations'] }}).then((r) => r.violations)")
        return [
            f"{rule['id']}: {node['target'][0]}: {node['failureSummary']}"
            for rule in found
            if not impacts or rule["impact"] in impacts
            for node in rule["nodes"]
        ]

    def errors(self) -> list[Any]:
        """Return exceptions of the page's scripts, and all warnings of the browser."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        mine = (said for said in self.browser.events if said.get("sessionId") == self._session)
        return [said["params"] for said in mine if said.get("method") in kinds]


@contextmanager
def chromium(folder: Path, options: Sequence[str] = ()) -> Iterator[Browser]:
    """Run a browser, with its files in `folder`, while the body lasts; skip the test if there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    inward, to = os.pipe()
    of, outward = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inward, outward)]
    fixed = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
    command = [CHROMIUM, *fixed, f"--user-data-dir={folder / 'profile'}", *options]
    wrapped = [sys.executable, "-c", _AS_3_AND_4, *map(str, ends), *command]
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(wrapped, stdout=said, stderr=said, pass_fds=ends)
    for end in (inward, outward, *ends):
        os.close(end)
    try:
        yield Browser(process, to, of)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to)
        os.close(of)
