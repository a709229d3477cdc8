// One run's trust region: observed ratios against the window, what each side cut, entropy against cuts.

import { ask } from "../api.js";
import { byStep, curveAxis, drawNothing, drawRatioHistogram, legend, namedAxis, rules } from "../charts.js";
import { choice, el, field, fill, oneAtATime, select } from "../dom.js";
import { axis, bandSeries, disposeAll, Figure, figureGrid, tip, zoomable } from "../figure.js";
import { number, percent, plural } from "../format.js";
import { noRuns, runSelect } from "../selection.js";
import { addressOf, get, set } from "../url.js";
import { curveOption } from "./curves.js";
import { showArms } from "./trust_region_arms.js";

const MODES = [
  ["", "One run"],
  ["arms", "Methods side by side"],
];
const SIGNS = [
  ["positive", "A > 0"],
  ["negative", "A < 0"],
  ["zero", "A = 0"],
];
const CUTS = [
  { name: "objective/clip_high_frac", label: "A > 0, cut above u", colour: "high", dash: "solid" },
  { name: "objective/clip_low_frac", label: "A < 0, cut below l", colour: "low", dash: "solid" },
  { name: "objective/clip_runaway_frac", label: "A < 0, cut above u", colour: "runaway", dash: "solid" },
];
const SHARES = [
  ...CUTS,
  { name: "objective/outside_high_frac", label: "outside, w > u", colour: "high", dash: "dashed" },
  { name: "objective/outside_low_frac", label: "outside, w < l", colour: "low", dash: "dashed" },
];
const KLS = ["k1", "k2", "k3"].map((label) => ({ name: `objective/kl_${label}`, label }));
const namesOf = (lines) => lines.map(({ name }) => name);
const QUANTILES = ["p01", "p05", "p25", "p50", "p75", "p95", "p99"].map((name) => `objective/ratio_${name}`);
const EXTREMES = ["objective/ratio_min", "objective/ratio_max"];
const ENTROPY = "objective/entropy";
const SHADES = [1, 0.8, 0.6, 0.4, 0.2];
const FLOOR = 0.7; // what no token is drawn as: a log axis has no zero

/** One run or several methods, as the address says. */
export async function show(root, context) {
  let shown = null;
  const draw = async () => {
    shown?.dispose();
    fill(root);
    const modes = choice("Show", MODES, get("mode"), (mode) => {
      set({ mode });
      void draw();
    });
    shown = await (get("mode") === "arms" ? showArms : showRun)(root, context, modes);
  };
  await draw();
  return { refresh: () => shown.refresh(), dispose: () => shown.dispose() };
}

