// A figure: a chart in a card with its title, and its exports as PNG, SVG, PDF and CSV.

import { button, el, fill } from "./dom.js";
import { saveFromServer, saveTable } from "./export.js";
import { swatch, theme } from "./palette.js";
import * as echarts from "./vendor/echarts/echarts.esm.min.js";

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';

/** @typedef {Element & { figure?: Figure }} Place The element in which a figure is drawn. */

// Figures that are drawn. The observer reports each change of size, and also a removal from the page.
const all = new Set();
const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) /** @type {Place} */ (target).figure.resize();
});
// Charts are drawn only when they are near the viewport, since a page may have many.
const sight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      /** @type {Place} */ (target).figure.see(isIntersecting, boundingClientRect);
    }
  },
  { rootMargin: "300px" },
);
// A few charts are drawn per frame, visible charts first, so that the page stays responsive.
const waiting = new Set();
const FRAME_MS = 30;
// In percent of a figure's height
const FLAT = 10;
let frame = 0;
// Width of saved pictures in columns of a paper, the same for all figures.
let columns = 1;
// Tooltips may extend beyond their card. In a separate box they cause no new layout of the page. The box covers
// the window, since ECharts uses its position to convert coordinates of a chart.
const TIP_GAP = 14;
const tips = document.body.appendChild(el("div.tips"));

function drawSoon(figure) {
  waiting.add(figure);
  if (!frame) frame = requestAnimationFrame(drawWaiting);
}

function drawWaiting() {
  frame = 0;
  const until = performance.now() + FRAME_MS;
  for (const figure of [...waiting].sort((a, b) => a.distance - b.distance)) {
    waiting.delete(figure);
    figure.paint();
    if (performance.now() > until) break;
  }
  if (waiting.size && !frame) frame = requestAnimationFrame(drawWaiting);
}

document.addEventListener("atrium-theme", () => {
  for (const figure of all) figure.redraw();
});

export class Figure {
  /** Figures with `linked` share hover and zoom; `onzoom` receives the range of x, or null for the full range. */
  constructor({ title, subtitle = "", height = 260, linked = null, wide = false, onzoom = null }) {
    this.onzoom = onzoom;
    this.linked = linked;
    this.drawn = null;
    this.chart = null;
    this.place = el("div.plot", { role: "img", "aria-label": title, style: { height: `${height}px` } });
    this.place.figure = this;
    this.hint = button("Double-click to show all", { class: "small zoomed", hidden: true }, () =>
      this.unzoom(),
    );
    this.note = el("p.note");
    this.legend = el("div.legend");
    this.heading = el("h3");
    this.subtitle = el("p.sub");
    const about = "Saved pictures are as wide as one column of a paper (85 mm) or two (175 mm)";
    this.width = button("", { class: "small", "data-columns": "", title: about }, changeColumns);
    const exported = (kind) => {
      const attributes = { class: "small", "data-export": kind, title: `Save as ${kind.toUpperCase()}` };
      return button(kind.toUpperCase(), attributes, () => this.save(kind));
    };
    const kinds = ["png", "svg", "pdf", "csv"].map(exported);
    this.element = el(
      "section.card.figure",
      { class: wide && "wide" },
      el("header", [
        el("div.titles", this.heading, this.subtitle),
        el("div.exports", { role: "group", "aria-label": `Export ${title}` }, this.width, kinds),
      ]),
      this.legend,
      el("div.plotted", this.place, this.hint),
      this.note,
    );
    this.name(title, subtitle);
    this.isSeen = false;
    this.isStale = false;
    this.distance = 0;
  }

  /** Save pictures that the server draws for papers at `path`, from the query of the view. */
  savedFrom(path, parameters) {
    this.paper = { path, parameters };
  }

