// The start page: the better method of the latest experiment, the difference, and its uncertainty.

import { ask } from "../api.js";
import { alertLines, foldedList, notesOf, tableCard } from "../document.js";
import { button, el, empty, fill, oneAtATime, selectField } from "../dom.js";
import { Figure, ticksBetween } from "../figure.js";
import { duration, number, percent, plural } from "../format.js";
import { seriesVariable } from "../palette.js";
import { reportButtons } from "../report.js";
import { addressOf, get, set } from "../url.js";
import { curveOption, curveTable } from "./curves.js";
import { beginningOf, runDrawer, runLink } from "./run_drawer.js";

const REWARD = "rollout/reward";
const OTHER_RUNS = "Other runs: single runs with other settings than their method's other runs";

export async function show(root, context) {
  const bar = el("div.toolbar");
  const said = el("section.card.pad.answer", { "aria-label": "Answer", "aria-live": "polite" });
  const rows = el("div");
  const curves = [REWARD, "score"].map((key) => new Figure({ title: key, linked: "overview" }));
  const elements = curves.map(({ element }) => element);
  const curveGrid = el("div.figures.two", elements);
  const body = el("div.stack", { style: { paddingBottom: "40px" } }, said, rows, curveGrid);
  root.append(bar, body);
  const opened = new Set();
  const drawer = runDrawer(root, () => refresh());
  let known = "";

  function pin(baseline) {
    set({ base: baseline });
    void refresh();
  }

  const refresh = oneAtATime(async () => {
    const answer = await ask("overview", {
      experiment: get("exp") === "*" ? null : get("exp"),
      base: get("base"),
      opened: [...opened],
    });
    const content = JSON.stringify(answer);
    if (content === known) return drawer.refresh();
    known = content;
    await draw(answer);
    await drawer.refresh();
  });

  async function draw(answer) {
    if (!answer.experiment) {
      const table = await context.runs();
      fill(bar);
      const title = table.runs.length ? "No experiment of methods here" : "No experiment yet";
      const tabs = table.runs.length > 0 && "Sweeps and evaluations have their own tabs. ";
      const start = ["Training runs in ", el("code", table.runs_dir), " are compared here as soon as "];
      const command = el("code", "atrium train --multirun algorithm=atr,grpo seed=0,1,2");
      const problem = table.problem && el("p.problem.bad", table.problem);
      return void fill(body, problem, empty(title, tabs, start, "they start: ", command, "."));
    }
    if (!body.contains(rows)) fill(body, said, rows, curveGrid);
    drawBar(answer);
    drawAnswer(answer);
    drawRows(answer);
    await drawCurves(answer);
  }

  function drawBar(answer) {
    if (bar.contains(document.activeElement) && document.activeElement.tagName === "SELECT") return;
    const choose = (exp) => {
      set({ exp, base: null });
      void refresh();
    };
    const label = ({ name, num_methods: methods, num_runs: runs, num_running: training }) =>
      `${name} · ${plural(methods, "method")}, ${plural(runs, "run")}${training ? `, ${training} training` : ""}`;
    const experiments = answer.experiments.map((one) => [one.name, label(one)]);
    const arms = answer.rows.filter((row) => row.is_counted).map(({ name }) => name);
    const elsewhere = answer.experiments.find((one) => one.num_running && one.name !== answer.experiment);
    const training = elsewhere && `${elsewhere.num_running} training in ${elsewhere.name}`;
    fill(
      bar,
      selectField("experiment", "Experiment", experiments, answer.experiment, choose),
      answer.baseline && selectField("baseline", "Baseline", arms, answer.baseline, pin),
      elsewhere && button(training, { class: "link" }, () => choose(elsewhere.name)),
      el("span.grow"),
      el("a", { href: addressOf("compare", here(answer)) }, "Full comparison"),
      el("a", { href: addressOf("curves", here(answer)) }, "All curves"),
      answer.baseline && reportButtons({ exp: answer.experiment, base: answer.baseline }),
    );
  }

  function drawAnswer({ document, experiment, reason, began }) {
    const beginning = ({ key }) =>
      key === "collapsed" && began && [" from ", beginningOf(began.run, began.step)];
    const { warnings, muted } = notesOf(document);
    const [first, ...others] = document.answer;
    fill(
      said,
      el("p.muted", document.subtitle ? `${experiment}: ${document.subtitle}` : experiment),
      el("h2.lead", first?.text ?? reason),
      others.map(({ text }) => el("p", text)),
      alertLines(document, beginning),
      foldedList("How to read this", [...warnings, ...muted]),
    );
  }

  function drawRows(answer) {
    const focused = document.activeElement?.getAttribute?.("data-toggle");
    const methods = answer.rows;
    const forest = forestOf(answer.document.sections[0].figures[0]);
    fill(
      rows,
      tableCard(answer.document.sections[0].tables[0], {
        titles: [forest.axis, "Why", "Runs"],
        cells: ({ cells: own }, at) => [
          forest.cell(methods[at].name),
          whyCell(answer, methods[at].name, own),
          runsCell(methods[at]),
        ],
        rows: (tr, at) => [
          methods[at].is_other && !methods[at - 1]?.is_other && otherRuns(),
          tr,
          opened.has(methods[at].name) && runRow(methods[at]),
        ],
      }),
    );
    if (focused) rows.querySelector(`[data-toggle="${CSS.escape(focused)}"]`)?.focus();
  }

  const otherRuns = () => el("tr.group", el("td.muted", { colspan: "10" }, OTHER_RUNS));

  /** Return a link from a difference to the problems that cause it. */
  function whyCell(answer, name, [, , , difference]) {
    const href = addressOf("compare", { ...here(answer), cand: name });
    return el("td", difference !== null && el("a", { href }, "problems"));
  }

  function runsCell({ name, states, left_s: left }) {
    const isOpen = opened.has(name);
    const toggle = () => {
      opened[isOpen ? "delete" : "add"](name);
      void refresh();
    };
    const attributes = { class: "link", "data-toggle": name, "aria-expanded": String(isOpen) };
    const counts = Object.entries(states).map(([state, num]) => `${num} ${state}`);
    const text = [...counts, ...(left ? [`${duration(left)} left`] : [])].join(", ");
    return el("td", button(`${isOpen ? "▾" : "▸"} ${text}`, attributes, toggle));
  }

  function runRow({ runs }) {
    const line = (run) => {
      const steps = ` ${number(run.step)}/${number(run.num_steps)}`;
      const left = run.left_s && el("span.muted", `, ${duration(run.left_s)} left`);
      return el("tr", [
        el("td", runLink(run.name, {}, drawer.open)),
        el("td", `seed ${run.seed ?? "–"}`),
        el("td", el("span.state", { class: run.state }, run.state), steps, left),
        el("td.num", run.score === null ? "–" : `${percent(run.score)} %`),
        el("td.words.muted", run.error ?? (run.is_counted ? "" : "not counted")),
      ]);
    };
    return el("tr.inside", el("td", { colspan: "10" }, el("table", el("tbody", runs.map(line)))));
  }

  /** Return the parameters of a link: experiment and baseline, without picked runs or filters of other views. */
  const here = ({ experiment, baseline }) => ({ exp: experiment, base: baseline, run: null, q: null });

  async function drawCurves(answer) {
    const { benchmark } = answer;
    const scores = benchmark && benchmark !== "macro average" ? `evaluation/${benchmark}/mean_at_k` : null;
    const hide = answer.rows.filter((row) => row.is_other).map(({ name }) => name);
    const query = { exp: answer.experiment, group: "method" };
    const { panels } = await ask("curves", { ...query, metric: [REWARD, scores], points: 300 });
    for (const [at, figure] of curves.entries()) {
      const panel = panels[at];
      figure.element.hidden = !panel?.series.length;
      if (figure.element.hidden) continue;
      const series = panel.series.filter(({ label }) => !hide.includes(label));
      figure.name(panel.title, "mean over seeds by step; band: minimum to maximum over seeds");
      figure.savedFrom("figure/curves", { ...query, metric: panel.name, hide });
      figure.draw({
        option: (colours) => curveOption(series, { isShare: panel.is_share, colours }),
        table: () => curveTable(series),
      });
    }
  }

  await refresh();
  drawer.reopen();
  return { refresh, dispose: drawer.dispose };
}

