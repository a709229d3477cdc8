// One run's trust region: observed ratios against the window, what each side cut, entropy against cuts.

import { ask } from "../api.js";
import { choice, el, field, fill, oneAtATime } from "../dom.js";
import { axis, bandSeries, disposeAll, Figure, figureGrid, ratioTicks, tip, zoomable } from "../figure.js";
import { number, percent } from "../format.js";
import { noRuns, runSelect } from "../selection.js";
import { addressOf, get, set } from "../url.js";
import { showArms } from "./trust_region_arms.js";

const SIGNS = [
  ["positive", "A > 0"],
  ["negative", "A < 0"],
  ["zero", "A = 0"],
];
const SHARES = [
  ["objective/clip_high_frac", "A > 0, cut above u", "high", "solid"],
  ["objective/clip_low_frac", "A < 0, cut below l", "low", "solid"],
  ["objective/clip_runaway_frac", "A < 0, cut above u", "runaway", "solid"],
  ["objective/outside_high_frac", "outside, w > u", "high", "dashed"],
  ["objective/outside_low_frac", "outside, w < l", "low", "dashed"],
];
const QUANTILES = ["p01", "p05", "p25", "p50", "p75", "p95", "p99"].map((name) => `objective/ratio_${name}`);
const EXTREMES = ["objective/ratio_min", "objective/ratio_max"];
const ENTROPY = "objective/entropy";
const SHADES = [1, 0.8, 0.6, 0.4, 0.2];
const FLOOR = 0.7; // what no token is drawn as: a log axis has no zero
const KLS = [
  ["objective/kl_k1", "k1"],
  ["objective/kl_k2", "k2"],
  ["objective/kl_k3", "k3"],
];

