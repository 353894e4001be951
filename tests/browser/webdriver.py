"""A headless Chromium, driven through the W3C WebDriver protocol by chromedriver: no Python package needed."""

import json
import shutil
import socket
import subprocess
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

INSTALL = "The browser tests need Chromium and its driver: apt-get install chromium chromium-driver"


def missing():
    return shutil.which("chromedriver") is None or not (shutil.which("chromium") or shutil.which("google-chrome"))


class Browser:
    """One window. ``with Browser() as browser: browser.open(path); browser.run("return 1 + 1")``."""

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{port}"
        try:
            self._until_ready()
            self._start()
        except BaseException:
            self.driver.kill()
            self.driver.wait()
            raise
        return self

    def __exit__(self, *error):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=20)

    def _until_ready(self):
        for _ in range(100):
            try:
                if self._ask("GET", "/status")["ready"]:
                    return
            except (URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError("chromedriver did not answer within 10 seconds.")

    def _start(self):
        binary = shutil.which("chromium") or shutil.which("google-chrome")
        options = {
            "binary": binary,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"],
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def call(self, method, path, body=None):
        return self._ask(method, path, body)

    def open(self, path):
        """The page, whole: on a busy machine the driver may answer while a page of a file is still being read."""
        self.call("POST", "/url", {"url": path.as_uri()})
        whole = [path.as_uri(), "complete"]
        state = self.awaited("return [document.URL.split('#')[0], document.readyState]", whole)
        if state != whole:
            raise RuntimeError(f"{path.name} was not read within 10 seconds: {state}.")

    def run(self, script, *arguments):
        """The value of a script's ``return`` in the page."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def awaited(self, script, expected):
        """The value of a script once it is the expected one, or after ten seconds: for what the page does by events."""
        for _ in range(200):
            if (value := self.run(script)) == expected:
                return value
            time.sleep(0.05)
        return value

    def click(self, selector):
        """A real click, in the middle of the element, which must be visible."""
        ((_, element),) = self.call("POST", "/element", {"using": "css selector", "value": selector}).items()
        self.call("POST", f"/element/{element}/click", {})

    def press(self, *keys):
        """Keys as a keyboard sends them, to whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def emulate(self, width, height=900, scheme="light", media=""):
        """A window of that width (narrower than a real one can be), in light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def devtools(self, command, parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self):
        """What the console has said since it was last asked: errors, warnings and blocked content."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]
