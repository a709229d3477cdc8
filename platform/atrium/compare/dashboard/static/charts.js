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
 * The option of a histogram of ratios on log axes: `rows` are {name, color, values, style}, `least` is what nothing is
 * drawn as, since a log axis has no zero, `said` makes a value's text and `tick` that of the y axis.
 */
export function ratioHistogram({ edges, rows, least, said, tick, grid, colours }) {
  const last = edges.length - 2;
  return {
    grid,
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
    tooltip: {
      trigger: "axis",
      formatter: ([{ dataIndex }]) => {
        const i = Math.min(dataIndex, last);
        const title = `w from ${number(Math.exp(edges[i]))} to ${number(Math.exp(edges[i + 1]))}`;
        return tip(
          title,
          rows.map(({ name, color, values }) => [color, name, said(values[i])]),
        );
      },
    },
    series: rows.map(({ name, color, values, style }) => ({
      type: "line",
      name,
      step: "end",
      symbol: "none",
      itemStyle: { color },
      data: edges.map((edge, i) => [edge, Math.max(values[Math.min(i, last)], least)]),
      ...style,
    })),
  };
}

/** The numbers of such a histogram; `columns` name the rows. */
export const ratioTable = (edges, columns, values) => ({
  columns: ["ratio_low", "ratio_high", ...columns],
  rows: edges.slice(1).map((edge, i) => [Math.exp(edges[i]), Math.exp(edge), ...values.map((one) => one[i])]),
});

/** The values of a curve by their steps. */
export const byStep = ({ x, y }) => new Map(x.map((step, i) => [step, y[i]]));
