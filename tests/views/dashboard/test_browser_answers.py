"""What the pages say and where it stands, at the widths of a laptop and a phone, in light and dark."""

from __future__ import annotations

import itertools
import json
import re
from typing import get_args

import pytest
from tests.dashboard_pages import REWARD, drawn, show, until
from tests.documents import decoded

from atrium.document.document import Unit
from atrium.document.formatting import value_text
from atrium.runs.status import RunState
from atrium.views.cells import texts
from atrium.views.dashboard.server import VIEWS

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
LAPTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
THOUGHT = (
    "<think>"
    + "so it is. " * 60
    + "</think>\nThus $x^2 + \\frac{1}{2}$ is **all**: \\boxed{3} <img src=x> costs $5 and $6"
)


def box_of(page, selector):
    return page.locator(selector).first.bounding_box()


def widths(page):
    return page.evaluate("[document.documentElement.scrollWidth, innerWidth]")


@pytest.mark.parametrize(("size", "scheme"), list(itertools.product((LAPTOP, PHONE), ("light", "dark"))))
def test_the_first_page_answers(page, size, scheme):
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    page.goto("/")
    page.wait_for_selector("main[data-ready='overview']")
    lead = page.locator(".answer .lead")
    assert re.fullmatch(
        r"atr is higher at [\d.]+ %, \+[\d.]+ points over grpo \(two seeds: .*\)", lead.inner_text()
    )
    drawn(page, REWARD)
    answer, methods, curves = (
        box_of(page, one) for one in (".answer", "[aria-label=Methods]", "section.figure >> nth=0")
    )
    assert page.locator("[aria-label=Methods] tr[data-row] .forest .dot").count() == 1
    assert answer["y"] < methods["y"] < curves["y"]
    assert answer["x"] >= 0
    assert answer["x"] + answer["width"] <= size["width"]
    scroll, inner = widths(page)
    assert scroll <= inner
    rows = page.locator("[aria-label=Methods] tr[data-row]")
    assert rows.count() == 2
    assert rows.first.inner_text().strip().startswith("atr")
    page.locator("[data-toggle=atr]").click()
    page.locator("tr.inside tr").nth(1).wait_for()
    assert page.locator("tr.inside tr").count() == 2


def test_links_carry_the_baseline_and_a_run_opens_and_closes_on_the_first_page(page):
    show(page, "/overview")
    page.get_by_label("Baseline").select_option("atr")
    page.locator("tr[data-row=grpo] .forest .dot").wait_for()
    assert page.locator(".answer .lead").inner_text().startswith("atr is higher "), "whatever the baseline"
    page.get_by_text("Full comparison").click()
    page.locator(".verdict-box", has_text="grpo against atr").wait_for()
    assert all(part in page.url for part in ("exp=study", "base=atr"))
    page.locator(".tabs a[data-view=overview]").click()
    page.locator("tr[data-row=grpo] .forest .dot").wait_for()
    page.locator("[data-toggle=grpo]").click()
    page.locator("tr.inside a").first.click()
    page.locator(".drawer h2").wait_for()
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('.drawer')")
    assert "open=" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_is_wider_than_a_phone(page, runs_dir, make_sweep, scheme):
    make_sweep(runs_dir)
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme=scheme)
    for view in (*VIEWS, "trust-region?mode=arms", "runs?group=method"):
        show(page, f"/{view}")
        page.wait_for_timeout(200)
        scroll, inner = widths(page)
        assert scroll <= inner, view
        tab = box_of(page, ".tabs a[aria-current]")
        assert tab["x"] >= 0, view
        assert tab["x"] + tab["width"] <= inner + 1, view
        theme = box_of(page, "#theme")
        assert theme["x"] + theme["width"] <= inner, view
    show(page, "/compare")
    verdict = box_of(page, ".verdict-box .lead")
    assert verdict["x"] + verdict["width"] <= PHONE["width"]