/** One run or several methods, as the address says. */
export async function show(root, context) {
  let shown = null;
  const change = async (mode) => {
    set({ mode: mode === "run" ? null : mode });
    shown?.dispose();
    fill(root);
    shown = await (mode === "arms" ? showArms : showRun)(root, context, modes());
  };
  const modes = () =>
    choice(
      "Show",
      [
        ["run", "One run"],
        ["arms", "Methods side by side"],
      ],
      get("mode", "run"),
      (mode) => void change(mode),
    );
  await change(get("mode", "run"));
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
    if (chosen && !get("at")) set({ at: chosen }); // it stays when newer runs begin
    const options = [
      ["", `all ${steps.length} recorded steps`],
      ...steps.map((step) => [String(step), `step ${step}`]),
    ];
    const box = el(
      "select",
      {
        "aria-label": "Step",
        onchange: () => {
          set({ step: box.value });
          void refresh();
        },
      },
      [options.map(([value, text]) => el("option", { value, selected: value === get("step") }, text))],
    );
    fill(
      bar,
      modes,
      field("run", made.box),
      field("at", box),
      el("a", { href: addressOf("runs", { open: chosen, run: null }) }, "About this run"),
    );
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
    try {
      const [region, curves, steps] = await Promise.all([
        ask("trust-region", { run: chosen, step: get("step") }),
        ask("curves", {
          run: chosen,
          group: "run",
          metric: [...SHARES, ...KLS].map(([name]) => name),
          points: 600,
        }),
        // What is set against each other has to be of the same steps.
        ask("curves", {
          run: chosen,
          group: "run",
          metric: [...SHARES.slice(0, 3).map(([name]) => name), ...QUANTILES, ...EXTREMES, ENTROPY],
          points: 300,
          even: true,
        }),
      ]);
      if (document.activeElement?.tagName !== "SELECT") drawBar(region.steps);
      const named = ({ panels }) =>
        Object.fromEntries(panels.map((panel) => [panel.name, panel.series[0] ?? null]));
      const [byName, atSteps] = [named(curves), named(steps)];
      fill(
        banner,
        region.problems.length > 0 && el("p.banner", region.problems.slice(0, 3).join("; ")),
        curves.pending.length > 0 && el("p.banner", "This run's curves are being read into the index."),
      );
      drawFacts(region);
      drawHistogram(region);
      drawShares(byName);
      drawQuantiles(atSteps, region);
      drawEntropy(atSteps);
      drawKl(byName);
    } catch (error) {
      fill(banner, el("p.banner", error.message));
    }
  });

  function drawFacts(region) {
    const { window: bounds, divergence } = region;
    const total = Object.values(region.num_tokens).reduce((a, b) => a + b, 0);
    const cut = (sign, side) => (total ? `${percent(region.cut[sign][side] / total)} %` : "–");
    const all = `of all ${number(total)} recorded tokens`;
    const budget = Object.entries(divergence || {})
      .filter(([key]) => key !== "kind")
      .map(([key, value]) => `${key} ${value}`)
      .join(", ");
    const facts_ = [
      ["divergence", divergence?.kind ?? "unknown", budget],
      [
        "window [l, u]",
        bounds ? `[${number(bounds[0])}, ${bounds[1] === null ? "∞" : number(bounds[1])}]` : "none constant",
        region.window_reason,
      ],
      [
        "recorded tokens",
        number(total),
        `${region.num_files} ${region.num_files === 1 ? "file" : "files"} of rollouts`,
      ],
      ["A > 0 cut above u", cut("positive", "high"), all],
      ["A < 0 cut below l", cut("negative", "low"), all],
      ["A < 0 cut above u", cut("negative", "high"), `a runaway ratio; ${all}`],
    ];
    fill(
      facts,
      el("section.card.pad", { "aria-label": "Window" }, [
        el("dl.stats", { style: { margin: "0" } }, [
          facts_.map(([name, value, more]) =>
            el("div", el("dt", name), el("dd", value, " ", el("small", more))),
          ),
        ]),
      ]),
    );
  }

  function drawHistogram(region) {
    const figure = figures.histogram;
    const subtitle = `${region.is_of_all_tokens ? "all tokens, at every update that used them" : "tokens of recorded rollouts, after the step's last update"}, by ratio and sign of the advantage; the ends hold all beyond; log axes`;
    if (!region.histogram) {
      figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
      const run = table.runs.find(({ name }) => name === chosen);
      figure.drawNothing(
        run?.state === "failed"
          ? `This run failed at step ${number(run.step)}, before ratios were recorded: ${run.error ?? "it does not say why"}.`
          : "No recorded rollout of this run has ratios. A run with one update per batch has ratios of exactly 1; rollouts are recorded every tracking.rollouts_every_num_steps.",
      );
      return;
    }
    const { edges, counts } = region.histogram;
    const middles = edges.slice(1).map((edge, i) => (edge + edges[i]) / 2);
    figure.draw({
      subtitle,
      option: (colours) => ({
        legend: {
          top: 0,
          right: 8,
          textStyle: { color: colours.muted, fontSize: 11 },
          itemWidth: 10,
          itemHeight: 10,
        },
        grid: { left: 8, right: 18, top: 30, bottom: 22, containLabel: true },
        xAxis: axis(colours, {
          name: "ratio w",
          nameLocation: "middle",
          nameGap: 26,
          scale: false,
          min: edges[0],
          max: edges.at(-1),
          splitLine: { show: false },
          ...ratioTicks(edges, colours),
        }),
        yAxis: axis(colours, {
          type: "log",
          min: FLOOR,
          axisLabel: {
            color: colours.muted,
            fontSize: 11,
            formatter: (value) => (value < 1 ? "" : number(value)),
          },
        }),
        tooltip: {
          trigger: "axis",
          formatter: (points) => {
            const i = Math.min(points[0].dataIndex, middles.length - 1);
            return tip(
              `w from ${number(Math.exp(edges[i]))} to ${number(Math.exp(edges[i + 1]))}`,
              SIGNS.map(([sign, label]) => [colours[sign], label, number(counts[sign][i])]),
            );
          },
        },
        series: SIGNS.map(([sign, label], at) => ({
          type: "line",
          name: label,
          step: "end",
          symbol: "none",
          lineStyle: { width: 1.6, color: colours[sign] },
          itemStyle: { color: colours[sign] },
          areaStyle: { color: colours[sign], opacity: sign === "zero" ? 0.08 : 0.2, origin: "start" },
          z: sign === "zero" ? 1 : 2,
          data: [
            ...edges.map((edge, i) => [edge, Math.max(counts[sign][Math.min(i, middles.length - 1)], FLOOR)]),
          ],
          ...(at === 0 ? windowMarks(region.window, colours, edges) : {}),
        })),
      }),
      table: () => ({
        columns: ["ratio_low", "ratio_high", ...SIGNS.map(([sign]) => `num_tokens_${sign}_advantage`)],
        rows: middles.map((_, i) => [
          Math.exp(edges[i]),
          Math.exp(edges[i + 1]),
          ...SIGNS.map(([sign]) => counts[sign][i]),
        ]),
      }),
    });
  }

  function drawShares(byName) {
    const known = SHARES.filter(([name]) => byName[name]);
    lines(
      figures.shares,
      "share of tokens, %; cut: no gradient; outside: infeasible, whatever the advantage",
      known.map(([name, label, colour, dash]) => ({
        name,
        label,
        points: byName[name],
        scale: 100,
        colour,
        dash,
      })),
      { text: (value) => `${percent(value / 100)} %` },
    );
  }

  function drawKl(byName) {
    const known = KLS.filter(([name]) => byName[name]);
    lines(
      figures.kl,
      "nats per token; k1 and k3 are unbiased, k2 is not; k3 is what KL3 budgets bound per token",
      known.map(([name, label], at) => ({
        name,
        label,
        points: byName[name],
        scale: 1,
        series: at,
      })),
      {},
    );
  }

  function lines(figure, subtitle, rows, { text = number }) {
    if (!rows.length) {
      figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
      figure.drawNothing("The run has recorded none of it.");
      return;
    }
    figure.savedFrom("figure/curves", {
      run: chosen,
      group: "run",
      metric: rows.map(({ name }) => name),
      label: rows.map(({ label }) => label),
      title: figure.title,
    });
    figure.draw({
      subtitle,
      option: (colours) =>
        zoomable({
          legend: {
            top: 0,
            left: 4,
            textStyle: { color: colours.muted, fontSize: 11 },
            itemWidth: 20,
            itemHeight: 8,
          },
          grid: { left: 6, right: 18, top: rows.length > 3 ? 52 : 34, bottom: 6, containLabel: true },
          xAxis: axis(colours, {
            scale: false,
            min: "dataMin",
            max: "dataMax",
            minInterval: 1,
            splitLine: { show: false },
          }),
          yAxis: axis(colours),
          tooltip: {
            trigger: "axis",
            formatter: (points) =>
              tip(
                `step ${number(points[0].axisValue)}`,
                points.map((point) => [point.color, point.seriesName, text(point.value[1])]),
              ),
          },
          series: rows.map(({ label, points, scale, colour, dash, series }) => ({
            type: "line",
            name: label,
            symbol: points.x.length < 3 ? "circle" : "none",
            data: points.x.map((x, i) => [x, points.y[i] * scale]),
            lineStyle: {
              width: 1.6,
              type: dash || "solid",
              color: colour ? colours[colour] : colours.series[series],
            },
            itemStyle: { color: colour ? colours[colour] : colours.series[series] },
          })),
        }),
      table: () => ({
        columns: ["quantity", "step", "value"],
        rows: rows.flatMap(({ label, points }) => points.x.map((x, i) => [label, x, points.y[i]])),
      }),
    });
  }

  function drawQuantiles(byName, region) {
    const figure = figures.quantiles;
    const fan = QUANTILES.every((name) => byName[name]);
    const names = fan ? QUANTILES : EXTREMES;
    const subtitle = fan
      ? "quantiles of the ratio per step: 1, 5, 25, 50, 75, 95 and 99 %; dashed: the window"
      : "least and greatest ratio per step, log scale; dashed: the window";
    if (!names.every((name) => byName[name])) {
      figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
      figure.drawNothing("The run has recorded no ratios.");
      return;
    }
    const at = names.map((name) => new Map(byName[name].x.map((step, i) => [step, byName[name].y[i]])));
    const common = byName[names[0]].x.map((step) => [step, ...at.map((values) => values.get(step) ?? null)]);
    figure.draw({
      subtitle,
      option: (colours) => {
        const band = (low, high) =>
          bandSeries(
            "",
            common.map((row) => [row[0], row[low], row[high]]),
            colours.series[0],
          );
        return zoomable({
          grid: { left: 6, right: 44, top: 14, bottom: 6, containLabel: true },
          xAxis: axis(colours, {
            scale: false,
            min: "dataMin",
            max: "dataMax",
            minInterval: 1,
            splitLine: { show: false },
          }),
          yAxis: axis(colours, fan ? {} : { type: "log" }),
          tooltip: {
            trigger: "axis",
            formatter: (points) => {
              const row = common[points.find((point) => point.seriesType === "line")?.dataIndex];
              return row
                ? tip(
                    `step ${number(row[0])}`,
                    names.map((name, at) => [
                      null,
                      name.split("/")[1].replace("ratio_", ""),
                      number(row[at + 1]),
                    ]),
                  )
                : "";
            },
          },
          series: [
            ...(fan ? [band(1, 7), band(2, 6), band(3, 5)] : [band(1, 2)]),
            ...(fan ? [4] : [1, 2]).map((at, place) => ({
              type: "line",
              name: fan ? "median" : names[at - 1],
              showSymbol: false,
              data: common.map((row) => [row[0], row[at]]),
              lineStyle: { width: 1.6, color: colours.series[0] },
              itemStyle: { color: colours.series[0] },
              z: 4,
              ...(place === 0 ? boundMarks(region.window, colours) : {}),
            })),
          ],
        });
      },
      table: () => ({ columns: ["step", ...names], rows: common }),
    });
  }

  function drawEntropy(byName) {
    const figure = figures.entropy;
    const subtitle =
      "entropy in nats against the share of tokens cut; a point per step, of at most 300 steps, later ones darker";
    const entropy = byName[ENTROPY];
    const sides = SHARES.slice(0, 3).filter(([name]) => byName[name]);
    if (!entropy || !sides.length) {
      figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
      figure.drawNothing("The run has recorded no entropy or no clip shares.");
      return;
    }
    const at = new Map(entropy.x.map((step, i) => [step, entropy.y[i]]));
    const last = entropy.x.at(-1) || 1;
    const pairs = sides.map(([name, label, colour]) => [
      label,
      colour,
      byName[name].x
        .map((step, i) => [100 * byName[name].y[i], at.get(step), step])
        .filter(([, known]) => known !== undefined),
    ]);
    figure.draw({
      subtitle,
      option: (colours) => ({
        legend: {
          top: 0,
          left: 4,
          textStyle: { color: colours.muted, fontSize: 11 },
          itemWidth: 10,
          itemHeight: 10,
        },
        grid: { left: 8, right: 18, top: 34, bottom: 22, containLabel: true },
        xAxis: axis(colours, {
          name: "share of tokens cut, %",
          nameLocation: "middle",
          nameGap: 26,
          scale: false,
        }),
        yAxis: axis(colours),
        tooltip: {
          trigger: "item",
          formatter: ({ value, seriesName, color }) =>
            tip(`step ${number(value[2])}`, [
              [color, seriesName, `${number(value[0])} %`],
              [null, "entropy", number(value[1])],
            ]),
        },
        // A series per shade, the darkest first for the legend: points of one style are drawn at once.
        series: pairs.flatMap(([label, colour, points]) =>
          SHADES.map((opacity, shade) => ({
            type: "scatter",
            name: label,
            symbolSize: 7,
            large: true,
            largeThreshold: 1,
            z: 2 + SHADES.length - shade,
            itemStyle: { color: colours[colour], opacity },
            data: points.filter(
              ([, , step]) =>
                SHADES.length - 1 - Math.min(Math.floor((SHADES.length * step) / last), SHADES.length - 1) ===
                shade,
            ),
          })),
        ),
      }),
      table: () => ({
        columns: ["side", "step", "share_cut", "entropy"],
        rows: pairs.flatMap(([label, , points]) =>
          points.map(([share, value, step]) => [label, step, share / 100, value]),
        ),
      }),
    });
  }

  drawBar();
  await refresh();
  return { refresh, dispose: () => disposeAll(figures) };
}