/** Return a cell per method with the difference and its interval, and their common axis. */
function forestOf(figure) {
  const rows = new Map((figure?.rows ?? []).map((row) => [row.name, row]));
  const ends = [...rows.values()].flatMap(({ value, outer }) => [value, ...(outer ?? [])]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const at = (value) => `${4 + (92 * (value - low)) / (high - low || 1)}%`;
  const span = (kind, [start, end]) =>
    el(`i.${kind}`, { style: { left: at(start), width: `calc(${at(end)} - ${at(start)})` } });
  const ticks = ticksBetween(low, high, 4);
  const tick = (value) => el("small", { style: { left: at(value) } }, number(100 * value));
  const lineAt = (value) => el(value ? "i.tick" : "i.tick.zero", { style: { left: at(value) } });
  const cell = (name) => {
    const row = rows.get(name);
    const style = { color: seriesVariable(row?.place ?? 0) };
    const parts = row && [row.outer && span("outer", row.outer), row.inner && span("inner", row.inner)];
    const dot = row && el("i.dot", { style: { left: at(row.value) } });
    return el("td", el("div.forest", { style }, ticks.map(lineAt), parts, dot));
  };
  return { cell, axis: el("div.forest", { title: figure?.caption }, figure && ticks.map(tick)) };
}
