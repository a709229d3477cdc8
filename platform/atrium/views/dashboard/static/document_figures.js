// Charts of a document's figures: curves, rows of intervals or bars, grids of shares.

import { tableCard } from "./document.js";
import { el } from "./dom.js";
import { axis, bandSeries, Figure, logAxis, tip } from "./figure.js";
import { known, number, valueText } from "./format.js";
import { NAMED_DASHES, seriesStyle } from "./palette.js";

const MOST_BORDERED = 250;
const COLUMN_WIDTH = 20;

/**
 * Return the sections of a document. `path` and `query` are those of the server's pictures of the figures. `more`
 * returns the additional content of a table with a key (see `tableCard`).
 * @param {any[]} sections
 * @param {{ path?: string, query?: object, more?: (key: string) => import("./document.js").More }} options
 */
export function drawSections(sections, { path = "", query = {}, more = () => ({}) } = {}) {
  const card = (record, at, { length }) => {
    const rows = record.rows?.length ?? 0;
    const height = { Lines: 320, Grid: 70 + 24 * rows + above(record) }[record.kind] ?? 80 + 34 * rows;
    const isAlone = at === length - 1 && at % 2 === 0;
    const wide = isAlone || record.kind === "Grid";
    const { title, caption: subtitle } = record;
    const figure = new Figure({ title, subtitle, height: Math.max(height, 120), wide });
    const drawing = { Lines: linesOf, Intervals: rowsOf, Bars: rowsOf, Grid: gridOf }[record.kind](record);
    figure.draw(drawing);
    figure.savedFrom(path, { ...query, figure: record.key });
    return figure.element;
  };
  return sections.map(({ title, sentences, figures, tables }) => [
    title && el("h2", title),
    sentences.map(({ text }) => el("blockquote", text)),
    figures.length > 0 && el("div.figures.two", figures.map(card)),
    // Tables with a caption are for papers, so they are only exported as LaTeX.
    tables.filter(({ caption }) => !caption).map((one) => tableCard(one, more(one.key))),
  ]);
}

/** Return a number as drawn: shares and points in percent. */
function scaled(given, { unit }) {
  const value = known(given);
  return value === null || (unit !== "share" && unit !== "points") ? value : 100 * value;
}

function scaleOf(record, colours, values = []) {
  const { title: name, unit, scale, labels, low, high } = record;
  const label = labels.length ? { formatter: (place) => labels[place] ?? "", hideOverlap: false } : {};
  const ends = Object.entries({ min: low, max: high }).filter(([, end]) => end !== null);
  const given = Object.fromEntries(ends.map(([end, value]) => [end, scaled(value, record)]));
  const minInterval = unit === "count" || labels.length ? 1 : undefined;
  if (scale === "linear") return axis(colours, { name, minInterval, label, ...given });
  const shown = values.map((value) => scaled(value, record));
  return logAxis(colours, shown, { name, logBase: scale === "log2" ? 2 : 10, label, ...given });
}

const TITLED = { nameLocation: "middle", nameGap: 26 };
const BARE = { type: "category", axisLine: { show: false }, axisTick: { show: false } };

function namesOfRows(names, colours, label) {
  return { ...BARE, inverse: true, data: names, axisLabel: { color: colours.text, fontSize: 12, ...label } };
}

/** Return reference lines and ranges as a series without points. */
function marksOf({ marks, x, y }, colours) {
  const line = ({ name, place, ...mark }, at) => {
    const align = at ? "left" : "right"; // so that the labels of two bounds do not overlap
    const label = { show: Boolean(name), formatter: name, color: colours.muted, align };
    const color = place === null ? colours.text : seriesStyle(place, colours).color;
    const shared = { name, lineStyle: { color } };
    if (mark.y === null) return { xAxis: scaled(mark.x, x), ...shared, label };
    const inside = { ...label, align: "right", position: "insideEndTop" };
    return { yAxis: scaled(mark.y, y), ...shared, label: inside };
  };
  const ranges = marks.filter(({ end }) => end !== null);
  return {
    type: "line",
    data: [],
    markLine: {
      symbol: "none",
      silent: true,
      animation: false,
      lineStyle: { type: "dotted", width: 1.4 },
      data: marks.filter(({ end }) => end === null).map(line),
    },
    markArea: {
      silent: true,
      itemStyle: { color: colours.shade },
      data: ranges.map((mark) => [{ xAxis: scaled(mark.x, x) }, { xAxis: scaled(mark.end, x) }]),
    },
  };
}

