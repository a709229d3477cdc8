// Comparison of groups of runs: the server's document, and controls for its query.

import { ask } from "../api.js";
import { alertLines, answerBoxes, foldedList, listOf, notesOf, tableCard } from "../document.js";
import { drawSections } from "../document_figures.js";
import { button, choice, el, empty, fill, refill, selectField } from "../dom.js";
import { plural } from "../format.js";
import { swatch } from "../palette.js";
import { reportButtons } from "../report.js";
import { differingKeys, latestOnly, noRuns, runsPanel, selected } from "../selection.js";
import { addressOf, get, set } from "../url.js";

// The first value of each is the server's default, and is not written to the URL.
const AT = [
  ["", "Last", "each run's last evaluation"],
  ["steps", "Equal steps", "the last step that all runs evaluated"],
  ["tokens", "Equal tokens", "equal numbers of generated tokens"],
  ["wall_clock", "Equal time", "equal wall-clock time"],
];
const MEASURES = [
  ["", "mean", "Mean@K"],
  ["pass", "pass", "Pass@K"],
];
const EFFECT = "2";
const ADVICE =
  "Filter the list on the left, or pick runs in the table of runs: a comparison needs two methods that were evaluated on the same problems.";

export async function show(root, context) {
  const table = await context.runs();
  let turn = 0;
  let drawn = "";
  let reached = "";
  const bar = el("div.toolbar");
  const banner = el("div");
  const body = el("div.stack");
  const panel = runsPanel("Runs", table, () => void redraw());
  root.append(el("div.split", panel.element, el("div.content", bar, banner, body)));

  function change(changes) {
    set(changes);
    void redraw();
  }

  function drawBar(answer = null) {
    const { runs } = selected(table);
    const keys = differingKeys(table, runs).filter((key) => key !== "seed");
    const arms = answer?.arms.map(({ name }) => name) ?? [];
    const benchmarks = table.benchmarks.filter((name) => runs.some((run) => run.scores[name]));
    const groups = [["", "method (all but seed)"], ...keys];
    const measures = MEASURES.map(([value, key, text]) => [value, answer?.measures[key] ?? text]);
    const effect = {
      type: "number",
      "aria-label": "Effect of interest in points",
      min: "0.1",
      step: "0.1",
      style: { width: "64px" },
      value: get("effect", EFFECT),
      onchange: ({ target }) => change({ effect: target.value }),
    };
    const all = [["", "all tests"], ...benchmarks];
    const title = "The smallest difference of interest";
    refill(
      bar,
      choice("Compare at", AT, get("point"), (point) => change({ point })),
      selectField("groups", "Group by", groups, get("by"), (by) => change({ by, base: null, cand: null })),
      arms.length > 1 && selectField("baseline", "Baseline", arms, arms[0], (base) => change({ base })),
      benchmarks.length > 1 &&
        selectField("benchmark", "Benchmark", all, get("bench"), (bench) => change({ bench })),
      choice("Measure", measures, get("measure"), (measure) => change({ measure })),
      el("label.field", { title }, el("span", "effect of interest"), el("input", effect), "points"),
    );
  }

  async function redraw() {
    const mine = ++turn;
    const { runs, num, query: chosen } = panel.draw();
    fill(banner, latestOnly(num));
    if (!runs.length) return drawInstead(noRuns(table));
    const query = {
      ...chosen,
      by: get("by"),
      base: get("base"),
      at: get("point"),
      benchmark: get("bench"),
      effect: String((Number(get("effect", EFFECT)) || Number(EFFECT)) / 100),
    };
    const measure = get("measure");
    const asked = ask("compare", { ...query, measure, candidate: get("cand") });
    const answer = await asked.catch(({ message }) => ({ reason: message }));
    if (mine !== turn) return;
    if (answer.reason)
      return drawInstead(empty("These runs cannot be compared", answer.reason, el("br"), ADVICE));
    drawBar(answer);
    bar.append(reportButtons(query));
    const content = JSON.stringify(answer);
    if (content === drawn) return;
    drawn = content;
    drawAll(answer, { ...query, measure });
  }

  function drawInstead(reason) {
    drawBar();
    drawn = "";
    fill(panel.list);
    fill(body, reason);
  }

  function drawAll({ document, arms, problems }, query) {
    drawArms(arms);
    const { warnings, muted } = notesOf(document);
    const alerts = alertLines(document);
    const first = document.sections.find(({ key }) => key === "differences");
    const sections = document.sections.filter((one) => one !== first);
    // Link a row of differences to the problems that cause it.
    const cells = ({ cells: [name] }) => {
      const link = button("problems", { class: "link" }, () => change({ cand: name }));
      return el("td", link);
    };
    const more = (key) => (key.startsWith("differences/") ? { titles: ["Why"], cells } : {});
    const saved = { path: "figure/comparison", query };
    fill(
      body,
      alerts.length > 0 && el("div", alerts),
      el("p.muted", document.subtitle),
      answerBoxes(document),
      drawSections([first], { ...saved, more }),
      warnings.length > 0 && el("section.card.pad", el("h3", "To keep in mind"), listOf(warnings)),
      problems.map(drawProblems),
      drawSections(sections, saved),
      el("section.card.pad.sub", foldedList("How to read this", muted)),
    );
    if (get("cand") === reached) return;
    reached = get("cand");
    body.querySelector("table.deciding")?.parentElement.scrollIntoView();
  }

  function drawProblems({ document, answers, benchmark }) {
    const cells = (_, at) => {
      const { problem, run, step, beside, beside_step: bstep } = answers[at];
      const place = { at: run, step, beside, bstep, source: benchmark, only: problem, problem };
      const href = addressOf("rollouts", { ...place, run: null, q: null });
      return el("td", el("a", { href }, "answers side by side"));
    };
    return tableCard(document.sections[0].tables[0], { titles: ["Answers"], cells });
  }

  function drawArms(arms) {
    const line = ({ name, place, num, runs }, at) => {
      const label = el("span", name, at === 0 && el("span.muted", "  baseline"));
      return el(
        "div.series",
        { title: runs.join("\n") },
        swatch(place),
        label,
        el("small", plural(num, "seed")),
      );
    };
    const link = el("a", { href: addressOf("curves") }, "Show curves");
    fill(panel.list, el("h3", "Arms"), arms.map(line), el("p", { style: { margin: "14px 2px" } }, link));
  }

  async function refresh() {
    await context.runs();
    await redraw();
  }

  await redraw();
  return { refresh };
}
