// Methods side by side: their windows, the ratios of their tokens, what was cut, entropy and KL, at equal steps.

import { ask } from "../api.js";
import { debounced, el, fill, oneAtATime } from "../dom.js";
import { axis, disposeAll, Figure, figureGrid, ratioTicks, tip } from "../figure.js";
import { number, percent } from "../format.js";
import { seriesStyle, swatch } from "../palette.js";
import { experimentField, filterMenu, latestOnly, noRuns, searchBox, selected } from "../selection.js";
import { get } from "../url.js";
import { curveOption } from "./curves.js";

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

export async function showArms(root, context, modes) {
  let table = await context.runs();
  const bar = el("div.toolbar");
  const banner = el("div");
  const legend = el("div.chips.legend", { "aria-label": "Methods" });
  const figures = {
    windows: new Figure({ title: "Windows [l, u]", height: 200 }),
    ...Object.fromEntries(
      SIGNS.map(([sign, label]) => [sign, new Figure({ title: `Ratios where ${label}`, height: 260 })]),
    ),
    ...Object.fromEntries(
      CURVES.map(([name, label]) => [name, new Figure({ title: label, linked: "arms" })]),
    ),
    ...Object.fromEntries(AGED.map(([name, label]) => [name, new Figure({ title: label })])),
  };
  const grid = figureGrid(...Object.values(figures));
  grid.classList.add("two");
  const search = searchBox(() => void refresh());
  const redraw = debounced(() => void refresh(), 50);
  const experiment = el("span");
  fill(
    bar,
    modes,
    experiment,
    el("div.search", search),
    filterMenu(
      () => table,
      () => {
        search.value = get("q");
        redraw();
      },
    ),
  );
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
      const shown = new Set(answer.arms.map(({ name }) => name));
      const curves = await ask("curves", {
        ...query,
        group: "method",
        metric: [...CURVES.map(([name]) => name), AGE],
        points: 400,
      });
      for (const panel of curves.panels) panel.series = panel.series.filter(({ label }) => shown.has(label));
      const hasLag = curves.panels.at(-1).series.some(({ y }) => y.some((age) => age > 0));
      const byRun = hasLag
        ? await ask("curves", {
            ...query,
            group: "run",
            metric: [AGE, ...AGED.map(([name]) => name)],
            points: 200,
            even: true,
          })
        : null;
      fill(
        banner,
        latestOnly(num),
        answer.left_out.length > 0 &&
          el("p.banner", [
            `${answer.left_out.length} ${answer.left_out.length === 1 ? "run has" : "runs have"} made no step and ${answer.left_out.length === 1 ? "is" : "are"} not here.`,
          ]),
      );
      fill(
        legend,
        answer.arms.map((arm) =>
          el("span.series", [
            swatch(arm.place),
            arm.name,
            el("small", `${arm.runs.length} ${arm.runs.length === 1 ? "seed" : "seeds"}`),
          ]),
        ),
        answer.others.map((arm) =>
          el("span.series.muted", { title: arm.runs.join("\n") }, `other runs: ${arm.name}`),
        ),
        el("span.muted", `all at steps 1 to ${number(answer.until)}`),
      );
      drawWindows(figures.windows, answer.arms);
      for (const [sign] of SIGNS) drawRatios(figures[sign], answer, sign);
      for (const [at, [name]] of CURVES.entries()) drawCurve(figures[name], curves.panels[at], answer);
      for (const [name] of AGED) figures[name].element.hidden = !hasLag;
      if (hasLag) drawAged(byRun, answer);
    } catch (error) {
      fill(banner, el("p.banner", error.message));
    }
  });

  /** What staleness did, a point per step; shown where batches lagged. */
  function drawAged({ panels }, { arms, until }) {
    const [ages, ...rest] = panels.map(
      (panel) =>
        new Map(panel.series.map((one) => [one.runs[0], new Map(one.x.map((x, i) => [x, one.y[i]]))])),
    );
    for (const [at, [name]] of AGED.entries()) {
      const figure = figures[name];
      const scale = panels[at + 1].is_share ? 100 : 1;
      const rows = arms.flatMap((arm) =>
        arm.runs.flatMap((run) =>
          [...(rest[at].get(run) ?? [])]
            .filter(([step]) => step <= until && ages.get(run)?.has(step))
            .map(([step, value]) => [arm, ages.get(run).get(step), scale * value, step, run]),
        ),
      );
      figure.element.hidden = !rows.length;
      if (!rows.length) continue;
      figure.draw({
        subtitle: `${panels[at + 1].meaning}${panels[at + 1].is_share ? ", %" : ", nats"}; a point per step and seed`,
        option: (colours) => ({
          grid: { left: 8, right: 18, top: 14, bottom: 24, containLabel: true },
          xAxis: axis(colours, {
            name: "age of the batch, steps",
            nameLocation: "middle",
            nameGap: 26,
            minInterval: 1,
            scale: false,
          }),
          yAxis: axis(colours),
          tooltip: {
            trigger: "item",
            formatter: ({ value, seriesName, color }) =>
              tip(`step ${number(value[2])}`, [
                [color, seriesName, number(value[1])],
                [null, "age", `${number(value[0])} steps`],
              ]),
          },
          series: arms.map((arm) => ({
            type: "scatter",
            name: arm.name,
            symbolSize: 6,
            itemStyle: { color: seriesStyle(arm.place, colours).color, opacity: 0.6 },
            data: rows.filter(([of]) => of === arm).map(([, age, value, step]) => [age, value, step]),
          })),
        }),
        table: () => ({
          columns: ["method", "run", "step", "staleness_steps", name],
          rows: rows.map(([arm, age, value, step, run]) => [arm.name, run, step, age, value / scale]),
        }),
      });
    }
  }

  await refresh();
  return { refresh, dispose: () => disposeAll(figures) };
}