def test_a_method_has_one_colour_in_all_views_and_the_ninth_is_dashed(page, runs_dir, make_run):
    def places(view, row, name):
        show(page, view)
        page.locator(row).first.wait_for()
        return {
            one.locator(name).first.inner_text().split()[0]: one.locator("svg.swatch").get_attribute(
                "data-place"
            )
            for one in page.locator(row).all()
        }

    found = [
        places("/overview", "tr[data-row]", "b"),
        places("/curves", ".side .series", "span"),
        places("/compare", ".side .series", "span"),
        places("/trust-region?mode=arms", "table.windows tbody tr", "b"),
    ]
    assert found == [{"atr": "0", "grpo": "1"}] * 4
    for seed in range(2, 7):
        make_run(runs_dir, "atr", seed)
    show(page, "/curves?group=run")
    until(page, "document.querySelectorAll('.side .series').length === 9")
    lines = page.locator(".side .series svg line")
    dashed = [one.get_attribute("stroke-dasharray") is not None for one in lines.all()]
    assert sum(dashed) == 1


def test_the_table_keeps_what_matters_in_sight_sorts_the_best_first_and_groups(page, runs_dir, make_run):
    page.set_viewport_size(LAPTOP)
    make_run(runs_dir, "atr", 7, state=RunState.KILLED, until=3)
    show(page, "/runs")
    until(page, "document.querySelectorAll('tr[data-run]').length === 5")
    titles = page.locator("thead th").all_inner_texts()
    first_setting = next(at for at, title in enumerate(titles) if "." in title)
    assert {"Seed", "Time", "Started"} <= set(titles[:first_setting])
    assert page.get_by_text("before training").count() == 1
    page.get_by_role("button", name="Mean@4").click()
    shown = page.locator("tr[data-run] td .value").all_inner_texts()
    scores = [float(text) for text in shown]
    assert scores == sorted(scores, reverse=True)
    page.get_by_label("Group by").select_option("method")
    page.locator("tr.group").first.wait_for()
    groups = page.locator("tr.group").all_inner_texts()
    assert sorted(text.split()[1] for text in groups) == ["atr", "grpo"]
    assert any("3 runs" in text and "n = 2" in text for text in groups), "a killed run has no last score"
    page.locator("tr.group button").first.click()
    until(page, "document.querySelectorAll('tr[data-run]').length === 2")
    page.reload()
    until(page, "document.querySelectorAll('tr.group').length === 2")
    assert page.locator("tr[data-run]").count() == 2, "the address says what is folded"


def test_picked_runs_are_tagged_together_and_their_settings_compared(page, runs_dir):
    show(page, "/runs")
    for row in (0, 3):
        page.locator("tbody input[type=checkbox]").nth(row).check()
    page.get_by_role("button", name="Differences").click()
    page.get_by_label("settings", exact=True).wait_for()
    settings = page.get_by_label("Differences", exact=True).locator("tbody tr").all_inner_texts()
    assert any(text.startswith("algorithm.name") for text in settings)
    page.get_by_text("Tag 2").click()
    tag = page.get_by_label("Tag of all picked")
    tag.fill("good")
    tag.press("Enter")
    page.get_by_text("saved for 2 runs").wait_for()
    found = [json.loads(path.read_text())["tags"] for path in runs_dir.glob("study/*/annotations.json")]
    assert found == [["good"], ["good"]]


def test_a_run_shows_its_health_and_commands_to_copy(page):
    show(page, "/runs")
    page.locator(".run-name").first.click()
    health = page.locator(".drawer section", has=page.get_by_role("heading", name="Health"))
    health.locator("tr", has_text="entropy, nats").locator("svg").wait_for()
    commands = page.locator(".drawer section", has=page.get_by_role("heading", name="Commands"))
    commands.wait_for()
    assert "atrium train --resume" in commands.inner_text()
    assert "rm -r" in commands.inner_text()
    commands.get_by_label("Copy the command to resume").click()
    commands.get_by_text("Copied").wait_for()


