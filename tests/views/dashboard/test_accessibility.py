"""Every page by the rules of axe-core, in light and dark, on a laptop and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dashboard_pages import show

from atrium.views.dashboard.server import VIEWS

AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
FOUND = """async () => (await axe.run()).violations.flatMap(
  ({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 120)}`)
)"""
MORE = (
    "runs?open=study/none",
    "runs?group=method",
    "trust-region?mode=arms",
    "compare?cand=grpo",
    "curves?panel=objective/entropy~rollout/reward",
)
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.skipif(not AXE.exists(), reason="sh .ci/javascript tsc installs axe-core")
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1024), ("dark", 1024), ("light", 390), ("dark", 390)]
)
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    browser, address, runs_dir, make_sweep, scheme, width
):
    make_sweep(runs_dir)
    size = {"width": width, "height": 844}
    # The page's policy for content admits no foreign script.
    context = browser.new_context(viewport=size, color_scheme=scheme, base_url=address, bypass_csp=True)
    page = context.new_page()
    found = {}
    one, other = sorted(path.name for path in (runs_dir / "study").iterdir() if path.is_dir())[:2]
    runs = (f"runs?open=study/{one}", f"runs?run=study/{one}&run=study/{other}&diff=1")
    for view in (*VIEWS, *MORE, *runs):
        show(page, f"/{view}")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        page.add_script_tag(path=AXE)
        found[view] = page.evaluate(FOUND)
    context.close()
    assert not any(found.values()), found