const nothing = { option: () => ({}), table: () => ({ columns: [], rows: [] }) };

function drawWindows(figure, arms) {
  const known = arms.filter(({ window }) => window && window[1] !== null).reverse();
  const rest = arms
    .filter((arm) => !known.includes(arm))
    .map((arm) => `${arm.name}: ${arm.window ? `[${number(arm.window[0])}, ∞]` : arm.window_reason}`);
  const note = rest.length ? `Not drawn: ${rest.join("; ")}.` : "";
  if (!known.length) {
    figure.draw({ ...nothing, note });
    figure.drawNothing(note);
    return;
  }
  figure.draw({
    subtitle: "the ratios that each method allows",
    note,
    option: (colours) => ({
      grid: { left: 20, right: 24, top: 12, bottom: 24, containLabel: true },
      xAxis: axis(colours, { name: "ratio w", nameLocation: "middle", nameGap: 26 }),
      yAxis: {
        type: "category",
        data: known.map(({ name }) => name),
        axisLine: { show: false },
        axisTick: { show: false },
        axisLabel: { color: colours.text, fontSize: 12, width: 170, overflow: "break" },
      },
      tooltip: {
        trigger: "item",
        formatter: ({ dataIndex }) =>
          tip(known[dataIndex].name, [
            [null, "l", known[dataIndex].window[0].toPrecision(4)],
            [null, "u", known[dataIndex].window[1].toPrecision(4)],
          ]),
      },
      series: [
        {
          type: "custom",
          encode: { x: [1, 2], y: 0 },
          data: known.map(({ window }, i) => [i, ...window]),
          renderItem: (parameters, api) => {
            const [from, y] = api.coord([api.value(1), api.value(0)]);
            const [to] = api.coord([api.value(2), api.value(0)]);
            const { color } = seriesStyle(known[parameters.dataIndex].place, colours);
            return {
              type: "rect",
              shape: { x: from, y: y - 6, width: to - from, height: 12, r: 3 },
              style: { fill: color, opacity: 0.75 },
            };
          },
        },
        {
          type: "line",
          data: [],
          markLine: {
            symbol: "none",
            silent: true,
            animation: false,
            label: { show: false },
            lineStyle: { color: colours.text, type: "dashed" },
            data: [{ xAxis: 1 }],
          },
        },
      ],
    }),
    table: () => ({
      columns: ["method", "lower", "upper"],
      rows: arms.map(({ name, window }) => [name, window?.[0] ?? "", window?.[1] ?? ""]),
    }),
  });
}

