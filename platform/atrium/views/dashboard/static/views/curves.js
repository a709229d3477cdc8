// Curves of any metric: grouped by any setting with a band over seeds, against steps, tokens or time.

import { ask } from "../api.js";
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
// The first of each is what the server assumes, and is not written into the address.
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
const WIDTHS = [1, 3, 5, 9, 15, 25, 51, 101, 201, 501, 1001];

export async function show(root, context) {
  let table = await context.runs();
  let quantities = [];
  let smoothed = 1;
  let figures = new Map();
  let asked = null;
  /** Groups of other runs: listed apart, and drawn where the address says so. */
  let others = [];
  const bar = el("div.toolbar");
  const banner = el("div");
  const grid = el("div.figures");
  const panel = runsPanel(
    "Runs and groups",
    () => table,
    () => change({}),
  );
  root.append(el("div.split", panel.element, el("div.content", bar, banner, grid)));

  /** What the server draws curves from, as the address says. */
  const asking = () =>
    Object.fromEntries(["x", "group", "band", "smooth", "zoom"].map((name) => [name, get(name)]));
  const hidden = () => [...getAll("hide"), ...others.filter((label) => !getAll("show").includes(label))];
  const isLog = () => get("log") === "1";

  function change(changes) {
    set(changes);
    drawBar();
    void redraw();
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
    const bands = select("Band", BANDS, get("band"), (band) => change({ band }));
    const groups = select("Group by", [...GROUPS, ...keys], get("group"), (group) =>
      change({ group, hide: null }),
    );
    const logBox = checkbox(isLog(), (on) => change({ log: on ? "1" : null }));
    const chooseX = (x) => change({ x, zoom: null });
    const others = quantities.map(({ name }) => name).filter((name) => !name.startsWith("evaluation/"));
    refill(
      bar,
      field("x axis", select("X axis", [...AXES, ...others], get("x"), chooseX)),
      field("group by", groups),
      get("group") !== "run" && field("band", bands),
      smoothing(),
      el("label.field", [logBox, "log scale"]),
      menu("Metrics", { class: "right" }, metricChoices),
    );
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
    const title = "The mean of so many steps around each";
    return el("label.field", { title }, el("span", "smoothing"), slider, shown);
  }

  /** A box per metric, and one to find them in. */
  function metricChoices() {
    const chosen = new Set(metricNames());
    const lines = el("div");
    const line = ({ name, unit, meaning }) => {
      const text = [name, el("div.muted", { style: { fontSize: "11px" } }, meaning)];
      const made = option(text, chosen.has(name), { class: "deep", title: meaning }, (on) => {
        chosen[on ? "add" : "delete"](name);
        set({ metric: quantities.map((one) => one.name).filter((one) => chosen.has(one)) });
        void redraw();
      });
      made.append(el("small", unit));
      return made;
    };
    const draw = (wanted) => {
      const fits = ({ name, meaning }) => `${name} ${meaning}`.toLowerCase().includes(wanted.toLowerCase());
      fill(lines, quantities.filter(fits).map(line));
    };
    const usual = button("Usual", () => {
      set({ metric: null });
      box.replaceWith(metricChoices());
      void redraw();
    });
    draw("");
    const box = el("div", { style: { width: "402px" } }, [
      el("div", { style: { display: "flex", gap: "8px", marginBottom: "6px" } }, [
        searchInput("Find a metric", draw),
        usual,
      ]),
      lines,
    ]);
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
      showInstead(noRuns(table));
      return;
    }
    try {
      quantities = (await ask("quantities", query, signal)).quantities;
      const points = pointsFor(runs.length, grid.clientWidth);
      const answer = await ask("curves", { ...query, metric: metricNames(), ...asking(), points }, signal);
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
    const pending = `Curves of ${answer.pending.length} runs are being read into the index; they appear as they come.`;
    if (answer.pending.length) fill(banner, el("p.banner", pending));
    if (!answer.panels.length) {
      showInstead(empty("No curves yet", "These runs have recorded no metrics."));
      return;
    }
    for (const [name, figure] of figures) {
      if (answer.panels.some((one) => one.name === name)) continue;
      figure.dispose();
      figures.delete(name);
    }
    const kept = [...figures.values()].map(({ element }) => element);
    for (const child of [...grid.children]) if (!kept.includes(child)) child.remove();
    for (const [place, one] of answer.panels.entries()) {
      const figure = figures.get(one.name) ?? new Figure({ title: one.name, linked: "curves", onzoom: zoom });
      figures.set(one.name, figure);
      // Only what is not in its place moves: moving loses the focus.
      if (grid.children[place] !== figure.element)
        grid.insertBefore(figure.element, grid.children[place] ?? null);
      drawPanel(figure, one, query);
    }
  }

  /** Keep the range of x in the address, and ask for more of its points. */
  function zoom(range) {
    const wanted = range?.map((end) => Number(end.toPrecision(6))).join("_") ?? "";
    if (wanted === get("zoom")) return;
    set({ zoom: wanted });
    void redraw();
  }

  function drawPanel(figure, panel, query) {
    const { name, is_share: isShare } = panel;
    const series = panel.series.filter(({ label }) => !hidden().includes(label));
    const titles = { title: titleOf(panel), subtitle: name };
    if (!series.length) {
      figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), ...titles });
      figure.drawNothing("None of the shown runs has recorded it.");
      return;
    }
    const parameters = { ...query, metric: name, ...asking() };
    const [x, log] = [get("x", "step"), isLog()];
    figure.savedFrom("figure/curves", { ...parameters, log, hide: hidden() });
    figure.draw({
      ...titles,
      option: (colours) => curveOption(series, { axis: x, log, isShare, zoom: get("zoom"), colours }),
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
        set({ [name]: [...chosen] });
        void redraw();
      };
      const attributes = {
        class: "series",
        title: [...runs, ...(num > runs.length ? [`and ${num - runs.length} more`] : [])].join("\n"),
        "aria-pressed": String(!hide.includes(label)),
        onmouseenter: () => highlight(label, "highlight"),
        onmouseleave: () => highlight(label, "downplay"),
      };
      const marks = [
        isLive && el("span.state.running", { title: "training" }),
        !isPerRun && plural(num, "run"),
      ];
      const text = isPerRun ? shortName(label) : label;
      return button([swatch(place), el("span", text), el("small", marks)], attributes, toggle);
    };
    const title = "Single runs with other settings than their method's other runs";
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

  function clear() {
    for (const figure of figures.values()) figure.dispose();
    figures = new Map();
    fill(grid);
  }

  /** Words in place of the figures. */
  function showInstead(words) {
    clear();
    fill(grid, el("div.figure.wide", words));
  }

  async function refresh() {
    table = await context.runs();
    await redraw();
  }

  drawBar();
  await redraw();
  drawBar();
  return { refresh, dispose: clear };
}