/** Return the series of a curve or its points, with its band or whiskers. */
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
      lineStyle: { color, width: one.is_faint ? 1 : 2, type: NAMED_DASHES[one.dash] ?? dash, opacity },
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
      const caps = [low, high].map((y) => stroke(x - 4, y, x + 4, y, style));
      return { type: "group", children: [stroke(x, low, x, high, style), ...caps] };
    },
  };
}

function linesOf(record) {
  const { series, x, y } = record;
  const byName = new Map(series.filter(({ name }) => name).map((one) => [one.name, one]));
  const valueAt = (one, place) => {
    const interval = one.low.length ? ` ${between([one.low[place], one.high[place]], y)}` : "";
    return one.y[place] === null && interval ? interval : `${shown(one.y[place], y)}${interval}`;
  };
  const [xs, ys] = ["x", "y"].map((name) => series.flatMap((one) => one[name]));
  const line = ({ color, seriesName, value: [at] }) => {
    const one = byName.get(seriesName);
    return [
      color,
      seriesName,
      valueAt(
        one,
        one.x.findIndex((other) => scaled(other, x) === at),
      ),
    ];
  };
  const formatter = (found) => {
    const items = [found].flat().filter(({ seriesName }) => byName.has(seriesName));
    if (!items.length) return "";
    const [at] = items[0].value;
    return tip(`${x.title}: ${x.labels[at] ?? number(at)}`, items.map(line));
  };
  return {
    legend: [{ name: y.title }, ...(byName.size > 1 ? byName.values() : [])],
    option: (colours) => ({
      grid: { left: x.labels.length ? 36 : 8, right: 36, top: 14, bottom: 28, containLabel: true },
      xAxis: { ...scaleOf(x, colours, xs), ...TITLED, splitLine: { show: false } },
      yAxis: { ...scaleOf(y, colours, ys), name: "" },
      tooltip: { trigger: series.every((one) => one.is_line) ? "axis" : "item", formatter },
      series: [...series.flatMap((one) => curveOf(one, record, colours)), marksOf(record, colours)],
    }),
    table: () => ({
      columns: ["name", x.title, y.title, "low", "high"],
      rows: series.flatMap((one) => pointsOf(one).map((point) => [one.name, ...point])),
    }),
  };
}

/** Return the points of a curve for a CSV file: x, y and the ends of its band. */
export const pointsOf = ({ x, y, low, high }) =>
  x.map((at, i) => [at, y[i], low?.[i] ?? "", high?.[i] ?? ""]);

const shown = (value, { unit }) => valueText(value, unit, unit === "points");
const between = (interval, record) =>
  interval ? `[${interval.map((end) => shown(end, record)).join(", ")}]` : "not estimable";

