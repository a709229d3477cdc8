// Sweeps: what was tried, what it reached, which settings mattered, and what was pruned.

import { ask } from "../api.js";
import { choice, el, empty, field, fill, oneAtATime, select } from "../dom.js";
import { axis, Figure, tip } from "../figure.js";
import { age, number, percent } from "../format.js";
import { addressOf, get, set } from "../url.js";

const STATES = {
  complete: "finished",
  running: "running",
  waiting: "unknown",
  pruned: "pruned",
  failed: "failed",
};
const SCORES = [
  ["mean_at_k", "Mean@K"],
  ["pass_at_k", "Pass@K"],
];

export async function show(root, context) {
  const bar = el("div", { class: "toolbar" });
  const body = el("div", { class: "stack", style: { paddingBottom: "40px" } });
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
        "p",
        { class: "alert", role: "alert" },
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
          class: `state ${STATES[sweep.state] ?? { finished: "finished", running: "running", stopped: "interrupted" }[sweep.state] ?? "unknown"}`,
        },
        sweep.state,
      ),
      sweep.num_workers > 0 &&
        el(
          "span",
          { class: "muted" },
          `${sweep.num_workers} ${sweep.num_workers === 1 ? "worker" : "workers"}`,
        ),
      sweep.updated && el("span", { class: "muted" }, `updated ${age(Date.now() / 1000 - sweep.updated)}`),
      el("span", { class: "grow" }),
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
            el("code", {}, "atrium sweep delta"),
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
      sweep.problems.map((problem) => el("p", { class: "problem" }, problem)),
    );
    const grid = el("div", { class: "figures two" });
    body.append(grid);
    const place = (title, draw, more = {}) => {
      const figure = new Figure({ title, height: 290, ...more });
      figures.push(figure);
      grid.append(figure.element);
      draw(figure);
    };
    place("Optimisation history", (figure) => drawHistory(figure, trials, sweep));
    place(`${SCORES.find(([name]) => name === score)[1]} against ${key ?? "settings"}`, (figure) =>
      drawCurve(figure, trials, key, score),
    );
    place("Learning curves of trials", (figure) => drawLearning(figure, trials, sweep, score));
    const numeric = variedKeys(trials).filter((name) =>
      trials.every(({ settings }) => typeof settings?.[name] === "number" || !settings),
    );
    if (numeric.length > 1)
      place("Two settings together", (figure) => drawPair(figure, trials, numeric, key, score));
    place("Parallel coordinates", (figure) => drawParallel(figure, trials, sweep), {
      wide: true,
      height: 320,
    });
    if (sweep.report.importances)
      place(
        "Parameter importance",
        (figure) => drawImportance(figure, sweep.report.importances, sweep.objectives[0]?.metric),
        { wide: true, height: 200 },
      );
    if (sweep.report.contrasts) body.append(contrastTables(sweep.report.contrasts));
    body.append(trialTable(trials, sweep));
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
const shownSetting = (value) =>
  typeof value === "number" ? number(value) : value === undefined ? "" : String(value);

function best(trials, sweep) {
  const known = trials.filter((trial) => trial.state === "complete" && scoreOf(trial) !== null);
  return known.sort((a, b) => (scoreOf(b) - scoreOf(a)) * (isLess(sweep) ? -1 : 1));
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
    "section",
    { class: "card pad" },
    el("h2", {}, sweep.question || sweep.name),
    el("p", { class: "muted", style: { marginTop: "4px" } }, parts.join("  ·  ")),
    (sweep.report.sentences ?? []).map((sentence) => el("p", { style: { marginTop: "6px" } }, sentence)),
  );
}

