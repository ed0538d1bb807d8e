"""A real Chromium without a window, driven over HTTP (W3C WebDriver): needs chromium and chromedriver alone."""

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars"]


class Browser:
    """A browser with a profile of its own, which is gone at the end.

    Args:
        folder: For its profile.
    """

    def __init__(self, folder: Path) -> None:
        driver = shutil.which("chromedriver")
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        assert driver and chromium, "expected chromium and chromedriver: apt-get install chromium chromium-driver"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._driver = subprocess.Popen([driver, "--port=0"], **pipes)
        try:
            told = next(line for line in self._driver.stdout if "started successfully on port" in line)
            port = re.search(r"port (\d+)", told)[1]
            self._url = f"http://127.0.0.1:{port}"
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={folder}"]}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = self._call("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self._end()
            raise
        self._url += f"/session/{session}"

    def _call(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command, **params):
        """A command of Chrome's DevTools protocol."""
        return self._call("/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, path, width, height=900, dark=False):
        """Open a file in a window of so many CSS pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self._call("/url", {"url": Path(path).absolute().as_uri()})

    def run(self, script, *args):
        """What a script in the page returns."""
        return self._call("/execute/sync", {"script": script, "args": list(args)})

    def log(self):
        """What the page said on its console since it was asked last, errors of loading too."""
        return self._call("/se/log", {"type": "browser"})

    def screenshot(self, path):
        """Write a picture of the whole page."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(taken["data"]))

    def press(self, keys):
        """Press keys, one after the other, on what has the focus."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def close(self):
        """End the browser and its driver."""
        try:
            request = urllib.request.Request(self._url, method="DELETE")
            urllib.request.urlopen(request, timeout=60).close()
        finally:
            self._end()

    def _end(self):
        self._driver.terminate()
        self._driver.wait(timeout=30)
        self._driver.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
