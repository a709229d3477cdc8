// The figures of documents as charts: curves, rows of intervals or bars, grids of shares.

import { tableCard } from "./document.js";
import { el } from "./dom.js";
import { axis, bandSeries, Figure, logAxis, tip } from "./figure.js";
import { known, number, valueText } from "./format.js";
import { seriesStyle } from "./palette.js";

const DASHES = { solid: "solid", dashed: [6, 4], dotted: [2, 3] };
const MOST_BORDERED = 250;

/**
 * The sections of a document; `made` is called with each figure's card and its record. `more` has what tables hold
 * besides their own, by their keys, as `tableCard` takes it.
 * @param {any[]} sections
 * @param {(figure: Figure, record: any) => void} made
 * @param {Object<string, import("./document.js").More>} more
 */
export function drawSections(sections, made, more = {}) {
  return sections.map(({ title, sentences, figures, tables }) => [
    title && el("h2", title),
    sentences.map(({ text }) => el("blockquote", text)),
    figures.length > 0 && figuresOf(figures, made),
    // Those with a caption are for papers, and saved as LaTeX.
    tables.filter(({ caption }) => !caption).map((one) => tableCard(one, more[one.key])),
  ]);
}

function figuresOf(records, made) {
  const cards = records.map((record, at) => {
    const isAlone = at === records.length - 1 && at % 2 === 0;
    const figure = figureOf(record, isAlone || record.kind === "Grid");
    made(figure, record);
    return figure.element;
  });
  return el("div", { class: "figures two" }, cards);
}

/** A figure of a document as a card. */
function figureOf(record, wide = false) {
  const rows = record.rows?.length ?? 0;
  const height = { Lines: 320, Grid: 90 + 24 * rows }[record.kind] ?? 80 + 34 * rows;
  const figure = new Figure({ title: record.title, height: Math.max(height, 120), wide });
  drawRecord(figure, record);
  return figure;
}

/** Draw a figure of a document in a card that is there. */
export function drawRecord(figure, record) {
  const { option, table } = {
    Lines: linesOf,
    Intervals: rowsOf,
    Bars: rowsOf,
    Grid: gridOf,
  }[record.kind](record);
  figure.draw({ option, table, title: record.title, subtitle: record.caption });
}

/** A number as it is drawn: shares and points in percent. */
function scaled(given, { unit }) {
  const value = known(given);
  return value === null || (unit !== "share" && unit !== "points") ? value : 100 * value;
}

function scaleOf(record, colours, values = []) {
  const { title, unit, scale, labels, low, high } = record;
  const named = labels.length && {
    axisLabel: { color: colours.muted, fontSize: 11, formatter: (place) => labels[place] ?? "" },
  };
  const ends = Object.entries({ min: low, max: high }).filter(([, end]) => end !== null);
  const given = Object.fromEntries(ends.map(([name, end]) => [name, scaled(end, record)]));
  if (scale === "linear")
    return axis(colours, {
      name: title,
      minInterval: unit === "count" || labels.length ? 1 : undefined,
      ...named,
      ...given,
    });
  const shown = values.map((value) => scaled(value, record));
  return logAxis(colours, shown, { name: title, logBase: scale === "log2" ? 2 : 10, ...named, ...given });
}

const below = { nameLocation: "middle", nameGap: 26, splitLine: { show: false } };
const above = (colours) => ({
  nameLocation: "end",
  nameGap: 10,
  nameTextStyle: { color: colours.muted, fontSize: 11, align: "left" },
});

function namesOfRows(names, colours) {
  return {
    type: "category",
    inverse: true,
    data: names,
    axisLine: { show: false },
    axisTick: { show: false },
    axisLabel: { color: colours.text, fontSize: 12, width: 180, overflow: "break" },
  };
}

/** Reference lines and ranges, as a series without points. */
function marksOf({ marks, x, y }, colours) {
  const styled = (mark, at) => ({
    ...at,
    name: mark.name,
    lineStyle: { color: mark.place === null ? colours.text : seriesStyle(mark.place, colours).color },
    label: {
      show: Boolean(mark.name),
      formatter: mark.name,
      color: colours.muted,
      ...(mark.y !== null && { position: "insideEndTop" }),
    },
  });
  const lines = marks.filter(({ end }) => end === null);
  const ranges = marks.filter(({ end }) => end !== null);
  return {
    type: "line",
    data: [],
    markLine: {
      symbol: "none",
      silent: true,
      animation: false,
      lineStyle: { type: "dotted", width: 1.4 },
      data: lines.map((mark) =>
        styled(mark, mark.y === null ? { xAxis: scaled(mark.x, x) } : { yAxis: scaled(mark.y, y) }),
      ),
    },
    markArea: {
      silent: true,
      itemStyle: { color: colours.shade },
      data: ranges.map((mark) => [{ xAxis: scaled(mark.x, x) }, { xAxis: scaled(mark.end, x) }]),
    },
  };
}

