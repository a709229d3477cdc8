"""What tests of the dashboard's pages do in a browser."""

from __future__ import annotations

import re
import time
from pathlib import Path

REWARD, ENTROPY = "Mean reward of the sampled completions", "Mean entropy of the policy per token, nats"
"""The titles of two figures of curves."""


def show(page, path):
    page.goto(path)
    view = re.match(r"/([a-z-]+)", path)[1]
    page.wait_for_selector(f"main[data-ready='{view}']", timeout=30_000)
    page.wait_for_load_state("load")


def until(page, condition):
    """Wait for a condition in JavaScript; Playwright's own waiting evaluates text, which the page forbids."""
    deadline = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def drawn(page, title):
    """The figure of a title, once it has a chart."""
    figure = page.locator(f"section.figure[aria-label='{title}']")
    figure.scroll_into_view_if_needed()
    figure.locator("canvas").first.wait_for(timeout=30_000)
    return figure


def saved(page, figure, kind):
    """The bytes of a figure's export."""
    figure.hover()
    with page.expect_download() as waited:
        figure.locator(f"button[data-export={kind}]").click()
    assert waited.value.suggested_filename.endswith(f".{kind}")
    return Path(waited.value.path()).read_bytes()