async function showRun(root, context, modes) {
  let table = await context.runs();
  const bar = el("div.toolbar");
  const banner = el("div");
  const facts = el("div.page", { style: { paddingBottom: "0" } });
  const figures = {
    histogram: new Figure({ title: "Ratios against the window", height: 320, wide: true }),
    shares: new Figure({ title: "Shares cut and outside", linked: "trust" }),
    quantiles: new Figure({ title: "Ratios over time", linked: "trust" }),
    entropy: new Figure({ title: "Entropy against shares cut" }),
    kl: new Figure({ title: "KL(behavior || policy), three estimates", linked: "trust" }),
  };
  const grid = figureGrid(...Object.values(figures));
  grid.classList.add("two");
  root.append(bar, banner, facts, el("div.page", { style: { paddingTop: "14px" } }, grid));
  let chosen = "";

  function drawBar(steps = []) {
    const made = runSelect(table, "Run", "at", () => {
      set({ step: null });
      drawBar();
      void refresh();
    });
    chosen = made.chosen;
    if (chosen && !get("at")) set({ at: chosen }, { isDefault: true }); // it stays when newer runs begin
    const all = ["", `all ${steps.length} recorded steps`];
    const options = [all, ...steps.map((step) => [step, `step ${step}`])];
    const box = select("Step", options, get("step"), (step) => {
      set({ step });
      void refresh();
    });
    const about = el("a", { href: addressOf("runs", { open: chosen, run: null }) }, "About this run");
    fill(bar, modes, field("run", made.box), field("at", box), about);
  }

  const refresh = oneAtATime(async () => {
    table = await context.runs();
    if (!chosen) drawBar();
    if (!chosen) {
      fill(bar);
      fill(banner, noRuns(table));
      grid.hidden = true;
      return;
    }
    const curvesOf = (metric, more) => ask("curves", { run: chosen, group: "run", metric, ...more });
    try {
      const [region, curves, steps] = await Promise.all([
        ask("trust-region", { run: chosen, step: get("step") }),
        curvesOf(namesOf([...SHARES, ...KLS]), { points: 600 }),
        // What is set against each other has to be of the same steps.
        curvesOf([...namesOf(CUTS), ...QUANTILES, ...EXTREMES, ENTROPY], { points: 300, even: true }),
      ]);
      if (document.activeElement?.tagName !== "SELECT") drawBar(region.steps);
      const named = ({ panels }) =>
        Object.fromEntries(panels.map((panel) => [panel.name, panel.series[0] ?? null]));
      const [byName, atSteps] = [named(curves), named(steps)];
      const problems = region.problems.slice(0, 3).join("; ");
      const pending = curves.pending.length > 0 && "This run's curves are being read into the index.";
      fill(banner, problems && el("p.banner", problems), pending && el("p.banner", pending));
      drawFacts(facts, region);
      const run = table.runs.find(({ name }) => name === chosen);
      drawHistogram(figures.histogram, region, run);
      const kl = "nats per token; k1 and k3 are unbiased, k2 is not; k3 is what KL3 budgets bound per token";
      const shares = "share of tokens, %; cut: no gradient; outside: infeasible, whatever the advantage";
      drawLines(figures.kl, chosen, byName, KLS, { subtitle: kl, isShare: false });
      drawLines(figures.shares, chosen, byName, SHARES, { subtitle: shares, isShare: true });
      drawQuantiles(figures.quantiles, atSteps, region.window);
      drawEntropy(figures.entropy, atSteps);
    } catch (error) {
      fill(banner, el("p.banner", error.message));
    }
  });

  drawBar();
  await refresh();
  return { refresh, dispose: () => disposeAll(figures) };
}

function drawFacts(box, { window: bounds, divergence, num_tokens: numTokens, cut, ...region }) {
  const total = Object.values(numTokens).reduce((a, b) => a + b, 0);
  const share = (num) => (total ? `${percent(num / total)} %` : "–");
  const all = `of all ${number(total)} recorded tokens`;
  const { kind = "unknown", ...budget } = divergence ?? {};
  const budgets = Object.entries(budget).map(([key, value]) => `${key} ${value}`);
  const upper = bounds && (bounds[1] === null ? "∞" : number(bounds[1]));
  const facts = [
    ["divergence", kind, budgets.join(", ")],
    ["window [l, u]", bounds ? `[${number(bounds[0])}, ${upper}]` : "none constant", region.window_reason],
    ["recorded tokens", number(total), `${plural(region.num_files, "file")} of rollouts`],
    ["A > 0 cut above u", share(cut.positive.high), all],
    ["A < 0 cut below l", share(cut.negative.low), all],
    ["A < 0 cut above u", share(cut.negative.high), `a runaway ratio; ${all}`],
  ];
  const shown = ([name, value, more]) => el("div", el("dt", name), el("dd", value, " ", el("small", more)));
  const list = el("dl.stats", { style: { margin: "0" } }, facts.map(shown));
  fill(box, el("section.card.pad", { "aria-label": "Window" }, list));
}