/** One curve or its points, with its band or whiskers. */
function curveOf(one, { x, y }, colours) {
  const { color, dash } = seriesStyle(one.place, colours);
  const opacity = one.is_faint ? 0.4 : 1;
  const points = one.x.map((at, i) => [scaled(at, x), scaled(one.y[i], y)]);
  const ends = one.low.map((low, i) => [points[i][0], scaled(low, y), scaled(one.high[i], y)]);
  const spread = one.has_whiskers ? whiskers(ends, color, opacity) : bandSeries(one.name, ends, color);
  return [
    ...(ends.length ? [spread] : []),
    {
      type: one.is_line ? "line" : "scatter",
      name: one.name,
      step: one.is_step && "end",
      data: points,
      symbol: one.has_points || !one.is_line ? "circle" : "none",
      symbolSize: one.is_line ? 5 : 9,
      lineStyle: { color, width: one.is_faint ? 1 : 2, type: DASHES[one.dash] ?? dash, opacity },
      itemStyle: { color, opacity },
    },
  ];
}

function stroke(x1, y1, x2, y2, style) {
  return { type: "line", shape: { x1, y1, x2, y2 }, style };
}

function whiskers(ends, color, opacity) {
  return {
    type: "custom",
    silent: true,
    encode: { x: 0, y: [1, 2] },
    data: ends,
    tooltip: { show: false },
    renderItem: (_parameters, api) => {
      const [x, low] = api.coord([api.value(0), api.value(1)]);
      const [, high] = api.coord([api.value(0), api.value(2)]);
      const style = { stroke: color, lineWidth: 1.4, opacity };
      const children = [
        stroke(x, low, x, high, style),
        stroke(x - 4, low, x + 4, low, style),
        stroke(x - 4, high, x + 4, high, style),
      ];
      return { type: "group", children };
    },
  };
}

function linesOf(record) {
  const { series, x, y } = record;
  const names = [...new Set(series.map(({ name }) => name).filter(Boolean))];
  const at = (one, place) => {
    const interval = one.low.length
      ? ` [${[one.low, one.high].map((end) => shown(end[place], y)).join(", ")}]`
      : "";
    return one.y[place] === null && interval ? interval : `${shown(one.y[place], y)}${interval}`;
  };
  const isLine = series.every(({ is_line: is }) => is);
  const byName = new Map(series.map((one) => [one.name, one]));
  const placeOf = (one, value) => one.x.findIndex((other) => scaled(other, x) === value);
  return {
    option: (colours) => ({
      legend: names.length > 1 && {
        top: 0,
        left: 4,
        type: "scroll",
        data: names,
        itemWidth: 18,
        itemHeight: 12,
        textStyle: { color: colours.muted, fontSize: 11 },
      },
      grid: { left: 8, right: 24, top: names.length > 1 ? 52 : 30, bottom: 28, containLabel: true },
      xAxis: {
        ...scaleOf(
          x,
          colours,
          series.flatMap((one) => one.x),
        ),
        ...below,
      },
      yAxis: {
        ...scaleOf(
          y,
          colours,
          series.flatMap((one) => one.y.filter((value) => value !== null)),
        ),
        ...above(colours),
      },
      tooltip: {
        trigger: isLine ? "axis" : "item",
        formatter: (found) => {
          const items = [found].flat().filter(({ seriesName }) => byName.has(seriesName));
          if (!items.length) return "";
          const [{ value }] = items;
          return tip(
            `${x.title}: ${x.labels[value[0]] ?? number(value[0])}`,
            items.map(({ color, seriesName }) => {
              const one = byName.get(seriesName);
              return [color, seriesName, at(one, placeOf(one, value[0]))];
            }),
          );
        },
      },
      series: [...series.flatMap((one) => curveOf(one, record, colours)), marksOf(record, colours)],
    }),
    table: () => ({
      columns: ["name", x.title, y.title, "low", "high"],
      rows: series.flatMap((one) =>
        one.x.map((place, i) => [one.name, place, one.y[i], one.low[i] ?? "", one.high[i] ?? ""]),
      ),
    }),
  };
}

const shown = (value, { unit }) => valueText(value, unit, unit === "points");
const between = (interval, record) =>
  interval ? `[${interval.map((end) => shown(end, record)).join(", ")}]` : "not estimable";

/** The line or the bar of an interval at a row. */
function spanOf(from, to, isBar, isInner, color) {
  if (isBar) {
    const shape = { x: from[0], y: from[1] - 8, width: to[0] - from[0], height: 16 };
    return { type: "rect", shape, style: { fill: color, opacity: isInner ? 1 : 0.35 } };
  }
  const style = { stroke: color, lineWidth: isInner ? 9 : 2, opacity: isInner ? 0.32 : 1 };
  return stroke(...from, ...to, style);
}