def test_columns_ticked_one_after_another_all_stay(page):
    show(page, "/runs")
    page.get_by_text("Columns", exact=True).click()
    for name in ("seed", "model.kind"):
        page.get_by_role("checkbox", name=name, exact=True).check()
    titles = "[...document.querySelectorAll('th.setting')].map((one) => one.title)"
    until(page, f"['seed', 'model.kind'].every((name) => {titles}.includes(name))")
    assert page.get_by_role("checkbox", name="seed", exact=True).is_checked()


def test_an_address_opens_the_completion_of_its_step_where_all_steps_are_listed(page):
    show(page, "/rollouts?step=-1")
    rows = page.locator(".sample")
    place = rows.count() - 1
    rows.nth(place).click()
    chosen = f"document.querySelectorAll('.sample')[{place}]?.ariaCurrent === 'true'"
    until(page, f"{chosen} && location.search.includes('read=')")
    page.reload()
    until(page, chosen)


def test_runs_are_filtered_by_the_last_value_of_a_metric(page):
    show(page, "/curves")
    drawn(page, REWARD)  # now all of it is indexed
    for bound, num in ((0.1, 4), (0.95, 0)):
        show(page, f"/runs?q=rollout%2Freward%3E{bound}")
        until(page, f"document.querySelectorAll('tr[data-run]').length === {num}")
    show(page, "/runs?q=&mcol=objective%2Fentropy")
    assert "entropy" in page.locator("thead th").all_inner_texts()
    page.locator("tr[data-run]", has_text="0.125").first.wait_for()


def hold_back(page, pattern):
    """A list that the first request of this address is put in, instead of being answered."""
    held = []
    page.route(pattern, lambda route: route.continue_() if held else held.append(route))
    return held


def test_a_view_that_is_still_being_made_shows_what_changes_meanwhile(page, runs_dir, make_run):
    curves = hold_back(page, "**/api/curves?*")
    page.goto("/curves?group=run")
    while not curves:
        page.wait_for_timeout(50)
    make_run(runs_dir, "atr", 7)
    page.wait_for_timeout(2000)  # the news of it comes while the first curves are still awaited
    curves[0].continue_()
    until(page, "document.querySelectorAll('.side .series').length === 5")


def test_what_is_chosen_while_an_answer_is_awaited_is_what_is_shown(page):
    show(page, "/trust-region")
    shown = page.get_by_label("Window", exact=True)
    shown.get_by_text("in the updates of 8 steps").wait_for()
    region = hold_back(page, "**/api/trust-region?*")
    for step in ("4", ""):
        page.get_by_label("Step", exact=True).select_option(step)
        while not region:
            page.wait_for_timeout(50)
    page.wait_for_timeout(1000)  # the second answer may come before the first
    region[0].continue_()
    page.wait_for_timeout(1000)
    shown.get_by_text("in the updates of 8 steps").wait_for()


def test_a_filter_by_a_metric_waits_for_the_metric(page):
    show(page, "/curves")
    drawn(page, REWARD)
    page.add_init_script("delete globalThis.SharedWorker")  # whose requests cannot be held back
    hold_back(page, "**/api/events*")
    view, lasts = hold_back(page, "**/static/views/runs.js"), hold_back(page, "**/api/lasts?*")
    page.goto("/runs?q=rollout%2Freward%3E0.1", wait_until="commit")
    while not (view and lasts):
        page.wait_for_timeout(50)
    view[0].continue_()
    page.wait_for_timeout(1000)
    lasts[0].continue_()
    until(page, "document.querySelectorAll('tr[data-run]').length === 4")


def test_the_way_from_a_run_to_its_trust_region_leads_back_and_keeps_the_other_runs(page):
    show(page, "/runs")
    page.locator(".run-name").last.click()
    page.locator(".drawer a", has_text="Trust region").click()
    page.wait_for_selector("main[data-ready='trust-region']")
    assert page.get_by_label("Run", exact=True).locator("option").count() == 4
    page.get_by_role("link", name="About this run").click()
    page.locator(".drawer h2").wait_for()