function drawHistory(figure, trials, sweep) {
  const lastOf = (trial) =>
    scoreOf(trial) ??
    trial.curves
      .map((curve) => curve?.at(-1)?.[1])
      .filter((value) => value !== undefined && value !== null)
      .at(-1) ??
    null;
  const groups = [
    ["complete", "complete", "circle"],
    ["pruned", "pruned, at its last evaluation", "triangle"],
    ["failed", "failed", "diamond"],
    ["running", "running", "emptyCircle"],
  ]
    .map(([state, label, symbol]) => [
      label,
      symbol,
      trials.filter((trial) => trial.state === state && lastOf(trial) !== null),
    ])
    .filter(([, , members]) => members.length);
  const subtitle = `${sweep.objectives[0]?.metric ?? "objective"} by trial, %; the line is the best so far`;
  if (!groups.length) {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
    figure.drawNothing("No trial has a value yet.");
    return;
  }
  let record = null;
  const front = [...trials]
    .sort((a, b) => a.number - b.number)
    .filter((trial) => trial.state === "complete" && scoreOf(trial) !== null)
    .map((trial) => {
      const value = scoreOf(trial);
      record = record === null ? value : isLess(sweep) ? Math.min(record, value) : Math.max(record, value);
      return [trial.number, 100 * record];
    });
  figure.draw({
    subtitle,
    option: (colours) => {
      const colour = [colours.series[0], colours.muted, colours.bad, colours.series[1]];
      return {
        legend: {
          top: 0,
          left: 4,
          textStyle: { color: colours.muted, fontSize: 11 },
          itemWidth: 12,
          itemHeight: 10,
        },
        grid: { left: 8, right: 18, top: 32, bottom: 24, containLabel: true },
        xAxis: axis(colours, {
          name: "trial",
          nameLocation: "middle",
          nameGap: 26,
          scale: false,
          minInterval: 1,
          splitLine: { show: false },
        }),
        yAxis: axis(colours),
        tooltip: { trigger: "item", formatter: ({ data }) => (data.trial ? trialTip(data.trial) : "") },
        series: [
          {
            type: "line",
            name: "best so far",
            step: "end",
            data: front,
            symbol: "none",
            lineStyle: { color: colours.good, width: 2 },
            itemStyle: { color: colours.good },
            tooltip: { show: false },
          },
          ...groups.map(([label, symbol, members], at) => ({
            type: "scatter",
            name: label,
            symbol,
            symbolSize: 9,
            itemStyle: {
              color:
                { complete: colour[0], failed: colour[2], running: colour[3] }[members[0].state] ?? colour[1],
            },
            z: at + 2,
            data: members.map((trial) => ({ value: [trial.number, 100 * lastOf(trial)], trial })),
          })),
        ],
      };
    },
    table: () => ({
      columns: ["trial", "state", "value", "last_evaluation", "reason"],
      rows: trials.map((trial) => [
        trial.number,
        trial.state,
        scoreOf(trial),
        lastOf(trial),
        trial.reason ?? "",
      ]),
    }),
  });
}

function trialTip(trial) {
  const mean = trial.scores.mean_at_k;
  return tip(`trial ${trial.number}, ${trial.state}`, [
    ...Object.entries(trial.settings ?? {}).map(([key, value]) => [null, key, shownSetting(value)]),
    [
      null,
      "Mean@K",
      mean
        ? `${percent(mean.mean)}${mean.low === null ? "" : ` [${percent(mean.low)}, ${percent(mean.high)}]`}`
        : "–",
    ],
    [null, "seeds", String(trial.num_seeds)],
    ...(trial.reason ? [[null, "why", trial.reason]] : []),
  ]);
}

