// Rendering of documents from the server (document/json.py): cells, sentences, tables and passages.

import { button, el, svg } from "./dom.js";
import { saveTable } from "./export.js";
import { DASH, known, number, percent, plural, valueText } from "./format.js";
import { swatch } from "./palette.js";

const MOST_OPEN = 6;

/** Return the texts of an estimate's value and interval, without unknown ones. */
function estimateParts({ value, interval, unit, is_signed: isSigned }) {
  const text = (one) => valueText(one, unit, isSigned);
  return [
    ...(value === null ? [] : [text(value)]),
    ...(interval ? [`[${text(interval[0])}, ${text(interval[1])}]`] : []),
  ];
}

/** Return the text of a cell, with the digits and the sign of its unit. */
export function cellText(cell) {
  if (cell === null) return DASH;
  if (typeof cell === "string") return cell;
  if (typeof cell === "number") return valueText(cell, "count");
  if (cell.kind === "Value") return valueText(cell.value, cell.unit, cell.is_signed);
  if (cell.kind === "Estimate") return estimateParts(cell).join(" ") || DASH;
  if (cell.kind === "Trend") return "";
  const [low, high] = [valueText(cell.low, cell.unit), valueText(cell.high, cell.unit)];
  return low === high ? low : `${low} to ${high}`;
}

/** Return the cell's CSV columns: its text, or its numbers (three for an estimate). */
function cellValues(cell) {
  if (cell === null || typeof cell !== "object") return [cell];
  if (cell.kind === "Value") return [known(cell.value)];
  if (cell.kind === "Estimate") return [known(cell.value), ...(cell.interval ?? ["", ""]).map(known)];
  return [cellText(cell)];
}

function tableValues({ columns, rows }) {
  const blanks = columns.map((_, at) => {
    const isEstimate = rows.some(({ cells }) => cells[at]?.kind === "Estimate");
    return isEstimate ? { kind: "Estimate", value: null, interval: null } : null;
  });
  const titles = ({ title }, at) => (blanks[at] ? [title, `${title} low`, `${title} high`] : [title]);
  return {
    columns: columns.flatMap(titles),
    rows: rows.map(({ cells }) => cells.flatMap((cell, at) => cellValues(cell ?? blanks[at]))),
  };
}

/** Return a cell's content: an estimate on two lines, a trend as a sparkline, any other cell as text. */
function cellContent(cell, name) {
  if (cell?.kind === "Trend") return sparkline(cell.values.map(known), name, known(cell.limit));
  if (cell?.kind !== "Estimate" || cell.value === null || !cell.interval) return cellText(cell);
  const [value, interval] = estimateParts(cell);
  return [el("span.value", value), el("div.sub", interval)];
}

/** Return a score with its interval over problems on a second line; a dash if it is unknown. */
export function scoreCell(point) {
  const interval = point?.interval_over_problems?.map(percent).join(" – ");
  return [el("span.value", percent(point?.mean_at_k)), interval && el("div.sub", interval)];
}

/** Return a sparkline of numbers; a limit is drawn as a line if it is near their range. */
export function sparkline(values, name = "reward", limit = null) {
  const found = values.map((value, at) => [at, value]).filter(([, value]) => Number.isFinite(value));
  if (found.length < 2) return "";
  const numbers = found.map(([, value]) => value);
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  const isNear = limit !== null && limit >= 2 * least - most && limit <= 2 * most - least;
  const [low, high] = isNear ? [Math.min(least, limit), Math.max(most, limit)] : [least, most];
  const height = (value) => (18 - ((value - low) / (high - low || 1)) * 16).toFixed(1);
  const across = (at) => (2 + (at / (values.length - 1)) * 76).toFixed(1);
  const points = found.map(([at, value]) => `${across(at)} ${height(value)}`);
  const label = `${name} from ${number(numbers[0])} to ${number(numbers.at(-1))}`;
  const attributes = { width: 80, height: 20, role: "img", "aria-label": label };
  const line = isNear && svg("path.limit", { d: `M2 ${height(limit)}H78` });
  return svg("svg.spark", attributes, line, svg("path", { d: `M${points.join("L")}` }));
}

