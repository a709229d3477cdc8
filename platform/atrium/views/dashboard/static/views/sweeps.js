// Sweeps: what was tried, what it reached, and what was pruned.

import { ask } from "../api.js";
import { tableCard } from "../document.js";
import { sectionFigures } from "../document_figures.js";
import { choice, el, empty, field, fill, oneAtATime, select } from "../dom.js";
import { age } from "../format.js";
import { addressOf, get, set } from "../url.js";

const STATES = { finished: "finished", running: "running", stopped: "interrupted" };
const SCORES = [
  ["mean_at_k", "Mean@K"],
  ["pass_at_k", "Pass@K"],
];

const NUM_STRONG = 8;
const LEAST_POINTS = 3;
const WIDE = 8; // positive numbers that differ by more have a logarithmic axis

export async function show(root, context) {
  const bar = el("div.toolbar");
  const body = el("div.stack", { style: { paddingBottom: "40px" } });
  root.append(bar, body);
  let figures = [];
  let sweeps = [];
  let drawn = "";
  let runs = new Map();

  /** What went wrong in runs of the sweep, by its name. */
  function collapses(sweep) {
    const found = sweep.trials.flatMap((trial) =>
      trial.runs.map((name) => [nameOf(trial), runs.get(name)?.collapses ?? []]),
    );
    const rules = [...new Set(found.flatMap(([, own]) => own))];
    return rules.map((rule) => {
      const own = found.filter(([, names]) => names.includes(rule));
      return el(
        "p.alert",
        { role: "alert" },
        `⚠ ${rule} in ${own.length} of ${found.length} runs: ${[...new Set(own.map(([name]) => name))].join(", ")}`,
      );
    });
  }

  function drawBar(sweep) {
    const focused = document.activeElement?.getAttribute?.("aria-label");
    const stages = [...new Set(sweep.trials.map(({ stage }) => stage))];
    const keys = variedKeys(sweep.trials);
    fill(
      bar,
      field(
        "sweep",
        select(
          "Sweep",
          sweeps.map(({ name }) => name),
          sweep.name,
          (value) => {
            set({ sweep: value, stage: null, key: null });
            void redraw();
          },
        ),
      ),
      el(
        "span",
        {
          class: `state ${STATES[sweep.state] ?? "unknown"}`,
        },
        sweep.state,
      ),
      sweep.num_workers > 0 &&
        el("span.muted", `${sweep.num_workers} ${sweep.num_workers === 1 ? "worker" : "workers"}`),
      sweep.updated && el("span.muted", `updated ${age(Date.now() / 1000 - sweep.updated)}`),
      el("span.grow"),
      stages.length > 1 &&
        choice(
          "Stage",
          stages.map((stage) => [stage, stage]),
          stageOf(sweep),
          (value) => {
            set({ stage: value });
            void redraw();
          },
        ),
      keys.length > 1 &&
        field(
          "against",
          select("Setting on the x axis", keys, keyOf(sweep), (value) => {
            set({ key: value });
            void redraw();
          }),
        ),
      choice("Score", SCORES, get("score", "mean_at_k"), (value) => {
        set({ score: value === "mean_at_k" ? null : value });
        void redraw();
      }),
    );
    if (focused) bar.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  const stageOf = (sweep) => {
    const stages = sweep.trials.map(({ stage }) => stage);
    return stages.includes(get("stage")) ? get("stage") : stages[0];
  };
  const keyOf = (sweep) => {
    const keys = variedKeys(sweep.trials.filter(({ stage }) => stage === stageOf(sweep)));
    return keys.includes(get("key")) ? get("key") : (keys.find((key) => key.endsWith("delta")) ?? keys[0]);
  };

  const redraw = oneAtATime(async () => {
    try {
      sweeps = (await ask("sweeps")).sweeps;
      if (!sweeps.length) {
        dispose();
        fill(bar);
        fill(
          body,
          empty(
            "No sweeps yet",
            "Sweeps appear here as soon as they start: ",
            el("code", "atrium sweep delta"),
            ".",
          ),
        );
        return;
      }
      const chosen = sweeps.some(({ name }) => name === get("sweep")) ? get("sweep") : sweeps[0].name;
      const sweep = await ask("sweep", { name: chosen });
      const content = JSON.stringify([sweep, location.search]);
      if (content === drawn) return;
      drawn = content;
      runs = new Map((await context.runs()).runs.map((run) => [run.name, run]));
      drawBar(sweep);
      drawAll(sweep);
    } catch (error) {
      dispose();
      fill(body, empty("This sweep cannot be shown", error.message));
    }
  });

  function drawAll(sweep) {
    dispose();
    const stage = stageOf(sweep);
    const trials = sweep.trials.filter((trial) => trial.stage === stage);
    const score = get("score", "mean_at_k");
    const key = keyOf(sweep);
    fill(
      body,
      heading(sweep),
      collapses(sweep),
      sweep.problems.map((problem) => el("p.problem", problem)),
    );
    const records = [
      scoreFigure(trials, key, score),
      learningFigure(best(trials, sweep), score),
      pairFigure(trials, key, score),
    ];
    body.append(
      sectionFigures(records.filter(Boolean), (figure) => figures.push(figure)) ?? "",
      ...contrastTables(sweep.report.contrasts).map((table) => tableCard(table)),
      trialCard(best(trials, sweep)),
    );
  }

  function dispose() {
    for (const figure of figures) figure.dispose();
    figures = [];
  }

  await redraw();
  return { refresh: redraw, dispose };
}

/** The settings that trials differ in. */
function variedKeys(trials) {
  const keys = [...new Set(trials.flatMap(({ settings }) => Object.keys(settings ?? {})))];
  return keys.filter(
    (key) => new Set(trials.map(({ settings }) => JSON.stringify(settings?.[key]))).size > 1,
  );
}

const scoreOf = (trial) => trial.values?.[0] ?? null;
const isLess = (sweep) => sweep.objectives[0]?.direction === "minimize";
const nameOf = (trial) => (trial.labels?.length ? trial.labels.join(" = ") : `trial ${trial.number}`);
const isComplete = (trial) => trial.state === "complete" && scoreOf(trial) !== null;
const titleOf = (score) => SCORES.find(([name]) => name === score)[1];

/** The complete trials from best to worst, then the others. */
function best(trials, sweep) {
  const sign = isLess(sweep) ? 1 : -1;
  const ranked = trials.filter(isComplete).sort((a, b) => sign * (scoreOf(a) - scoreOf(b)));
  return [...ranked, ...trials.filter((trial) => !isComplete(trial))];
}

function heading(sweep) {
  const objective = sweep.objectives[0];
  const parts = [
    objective && `${objective.direction} ${objective.metric} on validation problems`,
    sweep.sampler?.kind && `sampler ${sweep.sampler.kind}`,
    sweep.stages
      .map(({ name, num_trials: num, num_ended: ended }) => `${name} ${ended ?? 0} of ${num ?? "?"}`)
      .join(", "),
  ].filter(Boolean);
  return el(
    "section.card.pad",
    el("h2", sweep.question || sweep.name),
    el("p.muted", { style: { marginTop: "4px" } }, parts.join("  ·  ")),
    (sweep.report.sentences ?? []).map((sentence) => el("p", { style: { marginTop: "6px" } }, sentence)),
  );
}

// Parts of the records of documents (document/document.py).
const axisOf = (title, more = {}) => ({
  title,
  unit: "",
  scale: "linear",
  low: null,
  high: null,
  labels: [],
  ...more,
});
const scaleOf = (values) =>
  Math.min(...values) > 0 && Math.max(...values) > WIDE * Math.min(...values) ? "log" : "linear";
const shareOf = (score) => axisOf(`${titleOf(score)}, %`, { unit: "share" });
const curve = (name, more) => ({
  name,
  low: [],
  high: [],
  place: 0,
  dash: "",
  is_faint: false,
  is_line: true,
  has_points: true,
  has_whiskers: false,
  ...more,
});

/** A score against a setting; what is not complete is faint. */
function scoreFigure(trials, key, score) {
  const rows = trials
    .filter((trial) => key && trial.scores[score] && trial.settings?.[key] !== undefined)
    .map((trial) => ({ trial, given: trial.settings[key], ...trial.scores[score] }));
  if (!rows.length) return null;
  const isNumeric = rows.every(({ given }) => typeof given === "number");
  const labels = isNumeric ? [] : [...new Set(rows.map(({ given }) => String(given)))];
  for (const row of rows) row.x = isNumeric ? row.given : labels.indexOf(String(row.given));
  rows.sort((a, b) => a.x - b.x);
  const groups = { complete: true, "pruned, failed or running": false };
  const series = Object.entries(groups).map(([name, wanted]) => {
    const own = rows.filter(({ trial }) => isComplete(trial) === wanted);
    return curve(name, {
      x: own.map(({ x }) => x),
      y: own.map(({ mean }) => mean),
      low: own.map(({ mean, low }) => low ?? mean),
      high: own.map(({ mean, high }) => high ?? mean),
      is_line: wanted && isNumeric && variedKeys(trials).length === 1,
      is_faint: !wanted,
      has_whiskers: true,
    });
  });
  const where = trials[0].stage === "final" ? "fresh seeds" : "validation problems";
  return {
    kind: "Lines",
    title: `${titleOf(score)} against ${key}`,
    caption: `Means over seeds with their 95 % intervals, on ${where}.`,
    x: axisOf(key, { labels, scale: isNumeric ? scaleOf(rows.map(({ x }) => x)) : "linear" }),
    y: shareOf(score),
    series: series.filter(({ x }) => x.length),
    marks: [],
  };
}

/** A score of each trial by step, the mean over its seeds; the trials come from best to worst. */
function learningFigure(trials, score) {
  const at = { mean_at_k: 1, pass_at_k: 2 }[score];
  const curves = trials
    .map((trial) => ({ trial, points: meansBySteps(trial.curves, at) }))
    .filter(({ points }) => points.length > 1);
  if (!curves.length) return null;
  return {
    kind: "Lines",
    title: "Learning curves of trials",
    caption: `Means over seeds on validation problems; the best ${NUM_STRONG} are strong, dashed: pruned or failed.`,
    x: axisOf("training step", { unit: "count" }),
    y: shareOf(score),
    series: curves.map(({ trial, points }, place) =>
      curve(nameOf(trial), {
        x: points.map(([step]) => step),
        y: points.map(([, mean]) => mean),
        place: place % NUM_STRONG,
        dash: isComplete(trial) ? "solid" : "dashed",
        is_faint: place >= NUM_STRONG,
      }),
    ),
    marks: [],
  };
}

function meansBySteps(curves, at) {
  const bySteps = new Map();
  for (const point of curves.flatMap((one) => one ?? []))
    if (typeof point[at] === "number") bySteps.set(point[0], [...(bySteps.get(point[0]) ?? []), point[at]]);
  // Where seeds stopped early, a mean over the others would jump.
  const most = Math.max(0, ...[...bySteps.values()].map(({ length }) => length));
  return [...bySteps]
    .filter(([, values]) => values.length === most)
    .sort(([a], [b]) => a - b)
    .map(([step, values]) => [step, values.reduce((a, b) => a + b, 0) / values.length]);
}

/** The complete trials by two settings, coloured by a score. */
function pairFigure(trials, key, score) {
  const numeric = variedKeys(trials).filter((name) =>
    trials.every(({ settings }) => !settings || typeof settings[name] === "number"),
  );
  const x = numeric.includes(key) ? key : numeric[0];
  const y = numeric.find((name) => name !== x);
  const shown = trials.filter((trial) => isComplete(trial) && trial.scores[score]);
  if (!y || shown.length < LEAST_POINTS) return null;
  const points = shown.map((trial) => ({
    name: nameOf(trial),
    x: trial.settings[x],
    y: trial.settings[y],
    place: 0,
    color: trial.scores[score].mean,
  }));
  return {
    kind: "Plane",
    title: "Two settings together",
    caption: "Complete trials; the stronger the colour, the higher the score.",
    x: axisOf(x, { scale: scaleOf(points.map((point) => point.x)) }),
    y: axisOf(y, { scale: scaleOf(points.map((point) => point.y)) }),
    color: shareOf(score),
    points,
    curves: [],
    marks: [],
  };
}

const columnsOf = (titles) => titles.map((title) => ({ title, is_prose: false }));

/** Planned contrasts as their report has them, a table for each outcome. */
function contrastTables(contrasts) {
  return Object.entries(contrasts?.outcomes ?? {}).map(([name, words]) => ({
    key: `contrasts-${name}`,
    title: `${name}: ${words}`,
    columns: columnsOf(contrasts.columns),
    rows: contrasts.rows
      .filter(({ outcome }) => outcome === name)
      .map(({ cells }) => ({ cells, place: null })),
  }));
}

const estimate = (value, interval, unit) => ({ kind: "Estimate", value, interval, unit, is_signed: false });
const settingCell = (value) =>
  typeof value === "number" ? { kind: "Value", value, unit: "" } : value === undefined ? null : String(value);

/** The trials as a table, with links to the curves of their runs. */
function trialCard(trials) {
  const keys = variedKeys(trials);
  const score = (found) =>
    found && estimate(found.mean, found.low === null ? null : [found.low, found.high], "share");
  const rows = trials.map((trial, at) => [
    nameOf(trial),
    isComplete(trial) ? at + 1 : null,
    trial.reason ? `${trial.state}: ${trial.reason}` : trial.state,
    ...keys.map((key) => settingCell(trial.settings?.[key])),
    trial.window && estimate(null, [trial.window[0], trial.window[1] ?? Infinity], "ratio"),
    score(trial.scores.mean_at_k),
    score(trial.scores.pass_at_k),
    trial.num_seeds,
  ]);
  const table = {
    key: "trials",
    title: "Trials",
    columns: columnsOf([
      "Trial",
      "Rank",
      "State",
      ...keys,
      "Window [l, u]",
      "Mean@K, %",
      "Pass@K, %",
      "Seeds",
    ]),
    rows: rows.map((cells) => ({ cells, place: null })),
  };
  table.columns[2].is_prose = true;
  return tableCard(table, {
    titles: [""],
    cells: (_, at) => {
      const { runs } = trials[at];
      return el(
        "td",
        runs.length > 0 && el("a", { href: addressOf("curves", { run: runs, q: null }) }, "curves"),
      );
    },
  });
}