function drawCurve(figure, trials, key, score) {
  const subtitle = `%, mean over seeds with its 95 % interval; ${trials[0]?.stage === "final" ? "fresh seeds" : "validation problems"}; pruned trials are hollow`;
  const nothing = (reason) => {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
    figure.drawNothing(reason);
  };
  if (!key) {
    nothing("The trials of this stage do not differ in a setting.");
    return;
  }
  const rows = trials
    .filter((trial) => trial.scores[score] && trial.settings?.[key] !== undefined)
    .map((trial) => ({ trial, x: trial.settings[key], ...trial.scores[score] }));
  if (!rows.length) {
    nothing("No trial has been evaluated yet.");
    return;
  }
  const numeric = rows.every(({ x }) => typeof x === "number");
  rows.sort((a, b) => (numeric ? a.x - b.x : String(a.x).localeCompare(String(b.x))));
  const isLog = numeric && rows.every(({ x }) => x > 0) && rows.at(-1).x / rows[0].x > 8;
  const isAlone = variedKeys(trials).length === 1;
  figure.draw({
    subtitle,
    option: (colours) => ({
      grid: { left: 8, right: 20, top: 14, bottom: 26, containLabel: true },
      xAxis: numeric
        ? axis(colours, {
            type: isLog ? "log" : "value",
            name: key,
            ...(isLog ? { min: rows[0].x / 1.4, max: rows.at(-1).x * 1.4 } : { boundaryGap: ["6%", "6%"] }),
            nameLocation: "middle",
            nameGap: 26,
            splitLine: { show: false },
          })
        : {
            type: "category",
            data: [...new Set(rows.map(({ x }) => shownSetting(x)))],
            axisLabel: { color: colours.muted },
            axisTick: { show: false },
          },
      yAxis: axis(colours),
      tooltip: { trigger: "item", formatter: ({ dataIndex }) => trialTip(rows[dataIndex].trial) },
      series: [
        ...(isAlone && numeric
          ? [
              {
                type: "line",
                data: rows
                  .filter(({ trial }) => trial.state === "complete")
                  .map(({ x, mean }) => [x, 100 * mean]),
                symbol: "none",
                lineStyle: { color: colours.series[0], width: 1.6 },
                silent: true,
              },
            ]
          : []),
        {
          type: "custom",
          z: 3,
          clip: true,
          encode: { x: 0, y: [1, 2, 3] },
          data: rows.map(({ x, mean, low, high }) => [
            numeric ? x : shownSetting(x),
            100 * mean,
            100 * (low ?? mean),
            100 * (high ?? mean),
          ]),
          renderItem: (parameters, api) => {
            const [x, y] = api.coord([api.value(0), api.value(1)]);
            const [low, high] = [
              api.coord([api.value(0), api.value(2)])[1],
              api.coord([api.value(0), api.value(3)])[1],
            ];
            const isPruned = rows[parameters.dataIndex].trial.state !== "complete";
            const stroke = isPruned ? colours.muted : colours.series[0];
            const line = (x1, x2, y1, y2) => ({
              type: "line",
              shape: { x1, x2, y1, y2 },
              style: { stroke, lineWidth: 1.4, opacity: 0.75 },
            });
            return {
              type: "group",
              children: [
                line(x, x, low, high),
                line(x - 4, x + 4, low, low),
                line(x - 4, x + 4, high, high),
                {
                  type: "circle",
                  shape: { cx: x, cy: y, r: 5 },
                  style: { fill: isPruned ? colours.surface : stroke, stroke, lineWidth: 1.6 },
                },
              ],
            };
          },
        },
      ],
    }),
    table: () => ({
      columns: [key, score, "low", "high", "num_seeds", "state", "trial"],
      rows: rows.map(({ trial, x, mean, low, high }) => [
        x,
        mean,
        low ?? "",
        high ?? "",
        trial.num_seeds,
        trial.state,
        trial.number,
      ]),
    }),
  });
}

