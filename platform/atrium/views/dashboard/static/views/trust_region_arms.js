// Methods side by side: their windows, the ratios of their tokens, what was cut, entropy and KL, at equal steps.

import { ask } from "../api.js";
import { byStep, drawNothing, drawRatioHistogram, namedAxis, rules } from "../charts.js";
import { debounced, el, fill, oneAtATime } from "../dom.js";
import { axis, disposeAll, Figure, figureGrid, tip } from "../figure.js";
import { number, percent, plural } from "../format.js";
import { seriesStyle, swatch } from "../palette.js";
import { experimentField, filterControls, latestOnly, noRuns, selected } from "../selection.js";
import { curveOption, meanTable } from "./curves.js";

const SIGNS = [
  ["positive", "A > 0"],
  ["negative", "A < 0"],
];
const CURVES = [
  ["objective/clip_high_frac", "A > 0, cut above u"],
  ["objective/clip_low_frac", "A < 0, cut below l"],
  ["objective/entropy", "Entropy"],
  ["objective/kl_k3", "KL(behavior || policy), k3"],
  ["objective/kl_after_update", "KL to the sampler after the last update"],
];
const AGE = "rollout/staleness_steps";
const AGED = [
  ["objective/kl_before_update", "KL before the update, against staleness"],
  ["objective/outside_before_update_frac", "Outside the window before the update, against staleness"],
];
const FLOOR = 1e-5;
const GRID = { left: 8, right: 18, top: 14, bottom: 24, containLabel: true };

export async function showArms(root, context, modes) {
  let table = await context.runs();
  const banner = el("div");
  const legend = el("div.chips.legend", { "aria-label": "Methods" });
  const named = (pairs, more) => pairs.map(([name, title]) => [name, new Figure({ title, ...more })]);
  const figures = Object.fromEntries([
    ["windows", new Figure({ title: "Windows [l, u]", height: 200 })],
    ...named(
      SIGNS.map(([sign, label]) => [sign, `Ratios where ${label}`]),
      { height: 260 },
    ),
    ...named(CURVES, { linked: "arms" }),
    ...named(AGED),
  ]);
  const grid = figureGrid(...Object.values(figures));
  grid.classList.add("two");
  const redraw = debounced(() => void refresh(), 50);
  const { search, filter } = filterControls(() => table, redraw);
  const experiment = el("span");
  const bar = el("div.toolbar", modes, experiment, el("div.search", search), filter);
  root.append(bar, banner, el("div.page", legend, grid));

  const refresh = oneAtATime(async () => {
    table = await context.runs();
    const { runs, num, query } = selected(table);
    fill(experiment, experimentField(table, redraw));
    grid.hidden = !runs.length;
    if (!runs.length) {
      fill(legend);
      fill(banner, noRuns(table));
      return;
    }
    try {
      const answer = await ask("trust-region/arms", query);
      const metric = [...CURVES.map(([name]) => name), AGE];
      const { panels } = await ask("curves", { ...query, group: "method", metric, points: 400 });
      const shown = new Set(answer.arms.map(({ name }) => name));
      for (const panel of panels) panel.series = panel.series.filter(({ label }) => shown.has(label));
      fill(banner, latestOnly(num), leftOut(answer.left_out.length));
      drawLegend(answer);
      drawWindows(figures.windows, answer.arms);
      for (const [sign] of SIGNS) drawRatios(figures[sign], answer, sign);
      for (const [at, [name]] of CURVES.entries()) drawCurve(figures[name], panels[at], answer);
      if (panels.at(-1).series.some(({ y }) => y.some((age) => age > 0))) await drawAged(query, answer);
      else for (const [name] of AGED) figures[name].element.hidden = true;
    } catch (error) {
      fill(banner, el("p.banner", error.message));
    }
  });

  function drawLegend({ arms, others, until }) {
    const line = ({ place, name, runs }) =>
      el("span.series", swatch(place), name, el("small", plural(runs.length, "seed")));
    const other = ({ name, runs }) =>
      el("span.series.muted", { title: runs.join("\n") }, `other runs: ${name}`);
    const steps = el("span.muted", `all at steps 1 to ${number(until)}`);
    fill(legend, arms.map(line), others.map(other), steps);
  }

  /** What staleness did, a point per step; shown where batches lagged. */
  async function drawAged(query, { arms, until }) {
    const metric = [AGE, ...AGED.map(([name]) => name)];
    const { panels } = await ask("curves", { ...query, group: "run", metric, points: 200, even: true });
    const [ages, ...rest] = panels.map(
      ({ series }) => new Map(series.map((one) => [one.runs[0], byStep(one)])),
    );
    for (const [at, [name]] of AGED.entries()) {
      const { meaning, is_share: isShare } = panels[at + 1];
      const rows = arms.flatMap((arm) =>
        arm.runs.flatMap((run) =>
          [...(rest[at].get(run) ?? [])]
            .filter(([step]) => step <= until && ages.get(run)?.has(step))
            .map(([step, value]) => ({ arm, run, step, value, age: ages.get(run).get(step) })),
        ),
      );
      figures[name].element.hidden = !rows.length;
      if (!rows.length) continue;
      figures[name].draw({
        subtitle: `${meaning}${isShare ? ", %" : ", nats"}; a point per step and seed`,
        option: (colours) => agedOption(arms, rows, isShare ? 100 : 1, colours),
        table: () => ({
          columns: ["method", "run", "step", "staleness_steps", name],
          rows: rows.map(({ arm, run, step, age, value }) => [arm.name, run, step, age, value]),
        }),
      });
    }
  }

  await refresh();
  return { refresh, dispose: () => disposeAll(figures) };
}

