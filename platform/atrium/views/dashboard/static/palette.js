// Colours of figures. Series: Okabe and Ito's first, which people with any colour vision tell apart. Which of
// them a method has says the server (document/palette.py), whose figures have the light ones too.

import { svg } from "./dom.js";

export const THEMES = {
  light: {
    text: "#1c2128",
    muted: "#626b78",
    line: "#e2e6eb",
    axis: "#b6bec8",
    surface: "#ffffff",
    series: ["#0072b2", "#d55e00", "#009e73", "#c2528b", "#6b5bd2", "#a67c00", "#3aa0d8", "#8a4b2a"],
    high: "#d55e00",
    low: "#0072b2",
    runaway: "#8a4b2a",
    good: "#0f7a51",
    bad: "#c8372d",
    positive: "#009e73",
    negative: "#c2528b",
    zero: "#98a2ae",
    shade: "rgba(98,107,120,.10)",
    faint: "#eef0f3",
  },
  dark: {
    text: "#e7eaee",
    muted: "#9aa5b1",
    line: "#2a313a",
    axis: "#4a5461",
    surface: "#171b21",
    series: ["#4da3e0", "#f28c48", "#35c79b", "#e48bbb", "#a395f5", "#dcb53c", "#7fd0f5", "#c98f6b"],
    high: "#f28c48",
    low: "#4da3e0",
    runaway: "#c98f6b",
    good: "#4ccb95",
    bad: "#f47c72",
    positive: "#35c79b",
    negative: "#e48bbb",
    zero: "#77828f",
    shade: "rgba(200,210,220,.07)",
    faint: "#242a33",
  },
};
/** @type {("solid" | number[])[]} */
const DASHES = ["solid", [6, 4], [8, 3, 2, 3], [2, 3]];

/** The colours in use. */
export function theme() {
  return THEMES[document.documentElement.dataset.theme] || THEMES.light;
}

/**
 * The colour and dashes at a place; when all colours are taken they come again, dashed.
 * @param {number} place
 * @returns {{ color: string, dash: "solid" | number[] }}
 */
export function seriesStyle(place, colours = theme()) {
  const { series } = colours;
  return {
    color: series[place % series.length],
    dash: DASHES[Math.floor(place / series.length) % DASHES.length],
  };
}

/** A piece of the line at a place, for lists beside figures; it follows the theme. */
export function swatch(place) {
  const { dash } = seriesStyle(place);
  return svg(
    "svg",
    { class: "swatch", width: 22, height: 8, "data-place": place, "aria-hidden": "true" },
    svg("line", {
      x1: 0,
      x2: 22,
      y1: 4,
      y2: 4,
      "stroke-width": 3,
      "stroke-dasharray": dash === "solid" ? null : dash.join(" "),
      stroke: `var(--series-${place % THEMES.light.series.length})`,
    }),
  );
}

function nameColours() {
  for (const [at, colour] of theme().series.entries())
    document.documentElement.style.setProperty(`--series-${at}`, colour);
}
nameColours();
document.addEventListener("atrium-theme", nameColours);