function drawHistogram(figure, { histogram, window, is_of_all_tokens: isOfAll }, run) {
  const of = isOfAll
    ? "all tokens, at every update that used them"
    : "tokens of recorded rollouts, after the step's last update";
  const subtitle = `${of}, by ratio and sign of the advantage; the ends hold all beyond; log axes`;
  if (!histogram) {
    const reason =
      run?.state === "failed"
        ? `This run failed at step ${number(run.step)}, before ratios were recorded: ${run.error ?? "it does not say why"}.`
        : "No recorded rollout of this run has ratios. A run with one update per batch has ratios of exactly 1; rollouts are recorded every tracking.rollouts_every_num_steps.";
    drawNothing(figure, reason, { subtitle });
    return;
  }
  const { edges, counts } = histogram;
  const styleOf = (sign, colours) => ({
    lineStyle: { width: 1.6, color: colours[sign] },
    itemStyle: { color: colours[sign] },
    areaStyle: { color: colours[sign], opacity: sign === "zero" ? 0.08 : 0.2, origin: "start" },
    z: sign === "zero" ? 1 : 2,
    ...(sign === "positive" && windowMarks(window, colours, edges)),
  });
  drawRatioHistogram(figure, {
    subtitle,
    edges,
    rows: SIGNS.map(([sign, name]) => ({
      name,
      column: `num_tokens_${sign}_advantage`,
      values: counts[sign],
      styleOf: (colours) => styleOf(sign, colours),
    })),
    least: FLOOR,
    said: number,
    tick: (value) => (value < 1 ? "" : number(value)),
    more: (colours) => ({
      legend: legend(colours, { left: "auto", right: 8 }),
      grid: { left: 8, right: 18, top: 30, bottom: 22, containLabel: true },
    }),
  });
}

/** Curves of one run in one figure. */
function drawLines(figure, run, byName, lines, { subtitle, isShare }) {
  const known = lines.filter(({ name }) => byName[name]);
  if (!known.length) {
    drawNothing(figure, "The run has recorded none of it.", { subtitle });
    return;
  }
  const series = known.map((line, place) => ({ ...byName[line.name], place, ...line }));
  const label = known.map((line) => line.label);
  figure.savedFrom("figure/curves", {
    run,
    group: "run",
    metric: namesOf(known),
    label,
    title: figure.title,
  });
  figure.draw({
    subtitle,
    option: (colours) => ({
      ...curveOption(series, { isShare, colours }),
      legend: legend(colours, { itemWidth: 20, itemHeight: 8 }),
      grid: { left: 6, right: 18, top: known.length > 3 ? 52 : 34, bottom: 6, containLabel: true },
    }),
    table: () => ({
      columns: ["quantity", "step", "value"],
      rows: series.flatMap(({ x, y, ...one }) => x.map((step, i) => [one.label, step, y[i]])),
    }),
  });
}

function drawQuantiles(figure, byName, window) {
  const fan = QUANTILES.every((name) => byName[name]);
  const names = fan ? QUANTILES : EXTREMES;
  const subtitle = fan
    ? "quantiles of the ratio per step: 1, 5, 25, 50, 75, 95 and 99 %; dashed: the window"
    : "least and greatest ratio per step, log scale; dashed: the window";
  if (!names.every((name) => byName[name])) {
    drawNothing(figure, "The run has recorded no ratios.", { subtitle });
    return;
  }
  const at = names.map((name) => byStep(byName[name]));
  const rows = byName[names[0]].x.map((step) => [step, ...at.map((values) => values.get(step) ?? null)]);
  const tipOf = (points) => {
    const row = rows[points.find(({ seriesType }) => seriesType === "line")?.dataIndex];
    const said = (name, i) => [null, name.replace("objective/ratio_", ""), number(row[i + 1])];
    return row ? tip(`step ${number(row[0])}`, names.map(said)) : "";
  };
  figure.draw({
    subtitle,
    option: (colours) => {
      const [color] = colours.series;
      // From the least with the greatest to those around the median.
      const bandOf = (i) => rows.map((row) => [row[0], row[1 + i], row.at(-1 - i)]);
      const bands = Array.from({ length: Math.floor(names.length / 2) }, (_, i) => bandOf(i));
      const line = (i, place) => ({
        type: "line",
        name: fan ? "median" : names[i - 1],
        showSymbol: false,
        data: rows.map((row) => [row[0], row[i]]),
        lineStyle: { width: 1.6, color },
        itemStyle: { color },
        z: 4,
        markLine: place === 0 ? boundRules(window, colours, (yAxis) => ({ yAxis })) : undefined,
      });
      return zoomable({
        grid: { left: 6, right: 54, top: 14, bottom: 6, containLabel: true },
        xAxis: curveAxis(colours),
        yAxis: axis(colours, fan ? {} : { type: "log" }),
        tooltip: { trigger: "axis", formatter: tipOf },
        series: [...bands.map((points) => bandSeries("", points, color)), ...(fan ? [4] : [1, 2]).map(line)],
      });
    },
    table: () => ({ columns: ["step", ...names], rows }),
  });
}

