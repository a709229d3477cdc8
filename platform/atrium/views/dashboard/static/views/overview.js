// The first page: which method is better in the latest experiment, by how much, and how sure that is.

import { ask } from "../api.js";
import { alertLines, confoundsBox, foldedList, notesOf, tableCard } from "../document.js";
import { button, el, empty, field, fill, oneAtATime, select } from "../dom.js";
import { Figure } from "../figure.js";
import { duration, number, percent, plural, valueText } from "../format.js";
import { reportButtons } from "../report.js";
import { addressOf, get, set } from "../url.js";
import { curveOption, meanTable, titleOf } from "./curves.js";
import { runDrawer, runLink } from "./run_drawer.js";

const REWARD = "rollout/reward";

export async function show(root, context) {
  const bar = el("div.toolbar");
  const said = el("section.card.pad.answer", { "aria-label": "Answer", "aria-live": "polite" });
  const rows = el("div");
  const curves = [REWARD, "score"].map((key) => new Figure({ title: key, linked: "overview" }));
  const curveGrid = el(
    "div.figures.two",
    curves.map(({ element }) => element),
  );
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
      fill(
        body,
        table.problem && el("p.problem.bad", table.problem),
        empty(
          table.runs.length ? "No experiment of methods here" : "No experiment yet",
          table.runs.length > 0 && "Sweeps and evaluations have tabs of their own. ",
          "Methods that train into ",
          el("code", table.runs_dir),
          " are compared here as soon as they start: ",
          el("code", "atrium train --multirun algorithm=atr,grpo seed=0,1,2"),
          ".",
        ),
      );
      return;
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
    const label = (one) =>
      `${one.name} · ${plural(one.num_methods, "method")}, ${plural(one.num_runs, "run")}${one.num_running ? `, ${one.num_running} training` : ""}`;
    const experiments = answer.experiments.map((one) => [one.name, label(one)]);
    const arms = answer.rows.filter((row) => row.is_counted).map(({ name }) => name);
    const elsewhere = answer.experiments.find((one) => one.num_running && one.name !== answer.experiment);
    const training = elsewhere && `${elsewhere.num_running} training in ${elsewhere.name}`;
    fill(
      bar,
      field("experiment", select("Experiment", experiments, answer.experiment, choose)),
      answer.baseline && field("baseline", select("Baseline", arms, answer.baseline, pin)),
      elsewhere && button(training, { class: "link" }, () => choose(elsewhere.name)),
      el("span.grow"),
      el("a", { href: addressOf("compare", here(answer)) }, "Whole comparison"),
      el("a", { href: addressOf("curves", here(answer)) }, "All curves"),
      answer.baseline && reportButtons({ exp: answer.experiment, base: answer.baseline }),
    );
  }

  function drawAnswer({ document, experiment, reason }) {
    const { warnings, muted } = notesOf(document);
    const [first, ...others] = document.answer;
    fill(
      said,
      el("p.muted", document.subtitle ? `${experiment}: ${document.subtitle}` : experiment),
      el("h2.lead", first?.text ?? reason),
      others.map(({ text }) => el("p", text)),
      confoundsBox(document),
      alertLines(document),
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
          methods[at].is_other && !methods[at - 1]?.is_other && el("tr.group", otherRuns()),
          tr,
          opened.has(methods[at].name) && runRow(methods[at]),
        ],
      }),
    );
    if (focused) rows.querySelector(`[data-toggle="${CSS.escape(focused)}"]`)?.focus();
  }

  const otherRuns = () =>
    el(
      "td",
      { colspan: "10", class: "muted" },
      "Other runs: single runs with other settings than their method's other runs",
    );

  /** The way from a difference to the problems that make it. */
  const whyCell = (answer, name, [, , , difference]) =>
    el(
      "td",
      difference !== null &&
        el("a", { href: addressOf("compare", { ...here(answer), cand: name }) }, "problems"),
    );

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
    const line = (run) =>
      el(
        "tr",
        el("td", runLink(run.name, {}, drawer.open)),
        el("td", `seed ${run.seed ?? "–"}`),
        el(
          "td",
          el("span.state", { class: run.state }, run.state),
          ` ${number(run.step)}/${number(run.num_steps)}`,
          run.left_s && el("span.muted", `, ${duration(run.left_s)} left`),
        ),
        el("td.num", run.score === null ? "–" : `${percent(run.score)} %`),
        el("td.words.muted", run.error ?? (run.is_counted ? "" : "not counted")),
      );
    return el("tr.inside", el("td", { colspan: "10" }, el("table", el("tbody", runs.map(line)))));
  }

  /** The experiment and the baseline for a link: no pick and no filter of other views. */
  const here = ({ experiment, baseline }) => ({ exp: experiment, base: baseline, run: null, q: null });

  async function drawCurves(answer) {
    const scores =
      answer.benchmark === "macro average"
        ? null
        : answer.benchmark && `evaluation/${answer.benchmark}/mean_at_k`;
    const hide = answer.rows.filter((row) => row.is_other).map(({ name }) => name);
    const found = await ask("curves", {
      exp: answer.experiment,
      metric: [REWARD, scores],
      group: "method",
      points: 300,
    });
    for (const [at, figure] of curves.entries()) {
      const panel = found.panels[at];
      figure.element.hidden = !panel?.series.length;
      if (!panel?.series.length) continue;
      const series = panel.series.filter(({ label }) => !hide.includes(label));
      figure.savedFrom("figure/curves", {
        exp: answer.experiment,
        metric: panel.name,
        group: "method",
        hide,
      });
      figure.draw({
        title: titleOf(panel),
        subtitle: "mean over seeds by step; band: least to greatest seed",
        option: (colours) =>
          curveOption(series, { axis: "step", log: false, isShare: panel.is_share, colours }),
        table: () => meanTable(series),
      });
    }
  }

  await refresh();
  drawer.reopen();
  return {
    refresh,
    dispose: () => {
      drawer.dispose();
      for (const figure of curves) figure.dispose();
    },
  };
}

/** Differences with their intervals, a cell for each method, and their common axis. */
function forestOf(figure) {
  const rows = new Map((figure?.rows ?? []).map((row) => [row.name, row]));
  const ends = [...rows.values()].flatMap(({ value, outer }) => [value, ...(outer ?? [])]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const at = (value) => `${4 + (92 * (value - low)) / (high - low || 1)}%`;
  const span = (kind, [start, end]) =>
    el(`i.${kind}`, { style: { left: at(start), width: `calc(${at(end)} - ${at(start)})` } });
  const tick = (value) => el("small", { style: { left: at(value) } }, valueText(value, "points", true));
  const shownTicks = [low, 0, high].filter((value, place) => place === 1 || value !== 0);
  const cell = (name) => {
    const row = rows.get(name);
    const style = { color: `var(--series-${(row?.place ?? 0) % 8})` };
    const parts = row && [row.outer && span("outer", row.outer), row.inner && span("inner", row.inner)];
    const dot = row && el("i.dot", { style: { left: at(row.value) } });
    return el("td", el("div.forest", { style }, el("i.zero", { style: { left: at(0) } }), parts, dot));
  };
  return { cell, axis: el("div.forest", { title: figure?.caption }, figure && shownTicks.map(tick)) };
}
