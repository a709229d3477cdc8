// Curves of any metric against steps, tokens or time, grouped by any setting, with a band over seeds.

import { ask } from "../api.js";
import { pointsOf } from "../document_figures.js";
import {
  button,
  checkbox,
  el,
  empty,
  field,
  fill,
  menu,
  option,
  refill,
  searchInput,
  select,
  selectField,
} from "../dom.js";
import { axis, bandSeries, Figure, logAxis, tip, zoomable } from "../figure.js";
import { count, duration, number, percent, plural, shortName } from "../format.js";
import { seriesStyle, swatch } from "../palette.js";
import { differingKeys, latestOnly, noRuns, runsPanel, selected } from "../selection.js";
import { get, getAll, set } from "../url.js";

const USUAL = [
  "rollout/reward",
  "rollout/reward/*",
  "evaluation/*/mean_at_k",
  "objective/entropy",
  "rollout/completion_length",
  "objective/clip_high_frac",
  "objective/clip_low_frac",
  "objective/kl_k3",
  "objective/kl_k1",
  "objective/kl_k2",
  "optimizer/grad_norm",
  "evaluation/*/pass_at_k",
];
// The first value of each is the server's default, and is not written to the URL.
const AXES = [
  ["", "Step"],
  ["tokens", "Tokens"],
  ["wall_clock", "Time"],
];
const GROUPS = [
  ["", "method (all but seed)"],
  ["run", "each run"],
  ["seed", "seed"],
];
const BANDS = [
  ["", "min to max"],
  ["deviation", "± std. dev."],
  ["none", "none"],
];
const isOfTraining = (metric) => !metric.startsWith("evaluation/");
const WIDTHS = [1, 3, 5, 9, 15, 25, 51, 101, 201, 501, 1001];

