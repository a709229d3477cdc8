// Colors of figures, declared in style.css. The first series colors are from Okabe and Ito, for people with any color
// vision. The server (document/palette.py) assigns colors to methods, and draws its own figures in the light colors.

import { svg } from "./dom.js";

const NAMES = ["text", "muted", "line", "axis", "surface", "shade", "faint"];
const NUM_HUES = 8;
/** @type {("solid" | number[])[]} */
const DASHES = ["solid", [6, 4], [8, 3, 2, 3], [2, 3]];

/** Dash patterns by their names in documents. */
export const NAMED_DASHES = { solid: "solid", dashed: [6, 4], dotted: [2, 3] };

/** Return the colors of the current theme: by name, and `series`, the colors of the palette. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`);
  const series = Array.from({ length: NUM_HUES }, (_, at) => colour(`series-${at}`));
  return { ...Object.fromEntries(NAMES.map((name) => [name, colour(name)])), series };
}

/** Return the CSS color at a place of the palette, which follows the theme. */
export const seriesVariable = (place) => `var(--series-${place % NUM_HUES})`;

/**
 * Return the color and dashes at a place of the palette; after the last color, the colors repeat with dashes.
 * @param {number} place
 * @returns {{ color: string, dash: "solid" | number[] }}
 */
export function seriesStyle(place, { series }) {
  return { color: series[place % NUM_HUES], dash: dashOf(place) };
}

const dashOf = (place) => DASHES[Math.floor(place / NUM_HUES) % DASHES.length];

/** Return a legend line for a place of the palette, with its own or the named dashes. */
export function swatch(place, named = "") {
  const dash = NAMED_DASHES[named] ?? dashOf(place);
  const dashes = dash === "solid" ? null : dash.join(" ");
  const line = { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 3, "stroke-dasharray": dashes };
  return svg(
    "svg.swatch",
    { width: 22, height: 8, "data-place": place, "aria-hidden": "true" },
    svg("line", { ...line, stroke: seriesVariable(place) }),
  );
}
