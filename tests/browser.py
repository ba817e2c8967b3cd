"""A headless Chromium of the system, spoken to over a pipe by the DevTools protocol."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = next(
    (p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None
)
SECONDS = 30.0


class Browser:
    """One page.

    Attributes:
        events: what the browser said that nobody asked, in order.
    """

    def __init__(self) -> None:
        assert PROGRAM is not None
        self.profile = tempfile.mkdtemp()
        theirs, self.write = os.pipe()
        self.read, back = os.pipe()
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs, back))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += ["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"]
        shell = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash"]
        self.process = subprocess.Popen(
            [*shell, PROGRAM, *flags, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (theirs, back, read, write):
            os.close(descriptor)
        self.rest, self.ids, self.session = b"", itertools.count(1), None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        message = {"id": next(self.ids), "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.read, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path, width: int = 1280, dark: bool = False) -> None:
        """Open a file and wait until it has loaded and been drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions, since the page was opened."""
        told = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                told.append(str(event["params"]["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded":
                told.append(event["params"]["entry"]["text"])
            if event.get("method") == "Runtime.consoleAPICalled":
                told.append(str(event["params"]["args"]))
        return told

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, data inside the page aside."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")]

    def close(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait(SECONDS)
        os.close(self.write)
        os.close(self.read)
        shutil.rmtree(self.profile, ignore_errors=True)