function drawRatios(figure, { arms, edges }, sign) {
  const known = arms.filter(({ shares }) => shares);
  const subtitle = "share of these tokens, seeds pooled; the ends hold all beyond; log axes; dotted: windows";
  if (!edges || !known.length) {
    figure.draw({ ...nothing, subtitle });
    figure.drawNothing("None of these runs has recorded distributions of ratios.");
    return;
  }
  figure.draw({
    subtitle,
    option: (colours) => ({
      grid: { left: 8, right: 18, top: 14, bottom: 24, containLabel: true },
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
        axisLabel: { color: colours.muted, fontSize: 11, formatter: (value) => `${number(100 * value)} %` },
      }),
      tooltip: {
        trigger: "axis",
        formatter: (points) => {
          const i = Math.min(points[0].dataIndex, edges.length - 2);
          return tip(
            `w from ${number(Math.exp(edges[i]))} to ${number(Math.exp(edges[i + 1]))}`,
            known.map((arm) => [
              seriesStyle(arm.place, colours).color,
              arm.name,
              `${percent(arm.shares[sign][i])} %`,
            ]),
          );
        },
      },
      series: known.map((arm) => {
        const { color, dash } = seriesStyle(arm.place, colours);
        const bounds = (arm.window ?? [])
          .filter((bound) => bound > 0)
          .map((bound) => ({ xAxis: Math.log(bound) }));
        return {
          type: "line",
          name: arm.name,
          step: "end",
          symbol: "none",
          lineStyle: { width: 1.7, color, type: dash },
          itemStyle: { color },
          data: edges.map((edge, i) => [
            edge,
            Math.max(arm.shares[sign][Math.min(i, edges.length - 2)], FLOOR),
          ]),
          markLine: {
            symbol: "none",
            silent: true,
            animation: false,
            label: { show: false },
            lineStyle: { color, type: "dotted", width: 1.4 },
            data: bounds,
          },
        };
      }),
    }),
    table: () => ({
      columns: ["ratio_low", "ratio_high", ...known.map(({ name }) => name)],
      rows: edges
        .slice(1)
        .map((edge, i) => [
          Math.exp(edges[i]),
          Math.exp(edge),
          ...known.map(({ shares }) => shares[sign][i]),
        ]),
    }),
  });
}

function drawCurve(figure, panel, { arms, until }) {
  const places = new Map(arms.map(({ name, place }) => [name, place]));
  const series = panel.series
    .filter(({ label }) => places.has(label))
    .map((one) => {
      const num = one.x.filter((x) => x <= until).length;
      const cut = (values) => values?.slice(0, num);
      return {
        ...one,
        place: places.get(one.label),
        x: cut(one.x),
        y: cut(one.y),
        low: cut(one.low),
        high: cut(one.high),
      };
    });
  figure.element.hidden = !series.length;
  if (!series.length) return;
  figure.draw({
    subtitle: `${panel.meaning}${panel.is_share ? ", %" : panel.unit ? `, ${panel.unit}` : ""}; band: least to greatest seed`,
    option: (colours) => curveOption(series, { axis: "step", log: false, isShare: panel.is_share, colours }),
    table: () => ({
      columns: ["method", "step", "mean", "low", "high"],
      rows: series.flatMap((one) =>
        one.x.map((x, i) => [one.label, x, one.y[i], one.low?.[i] ?? "", one.high?.[i] ?? ""]),
      ),
    }),
  });
}