function drawParallel(figure, trials, sweep) {
  const keys = variedKeys(trials);
  const known = trials.filter((trial) => trial.settings);
  const subtitle =
    "one line per trial; the stronger its colour, the better; dashed and grey: pruned or failed; drag along an axis to select";
  if (!keys.length || !known.length) {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
    figure.drawNothing("The trials of this stage do not differ in a setting.");
    return;
  }
  const values = known.map(scoreOf).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const numeric = (key) => known.every(({ settings }) => typeof settings[key] === "number");
  const rows = known.map((trial) => [
    ...keys.map((key) => (numeric(key) ? trial.settings[key] : shownSetting(trial.settings[key]))),
    scoreOf(trial) === null ? null : 100 * scoreOf(trial),
  ]);
  figure.draw({
    subtitle,
    option: (colours) => ({
      grid: undefined,
      parallel: {
        left: 100,
        right: 100,
        top: 44,
        bottom: 20,
        parallelAxisDefault: {
          nameLocation: "end",
          nameTruncate: { maxWidth: 190, ellipsis: "…" },
          nameTextStyle: { color: colours.text, fontSize: 11.5 },
          axisLine: { lineStyle: { color: colours.axis } },
          axisTick: { show: false },
          axisLabel: {
            color: colours.muted,
            fontSize: 11,
            backgroundColor: colours.surface,
            padding: [1, 3],
            formatter: (value) => (typeof value === "number" ? number(value) : value),
          },
          z: 5,
        },
      },
      parallelAxis: [
        ...keys.map((key, dim) =>
          numeric(key)
            ? {
                dim,
                name: brief(key),
                type:
                  rows.every((row) => row[dim] > 0) &&
                  Math.max(...rows.map((row) => row[dim])) / Math.min(...rows.map((row) => row[dim])) > 8
                    ? "log"
                    : "value",
                scale: true,
              }
            : { dim, name: brief(key), type: "category", data: [...new Set(rows.map((row) => row[dim]))] },
        ),
        { dim: keys.length, name: sweep.objectives[0]?.metric ?? "value", scale: true },
      ],
      tooltip: {
        trigger: "item",
        formatter: ({ dataIndex, seriesIndex }) =>
          trialTip([known.filter(isPlain), known.filter((trial) => !isPlain(trial))][seriesIndex][dataIndex]),
      },
      series: [isPlain, (trial) => !isPlain(trial)].map((wanted, at) => ({
        type: "parallel",
        smooth: 0.15,
        lineStyle: {
          width: at ? 1 : 1.8,
          opacity: at ? 0.5 : 0.9,
          type: at ? "dashed" : "solid",
          color: colours.zero,
        },
        data: known
          .map((trial, i) => [trial, rows[i]])
          .filter(([trial]) => wanted(trial))
          .map(([trial, row]) => ({
            value: row.map((value) => value ?? "-"),
            lineStyle: at
              ? {}
              : { color: mixed(colours, (scoreOf(trial) - low) / (high - low || 1), isLess(sweep)) },
          })),
      })),
    }),
    table: () => ({
      columns: ["trial", "state", ...keys, "value"],
      rows: known.map((trial) => [
        trial.number,
        trial.state,
        ...keys.map((key) => trial.settings[key] ?? ""),
        scoreOf(trial),
      ]),
    }),
  });
}

/** The last two parts of a setting's name, which tell it apart and fit. */
const brief = (key) => key.split(".").slice(-2).join(".");

/** A score of each trial by step, the mean over its seeds; coloured by what the trial reached. */
function drawLearning(figure, trials, sweep, score) {
  const at = { mean_at_k: 1, pass_at_k: 2 }[score];
  const curves = trials
    .map((trial) => {
      const bySteps = new Map();
      for (const curve of trial.curves ?? [])
        for (const point of curve ?? [])
          if (typeof point[at] === "number")
            bySteps.set(point[0], [...(bySteps.get(point[0]) ?? []), point[at]]);
      // Where seeds stopped early, a mean over the others would jump.
      const most = Math.max(0, ...[...bySteps.values()].map(({ length }) => length));
      return {
        trial,
        points: [...bySteps]
          .filter(([, values]) => values.length === most)
          .sort(([a], [b]) => a - b)
          .map(([step, values]) => [step, (100 * values.reduce((a, b) => a + b, 0)) / values.length]),
      };
    })
    .filter(({ points }) => points.length > 1);
  const subtitle = `${SCORES.find(([name]) => name === score)[1]} on validation problems, %, mean over seeds; the stronger its colour, the better it ended; dashed: pruned or failed`;
  if (!curves.length) {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
    figure.drawNothing("No trial has been evaluated twice yet.");
    return;
  }
  const values = curves.map(({ trial }) => scoreOf(trial)).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  figure.draw({
    subtitle,
    option: (colours) => ({
      grid: { left: 8, right: 18, top: 14, bottom: 24, containLabel: true },
      xAxis: axis(colours, {
        name: "training step",
        nameLocation: "middle",
        nameGap: 26,
        scale: false,
        minInterval: 1,
        splitLine: { show: false },
      }),
      yAxis: axis(colours),
      tooltip: {
        trigger: "item",
        formatter: ({ seriesIndex, value }) =>
          tip(`step ${number(value[0])}`, [
            [null, nameOf(curves[seriesIndex].trial), `${number(value[1])} %`],
          ]),
      },
      series: curves.map(({ trial, points }) => {
        const color =
          isPlain(trial) && scoreOf(trial) !== null
            ? mixed(colours, (scoreOf(trial) - low) / (high - low || 1), isLess(sweep))
            : colours.zero;
        return {
          type: "line",
          name: nameOf(trial),
          data: points,
          symbolSize: 5,
          lineStyle: { width: 1.7, color, type: isPlain(trial) ? "solid" : "dashed" },
          itemStyle: { color },
          emphasis: { focus: "series" },
        };
      }),
    }),
    table: () => ({
      columns: ["trial", "step", score],
      rows: curves.flatMap(({ trial, points }) =>
        points.map(([step, value]) => [trial.number, step, value / 100]),
      ),
    }),
  });
}

