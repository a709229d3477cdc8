// A figure: a chart in a card with its title, and its exports as PNG, SVG, PDF and CSV.

import { el, fill } from "./dom.js";
import { csv, download, saveFromServer } from "./export.js";
import { THEMES, theme } from "./palette.js";
import * as echarts from "./vendor/echarts/echarts.esm.min.js";

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';

/** @typedef {Element & { figure?: Figure }} Place The element in which a figure is drawn. */

const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) /** @type {Place} */ (target).figure?.resize();
});
const all = new Set();
// Charts that are out of sight are drawn when they come near it: sixty runs make many.
const sight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      /** @type {Place} */ (target).figure?.see(isIntersecting, boundingClientRect);
    }
  },
  { rootMargin: "300px" },
);
// They are drawn a few per frame, those on the screen first, so that the page answers meanwhile.
const waiting = new Set();
const FRAME_MS = 30;
// Room for title and subtitle above an exported picture.
const HEAD = 64;
const MOST_NAMED = 20;
// In percent of a figure's height.
const FLAT = 10;
let frame = 0;
// How many columns of a paper saved pictures are wide, in all figures.
let columns = 1;
// Tooltips may leave their card. In a box of their own they do not make the page lay itself out again. It
// covers the window: ECharts measures the box to find out where in it a point of a chart lies.
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
  /** `linked` figures share their hover and zoom; `onzoom` is called with the range of x, or null for all of it. */
  constructor({ title, subtitle = "", height = 260, linked = null, wide = false, onzoom = null }) {
    this.title = title;
    this.onzoom = onzoom;
    this.linked = linked;
    this.drawn = null;
    this.chart = null;
    this.place = el("div", {
      class: "plot",
      role: "img",
      "aria-label": title,
      style: { height: `${height}px` },
    });
    this.place.figure = this;
    this.hint = el(
      "button.small.zoomed",
      { type: "button", hidden: true, onclick: () => this.unzoom() },
      "Double-click to show all",
    );
    this.note = el("p.note");
    this.heading = el("h3", title);
    this.subtitle = el("p.sub", subtitle);
    this.width = el(
      "button",
      {
        type: "button",
        class: "small",
        hidden: true,
        "data-columns": "",
        title: "Saved pictures are as wide as one column of a paper (85 mm) or two (175 mm)",
        onclick: () => changeColumns(),
      },
      columnsText(),
    );
    this.element = el(
      "section",
      { class: `card figure${wide ? " wide" : ""}`, "aria-label": title },
      el(
        "header",
        el("div.titles", this.heading, this.subtitle),
        el(
          "div.exports",
          { role: "group", "aria-label": `Export ${title}` },
          this.width,
          ["png", "svg", "pdf", "csv"].map((kind) =>
            el(
              "button",
              {
                type: "button",
                class: "small",
                "data-export": kind,
                title: `Save as ${kind.toUpperCase()}`,
                hidden: kind === "pdf",
                onclick: () => this.save(kind),
              },
              kind.toUpperCase(),
            ),
          ),
        ),
      ),
      el("div.plotted", this.place, this.hint),
      this.note,
    );
    this.isSeen = false;
    this.isStale = false;
    this.distance = 0;
    observer.observe(this.place);
    sight.observe(this.place);
    all.add(this);
  }

  /** Let saved pictures be those that the server draws for papers at `path`, from the query of the view. */
  savedFrom(path, parameters) {
    this.paper = { path, parameters };
    for (const button of [this.width, this.element.querySelector("[data-export=pdf]")]) button.hidden = false;
  }

  /** Draw; `option` makes ECharts' option from colours, `table` gives {columns, rows} for the CSV. */
  draw({ option, table, note = "", title = null, subtitle = null }) {
    this.drawn = { option, table };
    if (title !== null) this.retitle(title);
    if (subtitle !== null) fill(this.subtitle, subtitle);
    fill(this.note, note);
    this.note.hidden = !note;
    this.element.dataset.drawn = "";
    this.redraw();
  }

  retitle(title) {
    this.title = title;
    fill(this.heading, title);
    this.element.setAttribute("aria-label", title);
  }

  see(isSeen, { top, bottom }) {
    this.isSeen = isSeen;
    this.distance = Math.max(top - innerHeight, -bottom, 0);
    if (isSeen && this.isStale) this.redraw();
  }

  /** Say why there is nothing to draw. */
  drawNothing(reason) {
    this.drawn = null;
    delete this.element.dataset.drawn;
    this.chart?.clear();
    this.hint.hidden = true;
    fill(this.note, reason);
    this.note.hidden = false;
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
    const option = complete(this.drawn.option(theme()), theme());
    option.tooltip.position = (point, _data, _box, _item, { contentSize }) =>
      besidePoint(point, contentSize, this.place);
    if (option.zooms && zoom) {
      for (const [at, part] of zoom.entries())
        if (at || !this.onzoom) Object.assign(option.dataZoom[at], part);
    }
    this.zooms = Boolean(option.zooms);
    this.chart.setOption(option, { notMerge: true, lazyUpdate: false });
    this.showHint();
    this.isReady = false;
    if (this.place.matches(":hover")) this.dragToZoom();
  }

  /** Make dragging zoom, once it is about to be: it costs as much as a third of the drawing. */
  dragToZoom() {
    if (!this.zooms || this.isReady) return;
    this.isReady = true;
    this.chart.dispatchAction({
      type: "takeGlobalCursor",
      key: "dataZoomSelect",
      dataZoomSelectActive: true,
      escapeConnect: true,
    });
  }

  /** Dragging along a curve chooses steps: a box that is next to flat would leave no curve to see. */
  keepHeight() {
    const height = this.chart.getOption().dataZoom?.[1];
    if (height && height.end - height.start < FLAT)
      this.chart.dispatchAction({
        type: "dataZoom",
        dataZoomIndex: 1,
        start: 0,
        end: 100,
        escapeConnect: true,
      });
  }

  /** Show all of this figure and of those linked to it. */
  unzoom() {
    this.chart.dispatchAction({
      type: "dataZoom",
      batch: [0, 1].map((at) => ({ dataZoomIndex: at, start: 0, end: 100 })),
    });
  }

  /** Say how to get back, while a part is shown. */
  showHint() {
    this.hint.hidden = !this.chart.getOption().dataZoom?.some(({ start, end }) => start > 0 || end < 100);
  }

  resize() {
    if (this.chart && this.place.clientWidth > 0) this.chart.resize();
  }

  dispose() {
    observer.unobserve(this.place);
    sight.unobserve(this.place);
    all.delete(this);
    waiting.delete(this);
    this.chart?.dispose();
    this.chart = null;
  }

  /** Save as a file: pictures are light on white whatever the page is, for papers. */
  async save(kind) {
    if (!this.drawn) return;
    const name =
      this.title
        .toLowerCase()
        .replace(/[^a-z0-9@]+/g, "-")
        .replace(/^-|-$/g, "") || "figure";
    if (kind === "csv") {
      download(`${name}.csv`, csv(await this.drawn.table()), "text/csv");
      return;
    }
    if (this.paper) {
      const { path, parameters } = this.paper;
      await saveFromServer(path, { ...parameters, suffix: kind, columns }).catch(({ message }) => {
        fill(this.note, `Not saved: ${message}`);
        this.note.hidden = false;
      });
      return;
    }
    const [width, height] = [Math.max(this.place.clientWidth, 480), this.place.clientHeight + HEAD];
    const option = complete(this.drawn.option(THEMES.light), THEMES.light);
    option.animation = false;
    delete option.toolbox;
    option.title = {
      text: this.title,
      subtext: this.subtitle.textContent,
      left: 10,
      top: 8,
      itemGap: 8,
      subtextStyle: {
        fontSize: 11,
        fontFamily: FONT,
        color: THEMES.light.muted,
        width: width - 20,
        overflow: "break",
      },
      textStyle: { fontSize: 14, fontWeight: 600, fontFamily: FONT, color: THEMES.light.text },
    };
    for (const grid of [option.grid].flat()) if (grid) grid.top = (Number(grid.top) || 20) + HEAD;
    for (const part of [option.legend, option.visualMap, option.parallel].flat())
      if (part && "top" in part) part.top += HEAD;
    const names = [
      ...new Set(
        [option.series ?? []]
          .flat()
          .filter(({ type, name }) => name && type !== "custom")
          .map(({ name }) => name),
      ),
    ];
    if (!option.legend && names.length > 1 && names.length <= MOST_NAMED) {
      // On the page a list beside the figures says which line is whose.
      option.legend = {
        bottom: 4,
        left: 10,
        right: 10,
        type: "plain",
        data: names,
        itemWidth: 18,
        itemHeight: 8,
        textStyle: { fontSize: 11, fontFamily: FONT, color: THEMES.light.text },
      };
      for (const grid of [option.grid].flat())
        if (grid) grid.bottom = (Number(grid.bottom) || 8) + 20 * Math.ceil(names.join("").length / 60) + 6;
    }
    if (kind === "svg") {
      const chart = echarts.init(null, null, { renderer: "svg", ssr: true, width, height });
      chart.setOption(option);
      download(`${name}.svg`, chart.renderToSVGString(), "image/svg+xml");
      chart.dispose();
    } else {
      const chart = echarts.init(el("div"), null, { renderer: "canvas", width, height, devicePixelRatio: 2 });
      chart.setOption(option);
      const canvas = chart.getRenderedCanvas({ pixelRatio: 2, backgroundColor: "#ffffff" });
      const picture = await new Promise((resolve) => {
        canvas.toBlob(resolve, "image/png");
      });
      chart.dispose();
      download(`${name}.png`, picture, "image/png");
    }
  }
}