  /** Draw the figure; `option` returns ECharts' options for given colors, `table` the {columns, rows} of the CSV. */
  draw({ option, table, legend = [] }) {
    this.drawn = { option, table };
    const entry = ({ place, dash, name }) =>
      el("span", place !== undefined && [swatch(place, dash), " "], name);
    fill(this.legend, legend.map(entry));
    this.say("");
    this.element.dataset.drawn = "";
    fill(this.width, columnsText());
    if (!all.has(this)) {
      observer.observe(this.place);
      sight.observe(this.place);
      all.add(this);
    }
    this.redraw();
  }

  name(title, subtitle) {
    this.title = title;
    fill(this.heading, title);
    this.element.setAttribute("aria-label", title);
    fill(this.subtitle, subtitle);
  }

  /** Show a note below the figure. */
  say(note) {
    fill(this.note, note);
    this.note.hidden = !note;
  }

  see(isSeen, { top, bottom }) {
    this.isSeen = isSeen;
    this.distance = Math.max(top - innerHeight, -bottom, 0);
    if (isSeen && this.isStale) this.redraw();
  }

  /** Show the reason why there is nothing to draw. */
  drawNothing(reason) {
    this.drawn = null;
    delete this.element.dataset.drawn;
    this.chart?.clear();
    this.hint.hidden = true;
    this.say(reason);
  }

  redraw() {
    if (!this.drawn) return;
    this.isStale = !this.isSeen;
    if (this.isSeen) drawSoon(this);
  }

  paint() {
    if (!this.drawn || !this.element.isConnected) return;
    const isNew = !this.chart;
    if (isNew) {
      this.chart = echarts.init(this.place, null, { renderer: "canvas" });
      if (this.linked) {
        this.chart.group = this.linked;
        echarts.connect(this.linked);
        shareOnlyX(this.chart);
      }
      this.chart.on("datazoom", () => {
        const { startValue, endValue, start, end } = this.chart.getOption().dataZoom[0];
        this.onzoom?.(end - start < 100 ? [startValue, endValue] : null);
        this.keepHeight();
        this.showHint();
      });
      this.place.addEventListener("dblclick", () => this.unzoom());
      this.place.addEventListener("pointerenter", () => this.dragToZoom());
    }
    const zoom = isNew ? null : this.chart.getOption()?.dataZoom?.map(({ start, end }) => ({ start, end }));
    const colours = theme();
    const option = complete(this.drawn.option(colours), colours);
    option.tooltip.position = (point, _data, _box, _item, { contentSize }) =>
      besidePoint(point, contentSize, this.place);
    if (option.dataZoom && zoom) {
      for (const [at, part] of zoom.entries())
        if (at || !this.onzoom) Object.assign(option.dataZoom[at], part);
    }
    this.zooms = Boolean(option.dataZoom);
    this.chart.setOption(option, { notMerge: true, lazyUpdate: false });
    this.showHint();
    this.isReady = false;
    if (this.place.matches(":hover")) this.dragToZoom();
  }

  /** Enable zooming by dragging, only when needed: this takes a third of the time of drawing. */
  dragToZoom() {
    if (!this.zooms || this.isReady) return;
    this.isReady = true;
    const cursor = { type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: true };
    this.chart.dispatchAction({ ...cursor, escapeConnect: true });
  }

  /** Ignore the height of a nearly flat selection: dragging along a curve selects steps only. */
  keepHeight() {
    const height = this.chart.getOption().dataZoom[1];
    if (height.end - height.start >= FLAT) return;
    this.chart.dispatchAction({ type: "dataZoom", ...wholeRange(1), escapeConnect: true });
  }

  /** Show the full range of this figure and of the figures linked to it. */
  unzoom() {
    this.chart.dispatchAction({ type: "dataZoom", batch: [0, 1].map(wholeRange) });
  }

  /** Show how to zoom out, while only a part is shown. */
  showHint() {
    this.hint.hidden = !this.chart.getOption().dataZoom?.some(({ start, end }) => start > 0 || end < 100);
  }

