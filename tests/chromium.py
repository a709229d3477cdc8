"""A real headless Chromium for tests that look at pages; they skip where there is none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "software"


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser of this machine's package, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    found = subprocess.run(["sh", SCRIPT, "chromium"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    path = found.stdout.strip().splitlines()[-1]
    with playwright.sync_playwright() as running:
        # Chromium's own sandbox cannot be set up by root.
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