/** Return the line or bar of a row's interval. */
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
  const [outerName, innerName] = record.interval_names;
  const ends = (row) => [row.outer, row.inner].flatMap((span) => span ?? [null, null]);
  const seen = (value) => (value === null ? NaN : scaled(value, x));
  const dots = rows.flatMap((row, at) =>
    row.dots.map((dot, i) => ({ row, at, dot, name: row.dot_names[i] ?? "" })),
  );
  const formatter = ({ seriesIndex, dataIndex }) => {
    if (seriesIndex === 1) {
      const { row, dot, name } = dots[dataIndex];
      return tip(row.name, [[null, name, shown(dot, x)]]);
    }
    const row = rows[dataIndex];
    return tip(row.name, [
      ...(row.value === null ? [] : [[null, x.title, shown(row.value, x)]]),
      [null, outerName, between(row.outer, x)],
      ...(row.inner ? [[null, innerName, between(row.inner, x)]] : []),
    ]);
  };
  const option = (colours) => {
    const colourOf = (row) => seriesStyle(row.place, colours).color;
    /** Draw a row: its intervals, and its value as a line among its dots, or as a circle. */
    const renderItem = ({ dataIndex }, api) => {
      const at = (place) => api.coord([api.value(place), api.value(0)]);
      const fill = colourOf(rows[dataIndex]);
      const spans = [2, 4].filter((place) => Number.isFinite(api.value(place)));
      const children = spans.map((place) =>
        spanOf(at(place), at(place + 1), kind === "Bars", place === 4, fill),
      );
      const [cx, cy] = at(1);
      const circle = { fill, stroke: colours.surface, lineWidth: 1.5 };
      const value = rows[dataIndex].dots.length
        ? stroke(cx, cy - 8, cx, cy + 8, { stroke: colours.text, lineWidth: 2 })
        : { type: "circle", shape: { cx, cy, r: 5 }, style: circle };
      return { type: "group", children: Number.isFinite(api.value(1)) ? [...children, value] : children };
    };
    const dotOf = ({ row, at, dot }) => {
      const borderColor = colourOf(row);
      const color = row.is_open ? colours.surface : borderColor;
      return { value: [seen(dot), at], itemStyle: { color, borderColor, borderWidth: 1.2, opacity: 0.8 } };
    };
    const names = rows.map(({ name }) => name);
    const data = rows.map((row, at) => [at, ...[row.value, ...ends(row)].map(seen)]);
    return {
      grid: { left: 8, right: 24, top: 28, bottom: 8, containLabel: true },
      xAxis: { ...scaleOf(x, colours), ...TITLED, position: "top" },
      yAxis: namesOfRows(names, colours, { width: 180, overflow: "break" }),
      tooltip: { trigger: "item", formatter },
      series: [
        { type: "custom", z: 2, encode: { x: [1, 2, 3, 4, 5], y: 0 }, data, renderItem },
        { type: "scatter", z: 1, symbolSize: 8, data: dots.map(dotOf) },
        marksOf(record, colours),
      ],
    };
  };
  return {
    option,
    table: () => ({
      columns: ["name", x.title, "outer_low", "outer_high", "inner_low", "inner_high", "observations"],
      rows: rows.map((row) => [row.name, row.value, ...ends(row), row.dots.join(" ")]),
    }),
  };
}

/** Return the height of a grid's column names in pixels; 0 if the columns are too narrow for names. */
const above = ({ x, values }) =>
  x.labels.length && values?.[0].length * COLUMN_WIDTH < innerWidth ? 170 : 0;

function gridOf(record) {
  const { rows, values, x, ends } = record;
  const columns = values[0].map((_, at) => x.labels[at] ?? at + 1);
  const formatter = ({ value: [at, row, share] }) =>
    tip(columns[at], [[null, rows[row], `${valueText(share, "share")} %`]]);
  const option = (colours) => {
    const text = { color: colours.muted, fontSize: 11 };
    const cut = { width: Math.min(220, innerWidth / 4), overflow: "truncate" };
    const width = above(record);
    const named = { ...text, show: width > 0, interval: 0, rotate: 90, width, overflow: "truncate" };
    return {
      grid: { left: 8, right: 20, top: 8, bottom: 36, containLabel: true },
      xAxis: { ...BARE, data: columns, position: "top", axisLabel: named },
      yAxis: namesOfRows(rows, colours, cut),
      visualMap: {
        min: 0,
        max: 1,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        itemHeight: 160,
        itemWidth: 10,
        text: ends.toReversed(),
        textStyle: text,
        inRange: { color: [colours.faint, colours.series[0]] },
      },
      tooltip: { trigger: "item", formatter },
      series: [
        {
          type: "heatmap",
          progressive: 0,
          data: values.flatMap((own, row) => own.map((share, at) => [at, row, share])),
          itemStyle: { borderColor: colours.surface, borderWidth: columns.length > MOST_BORDERED ? 0 : 1 },
        },
      ],
    };
  };
  return {
    legend: x.title ? [{ name: x.title }] : [],
    option,
    table: () => ({
      columns: ["problem", ...rows],
      rows: columns.map((column, at) => [column, ...values.map((own) => own[at])]),
    }),
  };
}