const columnsText = () => (columns === 1 ? "1 column" : "2 columns");

function changeColumns() {
  columns = 3 - columns;
  for (const { width } of all) fill(width, columnsText());
}

/** Linked charts share the range in x alone: what is in range in one may be off the scale of another. */
function shareOnlyX(chart) {
  const asAction = chart.makeActionFromEvent;
  chart.makeActionFromEvent = (event) => {
    const action = asAction.call(chart, event);
    return action.batch
      ? { ...action, batch: action.batch.filter(({ dataZoomId }) => !dataZoomId?.includes("yAxis")) }
      : action;
  };
}

/** Where in the chart a tooltip stands: below the point at its right, or on the other side where there is no room. */
function besidePoint([x, y], [width, height], place) {
  const { left, top, right } = place.getBoundingClientRect();
  const bar = /** @type {HTMLElement} */ (document.querySelector(".bar")).offsetHeight;
  // Of linked figures each shows one, so a tooltip stays in its own where it can.
  return [beside(left + x, width, 0, right) - left, beside(top + y, height, bar, innerHeight) - top];
}

function beside(point, size, start, end) {
  const after = point + TIP_GAP;
  const isOut = point > end; // of a linked figure out of sight, whose tooltip stays there too
  return isOut || after + size <= end ? after : Math.max(point - TIP_GAP - size, start);
}