// More points than pixels change nothing; a figure is never narrower than a third of the page or so.
function pointsFor(numRuns, width) {
  const most = numRuns > 30 ? 200 : numRuns > 10 ? 300 : 500;
  return Math.max(Math.min(most, Math.round(width / 2)), 100);
}

const KINDS = {
  mean_at_k: "Mean@k",
  pass_at_k: "Pass@k",
  completion_length: "answer length",
  truncated_frac: "truncated",
};

/** What the curves of a panel are of, with the unit. */
export function titleOf({ name, meaning, unit, is_share: isShare }) {
  const [, benchmark, kind] = /^evaluation\/(.+)\/([^/]+)$/.exec(name) ?? [];
  const words = benchmark
    ? `${KINDS[kind] ?? kind}, ${benchmark}`
    : meaning[0].toUpperCase() + meaning.slice(1);
  const shown = isShare ? "%" : unit;
  return shown ? `${words}, ${shown}` : words;
}

const X_NAMES = { step: "step", tokens: "tokens", wall_clock: "after" };
const X_TITLES = { step: "training step", tokens: "generated tokens", wall_clock: "training time" };
const MOST_BANDS = 4;
const MOST_SAID = 16;

/**
 * The option of one panel of curves, which have the colour of their place, or one that they name. Where a seed has ended
 * the mean is of fewer: it goes on dotted and apart, and does not jump.
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
  const option = zoomable({
    grid: { left: 6, right: 18, top: 14, bottom: 24, containLabel: true },
    xAxis: axis(colours, {
      name: X_TITLES[x] ?? x,
      nameLocation: "middle",
      nameGap: 24,
      ...(!isPoints && { scale: false, min: "dataMin", max: "dataMax" }),
      splitLine: { show: false },
      minInterval: x === "wall_clock" || isPoints ? 0 : 1,
      axisLabel: {
        color: colours.muted,
        fontSize: 11,
        hideOverlap: true,
        ...(!isPoints && { formatter: x === "wall_clock" ? clock : count }),
      },
      axisPointer: { show: true, snap: true, lineStyle: { color: colours.axis }, label: { show: false } },
    }),
    yAxis: log
      ? logAxis(
          colours,
          series.flatMap(({ y }) => y.map(value)),
        )
      : axis(colours),
    tooltip: {
      trigger: isPoints ? "item" : "axis",
      axisPointer: { type: "line" },
      formatter: (found) => {
        const isKnown = ({ value: point }) => point.length === 3 && point[1] !== null;
        const known = [found].flat().filter(isKnown);
        known.sort((a, b) => b.value[1] - a.value[1]);
        if (!known.length) return "";
        const [at] = known[0].value;
        const lines = known.slice(0, MOST_SAID).map(tipLine);
        if (known.length > MOST_SAID) lines.push([null, `and ${known.length - MOST_SAID} more`, ""]);
        return tip(`${X_NAMES[x] ?? x} ${x === "wall_clock" ? duration(at) : number(at)}`, lines);
      },
    },
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

/** Curves of methods as a table. */
export const meanTable = (series) => ({
  columns: ["method", "step", "mean", "low", "high"],
  rows: series.flatMap((one) => rowsOf(one).map((point) => [one.label, ...point])),
});

const curveTable = (series, x) => ({
  columns: ["group", "num_runs", x, "value", "low", "high"],
  rows: series.flatMap(({ label, ...one }) =>
    rowsOf(one).map((point, i) => [label, one.num[i] ?? one.num, ...point]),
  ),
});

const rowsOf = (one) => one.x.map((at, i) => [at, one.y[i], one.low?.[i] ?? "", one.high?.[i] ?? ""]);