  resize() {
    if (!this.place.isConnected) this.dispose();
    else if (this.place.clientWidth > 0) this.chart?.resize();
  }

  dispose() {
    observer.unobserve(this.place);
    sight.unobserve(this.place);
    all.delete(this);
    waiting.delete(this);
    this.chart?.dispose();
    this.chart = null;
  }

  /** Save the figure as a file; the server draws pictures for papers, in light colors on white. */
  async save(kind) {
    if (!this.drawn) return;
    if (kind === "csv") {
      const name = this.title.toLowerCase().replace(/[^a-z0-9@]+/g, "-");
      saveTable(name.replace(/^-|-$/g, "") || "figure", await this.drawn.table());
      return;
    }
    const { path, parameters } = this.paper;
    const asked = { ...parameters, suffix: kind, columns };
    await saveFromServer(path, asked).catch(({ message }) => this.say(`Not saved: ${message}`));
  }
}

const wholeRange = (dataZoomIndex) => ({ dataZoomIndex, start: 0, end: 100 });
const columnsText = () => (columns === 1 ? "1 column" : "2 columns");

function changeColumns() {
  columns = 3 - columns;
  for (const { width } of all) fill(width, columnsText());
}

/** Linked charts share only the range of x, since their y values have different scales. */
function shareOnlyX(chart) {
  const asAction = chart.makeActionFromEvent;
  chart.makeActionFromEvent = (event) => {
    const action = asAction.call(chart, event);
    return action.batch
      ? { ...action, batch: action.batch.filter(({ dataZoomId }) => !dataZoomId?.includes("yAxis")) }
      : action;
  };
}

/** Return a tooltip's position in the chart: below and right of the point, or on the other side without space. */
function besidePoint([x, y], [width, height], place) {
  const { left, top, right } = place.getBoundingClientRect();
  const bar = /** @type {HTMLElement} */ (document.querySelector(".bar")).offsetHeight;
  // Each linked figure shows a tooltip, so a tooltip stays within its own figure if possible.
  return [beside(left + x, width, 0, right) - left, beside(top + y, height, bar, innerHeight) - top];
}

function beside(point, size, start, end) {
  const after = point + TIP_GAP;
  const isOut = point > end; // a linked figure outside the viewport keeps its tooltip there
  return isOut || after + size <= end ? after : Math.max(point - TIP_GAP - size, start);
}

/** Return a tooltip's content as elements, so that labels are never parsed as HTML. */
export function tip(heading, lines) {
  return el(
    "div.tip",
    el("b", heading),
    lines.map(([mark, label, value]) => {
      const sign = typeof mark === "string" ? el("i", { style: { background: mark } }) : mark;
      return el("div.tip-line", sign, el("span", label), el("em", value));
    }),
  );
}

/** Return ECharts' options of an axis; `label` are options of its tick labels. */
export function axis(colours, { label = {}, ...more } = /** @type {any} */ ({})) {
  return {
    type: "value",
    scale: true,
    name: "",
    nameTextStyle: { color: colours.muted, fontSize: 11 },
    axisLine: { show: true, onZero: false, lineStyle: { color: colours.axis } },
    axisTick: { show: false },
    axisLabel: { color: colours.muted, fontSize: 11, formatter: tickText, hideOverlap: true, ...label },
    splitLine: { lineStyle: { color: colours.line } },
    ...more,
  };
}