function drawEntropy(figure, byName) {
  const subtitle =
    "entropy in nats against the share of tokens cut; a point per step, of at most 300 steps, later ones darker";
  const entropy = byName[ENTROPY];
  const cuts = CUTS.filter(({ name }) => byName[name]);
  if (!entropy || !cuts.length) {
    drawNothing(figure, "The run has recorded no entropy or no clip shares.", { subtitle });
    return;
  }
  const at = byStep(entropy);
  const last = entropy.x.at(-1) || 1;
  const shadeOf = (step) =>
    SHADES.length - 1 - Math.min(Math.floor((SHADES.length * step) / last), SHADES.length - 1);
  const sides = cuts.map(({ name, ...cut }) => {
    const { x, y } = byName[name];
    const points = x
      .map((step, i) => [100 * y[i], at.get(step), step])
      .filter(([, known]) => known !== undefined);
    return { ...cut, points };
  });
  figure.draw({
    subtitle,
    option: (colours) => ({
      legend: legend(colours),
      grid: { left: 8, right: 18, top: 34, bottom: 22, containLabel: true },
      xAxis: namedAxis(colours, "share of tokens cut, %", { scale: false }),
      yAxis: axis(colours),
      tooltip: {
        trigger: "item",
        formatter: ({ value: [share, nats, step], seriesName, color }) =>
          tip(`step ${number(step)}`, [
            [color, seriesName, `${number(share)} %`],
            [null, "entropy", number(nats)],
          ]),
      },
      // A series per shade, the darkest first for the legend: points of one style are drawn at once.
      series: sides.flatMap(({ label, colour, points }) =>
        SHADES.map((opacity, shade) => ({
          type: "scatter",
          name: label,
          symbolSize: 7,
          large: true,
          largeThreshold: 1,
          z: 2 + SHADES.length - shade,
          itemStyle: { color: colours[colour], opacity },
          data: points.filter(([, , step]) => shadeOf(step) === shade),
        })),
      ),
    }),
    table: () => ({
      columns: ["side", "step", "share_cut", "entropy"],
      rows: sides.flatMap(({ label, points }) =>
        points.map(([share, nats, step]) => [label, step, share / 100, nats]),
      ),
    }),
  });
}

/** Lines at the bounds of a window that there are; `placeOf` says where on an axis. */
function boundRules(window, colours, placeOf) {
  const named = [
    ["l", window?.[0]],
    ["u", window?.[1]],
  ];
  const marks = named
    .filter(([, bound]) => bound > 0)
    .map(([name, bound]) => ({ name: `${name} = ${number(bound)}`, ...placeOf(bound) }));
  const label = { color: colours.text, fontSize: 11, formatter: ({ data }) => data.name };
  return rules(marks, { color: colours.text, width: 1.3, type: "dashed" }, label);
}

/** The window on an axis of the logarithms of ratios, with what is outside shaded. */
function windowMarks(window, colours, edges) {
  const markLine = boundRules(window, colours, (bound) => ({ xAxis: Math.log(bound) }));
  const data = markLine.data.map(({ name, xAxis }) =>
    name.startsWith("l") ? [{ xAxis: edges[0] }, { xAxis }] : [{ xAxis }, { xAxis: edges.at(-1) }],
  );
  return { markLine, markArea: { silent: true, itemStyle: { color: colours.shade }, data } };
}