const CELLS = 28;
const LEVELS = 8;

/** A score over two settings: a heat map where trials fill a grid, else contours between them. */
function drawPair(figure, trials, keys, key, score) {
  const [kx, ky] = [
    key && keys.includes(key) ? key : keys[0],
    keys.find((other) => other !== (keys.includes(key) ? key : keys[0])),
  ];
  const known = trials
    .filter(
      (trial) =>
        trial.state === "complete" &&
        trial.scores[score] &&
        trial.settings?.[kx] !== undefined &&
        trial.settings?.[ky] !== undefined,
    )
    .map((trial) => ({
      trial,
      x: trial.settings[kx],
      y: trial.settings[ky],
      value: 100 * trial.scores[score].mean,
    }));
  const title = SCORES.find(([name]) => name === score)[1];
  if (known.length < 3) {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }) });
    figure.drawNothing("Three complete trials are needed.");
    return;
  }
  const sorted = (name) => [...new Set(known.map((one) => one[name]))].sort((a, b) => a - b);
  const [xs, ys] = [sorted("x"), sorted("y")];
  const isGrid = new Set(known.map(({ x, y }) => `${x} ${y}`)).size >= 0.6 * xs.length * ys.length;
  const values = known.map(({ value }) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const more = (colours) => ({
    visualMap: {
      type: isGrid ? "continuous" : "piecewise",
      splitNumber: isGrid ? undefined : LEVELS,
      min: low,
      max: high === low ? low + 1 : high,
      precision: 1,
      dimension: 2,
      seriesIndex: 0,
      orient: "vertical",
      right: 0,
      top: "middle",
      itemHeight: isGrid ? 120 : 12,
      itemWidth: 10,
      textStyle: { color: colours.muted, fontSize: 11 },
      inRange: { color: [colours.line, colours.series[0]] },
    },
    grid: { left: 8, right: 96, top: 28, bottom: 26, containLabel: true },
  });
  const table = () => ({
    columns: [kx, ky, score, "trial"],
    rows: known.map(({ trial, x, y, value }) => [x, y, value / 100, trial.number]),
  });
  if (isGrid) {
    const cells = xs.flatMap((x, i) =>
      ys.flatMap((y, j) => {
        const own = known.filter((one) => one.x === x && one.y === y).map(({ value }) => value);
        return own.length ? [[i, j, own.reduce((a, b) => a + b, 0) / own.length]] : [];
      }),
    );
    figure.draw({
      subtitle: `heat map of ${title}, %, mean over seeds and over other settings; the stronger the colour, the higher`,
      table,
      option: (colours) => ({
        ...more(colours),
        xAxis: {
          type: "category",
          data: xs.map(number),
          name: kx,
          nameLocation: "middle",
          nameGap: 26,
          nameTextStyle: { color: colours.muted, fontSize: 11 },
          axisLabel: { color: colours.muted },
          axisTick: { show: false },
        },
        yAxis: {
          type: "category",
          data: ys.map(number),
          name: brief(ky),
          nameLocation: "end",
          nameGap: 8,
          nameTextStyle: { color: colours.muted, fontSize: 11, align: "left" },
          axisLabel: { color: colours.muted },
          axisTick: { show: false },
        },
        tooltip: {
          trigger: "item",
          formatter: ({ value }) =>
            tip(`${number(value[2])} %`, [
              [null, kx, number(xs[value[0]])],
              [null, ky, number(ys[value[1]])],
            ]),
        },
        series: [
          {
            type: "heatmap",
            data: cells,
            progressive: 0,
            label: {
              show: cells.length <= 60,
              color: colours.text,
              fontSize: 11,
              formatter: ({ value }) => number(value[2]),
              textBorderColor: colours.surface,
              textBorderWidth: 2,
            },
            itemStyle: { borderColor: colours.surface, borderWidth: 1 },
          },
        ],
      }),
    });
    return;
  }
  const isLog = (list) => list[0] > 0 && list.at(-1) / list[0] > 8;
  const scaled = (list) => {
    const f = isLog(list) ? Math.log : (value) => value;
    const [a, b] = [f(list[0]), f(list.at(-1))];
    return (value) => (f(value) - a) / (b - a || 1);
  };
  const [sx, sy] = [scaled(xs), scaled(ys)];
  const at = (list, part) =>
    isLog(list) ? list[0] * (list.at(-1) / list[0]) ** part : list[0] + part * (list.at(-1) - list[0]);
  // Between trials: each counts by the inverse square of its distance.
  const surface = Array.from({ length: CELLS * CELLS }, (_, i) => {
    const [x, y] = [((i % CELLS) + 0.5) / CELLS, (Math.floor(i / CELLS) + 0.5) / CELLS];
    const weights = known.map((one) => 1 / ((sx(one.x) - x) ** 2 + (sy(one.y) - y) ** 2 + 1e-4));
    const sum = weights.reduce((a, b) => a + b, 0);
    return [
      i % CELLS,
      Math.floor(i / CELLS),
      weights.reduce((total, weight, j) => total + weight * known[j].value, 0) / sum,
    ];
  });
  const labels = (list) => Array.from({ length: CELLS }, (_, i) => number(at(list, (i + 0.5) / CELLS)));
  figure.draw({
    subtitle: `contours of ${title}, %, between trials (dots), each counted by the inverse square of its distance; the stronger the colour, the higher`,
    table,
    option: (colours) => ({
      ...more(colours),
      xAxis: {
        type: "category",
        data: labels(xs),
        name: kx,
        nameLocation: "middle",
        nameGap: 26,
        nameTextStyle: { color: colours.muted, fontSize: 11 },
        axisLabel: { color: colours.muted, hideOverlap: true },
        axisTick: { show: false },
      },
      yAxis: {
        type: "category",
        data: labels(ys),
        name: brief(ky),
        nameLocation: "end",
        nameGap: 8,
        nameTextStyle: { color: colours.muted, fontSize: 11, align: "left" },
        axisLabel: { color: colours.muted },
        axisTick: { show: false },
      },
      tooltip: { trigger: "item", formatter: ({ data }) => (data.trial ? trialTip(data.trial) : "") },
      series: [
        { type: "heatmap", data: surface, progressive: 0, silent: true },
        {
          type: "scatter",
          symbolSize: 8,
          itemStyle: { color: colours.text, borderColor: colours.surface, borderWidth: 1 },
          data: known.map(({ trial, x, y }) => ({
            value: [sx(x) * (CELLS - 1), sy(y) * (CELLS - 1)].map(Math.round),
            trial,
          })),
        },
      ],
    }),
  });
}

