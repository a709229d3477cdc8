// Documents as the server sends them (document/json.py): cells as text, sentences, tables and passages.

import { button, el } from "./dom.js";
import { saveTable } from "./export.js";
import { DASH, known, valueText } from "./format.js";
import { swatch } from "./palette.js";

/** The value and the interval of an estimate, as far as they are known. */
function estimateParts({ value, interval, unit, is_signed: isSigned }) {
  const text = (one) => valueText(one, unit, isSigned);
  return [
    ...(value === null ? [] : [text(value)]),
    ...(interval ? [`[${text(interval[0])}, ${text(interval[1])}]`] : []),
  ];
}

/** The text of a cell, with the digits and the sign of its unit. */
export function cellText(cell) {
  if (cell === null) return DASH;
  if (typeof cell === "string") return cell;
  if (typeof cell === "number") return valueText(cell, "count");
  if (cell.kind === "Value") return valueText(cell.value, cell.unit, cell.is_signed);
  if (cell.kind === "Estimate") return estimateParts(cell).join(" ") || DASH;
  const [low, high] = [valueText(cell.low, cell.unit), valueText(cell.high, cell.unit)];
  return low === high ? low : `${low} to ${high}`;
}

/** The numbers of a cell for a file, or its text: an estimate takes three columns. */
function cellValues(cell) {
  if (cell === null || typeof cell !== "object") return [cell];
  if (cell.kind === "Value") return [known(cell.value)];
  if (cell.kind === "Estimate") return [known(cell.value), ...(cell.interval ?? ["", ""]).map(known)];
  return [cellText(cell)];
}

function tableValues({ columns, rows }) {
  const isEstimate = columns.map((_, at) => rows.some(({ cells }) => cells[at]?.kind === "Estimate"));
  const blank = { kind: "Estimate", value: null, interval: null };
  return {
    columns: columns.flatMap(({ title }, at) =>
      isEstimate[at] ? [title, `${title} low`, `${title} high`] : [title],
    ),
    rows: rows.map(({ cells }) =>
      cells.flatMap((cell, at) => cellValues(cell === null && isEstimate[at] ? blank : cell)),
    ),
  };
}

/** An estimate in two lines, the interval in small letters below; any other cell as its text. */
function cellContent(cell) {
  if (cell?.kind !== "Estimate" || cell.value === null || !cell.interval) return cellText(cell);
  const [value, interval] = estimateParts(cell);
  return [el("span.value", value), el("div.sub", interval)];
}

/**
 * A table as a card that saves as CSV.
 * @typedef {object} More Columns beside those of the table, and rows around its rows.
 * @property {string[]} [titles]
 * @property {(row: any, place: number) => any} [cells]
 * @property {(tr: HTMLElement, place: number) => any} [rows]
 * @param {any} table
 * @param {More} [more]
 */
export function tableCard(table, { titles = [], cells = () => [], rows = (tr) => tr } = {}) {
  const isText = table.columns.map(
    ({ is_prose: isProse }, at) =>
      isProse || table.rows.every(({ cells: own }) => own[at] === null || typeof own[at] === "string"),
  );
  const kind = (at) => (isText[at] ? (table.columns[at].is_prose ? "words" : null) : "num");
  const name = (table.key || table.title).replace(/[^A-Za-z0-9]+/g, "-");
  return el(
    "section.card.scroll.table",
    { "aria-label": table.title },
    el(
      "header",
      el("h3", table.title),
      button("CSV", { class: "small", title: "Save as CSV" }, () => saveTable(name, tableValues(table))),
    ),
    el(
      "table",
      { class: table.key },
      el(
        "thead",
        el(
          "tr",
          table.columns.map(({ title }, at) => el(title ? "th" : "td", { class: kind(at) }, title)),
          titles.map((title) => el("th", title)),
        ),
      ),
      el(
        "tbody",
        table.rows.map((row, place) => {
          const [first, ...rest] = row.cells;
          return rows(
            el(
              "tr",
              { "data-row": first, class: row.tone },
              el("td.first", [
                row.place !== null && [swatch(row.place), " "],
                el("b", first),
                row.is_strong && " ★",
              ]),
              rest.map((cell, at) => el("td", { class: kind(at + 1) }, cellContent(cell))),
              cells(row, place),
            ),
            place,
          );
        }),
      ),
    ),
    table.note && el("p.note", table.note),
  );
}

/** What else differs between arms besides their methods; nothing where nothing does. */
export function confoundsBox({ alerts }) {
  const lines = alerts.filter(({ key }) => key === "confound");
  return (
    lines.length > 0 &&
    el(
      "section.card.pad.problem",
      { role: "alert", "aria-label": "Confounds" },
      el("b", "The arms differ in more than their methods"),
      listOf(lines.map(({ text }) => text.replace(/^confound: /, ""))),
    )
  );
}

/** Alerts by what went wrong, such as collapses. */
export function alertLines({ alerts }) {
  return alerts
    .filter(({ key, tone }) => tone === "warning" && key !== "confound")
    .map(({ text }) => el("p.alert", { role: "alert" }, `⚠ ${text}`));
}

/** What a reader has to know about these numbers, and in `muted` how to read them. */
export function notesOf({ alerts, notes }) {
  const muted = alerts.filter(({ tone }) => tone === "muted");
  return {
    warnings: [...notes.filter(({ tone }) => tone !== "muted"), ...muted].map(({ text }) => text),
    muted: notes.filter(({ tone }) => tone === "muted").map(({ text }) => text),
  };
}

export function listOf(lines) {
  return el(
    "ul.lines",
    lines.map((line) => el("li", line)),
  );
}

/** Lines under a summary, closed; nothing without lines. */
export function foldedList(summary, lines) {
  return lines.length > 0 && el("details", el("summary", summary), listOf(lines));
}

/** The answer of a document: a box for each verdict, which are folded below a headline, and for what else it says. */
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
  const folded = el("details.card.pad", el("summary", `${verdicts.length} verdicts`), verdicts.map(box));
  return [box(headline), folded, others.map(box)];
}
