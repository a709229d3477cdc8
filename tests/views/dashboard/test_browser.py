"""The pages in a real browser: each loads, filters, exports and follows a training, without complaint."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.dashboard_pages import ENTROPY, REWARD, drawn, saved, show, until

from atrium.views.dashboard.server import VIEWS

STARTS_WITHIN_MS = 300_000
"""On a busy machine, a training takes minutes until it has a folder."""
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def table_of(data):
    return list(csv.reader(io.StringIO(data.decode())))


def test_a_view_says_why_it_has_no_run_to_show(page):
    for view in ("curves", "compare", "trust-region", "rollouts"):
        show(page, f"/{view}?q=nothing-like-it")
        page.get_by_text("No run matches this filter.").wait_for(timeout=30_000)
    for view in ("curves", "compare"):
        show(page, f"/{view}?run=study/gone")
        page.get_by_text("None of the selected runs is in").wait_for(timeout=30_000)


def test_a_comparison_is_saved_as_a_report_and_as_a_table(page):
    show(page, "/compare")
    for suffix, part in (("html", b"Sentences for a paper"), ("tex", rb"\label{tab:")):
        with page.expect_download() as waited:
            page.locator(f"button[data-report={suffix}]").click()
        assert waited.value.suggested_filename.endswith(f".{suffix}")
        assert part in Path(waited.value.path()).read_bytes()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_loads_in_light_and_dark_without_a_complaint(page, runs_dir, make_sweep, scheme):
    make_sweep(runs_dir)
    page.emulate_media(color_scheme=scheme)
    for view in VIEWS:
        show(page, f"/{view}")
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        assert page.locator("main h2, main h3, main table, main .sample").count() > 0
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 1366, f"{view} is wider than a laptop"


def test_the_table_filters_sorts_and_shows_what_differs(page):
    show(page, "/runs")
    assert page.locator("tbody tr").count() == 4
    titles = page.locator("thead th").all_inner_texts()
    assert any("algorithm.name" in title for title in titles)
    assert not any("model.kind" in title for title in titles)
    page.get_by_role("searchbox", name="Filter runs").fill("delta>0.1")
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    assert "q=delta" in page.url
    page.get_by_role("button", name="Mean@4").click()
    assert "sort=-mean" in page.url, "the best first"
    show(page, "/runs?q=algorithm%3Datr+seed%3D1")
    assert page.locator("tbody tr").count() == 1
    page.get_by_text("Add filter").click()
    page.locator("details[open]").get_by_text("grpo").first.click()
    until(page, "document.body.innerText.includes('No matching run')")


def test_picked_runs_go_to_their_curves_and_the_address_says_which(page):
    show(page, "/runs")
    for row in (0, 1):
        page.locator("tbody input[type=checkbox]").nth(row).check()
    page.get_by_role("link", name="Curves of 2").click()
    page.wait_for_selector("main[data-ready='curves']")
    assert page.url.count("run=") == 2
    page.locator(".series").first.wait_for()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.locator(".series").first.wait_for()
    assert "2 of 4 runs" in page.locator(".side .count").inner_text()


def test_curves_are_drawn_grouped_and_exported(page):
    show(page, "/curves")
    figure = drawn(page, REWARD)
    assert page.locator(".series").count() == 2
    rows = table_of(saved(page, figure, "csv"))
    assert rows[0] == ["group", "num_runs", "step", "value", "low", "high"]
    assert len(rows) == 1 + 2 * 8
    assert saved(page, figure, "png").startswith(b"\x89PNG")
    picture = saved(page, figure, "svg")
    assert picture.startswith(b"<?xml")
    for written in (b"rollout/reward", b"training step", b"atr (n = 2)"):  # letters are outlines
        assert b"<!-- %s -->" % written in picture
    figure.hover()
    figure.get_by_role("button", name="1 column").click()
    wide = re.search(rb'width="([\d.]+)pt"', saved(page, figure, "svg"))
    assert float(wide[1]) == pytest.approx(6.9 * 72)
    assert saved(page, figure, "pdf").startswith(b"%PDF")
    page.get_by_label("Group by").select_option("run")
    until(page, "document.querySelectorAll('.series').length === 4")
    page.get_by_label("X axis").select_option("tokens")
    page.get_by_label("Smoothing").fill("3")
    page.get_by_label("log scale").check()
    until(page, "location.search.includes('log=1')")
    assert all(part in page.url for part in ("group=run", "x=tokens", "smooth=9"))
    page.get_by_text("Metrics", exact=True).click()
    page.get_by_role("searchbox", name="Find a metric").fill("kl_k3")
    page.get_by_role("checkbox", name="objective/kl_k3").uncheck()
    until(page, "![...document.querySelectorAll('.sub')].some((one) => one.innerText === 'objective/kl_k3')")


def test_each_of_several_rewards_has_a_panel_of_curves(page, runs_dir, make_run):
    make_run(runs_dir, experiment="rewards", rewards=("correct", "length"))
    show(page, "/curves?exp=rewards")
    titles = page.locator("section.figure h3").all_inner_texts()
    assert titles[1:3] == [f"Mean of the reward {name}, before weighting" for name in ("correct", "length")]


@pytest.mark.parametrize(
    ("path", "choose", "chosen"),
    [
        ("/overview", lambda page: page.get_by_label("Baseline").select_option("atr"), "base=atr"),
        ("/runs", lambda page: page.locator(".run-name").first.click(), "open="),
        ("/runs", lambda page: page.get_by_label("Filter runs").press_sequentially("atr"), "q=atr"),
        ("/curves", lambda page: page.get_by_label("X axis").select_option("tokens"), "x=tokens"),
        ("/curves", lambda page: page.get_by_label("log scale").click(), "log=1"),
        ("/curves", lambda page: page.locator(".series").first.click(), "hide="),
        ("/compare", lambda page: page.get_by_role("button", name="Equal steps").click(), "point=steps"),
        ("/trust-region?at=", lambda page: page.get_by_label("Step").select_option("8"), "step=8"),
        ("/rollouts", lambda page: page.get_by_label("Verdict").select_option("correct"), "verdict=correct"),
    ],
)
def test_back_undoes_a_choice_and_forward_makes_it_again(page, path, choose, chosen):
    show(page, path)
    page.wait_for_timeout(200)
    before = page.url
    choose(page)
    until(page, f"location.search.includes({json.dumps(chosen)})")
    after = page.url
    content = (
        "JSON.stringify([...document.querySelectorAll('main :is(button, select, input, .drawer h2)')]"
        ".map((one) => [one.ariaPressed, one.value, one.checked, one.textContent]))"
    )
    page.wait_for_timeout(500)
    shown = page.evaluate(content)
    page.go_back()
    page.wait_for_selector("main[data-ready]")
    assert page.url == before
    until(page, f"{content} !== {json.dumps(shown)}")
    page.go_forward()
    assert page.url == after
    until(page, f"{content} === {json.dumps(shown)}")


def test_dragging_over_a_curve_zooms_and_a_double_click_shows_all_of_it_again(page):
    show(page, "/curves")
    box = drawn(page, REWARD).locator(".plot").bounding_box()
    middle = box["y"] + box["height"] / 2
    shown = "document.querySelector('.plot').figure.chart.getOption().dataZoom[0]"
    page.mouse.move(box["x"] + 0.4 * box["width"], middle - 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], middle + 40, steps=5)
    page.mouse.up()
    until(page, f"{shown}.end - {shown}.start < 60")
    page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
    until(page, f"{shown}.end - {shown}.start === 100")


def drag(page, figure):
    """Zoom into the upper right quarter of a figure."""
    box = figure.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.1 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"], steps=5)
    page.mouse.up()


def shown_range(figure, axis):
    """The least and the greatest value on an axis of a figure."""
    return figure.locator(".plot").evaluate(
        f"plot => plot.figure.chart.getModel().getComponent('{axis}Axis').axis.scale.getExtent()"
    )


def test_dragging_shares_the_range_of_steps_with_the_other_curves_and_nothing_else(page):
    show(page, "/curves")
    dragged, other = drawn(page, REWARD), drawn(page, ENTROPY)
    before = {axis: [shown_range(one, axis) for one in (dragged, other)] for axis in "xy"}
    drag(page, dragged)
    until(page, "document.querySelector('.plot').figure.chart.getOption().dataZoom[0].start > 0")
    assert shown_range(other, "y") == before["y"][1]
    assert shown_range(other, "x") == shown_range(dragged, "x") != before["x"][0]
    assert shown_range(dragged, "y") != before["y"][0]


def test_dragging_straight_along_a_curve_chooses_steps_and_keeps_the_curve_in_sight(page):
    show(page, "/curves")
    figure = drawn(page, REWARD)
    before = {axis: shown_range(figure, axis) for axis in "xy"}
    box = figure.locator(".plot").bounding_box()
    for place, height in ((0.4, 0.8), (0.7, 0.81)):
        page.mouse.move(box["x"] + place * box["width"], box["y"] + height * box["height"], steps=5)
        page.mouse.down()
    page.mouse.up()
    until(page, "document.querySelector('.plot').figure.chart.getOption().dataZoom[0].start > 0")
    assert shown_range(figure, "x") != before["x"]
    assert shown_range(figure, "y") == before["y"]


def test_a_figure_that_shows_a_part_says_how_to_see_all_of_it(page):
    show(page, "/curves")
    figure = drawn(page, REWARD)
    words = "document.querySelector('main').innerText.includes('Double-click to show all')"
    assert not page.evaluate(words)
    drag(page, figure)
    until(page, words)
    figure.get_by_role("button", name="Double-click to show all").click()
    until(page, f"!{words}")


def distance(box, x, y):
    """From a point to a box, in pixels; 0 inside of it."""
    across = max(box["x"] - x, 0, x - box["x"] - box["width"])
    down = max(box["y"] - y, 0, y - box["y"] - box["height"])
    return math.hypot(across, down)


def nearest_tip(page, x, y):
    """The tooltip that comes when the pointer moves to a point, and how far from it it is."""
    page.mouse.move(0, 0)
    page.locator(".tip:visible").first.wait_for(state="hidden")
    page.mouse.move(x, y)
    page.locator(".tip:visible").first.wait_for()
    found = [(distance(tip.bounding_box(), x, y), tip) for tip in page.locator(".tip:visible").all()]
    return min(found, key=lambda one: one[0])


@pytest.mark.parametrize("width", [1366, 390])
def test_a_tooltip_stands_at_the_pointer_and_shows_that_row_of_the_record(page, runs_dir, width):
    page.set_viewport_size({"width": width, "height": 768})
    folder = min((runs_dir / "study").iterdir())
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    recorded = {row["step"]: row for row in map(json.loads, lines)}
    show(page, f"/curves?group=run&run=study/{folder.name}")
    for metric, title in (("rollout/reward", REWARD), ("objective/entropy", ENTROPY)):
        plot = drawn(page, title).locator(".plot")
        box = plot.bounding_box()
        for share in (0.2, 0.5, 0.9):
            x, y = box["x"] + share * box["width"], box["y"] + 0.6 * box["height"]
            away, tip = nearest_tip(page, x, y)
            assert away < 40, f"the nearest tooltip is {away:.0f} px from the pointer"
            inside = tip.bounding_box()
            assert inside["x"] >= 0
            assert inside["x"] + inside["width"] <= width
            at = "(plot, pixel) => plot.figure.chart.convertFromPixel({ xAxisIndex: 0 }, pixel)"
            step = int(tip.locator("b").inner_text().removeprefix("step "))
            assert abs(step - plot.evaluate(at, share * box["width"])) <= 0.51
            assert float(tip.locator("em").inner_text()) == float(f"{recorded[step][metric]:.3g}")


def test_more_rows_come_when_the_end_of_the_table_comes_near(page, runs_dir):
    first = next(path for path in (runs_dir / "study").iterdir())
    for number in range(70):
        shutil.copytree(first, runs_dir / "study" / f"20240101-000000-atr-s0-{number:04x}")
    until(page.goto("/runs") and page, "document.querySelectorAll('tbody tr').length === 60")
    page.locator(".runs-table").evaluate("table => { table.scrollTop = table.scrollHeight; }")
    until(page, "document.querySelectorAll('tbody tr').length === 74")
    until(page, "document.querySelectorAll('tbody .spark').length >= 4")


def test_curves_share_their_hover(page):
    show(page, "/curves")
    figure = drawn(page, REWARD)
    box = figure.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator(".tip").first.wait_for()
    assert page.locator(".tip:visible").count() > 1


def test_every_figure_of_every_view_can_be_saved(page, runs_dir, make_sweep):
    make_sweep(runs_dir)
    kinds, num_saved = ("png", "svg", "csv"), 0
    for view in ("curves", "compare", "trust-region", "sweeps"):
        show(page, f"/{view}")
        figures = page.locator("section.figure[data-drawn]")
        assert figures.count() >= (4 if view in ("curves", "compare") else 3)
        for place in range(figures.count()):
            for kind in kinds if place == 0 else (kinds[place % 3],):
                assert len(saved(page, figures.nth(place), kind)) > 20, (view, place, kind)
                num_saved += 1
    assert num_saved > 20


def test_a_comparison_says_what_is_known_and_follows_its_controls(page):
    show(page, "/compare")
    assert page.locator(".verdict-box .lead").count() == 2, "the highest score, and one verdict"
    drawn(page, "Solved problems, sums")
    page.get_by_label("Baseline").select_option("grpo")
    page.locator(".verdict-box", has_text="against grpo").wait_for()
    page.get_by_role("button", name="Equal tokens").click()
    page.get_by_role("button", name="Pass@4").click()
    drawn(page, "Difference in Pass@4, sums")
    page.get_by_text("Verdicts are by Pass@4 on sums").wait_for()
    assert all(part in page.url for part in ("base=grpo", "point=tokens", "measure=pass"))
    show(page, "/compare?q=seed%3D0+algorithm%3Datr")
    page.get_by_text("These runs cannot be compared").wait_for()


def test_a_row_of_differences_leads_to_problems_and_to_both_answers(page):
    show(page, "/overview")
    page.locator("tr[data-row=atr]").get_by_role("link", name="problems").click()
    page.locator("table.deciding").wait_for()
    assert "cand=atr" in page.url
    problem = page.locator("table.deciding tbody tr").first.get_attribute("data-row")
    page.locator("table.deciding").get_by_role("link", name="answers side by side").first.click()
    page.wait_for_selector("main[data-ready='rollouts']")
    page.locator(".pane").nth(1).wait_for()
    runs = [pane.get_attribute("aria-label") for pane in page.locator(".pane").all()]
    assert ["-atr-" in runs[0], "-grpo-" in runs[1]] == [True, True]
    assert all(problem in pane.inner_text() for pane in page.locator(".pane").all())


def test_many_tabs_load_and_follow_also_when_the_first_is_closed(page, runs_dir, make_run):
    tabs = [page, *(page.context.new_page() for _ in range(8))]
    for tab in tabs:
        show(tab, "/runs")
    page.close()
    make_run(runs_dir, "clip", 3)
    for tab in tabs[1:]:
        until(tab, "document.querySelectorAll('tbody tr').length === 5")


def test_a_browser_without_shared_workers_follows_too(page, runs_dir, make_run):
    page.add_init_script("delete globalThis.SharedWorker")
    show(page, "/runs")
    make_run(runs_dir, "clip", 3)
    until(page, "document.querySelectorAll('tbody tr').length === 5")


def test_the_text_of_models_is_text(page, hostile):
    text, _, _ = hostile.partition("\\boxed")  # which is typeset after a moment
    show(page, "/rollouts")
    page.locator(".completion").first.wait_for()
    assert page.locator(".completion").first.inner_text().startswith(text.rstrip())
    assert page.locator("main img, main script").count() == 0
    assert "owned" not in page.title()
    page.get_by_label("Source").select_option("sums")
    until(page, "document.querySelector('.completion')")
    assert page.locator(".completion").first.inner_text().startswith(text.rstrip())


def test_hostile_names_and_notes_are_text_too(page, runs_dir, make_run, hostile):
    folder = make_run(runs_dir, "atr", 5)
    bad = folder.path.with_name("<img src=x onerror=alert(1)>")
    folder.path.rename(bad)
    (bad / "annotations.json").write_text('{"note": "<script>1</script>", "tags": ["<b>x</b>"]}')
    show(page, "/runs?q=onerror")
    page.get_by_role("link", name="onerror").click()
    page.locator(".drawer h2").wait_for()
    show(page, "/curves?group=run")
    drawn(page, REWARD)
    page.locator("section.figure .plot").first.hover()
    page.locator(".tip").first.wait_for()
    assert page.locator("img, main script").count() == 0


def test_rollouts_are_filtered_and_stand_side_by_side(page):
    show(page, "/rollouts?source=sums")
    assert page.locator(".sample").count() == 48
    page.get_by_label("Verdict").select_option("correct")
    until(page, "document.querySelectorAll('.sample').length < 48")
    assert page.locator(".sample .verdict:not(.correct)").count() == 0
    page.locator(".sample").nth(1).click()
    page.get_by_label("Beside run").select_option(index=2)
    until(page, "document.querySelectorAll('.pane').length === 2")
    first, second = page.locator(".pane b").all_inner_texts()
    assert first == second


def test_a_note_is_saved_and_an_archived_run_hides(page, runs_dir):
    show(page, "/runs")
    page.locator(".run-name").first.click()
    page.get_by_label("Note", exact=True).fill("the best <so far>")
    page.get_by_label("Tags").fill("paper, good")
    page.get_by_label("Note", exact=True).focus()
    page.locator("tbody .tag").first.wait_for()
    page.get_by_label("archived").check()
    until(page, "document.querySelectorAll('tbody tr[data-run]').length === 3")
    assert len(list(runs_dir.rglob("annotations.json"))) == 1
    page.keyboard.press("Escape")
    assert page.locator(".drawer").count() == 0


def test_the_keyboard_reaches_what_the_mouse_does(page):
    show(page, "/runs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Filter runs"
    page.keyboard.type("atr")
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    page.locator(".run-name").first.focus()
    page.keyboard.press("Enter")
    page.locator(".drawer").wait_for()
    page.keyboard.press("Escape")
    show(page, "/rollouts?source=sums")
    page.locator(".sample").first.focus()
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelectorAll('.sample')[1].getAttribute('aria-current') === 'true'")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, a')].filter((e) => "
        "!(e.innerText || e.ariaLabel || e.title || e.closest('label') || e.placeholder)).length"
    )
    assert unnamed == 0


def test_the_theme_can_be_changed_and_stays(page):
    page.emulate_media(color_scheme="light")
    show(page, "/curves")
    page.get_by_role("button", name="Switch to dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    show(page, "/runs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_damaged_folders_do_not_break_a_page(page, runs_dir):
    (runs_dir / "study" / "empty").mkdir()
    broken = runs_dir / "study" / "broken"
    broken.mkdir()
    for name in ("config.json", "status.json", "metrics.jsonl", "evaluations.jsonl"):
        (broken / name).write_bytes(b"\x00{")
    page.wait_for_timeout(600)
    for view in VIEWS:
        show(page, f"/{view}")
    show(page, "/runs?q=empty")
    page.get_by_role("img", name="the folder is empty").wait_for()


@pytest.mark.timeout(900)
def test_pages_follow_a_training_while_it_runs(page, runs_dir):
    """A real training in another process: the run appears, its curve grows, its state changes."""
    for folder in (runs_dir / "study").iterdir():
        shutil.rmtree(folder)
    show(page, "/runs")
    page.get_by_text("No runs yet").wait_for()
    command = [
        sys.executable,
        "-m",
        "atrium",
        "train",
        "debug=tiny_steps",
        f"runs_dir={runs_dir}",
        "num_steps=12",
    ]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        page.locator("tbody tr").first.wait_for(timeout=STARTS_WITHIN_MS)
        page.get_by_role("link", name="Curves", exact=True).first.click()
        first_figure = page.locator("section.figure", has_text=REWARD)
        first_figure.wait_for(timeout=STARTS_WITHIN_MS)  # its first step comes after an evaluation
        figure = drawn(page, REWARD)
        first = len(table_of(saved(page, figure, "csv")))
        deadline = time.monotonic() + 240
        while len(table_of(saved(page, figure, "csv"))) < 13:
            assert time.monotonic() < deadline, "the curve does not grow"
            page.wait_for_timeout(500)
        assert first <= 13
        assert training.wait(timeout=240) == 0
        page.get_by_role("link", name="Runs", exact=True).click()
        page.locator(".state.finished").wait_for(timeout=60_000)
        show(page, "/trust-region")
        drawn(page, "Ratios against the window")
        show(page, "/rollouts")
        page.locator(".token").first.wait_for()
    finally:
        training.kill()
        training.wait()