function windowMarks(bounds, colours, edges) {
  if (!bounds) return {};
  const logs = [
    ["l", bounds[0]],
    ["u", bounds[1]],
  ]
    .filter(([, bound]) => bound !== null && bound > 0)
    .map(([name, bound]) => [name, Math.log(bound), bound]);
  const outside = [];
  for (const [name, log] of logs)
    outside.push(
      name === "l" ? [{ xAxis: edges[0] }, { xAxis: log }] : [{ xAxis: log }, { xAxis: edges.at(-1) }],
    );
  return {
    markLine: {
      symbol: "none",
      silent: true,
      animation: false,
      lineStyle: { color: colours.text, width: 1.3, type: "dashed" },
      label: { color: colours.text, fontSize: 11, formatter: ({ data }) => data.name },
      data: logs.map(([name, log, bound]) => ({ name: `${name} = ${number(bound)}`, xAxis: log })),
    },
    markArea: { silent: true, itemStyle: { color: colours.shade }, data: outside },
  };
}

function boundMarks(bounds, colours) {
  if (!bounds) return {};
  const data = [
    ["l", bounds[0]],
    ["u", bounds[1]],
  ]
    .filter(([, bound]) => bound !== null && bound > 0)
    .map(([name, bound]) => ({ name, yAxis: bound }));
  return {
    markLine: {
      symbol: "none",
      silent: true,
      animation: false,
      lineStyle: { color: colours.text, type: "dashed", width: 1.2 },
      label: {
        color: colours.text,
        fontSize: 11,
        formatter: ({ data: mark }) => `${mark.name} ${number(mark.yAxis)}`,
      },
      data,
    },
  };
}
