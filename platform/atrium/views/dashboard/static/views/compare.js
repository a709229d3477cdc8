// Groups of runs compared: the document of their comparison, with the controls of its query.

import { ask } from "../api.js";
import { answerBoxes, confoundsBox, foldedList, listOf, notesOf, tableCard } from "../document.js";
import { drawSections } from "../document_figures.js";
import { button, choice, el, empty, field, fill, refill, select } from "../dom.js";
import { plural } from "../format.js";
import { swatch } from "../palette.js";
import { reportButtons } from "../report.js";
import { differingKeys, latestOnly, noRuns, runsPanel, selected } from "../selection.js";
import { addressOf, get, set } from "../url.js";

// The first of each is what the server assumes, and is not written into the address.
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

export async function show(root, context) {
  let table = await context.runs();
  let turn = 0;
  let drawn = "";
  let reached = "";
  const figures = [];
  const bar = el("div.toolbar");
  const banner = el("div");
  const body = el("div.stack");
  const panel = runsPanel(
    "Runs",
    () => table,
    () => void redraw(),
  );
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
    refill(
      bar,
      choice("Compare at", AT, get("point"), (point) => change({ point })),
      field(
        "groups",
        select("Group by", groups, get("by"), (by) => change({ by, base: null, cand: null })),
      ),
      arms.length > 1 &&
        field(
          "baseline",
          select("Baseline", arms, arms[0], (base) => change({ base })),
        ),
      benchmarks.length > 1 &&
        field(
          "benchmark",
          select("Benchmark", [["", "all tests"], ...benchmarks], get("bench"), (bench) => change({ bench })),
        ),
      choice("Measure", measures, get("measure"), (measure) => change({ measure })),
      el(
        "label.field",
        { title: "The smallest difference that matters to you" },
        el("span", "effect of interest"),
        el("input", effect),
        "points",
      ),
    );
  }

  async function redraw() {
    const mine = ++turn;
    const { runs, num, query: chosen } = panel.draw();
    fill(banner, latestOnly(num));
    if (!runs.length) {
      drawBar();
      drawInstead(noRuns(table));
      return;
    }
    const query = {
      ...chosen,
      by: get("by"),
      base: get("base"),
      at: get("point"),
      benchmark: get("bench"),
      effect: String((Number(get("effect", EFFECT)) || Number(EFFECT)) / 100),
    };
    const measure = get("measure");
    const answer = await ask("compare", { ...query, measure, candidate: get("cand") }).catch(
      ({ message }) => ({ reason: message }),
    );
    if (mine !== turn) return;
    if (answer.reason) {
      drawBar();
      drawInstead(
        empty(
          "These runs cannot be compared",
          answer.reason,
          el("br"),
          "Filter the list on the left, or pick runs in the table of runs: a comparison needs two methods that were evaluated on the same problems.",
        ),
      );
      return;
    }
    drawBar(answer);
    bar.append(reportButtons(query));
    const content = JSON.stringify(answer);
    if (content === drawn) return;
    drawn = content;
    drawAll(answer, { ...query, measure });
  }

  function drawInstead(reason) {
    drawn = "";
    dispose();
    fill(panel.list);
    fill(body, reason);
  }

  function drawAll({ document, arms, problems }, query) {
    drawArms(arms);
    dispose();
    const { warnings, muted } = notesOf(document);
    const [first] = document.sections.filter(({ key }) => key === "differences");
    const sections = document.sections.filter((one) => one !== first);
    // From a row of differences to the problems that make it.
    const why = ({ cells: [name] }) =>
      el(
        "td",
        button("problems", { class: "link" }, () => change({ cand: name })),
      );
    const more = first.tables.map(({ key }) => [
      key,
      key.startsWith("differences/") ? { titles: ["Why"], cells: why } : {},
    ]);
    const made = (figure, { key }) => {
      figures.push(figure);
      figure.savedFrom("figure/comparison", { ...query, figure: key });
    };
    fill(
      body,
      confoundsBox(document),
      el("p.muted", document.subtitle),
      answerBoxes(document),
      warnings.length > 0 && el("section.card.pad", el("h3", "To keep in mind"), listOf(warnings)),
      drawSections([first], made, Object.fromEntries(more)),
      problems.map(drawProblems),
      drawSections(sections, made),
      el("section.card.pad.sub", foldedList("How to read this", muted)),
    );
    if (get("cand") === reached) return;
    reached = get("cand");
    body.querySelector("table.deciding")?.parentElement.scrollIntoView();
  }

  function drawProblems({ document, answers, benchmark }) {
    const cells = (_, at) => {
      const { problem, run, step, beside, beside_step: bstep } = answers[at];
      const place = {
        at: run,
        step,
        beside,
        bstep,
        source: benchmark,
        only: problem,
        problem,
        run: null,
        q: null,
      };
      return el("td", el("a", { href: addressOf("rollouts", place) }, "answers side by side"));
    };
    return tableCard(document.sections[0].tables[0], { titles: ["Answers"], cells });
  }

  function drawArms(arms) {
    fill(
      panel.list,
      el("h3", "Arms"),
      arms.map(({ name, place, num, runs }, at) =>
        el(
          "div.series",
          { title: runs.join("\n") },
          swatch(place),
          el("span", name, at === 0 && el("span.muted", "  baseline")),
          el("small", plural(num, "seed")),
        ),
      ),
      el("p", { style: { margin: "14px 2px" } }, el("a", { href: addressOf("curves") }, "Their curves")),
    );
  }

  function dispose() {
    for (const figure of figures.splice(0)) figure.dispose();
  }

  async function refresh() {
    table = await context.runs();
    await redraw();
  }

  await redraw();
  return { refresh, dispose };
}