const isPlain = (trial) => trial.state === "complete";

function mixed(colours, share, less) {
  const part = Math.max(0, Math.min(1, less ? 1 - share : share));
  const channel = (text, at) => Number.parseInt(text.slice(1 + 2 * at, 3 + 2 * at), 16);
  const [from, to] = [colours.axis, colours.series[0]];
  return `rgb(${[0, 1, 2].map((at) => Math.round(channel(from, at) * (1 - part) + channel(to, at) * part)).join(",")})`;
}

function drawImportance(figure, importances, metric) {
  const rows = Object.entries(importances)
    .filter(([, share]) => typeof share === "number")
    .sort((a, b) => a[1] - b[1]);
  figure.draw({
    subtitle: `share of the variation of ${metric ?? "the objective"} over trials that each setting explains by itself or with others, %; estimated by fANOVA: a random forest fitted to the trials`,
    option: (colours) => ({
      grid: { left: 8, right: 40, top: 10, bottom: 8, containLabel: true },
      xAxis: axis(colours, { scale: false, max: 100 }),
      yAxis: {
        type: "category",
        data: rows.map(([key]) => key),
        axisLabel: { color: colours.text },
        axisTick: { show: false },
        axisLine: { show: false },
      },
      tooltip: {
        trigger: "item",
        formatter: ({ name, value }) => tip(name, [[null, "importance", `${number(value)} %`]]),
      },
      series: [
        {
          type: "bar",
          barMaxWidth: 18,
          itemStyle: { color: colours.series[0], borderRadius: [0, 4, 4, 0] },
          data: rows.map(([, share]) => 100 * share),
          label: {
            show: true,
            position: "right",
            color: colours.muted,
            formatter: ({ value }) => number(value),
          },
        },
      ],
    }),
    table: () => ({ columns: ["setting", "importance"], rows: [...rows].reverse() }),
  });
}