const leftOut = (num) =>
  num > 0 &&
  el(
    "p.banner",
    `${plural(num, "run")} ${num === 1 ? "has" : "have"} made no step and ${num === 1 ? "is" : "are"} not here.`,
  );

function agedOption(arms, rows, scale, colours) {
  const pointsOf = (wanted) =>
    rows.filter(({ arm }) => arm === wanted).map(({ age, value, step }) => [age, scale * value, step]);
  return {
    grid: GRID,
    xAxis: namedAxis(colours, "age of the batch, steps", { minInterval: 1, scale: false }),
    yAxis: axis(colours),
    tooltip: {
      trigger: "item",
      formatter: ({ value: [age, value, step], seriesName, color }) =>
        tip(`step ${number(step)}`, [
          [color, seriesName, number(value)],
          [null, "age", `${number(age)} steps`],
        ]),
    },
    series: arms.map((arm) => ({
      type: "scatter",
      name: arm.name,
      symbolSize: 6,
      itemStyle: { color: seriesStyle(arm.place, colours).color, opacity: 0.6 },
      data: pointsOf(arm),
    })),
  };
}

function drawWindows(figure, arms) {
  const known = arms.filter(({ window }) => window && window[1] !== null).reverse();
  const rest = arms
    .filter((arm) => !known.includes(arm))
    .map((arm) => `${arm.name}: ${arm.window ? `[${number(arm.window[0])}, ∞]` : arm.window_reason}`);
  const note = rest.length ? `Not drawn: ${rest.join("; ")}.` : "";
  if (!known.length) {
    drawNothing(figure, note);
    return;
  }
  figure.draw({
    subtitle: "the ratios that each method allows",
    note,
    option: (colours) => windowsOption(known, colours),
    table: () => ({
      columns: ["method", "lower", "upper"],
      rows: arms.map(({ name, window }) => [name, window?.[0] ?? "", window?.[1] ?? ""]),
    }),
  });
}

function windowsOption(arms, colours) {
  return {
    grid: { ...GRID, left: 20, right: 24, top: 12 },
    xAxis: namedAxis(colours, "ratio w"),
    yAxis: {
      type: "category",
      data: arms.map(({ name }) => name),
      axisLine: { show: false },
      axisTick: { show: false },
      axisLabel: { color: colours.text, fontSize: 12, width: 170, overflow: "break" },
    },
    tooltip: {
      trigger: "item",
      formatter: ({ dataIndex }) => {
        const { name, window } = arms[dataIndex];
        return tip(name, [
          [null, "l", window[0].toPrecision(4)],
          [null, "u", window[1].toPrecision(4)],
        ]);
      },
    },
    series: [
      {
        type: "custom",
        encode: { x: [1, 2], y: 0 },
        data: arms.map(({ window }, i) => [i, ...window]),
        renderItem: ({ dataIndex }, api) => {
          const [x, y] = api.coord([api.value(1), api.value(0)]);
          const [end] = api.coord([api.value(2), api.value(0)]);
          return {
            type: "rect",
            shape: { x, y: y - 6, width: end - x, height: 12, r: 3 },
            style: { fill: seriesStyle(arms[dataIndex].place, colours).color, opacity: 0.75 },
          };
        },
      },
      { type: "line", data: [], markLine: rules([{ xAxis: 1 }], { color: colours.text, type: "dashed" }) },
    ],
  };
}

function drawRatios(figure, { arms, edges }, sign) {
  const known = arms.filter(({ shares }) => shares);
  const subtitle = "share of these tokens, seeds pooled; the ends hold all beyond; log axes; dotted: windows";
  if (!edges || !known.length) {
    drawNothing(figure, "None of these runs has recorded distributions of ratios.", { subtitle });
    return;
  }
  const styleOf = ({ place, window }, colours) => {
    const { color, dash } = seriesStyle(place, colours);
    const bounds = (window ?? []).filter((bound) => bound > 0).map((bound) => ({ xAxis: Math.log(bound) }));
    const markLine = rules(bounds, { color, type: "dotted", width: 1.4 });
    return { lineStyle: { width: 1.7, color, type: dash }, itemStyle: { color }, markLine };
  };
  drawRatioHistogram(figure, {
    subtitle,
    edges,
    rows: known.map((arm) => ({
      name: arm.name,
      values: arm.shares[sign],
      styleOf: (colours) => styleOf(arm, colours),
    })),
    least: FLOOR,
    said: (share) => `${percent(share)} %`,
    tick: (share) => `${number(100 * share)} %`,
  });
}

function drawCurve(figure, { meaning, unit, is_share: isShare, series: all }, { arms, until }) {
  const series = all.map((one) => {
    const num = one.x.filter((x) => x <= until).length;
    const [x, y, low, high] = [one.x, one.y, one.low, one.high].map((values) => values?.slice(0, num));
    return { ...one, place: arms.find(({ name }) => name === one.label).place, x, y, low, high };
  });
  figure.element.hidden = !series.length;
  if (!series.length) return;
  figure.draw({
    subtitle: `${meaning}${isShare ? ", %" : unit ? `, ${unit}` : ""}; band: least to greatest seed`,
    option: (colours) => curveOption(series, { isShare, colours }),
    table: () => meanTable(series),
  });
}