export async function show(root, context) {
  const table = await context.runs();
  let quantities = [];
  let smoothed = 1;
  const figures = new Map();
  let asked = null;
  /** Groups of other runs: listed separately, and drawn only if the URL names them. */
  let others = [];
  const bar = el("div.toolbar");
  const banner = el("div");
  const grid = el("div.figures");
  const panel = runsPanel("Runs and groups", table, () => change({}));
  root.append(el("div.split", panel.element, el("div.content", bar, banner, grid)));

  /** Return the parameters of the server's curves from the URL. */
  const asking = () =>
    Object.fromEntries(["x", "group", "band", "smooth", "zoom"].map((name) => [name, get(name)]));
  const hidden = () => [...getAll("hide"), ...others.filter((label) => !getAll("show").includes(label))];
  const isLog = () => get("log") === "1";

  function choose(changes) {
    set(changes);
    void redraw();
  }

  function change(changes) {
    choose(changes);
    drawBar();
  }

  function metricNames() {
    const chosen = getAll("metric");
    if (chosen.length) return chosen;
    const known = quantities.map(({ name }) => name);
    return USUAL.flatMap((name) => {
      const pattern = new RegExp(`^${name.replace("*", ".+")}$`);
      return known.filter((other) => pattern.test(other));
    });
  }

  function drawBar() {
    const keys = differingKeys(table, selected(table).runs).filter((key) => key !== "seed");
    const groups = [...GROUPS, ...keys];
    const logBox = checkbox(isLog(), (on) => change({ log: on ? "1" : null }));
    const axes = [...AXES, ...quantities.map(({ name }) => name).filter(isOfTraining)];
    refill(
      bar,
      selectField("x axis", "X axis", axes, get("x"), (x) => change({ x, zoom: null })),
      selectField("group by", "Group by", groups, get("group"), (group) => change({ group, hide: null })),
      get("group") !== "run" && selectField("band", "Band", BANDS, get("band"), (band) => change({ band })),
      smoothing(),
      el("label.field", [logBox, "log scale"]),
      menu("Metrics", metricChoices),
      menu("Panels", panelChoices),
    );
  }

  /** Return the menu of custom panels, one metric against another, which are stored in the URL. */
  function panelChoices() {
    const names = quantities.map(({ name }) => name);
    const [y, x] = ["Vertical", "Horizontal"].map((label) => select(label, names, names[0], () => {}));
    const without = (one) => getAll("panel").filter((other) => other !== one);
    const line = (one) => {
      const remove = button("Remove", { class: "link" }, () => change({ panel: without(one) }));
      return el("div.option", el("span", one.replace("~", " against ")), remove);
    };
    const add = button("Add panel", () => {
      const added = `${y.value}~${x.value}`;
      change({ panel: [...without(added), added] });
    });
    return [getAll("panel").map(line), field("show", y), field("against", x), add];
  }

  function smoothing() {
    const width = Number(get("smooth")) || smoothed;
    const at = WIDTHS.filter((one) => one > 1 && one <= width).length;
    const said = (steps) => (steps > 1 ? `${steps} steps` : "off");
    const shown = el("span", said(width));
    const slider = el("input", {
      type: "range",
      min: "0",
      max: String(WIDTHS.length - 1),
      value: String(at),
      "aria-label": "Smoothing",
      oninput: () => fill(shown, said(WIDTHS[slider.value])),
      onchange: () => change({ smooth: WIDTHS[slider.value] }),
    });
    const title = "Number of steps in the moving mean";
    return el("label.field", { title }, el("span", "smoothing"), slider, shown);
  }

  /** Return a checkbox per metric, and a search box for them. */
  function metricChoices() {
    const chosen = new Set(metricNames());
    const lines = el("div");
    const line = ({ name, unit, meaning }) => {
      const text = [name, el("div.muted", { style: { fontSize: "11px" } }, meaning)];
      const made = option(text, chosen.has(name), { class: "deep", title: meaning }, (on) => {
        chosen[on ? "add" : "delete"](name);
        choose({ metric: quantities.map((one) => one.name).filter((one) => chosen.has(one)) });
      });
      made.append(el("small", unit));
      return made;
    };
    const draw = (wanted) => {
      const fits = ({ name, meaning }) => `${name} ${meaning}`.toLowerCase().includes(wanted.toLowerCase());
      fill(lines, quantities.filter(fits).map(line));
    };
    const usual = button("Usual", () => {
      choose({ metric: null });
      box.replaceWith(metricChoices());
    });
    draw("");
    const row = { style: { display: "flex", gap: "8px", marginBottom: "6px" } };
    const search = el("div", row, searchInput("Find a metric", draw), usual);
    const box = el("div", { style: { width: "min(402px, 100vw - 44px)" } }, search, lines);
    return box;
  }

  async function redraw() {
    asked?.abort();
    asked = new AbortController();
    const { signal } = asked;
    const { runs, num, query } = panel.draw();
    fill(banner, latestOnly(num));
    if (!runs.length) {
      fill(panel.list);
      return showInstead(noRuns(table));
    }
    try {
      quantities = (await ask("quantities", query, signal)).quantities;
      const points = pointsFor(runs.length, grid.clientWidth);
      const askFor = (more) => ask("curves", { ...query, ...asking(), points, ...more }, signal);
      const custom = getAll("panel").map(async (one) => {
        const [metric, x] = one.split("~");
        const { panels } = await askFor({ metric, x, zoom: null });
        return panels.map((panel) => ({ ...panel, x }));
      });
      const [answer, ...more] = await Promise.all([askFor({ metric: metricNames() }), ...custom]);
      answer.panels.unshift(...more.flat());
      others = answer.groups.filter(({ is_other: isOther }) => isOther).map(({ label }) => label);
      smoothed = answer.smoothing;
      if (!bar.contains(document.activeElement)) drawBar();
      draw(answer, query);
    } catch (error) {
      if (error.name !== "AbortError") fill(banner, el("p.banner", error.message));
    }
  }

  function draw(answer, query) {
    drawGroups(answer);
    const pending = `Curves of ${answer.pending.length} runs are being indexed; each appears when it is ready.`;
    if (answer.pending.length) fill(banner, el("p.banner", pending));
    if (!answer.panels.length)
      return showInstead(empty("No curves yet", "These runs have recorded no metrics."));
    for (const key of figures.keys())
      if (!answer.panels.some((one) => keyOf(one) === key)) figures.delete(key);
    const kept = [...figures.values()].map(({ element }) => element);
    for (const child of [...grid.children]) if (!kept.includes(child)) child.remove();
    for (const [place, one] of answer.panels.entries()) {
      const linking = one.x ? {} : { linked: "curves", onzoom: zoom };
      const figure = figures.get(keyOf(one)) ?? new Figure({ title: one.name, ...linking });
      figures.set(keyOf(one), figure);
      // Move only elements at a wrong position, since moving an element removes the focus.
      const there = grid.children[place] ?? null;
      if (there !== figure.element) grid.insertBefore(figure.element, there);
      drawPanel(figure, one, query);
    }
  }

  /** Store the range of x in the URL, and request more points within it. */
  function zoom(range) {
    const wanted = range?.map((end) => Number(end.toPrecision(6))).join("_") ?? "";
    if (wanted !== get("zoom")) choose({ zoom: wanted });
  }

  function drawPanel(figure, panel, query) {
    const { name, is_share: isShare } = panel;
    const series = panel.series.filter(({ label }) => !hidden().includes(label));
    const against = panel.x ? ` against ${panel.x}` : "";
    figure.name(panel.title + against, name + against);
    if (!series.length) return figure.drawNothing("None of the shown runs recorded this metric.");
    const own = panel.x ? { x: panel.x, zoom: null } : {};
    const parameters = { ...query, metric: name, ...asking(), ...own };
    const [x, log, zoom] = [panel.x ?? get("x", "step"), isLog(), panel.x ? "" : get("zoom")];
    figure.savedFrom("figure/curves", { ...parameters, log, hide: hidden() });
    figure.draw({
      option: (colours) => curveOption(series, { axis: x, log, isShare, zoom, colours }),
      table: async () => {
        const full = await ask("curves", { ...parameters, points: 0 });
        return curveTable(full.panels[0].series, x);
      },
    });
  }

  function drawGroups({ groups }) {
    const [isPerRun, hide] = [get("group") === "run", hidden()];
    const shown = ({ label, num, runs, place, is_live: isLive }) => {
      const name = others.includes(label) ? "show" : "hide";
      const toggle = () => {
        const chosen = new Set(getAll(name));
        chosen[chosen.has(label) ? "delete" : "add"](label);
        choose({ [name]: [...chosen] });
      };
      const attributes = {
        class: "series",
        title: [...runs, ...(num > runs.length ? [`and ${num - runs.length} more`] : [])].join("\n"),
        "aria-pressed": String(!hide.includes(label)),
        onmouseenter: () => highlight(label, "highlight"),
        onmouseleave: () => highlight(label, "downplay"),
      };
      const live = isLive && el("span.state.running", { title: "training" });
      const marks = [live, !isPerRun && plural(num, "run")];
      const text = isPerRun ? shortName(label) : label;
      return button([swatch(place), el("span", text), el("small", marks)], attributes, toggle);
    };
    const title = "Single runs whose settings differ from those of the method's other runs";
    fill(
      panel.list,
      el("h3", isPerRun ? "Runs" : "Groups"),
      groups.filter((one) => !one.is_other).map(shown),
      others.length > 0 && el("h3", { title }, "Other runs"),
      groups.filter((one) => one.is_other).map(shown),
    );
  }

  function highlight(seriesName, type) {
    for (const { chart } of figures.values()) chart?.dispatchAction({ type, seriesName });
  }

  /** Show a message instead of the figures. */
  function showInstead(words) {
    figures.clear();
    fill(grid, el("div.figure.wide", words));
  }

  async function refresh() {
    await context.runs();
    await redraw();
  }

  drawBar();
  await redraw();
  return { refresh };
}