/** The tooltip's content as elements, so that no label is ever read as HTML. */
export function tip(heading, lines) {
  return el(
    "div.tip",
    el("b", heading),
    lines.map(([colour, label, value]) =>
      el(
        "div.tip-line",
        colour && (colour instanceof Node ? colour : el("i", { style: { background: colour } })),
        el("span", label),
        el("em", value),
      ),
    ),
  );
}

/** An axis in the figure's style. */
export function axis(colours, more = {}) {
  const { name = "", ...rest } = more;
  return {
    type: "value",
    scale: true,
    name,
    nameTextStyle: { color: colours.muted, fontSize: 11 },
    axisLine: { show: true, onZero: false, lineStyle: { color: colours.axis } },
    axisTick: { show: false },
    axisLabel: { color: colours.muted, fontSize: 11, formatter: tickText, hideOverlap: true },
    splitLine: { lineStyle: { color: colours.line } },
    ...rest,
  };
}

/** A shaded region between two curves; `points` are [x, low, high]. With `isHidden` it is seen while hovered. */
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
    // One item that spans all of it: an item per point takes as long as the curves themselves.
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

/** Zoom by dragging, both ways; a double click zooms out. */
export function zoomable(option) {
  return {
    ...option,
    zooms: true,
    dataZoom: [
      {
        type: "inside",
        xAxisIndex: 0,
        filterMode: "none",
        zoomOnMouseWheel: false,
        moveOnMouseMove: false,
        moveOnMouseWheel: false,
        zoomLock: true,
      },
      {
        type: "inside",
        yAxisIndex: 0,
        filterMode: "none",
        zoomOnMouseWheel: false,
        moveOnMouseMove: false,
        moveOnMouseWheel: false,
        zoomLock: true,
      },
    ],
    toolbox: {
      show: true,
      itemSize: 0,
      top: -30,
      feature: { dataZoom: { xAxisIndex: 0, yAxisIndex: 0, filterMode: "none" } },
    },
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

const ROOM = 1.05; // around the values of a logarithmic axis

/** A logarithmic axis of these values: ticks at powers of ten, or between them where there are few. */
export function logAxis(colours, values, more = {}) {
  const known = values.filter((value) => value > 0);
  const [min, max] = [Math.min(...known) / ROOM, Math.max(...known) * ROOM];
  const customValues = more.logBase === 2 ? undefined : logTicks(min, max);
  const label = { color: colours.muted, fontSize: 11, customValues, formatter: tickText };
  return axis(colours, {
    type: "log",
    min,
    max,
    axisTick: { show: false, customValues },
    axisLabel: label,
    ...more,
  });
}

function logTicks(min, max) {
  const [from, to] = [Math.ceil(Math.log10(min)), Math.floor(Math.log10(max))];
  const every = Math.max(Math.ceil((to - from + 1) / 6), 1);
  const powers = Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i)).filter(
    (_, i) => i % every === 0,
  );
  if (powers.length >= 2) return powers;
  const rough = (max - min) / 8;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((one) => one * size >= rough);
  const first = Math.ceil(min / step);
  return Array.from({ length: Math.floor(max / step) - first + 1 }, (_, i) => (first + i) * step);
}

/** A tick with all its digits, so that no two are alike: ticks are at round numbers. */
function tickText(value) {
  const size = Math.abs(value);
  const isPlain = size === 0 || (size >= 1e-4 && size < 1e7);
  return isPlain
    ? EXACT.format(value).replace("-", "−")
    : value.toExponential().replace(/(\.\d{1,6})\d*/, "$1");
}
const EXACT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 8 });