function rowsOf(record) {
  const { rows, x, kind } = record;
  const ends = (row) => [row.outer, row.inner].flatMap((span) => span ?? [null, null]);
  const seen = (value) => (value === null ? NaN : scaled(value, x));
  const dots = rows.flatMap((row, at) =>
    row.dots.map((dot, i) => ({ row, at, dot, name: row.dot_names[i] })),
  );
  return {
    option: (colours) => {
      const colourOf = (row) => seriesStyle(row.place, colours).color;
      return {
        grid: { left: 8, right: 24, top: 8, bottom: 28, containLabel: true },
        xAxis: { ...scaleOf(x, colours), ...below, splitLine: { lineStyle: { color: colours.line } } },
        yAxis: namesOfRows(
          rows.map(({ name }) => name),
          colours,
        ),
        tooltip: {
          trigger: "item",
          formatter: ({ seriesIndex, dataIndex }) => {
            if (seriesIndex === 1) {
              const { row, dot, name } = dots[dataIndex];
              return tip(row.name, [[null, name ?? "", shown(dot, x)]]);
            }
            const row = rows[dataIndex];
            return tip(row.name, [
              ...(row.value === null ? [] : [[null, x.title, shown(row.value, x)]]),
              [null, row.inner ? "new problems" : "interval", between(row.outer, x)],
              ...(row.inner ? [[null, "same problems", between(row.inner, x)]] : []),
            ]);
          },
        },
        series: [
          {
            type: "custom",
            z: 2,
            encode: { x: [1, 2, 3, 4, 5], y: 0 },
            data: rows.map((row, at) => [at, ...[row.value, ...ends(row)].map(seen)]),
            renderItem: ({ dataIndex }, api) => {
              const at = (place) => api.coord([api.value(place), api.value(0)]);
              const color = colourOf(rows[dataIndex]);
              const spans = [2, 4].filter((place) => Number.isFinite(api.value(place)));
              const children = spans.map((place) =>
                spanOf(at(place), at(place + 1), kind === "Bars", place === 4, color),
              );
              const [cx, cy] = at(1);
              const value = rows[dataIndex].dots.length
                ? stroke(cx, cy - 8, cx, cy + 8, { stroke: colours.text, lineWidth: 2 })
                : {
                    type: "circle",
                    shape: { cx, cy, r: 5 },
                    style: { fill: color, stroke: colours.surface, lineWidth: 1.5 },
                  };
              return {
                type: "group",
                children: Number.isFinite(api.value(1)) ? [...children, value] : children,
              };
            },
          },
          {
            type: "scatter",
            z: 1,
            symbolSize: 8,
            data: dots.map(({ row, at, dot }) => ({
              value: [seen(dot), at],
              itemStyle: {
                color: row.is_open ? colours.surface : colourOf(row),
                borderColor: colourOf(row),
                borderWidth: 1.2,
                opacity: 0.8,
              },
            })),
          },
          marksOf(record, colours),
        ],
      };
    },
    table: () => ({
      columns: ["name", x.title, "outer_low", "outer_high", "inner_low", "inner_high", "observations"],
      rows: rows.map((row) => [row.name, row.value, ...ends(row), row.dots.join(" ")]),
    }),
  };
}

function gridOf({ rows, values, x }) {
  const columns = values[0].map((_, at) => x.labels[at] ?? at + 1);
  return {
    option: (colours) => ({
      grid: { left: 8, right: 20, top: 8, bottom: 50, containLabel: true },
      xAxis: {
        type: "category",
        data: columns,
        name: x.title,
        nameLocation: "middle",
        nameGap: 8,
        nameTextStyle: { color: colours.muted, fontSize: 11 },
        axisLabel: { show: false },
        axisTick: { show: false },
        axisLine: { show: false },
      },
      yAxis: namesOfRows(rows, colours),
      visualMap: {
        min: 0,
        max: 1,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        itemHeight: 160,
        itemWidth: 10,
        text: ["all correct", "none"],
        textStyle: { color: colours.muted, fontSize: 11 },
        inRange: { color: [colours.faint, colours.series[0]] },
      },
      tooltip: {
        trigger: "item",
        formatter: ({ value: [at, row, share] }) =>
          tip(columns[at], [[null, rows[row], `${valueText(share, "share")} %`]]),
      },
      series: [
        {
          type: "heatmap",
          progressive: 0,
          data: values.flatMap((own, row) => own.map((share, at) => [at, row, share])),
          itemStyle: {
            borderColor: colours.surface,
            borderWidth: columns.length > MOST_BORDERED ? 0 : 1,
          },
        },
      ],
    }),
    table: () => ({
      columns: ["problem", ...rows],
      rows: columns.map((column, at) => [column, ...values.map((own) => own[at])]),
    }),
  };
}