function contrastTables(contrasts) {
  return el(
    "section",
    { class: "card scroll", "aria-label": "Planned contrasts" },
    Object.entries(contrasts.outcomes).map(([name, words]) => [
      el("h3", { class: "pad" }, `${name}: ${words}`),
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            contrasts.columns.map((title) => el("th", {}, title)),
          ),
        ),
        el(
          "tbody",
          {},
          contrasts.rows
            .filter(({ outcome }) => outcome === name)
            .map(({ cells }) =>
              el(
                "tr",
                {},
                cells.map((cell) => el("td", {}, cell)),
              ),
            ),
        ),
      ),
    ]),
  );
}

function trialTable(trials, sweep) {
  const ranked = best(trials, sweep);
  const rest = trials.filter((trial) => !ranked.includes(trial));
  const keys = variedKeys(trials);
  const score = (known) =>
    known
      ? [
          el("span", { class: "value" }, percent(known.mean)),
          known.low !== null && el("div", { class: "sub" }, `${percent(known.low)} – ${percent(known.high)}`),
        ]
      : "–";
  return el(
    "section",
    { class: "card scroll", "aria-label": "Trials" },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Rank", "Trial", "State", ...keys, "Window [l, u]", "Mean@K", "Pass@K", "Seeds", ""].map((title) =>
            el("th", { class: keys.includes(title) ? "setting" : null }, title),
          ),
        ),
      ),
      el(
        "tbody",
        {},
        [...ranked, ...rest].map((trial, at) =>
          el(
            "tr",
            {},
            el("td", {}, at < ranked.length ? at + 1 : ""),
            el("td", {}, nameOf(trial)),
            el(
              "td",
              { title: trial.reason },
              el("span", { class: `state ${STATES[trial.state] ?? "unknown"}` }, trial.state),
              trial.reason && el("div", { class: "sub" }, trial.reason),
            ),
            keys.map((key) => el("td", { class: "mono" }, shownSetting(trial.settings?.[key]))),
            el(
              "td",
              { class: "mono" },
              trial.window
                ? `[${number(trial.window[0])}, ${trial.window[1] === null ? "∞" : number(trial.window[1])}]`
                : "",
            ),
            el("td", {}, score(trial.scores.mean_at_k)),
            el("td", {}, score(trial.scores.pass_at_k)),
            el("td", {}, trial.num_seeds),
            el(
              "td",
              {},
              trial.runs.length > 0 &&
                el("a", { href: addressOf("curves", { run: trial.runs, q: null }) }, "curves"),
            ),
          ),
        ),
      ),
    ),
  );
}
