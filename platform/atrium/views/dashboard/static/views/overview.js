// The first page: which method is better in the latest experiment, by how much, and how sure that is.

import { ask } from "../api.js";
import { alertLines, confoundsBox, foldedList, notesOf, tableCard } from "../document.js";
import { drawRecord } from "../document_figures.js";
import { button, el, empty, field, fill, oneAtATime, select } from "../dom.js";
import { Figure } from "../figure.js";
import { duration, number, percent, plural } from "../format.js";
import { reportButtons } from "../report.js";
import { addressOf, get, set } from "../url.js";
import { curveOption, meanTable, titleOf } from "./curves.js";
import { runDrawer, runLink } from "./run_drawer.js";

const REWARD = "rollout/reward";

export async function show(root, context) {
  const bar = el("div.toolbar");
  const said = el("section.card.pad.answer", { "aria-label": "Answer", "aria-live": "polite" });
  const rows = el("div");
  const forest = new Figure({ title: "Differences", height: 120 });
  const curves = [REWARD, "score"].map((key) => new Figure({ title: key, linked: "overview" }));
  const curveGrid = el(
    "div.figures.two",
    curves.map(({ element }) => element),
  );
  const body = el(
    "div.stack",
    { style: { paddingBottom: "40px" } },
    el("div.answers", said, forest.element),
    rows,
    curveGrid,
  );
  root.append(bar, body);
  const opened = new Set();
  const drawer = runDrawer(root, () => refresh());
  let drawn = "";
  let known = "";

  function pin(baseline) {
    set({ base: baseline });
    void refresh();
  }

  const refresh = oneAtATime(async () => {
    const answer = await ask("overview", {
      experiment: get("exp") === "*" ? null : get("exp"),
      base: get("base"),
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
      drawn = "";
      return;
    }
    if (!body.contains(rows)) fill(body, el("div.answers", said, forest.element), rows, curveGrid);
    drawBar(answer);
    drawAnswer(answer);
    drawForest(answer);
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
    const arms = answer.rows.filter((row) => row.runs.some((run) => run.is_counted)).map(({ name }) => name);
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

  function drawAnswer({ document, experiment, reason, rows: methods }) {
    const verdicts = methods.map(({ verdict }) => verdict).filter(Boolean);
    const { warnings, muted } = notesOf(document);
    fill(
      said,
      confoundsBox(document),
      el("p.muted", document.subtitle ? `${experiment}: ${document.subtitle}` : experiment),
      verdicts.map(({ kind, sign, label, lead, words }) =>
        el(
          "div",
          { class: `lead ${kind}` },
          el("span.sign", { role: "img", "aria-label": label }, sign),
          el("div", el("p", lead), el("p.sub", words)),
        ),
      ),
      document.answer.filter(({ key }) => !key.startsWith("verdict/")).map(({ text }) => el("p.sub", text)),
      !verdicts.length && el("p.lead.none", reason),
      alertLines(document),
      foldedList(warnings.length === 1 ? "1 note" : `${warnings.length} notes`, warnings),
      foldedList("How to read this", muted),
    );
  }

  function drawForest({ document, experiment, baseline }) {
    const [record] = document.sections[0].figures;
    forest.element.hidden = !record;
    if (!record) return;
    forest.place.style.height = `${76 + 34 * record.rows.length}px`;
    forest.resize();
    const content = JSON.stringify(record);
    if (content === drawn) return;
    drawn = content;
    drawRecord(forest, record);
    forest.savedFrom("figure/comparison", { exp: experiment, base: baseline, figure: record.key });
  }

  function drawRows(answer) {
    const focused = document.activeElement?.getAttribute?.("data-toggle");
    const methods = answer.rows;
    fill(
      rows,
      tableCard(answer.document.sections[0].tables[0], {
        titles: ["Verdict", "Runs"],
        cells: (_, at) => [verdictCell(methods[at], answer), runsCell(methods[at], answer)],
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
      { colspan: "9", class: "muted" },
      "Other runs: single runs with other settings than their method's other runs",
    );

  function verdictCell({ name, verdict, runs }, { baseline }) {
    if (name === baseline) return el("td", "baseline");
    const isCounted = runs.some((run) => run.is_counted);
    return el(
      "td",
      verdict
        ? el("span.kind", { class: verdict.kind }, `${verdict.sign} ${verdict.label}`)
        : el("span.muted", baseline ? "not counted" : "–"),
      isCounted &&
        el(
          "div",
          button("make it the baseline", { class: "link sub" }, () => pin(name)),
        ),
    );
  }

  function runsCell({ name, runs }, answer) {
    const isOpen = opened.has(name);
    const toggle = () => {
      opened[isOpen ? "delete" : "add"](name);
      drawRows(answer);
    };
    const attributes = { class: "link", "data-toggle": name, "aria-expanded": String(isOpen) };
    return el("td", button(`${isOpen ? "▾" : "▸"} ${statesOf(runs)}`, attributes, toggle));
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
    return el("tr.inside", el("td", { colspan: "9" }, el("table", el("tbody", runs.map(line)))));
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
        title: panel.name === REWARD ? "Training reward" : titleOf(panel.name),
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
      for (const figure of [forest, ...curves]) figure.dispose();
    },
  };
}

/** `2 finished, 1 running (4/6, 12 s left)`. */
function statesOf(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  const left = Math.max(...runs.map((run) => run.left_s ?? 0));
  return (
    [...counts].map(([state, num]) => `${num} ${state}`).join(", ") + (left ? `, ${duration(left)} left` : "")
  );
}