def test_trust_region_opens_on_a_run_that_has_one_and_its_ticks_are_ratios(page, runs_dir, make_run):
    failed = make_run(runs_dir, "atr", 9, state=RunState.FAILED, until=0)
    show(page, "/trust-region")
    drawn(page, "Ratios against the window")
    until(page, f"[...document.querySelectorAll('option')].some(({{ value }}) => value === '{failed.name}')")
    assert page.get_by_label("Run", exact=True).input_value() != failed.name
    assert "in the updates of 8 steps" in page.get_by_label("Window", exact=True).inner_text()


def test_methods_stand_side_by_side(page):
    show(page, "/trust-region?mode=arms")
    for title in ("Ratios for A > 0", "Ratios for A < 0", "Entropy"):
        drawn(page, title)
    assert page.get_by_label("Window", exact=True).inner_text() == "All methods at steps 1 to 8"
    assert page.locator("table.windows tbody tr").count() == 2


def test_views_show_all_runs_of_the_experiment(page, runs_dir, make_run):
    for seed in range(2, 62):
        make_run(runs_dir, "atr", seed)
    make_run(runs_dir, "atr", 0, experiment="elsewhere")
    for path in ("/curves", "/compare"):
        show(page, path)
        page.get_by_text("64 of 65 runs").wait_for()
    show(page, "/trust-region?mode=arms")
    page.locator("table.windows tr[data-row=atr]", has_text="62").wait_for()


def test_an_odd_run_stands_apart_in_every_view_and_can_be_drawn(page, runs_dir, make_run):
    make_run(runs_dir, "atr", 7, num_steps=3)
    show(page, "/overview")
    page.get_by_text("Other runs: single runs").wait_for()
    assert page.locator("tr[data-row=atr] .forest").count() == 1
    show(page, "/curves")
    odd = page.locator(".side .series", has_text="num_steps 3")
    odd.wait_for()
    assert odd.get_attribute("aria-pressed") == "false"
    odd.click()
    until(page, "[...document.querySelectorAll('.side .series')].every((one) => one.ariaPressed === 'true')")
    show(page, "/trust-region?mode=arms")
    page.get_by_text("All methods at steps 1 to 8").wait_for()
    assert "other runs: atr · num_steps 3" in page.get_by_label("Window", exact=True).text_content()


def test_formulas_are_typeset_thoughts_fold_and_hostile_text_stays_text(page, runs_dir, make_run):
    run = make_run(runs_dir, "atr", 8, text=THOUGHT)
    show(page, f"/rollouts?at={run.name}&source=sums")
    page.locator(".completion.read math").first.wait_for()
    said = page.locator(".completion.read")
    assert said.locator("mfrac").count() == 1
    assert said.locator("b").inner_text() == "all"
    assert said.locator("details.thought:not([open])").count() == 1
    assert "<img src=x> costs $5 and $6" in said.inner_text()
    assert page.locator("main img").count() == 0
    page.get_by_role("button", name="Problems").click()
    rows = page.locator(".sample[data-problem]")
    until(page, "document.querySelectorAll('.sample[data-problem]').length === 12")
    page.get_by_role("button", name="As written").click()
    page.get_by_text("$x^2").first.wait_for()
    rows.first.click()
    page.get_by_text("show all").wait_for()
    until(page, "document.querySelectorAll('.sample:not([data-problem])').length === 4")


def test_tables_on_the_page_have_the_texts_of_other_media(page):
    show(page, "/compare")
    document = decoded(page.request.get("/api/compare?exp=study").json()["document"])
    tables = [table for section in document.sections for table in section.tables if not table.caption]
    assert len(tables) > 5
    for table in tables:
        found = page.locator(f'section.table[aria-label="{table.title}"] tbody tr').all()
        shown = [[" ".join(cell.inner_text().split()) for cell in row.locator("td").all()] for row in found]
        shown = [row[: len(table.columns)] for row in shown]  # the page has links beside them
        assert shown == texts(table.rows), table.title