/** Return a shaded band; `points` are [x, low, high]. With `isHidden` it is visible only while hovered. */
export function bandSeries(name, points, colour, isHidden = false) {
  const known = points.filter(([, low, high]) => Number.isFinite(low) && Number.isFinite(high));
  const least = Math.min(...known.map(([, low]) => low));
  const greatest = Math.max(...known.map(([, , high]) => high));
  return {
    type: "custom",
    name,
    silent: true,
    z: 1,
    itemStyle: { color: colour }, // for the legend
    progressive: 0,
    clip: true,
    // A single item for the whole band: an item per point would take as long as the curves.
    encode: { x: [0, 1], y: [2, 3] },
    data: known.length ? [[known[0][0], known.at(-1)[0], least, greatest]] : [],
    tooltip: { show: false },
    renderItem(_parameters, api) {
      const upper = known.map(([x, , high]) => api.coord([x, high]));
      const lower = known.map(([x, low]) => api.coord([x, low])).reverse();
      return {
        type: "polygon",
        shape: { points: [...upper, ...lower] },
        style: { fill: colour, opacity: isHidden ? 0 : 0.16 },
        ...(isHidden && { emphasis: { style: { opacity: 0.24 } } }),
      };
    },
  };
}

const DRAGGED = {
  type: "inside",
  filterMode: "none",
  zoomOnMouseWheel: false,
  moveOnMouseMove: false,
  moveOnMouseWheel: false,
  zoomLock: true,
};

/** Enable zooming in x and y by dragging; a double click zooms out. */
export function zoomable(option) {
  const feature = { dataZoom: { xAxisIndex: 0, yAxisIndex: 0, filterMode: "none" } };
  return {
    ...option,
    dataZoom: [
      { ...DRAGGED, xAxisIndex: 0 },
      { ...DRAGGED, yAxisIndex: 0 },
    ],
    toolbox: { show: true, itemSize: 0, top: -30, feature },
  };
}

function complete(option, colours) {
  return {
    animation: false,
    textStyle: { fontFamily: FONT, color: colours.text },
    grid: { left: 8, right: 16, top: 20, bottom: 8, containLabel: true },
    ...option,
    tooltip: {
      backgroundColor: colours.surface,
      borderColor: colours.line,
      borderWidth: 1,
      padding: 0,
      extraCssText: "box-shadow:0 6px 24px rgba(0,0,0,.18);border-radius:8px;z-index:20",
      textStyle: { color: colours.text, fontSize: 12, fontFamily: FONT },
      transitionDuration: 0,
      confine: false,
      appendTo: tips,
      ...option.tooltip,
    },
  };
}

const ROOM = 1.05; // margin around the values of a logarithmic axis, as a factor

/** Return a logarithmic axis for these values, with ticks at powers of ten, or between them if there are few. */
export function logAxis(colours, values, more = {}) {
  const known = values.filter((value) => value > 0);
  const [min, max] = [Math.min(...known) / ROOM, Math.max(...known) * ROOM];
  const customValues = more.logBase === 2 ? undefined : logTicks(min, max);
  const axisTick = { show: false, customValues };
  return axis(colours, { type: "log", min, max, axisTick, ...more, label: { customValues, ...more.label } });
}

function logTicks(min, max) {
  const [from, to] = [Math.ceil(Math.log10(min)), Math.floor(Math.log10(max))];
  const every = Math.max(Math.ceil((to - from + 1) / 6), 1);
  const exponents = Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const powers = exponents.filter((_, i) => i % every === 0).map((exponent) => 10 ** exponent);
  return powers.length >= 2 ? powers : ticksBetween(min, max, 8);
}

/** Return round numbers from `min` to `max`, at most `most + 1`. */
export function ticksBetween(min, max, most) {
  const rough = (max - min) / most || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((one) => one * size >= rough);
  const first = Math.ceil(min / step);
  return Array.from({ length: Math.floor(max / step) - first + 1 }, (_, i) => (first + i) * step);
}

/** Return a tick label with all digits, so that labels differ; ticks are round numbers. */
function tickText(value) {
  const size = Math.abs(value);
  const isPlain = size === 0 || (size >= 1e-4 && size < 1e7);
  return isPlain
    ? EXACT.format(value).replace("-", "−")
    : value.toExponential().replace(/(\.\d{1,6})\d*/, "$1");
}
const EXACT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 8 });