/**
 * Return a table as a card with a CSV export.
 * @typedef {object} More Additional columns, and additional content for rows.
 * @property {string[]} [titles]
 * @property {(row: any, place: number) => any} [cells]
 * @property {(tr: HTMLElement, place: number) => any} [rows]
 * @param {any} table
 * @param {More} [more]
 */
export function tableCard(table, { titles = [], cells = () => [], rows = (tr) => tr } = {}) {
  const isText = (cell) => cell === null || typeof cell === "string" || cell.kind === "Trend";
  const kinds = table.columns.map(({ is_prose: isProse }, at) => {
    if (isProse) return "words";
    return table.rows.every((row) => isText(row.cells[at])) ? null : "num";
  });
  const heads = table.columns.map(({ title }, at) => el(title ? "th" : "td", { class: kinds[at] }, title));
  const more = titles.map((title) => el("th", title));
  const line = (row, place) => {
    const [first, ...rest] = row.cells;
    const mark = row.place !== null && [swatch(row.place), " "];
    const cellOf = (cell, at) => el("td", { class: kinds[at + 1] }, cellContent(cell, first));
    const named = el("td.first", [mark, el("b", first), row.is_strong && " ★"]);
    const attributes = { "data-row": first, class: row.tone };
    return rows(el("tr", attributes, named, rest.map(cellOf), cells(row, place)), place);
  };
  const name = (table.key || table.title).replace(/[^A-Za-z0-9]+/g, "-");
  const save = () => saveTable(name, tableValues(table));
  return el("section.card.scroll.table", { "aria-label": table.title || table.key }, [
    el("header", [
      table.title && el("h3", table.title),
      button("CSV", { class: "small", title: "Save as CSV" }, save),
    ]),
    el("table", { class: table.key }, [
      el("thead", el("tr", heads, more)),
      el("tbody", table.rows.map(line)),
    ]),
    table.note && el("p.note", table.note),
  ]);
}

/** Return a document's warnings, each with its detail folded; `more` returns content that follows the text. */
export function alertLines({ alerts }, more = (_alert) => null) {
  return alerts
    .filter(({ tone }) => tone === "warning")
    .map((alert) => {
      const line = [`⚠ ${alert.text}`, more(alert)];
      const folded = alert.detail && el("details", el("summary", line), el("p", alert.detail));
      return el("div.alert", { role: "alert" }, folded || line);
    });
}

/** Return notes about the numbers (`warnings`), and explanations of how to read them (`muted`). */
export function notesOf({ alerts, notes }) {
  const muted = alerts.filter(({ tone }) => tone === "muted");
  return {
    warnings: [...notes.filter(({ tone }) => tone !== "muted"), ...muted].map(({ text }) => text),
    muted: notes.filter(({ tone }) => tone === "muted").map(({ text }) => text),
  };
}

export function listOf(lines) {
  const items = lines.map((line) => el("li", line));
  return el("ul.lines", items);
}

/** Return a closed, foldable list of lines under a summary; false without lines. */
export function foldedList(summary, lines) {
  return lines.length > 0 && el("details", el("summary", summary), listOf(lines));
}

/** Return a document's answer as boxes; below a headline, more than `MOST_OPEN` verdicts are folded. */
export function answerBoxes({ answer }) {
  const box = ({ text, tone, key }) => {
    const isSame = key === "same_method";
    const isLead = isSame || key === "headline" || key.startsWith("verdict/");
    const attributes = { class: isSame ? key : tone };
    return el("section.card.verdict-box", attributes, el("p", { class: isLead ? "lead" : null }, text));
  };
  const headline = answer.find(({ key }) => key === "headline");
  if (!headline) return answer.map(box);
  const verdicts = answer.filter(({ key }) => key.startsWith("verdict/"));
  const others = answer.filter((one) => one !== headline && !verdicts.includes(one));
  const open = verdicts.length <= MOST_OPEN;
  const summary = el("summary", plural(verdicts.length, "verdict"));
  return [box(headline), el("details.card.pad", { open }, summary, verdicts.map(box)), others.map(box)];
}