def test_numbers_are_written_as_in_other_media(page):
    show(page, "/runs")
    values = [
        0.0,
        1e-9,
        0.00051,
        0.0625,
        0.125,
        0.31249,
        0.4375,
        0.95,
        1.0,
        2.5,
        9.96,
        61.4,
        998.4,
        12345.678,
    ]
    values += [123456.7, 5e6, 3.2e9, 7e12]
    signed = [*values, *(-value for value in values)]
    units = [unit for unit in get_args(Unit) if unit not in ("", "bytes", "p")]
    cases = [(value, unit, sign) for value in signed for unit in units for sign in (True, False)]
    cases += [(value, unit, False) for value in values for unit in ("", "p")]
    cases += [(value, "bytes", False) for value in values if value >= 1.0]
    told = "async (cases) => { const { valueText } = await import('/static/format.js'); "
    shown = page.evaluate(f"{told} return cases.map((given) => valueText(...given)); }}", cases)
    assert shown == [value_text(value, unit, is_signed=sign) for value, unit, sign in cases]


def test_a_sweep_shows_curves_of_trials_and_two_settings_together(page, runs_dir, make_sweep):
    make_sweep(runs_dir)
    show(page, "/sweeps")
    for title in ("Learning curves of trials", "Complete trials by two settings"):
        drawn(page, title)
    for rank, row in enumerate(page.locator("[aria-label=Trials] tbody tr").all()[:6], 1):
        assert row.locator("td").nth(1).inner_text() == str(rank)


def test_a_collapse_is_an_alert_line_by_its_name_and_a_filter(page, runs_dir, make_run):
    run = make_run(runs_dir, "atr", 5)
    summary = json.loads(run.summary_file.read_text()) if run.summary_file.exists() else {}
    found = [{"rule": "entropy gone", "first_step": 3}]
    run.summary_file.write_text(json.dumps({**summary, "findings": found}))
    show(page, "/overview")
    alert = page.locator(".alert", has_text="collapsed")
    alert.wait_for()
    assert alert.inner_text() == "⚠ collapsed: 1 of 3 runs of atr from step 3 · ratios · rollouts"
    alert.locator("summary").click(position={"x": 4, "y": 4})
    assert alert.locator("p").inner_text().endswith(", seed 5), entropy gone in 1 run")
    places = [link.get_attribute("href") for link in alert.locator("a").all()]
    assert ["zoom=1_23" in places[0], "step=3" in places[1], "step=3" in places[2]] == [True] * 3
    alert.get_by_role("link", name="rollouts").click()
    page.wait_for_selector("main[data-ready='rollouts']")
    assert page.get_by_label("Step", exact=True).input_value() == "4", "the next step that is recorded"
    show(page, "/runs?q=collapse%3D%22entropy+gone%22")
    until(page, "document.querySelectorAll('tr[data-run]').length === 1")
    assert page.locator("tr[data-run]").get_attribute("data-run") == run.name


def test_own_panels_are_in_the_address_and_go_with_the_views(page):
    show(page, "/curves")
    drawn(page, REWARD)
    page.get_by_text("Panels", exact=True).click()
    page.get_by_label("Vertical").select_option("objective/entropy")
    page.get_by_label("Horizontal").select_option("rollout/reward")
    page.get_by_role("button", name="Add panel").click()
    subtitle = page.locator(".figure .sub", has_text="objective/entropy against rollout/reward")
    subtitle.wait_for()
    assert "panel=objective%2Fentropy%7Erollout%2Freward" in page.url
    show(page, "/curves?panel=objective/entropy~rollout/reward")
    subtitle.wait_for()
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("main[data-ready='runs']")
    page.get_by_role("link", name="Curves", exact=True).first.click()
    subtitle.wait_for()


def test_evaluations_have_a_tab_and_names(page, runs_dir, make_run):
    made = make_run(runs_dir, "atr", 3, experiment="evaluations")
    config = json.loads(made.config_file.read_text())
    told = {"kind": "evaluation", "checkpoint": {"run": "study/20260101-000000-atr-s0-abcd", "step": 8}}
    made.config_file.write_text(json.dumps({**config, **told}))
    show(page, "/evaluations")
    page.get_by_role("link", name="atr-s0-abcd at step 8").wait_for()
    show(page, "/runs")
    assert page.locator("tr[data-run]").count() == 4
