// Curves of any metric: grouped by any setting with a band over seeds, against steps, tokens or time.

import { ask } from "../api.js";
import { choice, el, empty, field, fill, select } from "../dom.js";
import { axis, bandSeries, Figure, tip, zoomable } from "../figure.js";
import { duration, number, percent } from "../format.js";
import { seriesStyle, swatch } from "../palette.js";
import {
  closeOutside,
  differingKeys,
  experimentField,
  filterMenu,
  latestOnly,
  noRuns,
  searchBox,
  selected,
} from "../selection.js";
import { get, getAll, set } from "../url.js";

const USUAL = [
  "rollout/reward",
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
const AXES = [
  ["step", "Step"],
  ["tokens", "Tokens"],
  ["wall_clock", "Time"],
];
const WIDTHS = [1, 3, 5, 9, 15, 25, 51, 101, 201, 501, 1001];

export async function show(root, context) {
  let table = await context.runs();
  let quantities = [];
  let figures = new Map();
  let asked = null;
  /** Groups of other runs: listed apart, and drawn where the address says so. */
  let others = [];
  const side = el("aside.side", { "aria-label": "Runs and groups" });
  const bar = el("div.toolbar");
  const banner = el("div");
  const grid = el("div.figures");
  root.append(el("div.split", side, el("div.content", bar, banner, grid)));
  const search = searchBox(() => void redraw());
  const list = el("div");
  const counted = el("div.count");
  const experiment = el("div", { style: { marginBottom: "8px" } });
  side.append(
    experiment,
    search,
    el("div", { style: { marginTop: "8px" } }, [
      filterMenu(
        () => table,
        () => {
          search.value = get("q");
          void redraw();
        },
      ),
    ]),
    counted,
    list,
  );

  const state = () => ({
    axis: get("x", "step"),
    group: get("group", "method"),
    band: get("band", "range"),
    smooth: Number(get("smooth", "1")) || 1,
    log: get("log") === "1",
    hidden: new Set([...getAll("hide"), ...others.filter((label) => !getAll("show").includes(label))]),
  });

  function metricNames() {
    const chosen = getAll("metric");
    if (chosen.length) return chosen;
    const known = quantities.map(({ name }) => name);
    return USUAL.flatMap((name) =>
      name.includes("*")
        ? known.filter((other) => new RegExp(`^${name.replace("*", ".+")}$`).test(other))
        : known.filter((other) => other === name),
    );
  }

  function drawBar() {
    const now = state();
    const { runs } = selected(table);
    const change = (changes) => {
      set(changes);
      drawBar();
      void redraw();
    };
    const keys = differingKeys(table, runs).filter((key) => key !== "seed");
    const focused = document.activeElement?.getAttribute?.("aria-label");
    fill(
      bar,
      choice("X axis", AXES, now.axis, (value) => change({ x: value === "step" ? null : value })),
      field(
        "group by",
        select(
          "Group by",
          [
            ["method", "method (all but seed)"],
            ["run", "each run"],
            ["seed", "seed"],
            ...keys.map((key) => [key, key]),
          ],
          now.group,
          (value) => change({ group: value === "method" ? null : value, hide: null }),
        ),
      ),
      now.group !== "run" &&
        field(
          "band",
          select(
            "Band",
            [
              ["range", "min to max"],
              ["deviation", "± std. dev."],
              ["none", "none"],
            ],
            now.band,
            (value) => change({ band: value === "range" ? null : value }),
          ),
        ),
      smoothing(now, change),
      el("label.field", [
        el("input", {
          type: "checkbox",
          checked: now.log,
          onchange: (event) => change({ log: event.target.checked ? "1" : null }),
        }),
        "log scale",
      ]),
      metricMenu(),
    );
    if (focused) bar.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  function smoothing(now, change) {
    const place = Math.max(
      WIDTHS.findLastIndex((width) => width <= now.smooth),
      0,
    );
    const shown = el("span", now.smooth === 1 ? "off" : `${now.smooth} steps`);
    const slider = el("input", {
      type: "range",
      min: "0",
      max: String(WIDTHS.length - 1),
      value: String(place),
      "aria-label": "Smoothing",
      oninput: () => fill(shown, slider.value === "0" ? "off" : `${WIDTHS[slider.value]} steps`),
      onchange: () => change({ smooth: slider.value === "0" ? null : WIDTHS[slider.value] }),
    });
    return el("label.field", { title: "The mean of so many steps around each" }, [
      el("span", "smoothing"),
      slider,
      shown,
    ]);
  }

  function metricMenu() {
    const body = el("div", { style: { width: "420px" } });
    const menu = el("details.menu.right", el("summary", "Metrics"), body);
    const drawBody = () => {
      const chosen = new Set(metricNames());
      const lines = el("div");
      const draw = (wanted) =>
        fill(
          lines,
          quantities
            .filter(({ name, meaning }) => `${name} ${meaning}`.toLowerCase().includes(wanted.toLowerCase()))
            .map(({ name, unit, meaning }) =>
              el("label.option.deep", { title: meaning }, [
                el("input", {
                  type: "checkbox",
                  checked: chosen.has(name),
                  onchange: (event) => {
                    chosen[event.target.checked ? "add" : "delete"](name);
                    set({ metric: quantities.map((one) => one.name).filter((one) => chosen.has(one)) });
                    void redraw();
                  },
                }),
                el("span", name, el("div.muted", { style: { fontSize: "11px" } }, meaning)),
                el("small", unit),
              ]),
            ),
        );
      fill(
        body,
        el("div", { style: { display: "flex", gap: "8px", marginBottom: "6px" } }, [
          el("input", {
            type: "search",
            placeholder: "Find a metric",
            "aria-label": "Find a metric",
            oninput: (event) => draw(event.target.value),
          }),
          el(
            "button",
            {
              type: "button",
              onclick: () => {
                set({ metric: null });
                drawBody();
                void redraw();
              },
            },
            ["Usual"],
          ),
        ]),
        lines,
      );
      draw("");
    };
    menu.addEventListener("toggle", () => {
      if (menu.open) drawBody();
    });
    closeOutside(menu);
    return menu;
  }

  async function redraw() {
    asked?.abort();
    asked = new AbortController();
    const { signal } = asked;
    const { runs, num, isPicked, query } = selected(table);
    fill(
      experiment,
      experimentField(table, () => {
        set({ hide: null, show: null });
        drawBar();
        void redraw();
      }),
    );
    fill(
      counted,
      el("span", `${runs.length} of ${table.runs.length} runs`),
      isPicked &&
        el(
          "button.link",
          {
            type: "button",
            onclick: () => {
              set({ run: null });
              drawBar();
              void redraw();
            },
          },
          ["drop the pick"],
        ),
    );
    fill(banner, latestOnly(num));
    if (!runs.length) {
      fill(list);
      clear();
      fill(grid, el("div.figure.wide", noRuns(table)));
      return;
    }
    const now = state();
    try {
      const found = await ask("quantities", query, signal);
      quantities = found.quantities;
      const metrics = metricNames();
      const answer = await ask(
        "curves",
        {
          ...query,
          metric: metrics,
          x: now.axis,
          group: now.group,
          band: now.band,
          smooth: now.smooth,
          points: pointsFor(runs.length, grid.clientWidth),
        },
        signal,
      );
      others = answer.others;
      draw(answer, query, state());
    } catch (error) {
      if (error.name !== "AbortError") fill(banner, el("p.banner", error.message));
    }
  }

  function draw(answer, chosen, now) {
    drawGroups(answer, now);
    if (answer.pending.length)
      fill(
        banner,
        el("p.banner", [
          `Curves of ${answer.pending.length} runs are being read into the index; they appear as they come.`,
        ]),
      );
    const wanted = new Map(answer.panels.map((panel) => [panel.name, panel]));
    if (!wanted.size) {
      clear();
      fill(grid, el("div.figure.wide", empty("No curves yet", "These runs have recorded no metrics.")));
      return;
    }
    for (const [name, figure] of figures)
      if (!wanted.has(name)) {
        figure.dispose();
        figure.element.remove();
        figures.delete(name);
      }
    for (const child of [...grid.children])
      if (![...figures.values()].some((figure) => figure.element === child)) child.remove();
    for (const [place, panel] of [...wanted.values()].entries()) {
      let figure = figures.get(panel.name);
      if (!figure) {
        figure = new Figure({ title: panel.name, linked: "curves" });
        figures.set(panel.name, figure);
      }
      // Only what is not in its place moves: moving loses the focus.
      if (grid.children[place] !== figure.element)
        grid.insertBefore(figure.element, grid.children[place] ?? null);
      drawPanel(figure, panel, chosen, now);
    }
  }

  function drawPanel(figure, panel, chosen, now) {
    const series = panel.series.filter(({ label }) => !now.hidden.has(label));
    const unit = panel.is_share ? "%" : panel.unit;
    const title = titleOf(panel.name);
    const subtitle = `${panel.meaning}${unit ? `, ${unit}` : ""}`;
    if (!series.length) {
      figure.draw({ option: () => ({}), table: async () => ({ columns: [], rows: [] }), title, subtitle });
      figure.drawNothing("None of the shown runs has recorded it.");
      return;
    }
    figure.savedFrom("figure/curves", {
      ...chosen,
      metric: panel.name,
      x: now.axis,
      group: now.group,
      band: now.band,
      smooth: now.smooth,
      log: now.log,
      hide: [...now.hidden],
    });
    figure.draw({
      title,
      subtitle,
      option: (colours) => curveOption(series, { ...now, isShare: panel.is_share, colours }),
      table: async () => {
        const full = await ask("curves", {
          ...chosen,
          metric: panel.name,
          x: now.axis,
          group: now.group,
          band: now.band,
          smooth: now.smooth,
          points: 0,
        });
        return curveTable(full.panels[0].series, now.axis);
      },
    });
  }

  function drawGroups({ groups, places }, now) {
    const byName = new Map(table.runs.map((run) => [run.name, run]));
    const entries = Object.entries(groups);
    const shown = ([label, members]) => groupButton(label, members, { byName, place: places[label], now });
    fill(
      list,
      el("h3", now.group === "run" ? "Runs" : "Groups"),
      entries.filter(([label]) => !others.includes(label)).map(shown),
      others.length > 0 && [
        el("h3", { title: "Single runs with other settings than their method's other runs" }, "Other runs"),
        entries.filter(([label]) => others.includes(label)).map(shown),
      ],
    );
  }

  function groupButton(label, members, { byName, place, now }) {
    const shown =
      now.group === "run" ? label.slice(label.indexOf("/") + 1).replace(/^\d{8}-\d{6}-/, "") : label;
    const live = members.some((name) => ["running", "starting"].includes(byName.get(name)?.state));
    const name = others.includes(label) ? "show" : "hide";
    return el(
      "button.series",
      {
        type: "button",
        title: members.join("\n"),
        "aria-pressed": String(!now.hidden.has(label)),
        onclick: () => {
          const chosen = new Set(getAll(name));
          chosen[chosen.has(label) ? "delete" : "add"](label);
          set({ [name]: [...chosen] });
          void redraw();
        },
        onmouseenter: () => highlight(label, true),
        onmouseleave: () => highlight(label, false),
      },
      [
        swatch(place),
        el("span", shown),
        el("small", [
          live && el("span.state.running", { title: "training" }),
          now.group === "run" ? "" : `${members.length} ${members.length === 1 ? "run" : "runs"}`,
        ]),
      ],
    );
  }

  function highlight(label, on) {
    for (const figure of figures.values())
      figure.chart?.dispatchAction({ type: on ? "highlight" : "downplay", seriesName: label });
  }

  function clear() {
    for (const figure of figures.values()) figure.dispose();
    figures = new Map();
    fill(grid);
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

/** `objective/entropy` as people say it. */
export function titleOf(name) {
  if (!name.startsWith("evaluation/")) return name;
  const [, benchmark, kind] = /^evaluation\/(.+)\/([^/]+)$/.exec(name);
  const said =
    {
      mean_at_k: "Mean@k",
      pass_at_k: "Pass@k",
      completion_length: "answer length",
      truncated_frac: "truncated",
    }[kind] || kind;
  return `${said}, ${benchmark}`;
}

/** The option of one panel of curves. */
export function curveOption(series, { axis: x, log, isShare, colours, marks = null }) {
  const scale = isShare ? 100 : 1;
  const value = (raw) => (raw === null || (log && raw <= 0) ? null : raw * scale);
  const bands =
    log || series.length > 12
      ? []
      : series
          .filter(({ low }) => low)
          .map((one) =>
            bandSeries(
              one.label,
              one.x.map((at, i) => [at, one.low[i] * scale, one.high[i] * scale]),
              seriesStyle(one.place, colours).color,
            ),
          );
  const raws = series
    .filter(({ raw }) => raw)
    .map((one) => ({
      type: "line",
      name: one.label,
      data: one.raw.x.map((at, i) => [at, value(one.raw.y[i])]),
      symbol: "none",
      silent: true,
      z: 2,
      lineStyle: { width: 1, opacity: 0.28, color: seriesStyle(one.place, colours).color },
      tooltip: { show: false },
      id: `raw ${one.label}`,
    }));
  // Where a seed has ended the mean is of fewer: it goes on dotted and apart, and does not jump.
  const whole = (one) => (Array.isArray(one.num) ? Math.max(...one.num) : null);
  const rests = series
    .filter((one) => whole(one) !== null)
    .map((one) => ({
      type: "line",
      name: one.label,
      id: `rest ${one.label}`,
      data: one.x.map((at, i) => [at, one.num[i] === whole(one) ? null : value(one.y[i]), i]),
      showSymbol: one.x.length < 30,
      symbol: "emptyCircle",
      symbolSize: 4,
      z: 3,
      lineStyle: { width: 1.4, opacity: 0.7, type: "dotted", color: seriesStyle(one.place, colours).color },
      itemStyle: { color: seriesStyle(one.place, colours).color },
    }));
  const lines = series.map((one) => {
    const { color, dash } = seriesStyle(one.place, colours);
    const most = whole(one);
    return {
      type: "line",
      name: one.label,
      data: one.x.map((at, i) => [at, most === null || one.num[i] === most ? value(one.y[i]) : null, i]),
      showSymbol: one.x.length < 30,
      symbol: "circle",
      symbolSize: 4,
      lineStyle: {
        width: series.length > 20 ? 1 : 1.7,
        opacity: series.length > 20 ? 0.7 : 1,
        color,
        type: dash,
      },
      itemStyle: { color },
      z: 3,
      connectNulls: false,
      emphasis: { focus: "series", lineStyle: { width: 2.6 } },
      blur: { lineStyle: { opacity: 0.18 }, itemStyle: { opacity: 0.18 } },
      markLine: marks && one === series[0] ? marks : undefined,
    };
  });
  const shown = (at) => (x === "wall_clock" ? duration(at) : number(at));
  return zoomable({
    grid: { left: 6, right: 18, top: 14, bottom: 6, containLabel: true },
    xAxis: axis(colours, {
      scale: false,
      min: "dataMin",
      max: "dataMax",
      minInterval: x === "wall_clock" ? 0 : 1,
      splitLine: { show: false },
      axisLabel: {
        color: colours.muted,
        fontSize: 11,
        hideOverlap: true,
        formatter: (at) => (x === "wall_clock" ? clock(at) : brief(at)),
      },
      axisPointer: { show: true, snap: true, lineStyle: { color: colours.axis }, label: { show: false } },
    }),
    yAxis: axis(colours, log ? { type: "log", scale: true } : {}),
    tooltip: {
      trigger: "axis",
      axisPointer: { type: "line" },
      formatter: (points) => {
        const known = points.filter(
          ({ seriesType, value: point }) => seriesType === "line" && point[1] !== null && point.length > 2,
        );
        const lines = known
          .sort((a, b) => b.value[1] - a.value[1])
          .slice(0, 16)
          .map((point) => {
            const one = series.find(({ label }) => label === point.seriesName);
            const i = point.value[2];
            const text = (raw) => (isShare ? percent(raw) : number(raw));
            const spread = one?.low ? ` [${text(one.low[i])}, ${text(one.high[i])}]` : "";
            const num = Array.isArray(one?.num) ? one.num[i] : one?.num;
            return [
              point.color,
              nameOf(point.seriesName),
              `${text(one.y[i])}${spread}${num > 1 ? `  n=${num}` : ""}`,
            ];
          });
        const more = known.length > 16 ? [[null, `and ${known.length - 16} more`, ""]] : [];
        return known.length
          ? tip(
              `${{ step: "step", tokens: "tokens", wall_clock: "after" }[x]} ${shown(points[0].axisValue)}`,
              [...lines, ...more],
            )
          : "";
      },
    },
    series: [...bands, ...raws, ...rests, ...lines],
  });
}

const nameOf = (label) => label.slice(label.indexOf("/") + 1).replace(/^\d{8}-\d{6}-/, "");

function brief(value) {
  if (Math.abs(value) >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (Math.abs(value) >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return number(value);
}

function clock(seconds) {
  if (seconds >= 3600) return `${Number((seconds / 3600).toPrecision(2))} h`;
  if (seconds >= 120) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds)} s`;
}

function curveTable(series, x) {
  const rows = series.flatMap((one) =>
    one.x.map((at, i) => [
      one.label,
      one.runs.length,
      at,
      one.y[i],
      one.low ? one.low[i] : "",
      one.high ? one.high[i] : "",
    ]),
  );
  return { columns: ["group", "num_runs", x, "value", "low", "high"], rows };
}