// More points than pixels are useless; a figure is at least about a third of the page wide.
function pointsFor(numRuns, width) {
  const most = numRuns > 30 ? 200 : numRuns > 10 ? 300 : 500;
  return Math.max(Math.min(most, Math.round(width / 2)), 100);
}

/** Return the key of a panel: its metric, and the metric on its x-axis. */
const keyOf = ({ name, x = "" }) => `${name}~${x}`;

const X_NAMES = { step: "step", tokens: "tokens", wall_clock: "after" };
const X_TITLES = { step: "training step", tokens: "generated tokens", wall_clock: "training time" };
const MOST_BANDS = 4;
const MOST_SAID = 16;

/**
 * Return ECharts' options for a panel of curves, each in the color of its place in the palette. Where a seed has ended,
 * the mean over the remaining seeds continues as a separate dotted line, without a jump.
 */
export function curveOption(series, { axis: x = "step", log = false, isShare = false, zoom = "", colours }) {
  const scale = isShare ? 100 : 1;
  const isPoints = !(x in X_TITLES);
  const value = (raw) => (raw === null || (log && raw <= 0) ? null : raw * scale);
  const isCrowded = series.length > 20;
  const styleOf = ({ place }) => seriesStyle(place, colours);
  const bandOf = (one) =>
    bandSeries(
      one.label,
      one.x.map((at, i) => [at, one.low[i] * scale, one.high[i] * scale]),
      styleOf(one).color,
      series.length > MOST_BANDS,
    );
  const lineOf = (one, { lineStyle, ...more }) => {
    const { color } = styleOf(one);
    const style = { lineStyle: { color, ...lineStyle }, itemStyle: { color } };
    return { type: "line", name: one.label, symbolSize: 4, z: 3, ...style, ...more };
  };
  const pointsOf = (one, isOfFewer) => {
    const nums = Array.isArray(one.num) ? one.num : one.x.map(() => 1);
    const most = Math.max(...nums);
    const data = one.x.map((at, i) => [at, nums[i] < most === isOfFewer ? value(one.y[i]) : null, i]);
    return { data, showSymbol: data.length < 30 };
  };
  const rawOf = (one) =>
    lineOf(one, {
      id: `raw ${one.label}`,
      data: one.x.map((at, i) => [at, value(one.raw[i])]),
      lineStyle: { width: 1, opacity: 0.28 },
      symbol: "none",
      silent: true,
      z: 2,
      tooltip: { show: false },
    });
  const restOf = (one) =>
    lineOf(one, {
      id: `rest ${one.label}`,
      ...pointsOf(one, true),
      lineStyle: { width: 1.4, opacity: 0.7, type: "dotted" },
      symbol: "emptyCircle",
    });
  const wholeOf = (one) =>
    lineOf(one, {
      ...(isPoints && { type: "scatter", symbolSize: 5 }),
      ...pointsOf(one, false),
      lineStyle: { width: isCrowded ? 1 : 1.7, opacity: isCrowded ? 0.7 : 1, type: styleOf(one).dash },
      symbol: "circle",
      emphasis: { focus: "series", lineStyle: { width: 2.6 } },
      blur: { lineStyle: { opacity: 0.18 }, itemStyle: { opacity: 0.18 } },
    });
  const said = (raw) => (isShare ? percent(raw) : number(raw));
  const tipLine = ({ seriesName, value: [, , i] }) => {
    const { place, y, low, high, ...one } = series.find(({ label }) => label === seriesName);
    const spread = low ? ` [${said(low[i])}, ${said(high[i])}]` : "";
    const num = Array.isArray(one.num) ? one.num[i] : one.num;
    return [swatch(place), shortName(seriesName), `${said(y[i])}${spread}${num > 1 ? `  n=${num}` : ""}`];
  };
  const formatter = (found) => {
    const known = [found].flat().filter(({ value: point }) => point.length === 3 && point[1] !== null);
    if (!known.length) return "";
    known.sort((a, b) => b.value[1] - a.value[1]);
    const [at] = known[0].value;
    const lines = known.slice(0, MOST_SAID).map(tipLine);
    if (known.length > MOST_SAID) lines.push([null, `and ${known.length - MOST_SAID} more`, ""]);
    return tip(`${X_NAMES[x] ?? x} ${x === "wall_clock" ? duration(at) : number(at)}`, lines);
  };
  const values = series.flatMap(({ y }) => y.map(value));
  const option = zoomable({
    grid: { left: 6, right: 18, top: 14, bottom: 24, containLabel: true },
    xAxis: axis(colours, {
      name: X_TITLES[x] ?? x,
      nameLocation: "middle",
      nameGap: 24,
      ...(!isPoints && { scale: false, min: "dataMin", max: "dataMax" }),
      splitLine: { show: false },
      minInterval: x === "wall_clock" || isPoints ? 0 : 1,
      label: { formatter: isPoints ? undefined : x === "wall_clock" ? clock : count },
      axisPointer: { show: true, snap: true, lineStyle: { color: colours.axis }, label: { show: false } },
    }),
    yAxis: log ? logAxis(colours, values) : axis(colours),
    tooltip: { trigger: isPoints ? "item" : "axis", axisPointer: { type: "line" }, formatter },
    series: [
      ...(log ? [] : series.filter(({ low }) => low).map(bandOf)),
      ...series.filter(({ raw }) => raw).map(rawOf),
      ...series.filter(({ num }) => Array.isArray(num)).map(restOf),
      ...series.map(wholeOf),
    ],
  });
  const [startValue, endValue] = zoom ? zoom.split("_").map(Number) : [];
  if (zoom) Object.assign(option.dataZoom[0], { startValue, endValue });
  return option;
}

function clock(seconds) {
  if (seconds >= 3600) return `${Number((seconds / 3600).toPrecision(2))} h`;
  if (seconds >= 120) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds)} s`;
}

/** Return the curves of groups of runs as a table. */
export const curveTable = (series, x = "step") => ({
  columns: ["group", "num_runs", x, "value", "low", "high"],
  rows: series.flatMap((one) =>
    pointsOf(one).map((point, i) => [one.label, one.num[i] ?? one.num, ...point]),
  ),
});
