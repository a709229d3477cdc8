// Parts of figures that several views draw.

import { axis, ratioTicks, tip } from "./figure.js";
import { number } from "./format.js";

const NOTHING = { option: () => ({}), table: () => ({ columns: [], rows: [] }) };

/** Leave a figure empty and say why, under its title and subtitle. */
export function drawNothing(figure, reason, titles = {}) {
  figure.draw({ ...NOTHING, ...titles });
  figure.drawNothing(reason);
}

/** An axis with its name in the middle. */
export const namedAxis = (colours, name, more = {}) =>
  axis(colours, { name, nameLocation: "middle", nameGap: 26, ...more });

/** The x axis of curves. */
export const curveAxis = (colours, more = {}) =>
  axis(colours, {
    scale: false,
    min: "dataMin",
    max: "dataMax",
    minInterval: 1,
    splitLine: { show: false },
    ...more,
  });

/** A legend at the top left. */
export const legend = (colours, more = {}) => ({
  top: 0,
  left: 4,
  textStyle: { color: colours.muted, fontSize: 11 },
  itemWidth: 10,
  itemHeight: 10,
  ...more,
});

/** Straight lines across a figure, at `data`. */
export const rules = (data, lineStyle, label = /** @type {object} */ ({ show: false })) => ({
  symbol: "none",
  silent: true,
  animation: false,
  lineStyle,
  label,
  data,
});

/**
 * Draw a histogram of ratios on log axes. `rows` are {name, values, styleOf}, with the `column` of the table where that
 * is not the name; `least` is what nothing is drawn as, since a log axis has no zero; `said` makes a value's text and
 * `tick` that of the y axis.
 */
export function drawRatioHistogram(
  figure,
  { subtitle, edges, rows, least, said, tick, more = (_colours) => ({}) },
) {
  const last = edges.length - 2;
  const tipOf = ([{ dataIndex }], colours) => {
    const i = Math.min(dataIndex, last);
    const ends = [edges[i], edges[i + 1]].map((edge) => number(Math.exp(edge)));
    const lines = rows.map(({ name, values, styleOf }) => [
      styleOf(colours).itemStyle.color,
      name,
      said(values[i]),
    ]);
    return tip(`w from ${ends[0]} to ${ends[1]}`, lines);
  };
  figure.draw({
    subtitle,
    option: (colours) => ({
      grid: { left: 8, right: 18, top: 14, bottom: 24, containLabel: true },
      xAxis: namedAxis(colours, "ratio w", {
        scale: false,
        min: edges[0],
        max: edges.at(-1),
        splitLine: { show: false },
        ...ratioTicks(edges, colours),
      }),
      yAxis: axis(colours, {
        type: "log",
        min: least,
        axisLabel: { color: colours.muted, fontSize: 11, formatter: tick },
      }),
      tooltip: { trigger: "axis", formatter: (points) => tipOf(points, colours) },
      series: rows.map(({ name, values, styleOf }) => ({
        type: "line",
        name,
        step: "end",
        symbol: "none",
        data: edges.map((edge, i) => [edge, Math.max(values[Math.min(i, last)], least)]),
        ...styleOf(colours),
      })),
      ...more(colours),
    }),
    table: () => ({
      columns: ["ratio_low", "ratio_high", ...rows.map(({ name, column = name }) => column)],
      rows: edges
        .slice(1)
        .map((edge, i) => [Math.exp(edges[i]), Math.exp(edge), ...rows.map(({ values }) => values[i])]),
    }),
  });
}

/** The values of a curve by their steps. */
export const byStep = ({ x, y }) => new Map(x.map((step, i) => [step, y[i]]));
