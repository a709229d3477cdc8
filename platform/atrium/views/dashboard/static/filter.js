// The filter language: words, and `key=value`, `key!=value`, `key>1`, `key<1` over settings, facts and the last
// values of metrics, whose names have a slash in them.

import { ask } from "./api.js";

const lasts = new Map();

const FACTS = ["state", "experiment", "algorithm", "seed", "step", "host", "method"];
const TERM = /^([A-Za-z_][\w.@+/-]*)(!=|>=|<=|=|>|<|:)(.*)$/;

/** The terms of a filter; quotes hold words together. */
export function parse(text) {
  const words = text.match(/(?:[^\s"]|"[^"]*")+/g) || [];
  return words.map((word) => {
    const plain = word.replaceAll('"', "");
    const match = TERM.exec(plain);
    if (!match) return { kind: "text", value: plain.toLowerCase() };
    return { kind: "term", key: match[1], operator: match[2] === ":" ? "=" : match[2], value: match[3] };
  });
}

/**
 * Ask for the last values of the metrics that a text or a list names, where they are not known, or of the runs that
 * changed after the version `since`.
 */
export async function fetchMetrics(text, { more = [], since = undefined } = {}) {
  const named = [...parse(text).map(({ key }) => key ?? ""), ...more].filter((key) => key.includes("/"));
  if (since) for (const key of lasts.keys()) if (!named.includes(key)) lasts.delete(key);
  const isUpdate = since && named.every((key) => lasts.has(key));
  const missing = [...new Set(named)].filter((key) => since || !lasts.has(key));
  const parameters = { metric: missing, since: isUpdate ? since : null };
  const found = missing.length ? (await ask("lasts", parameters)).lasts : {};
  for (const [key, byRun] of Object.entries(found))
    lasts.set(key, { ...(isUpdate && lasts.get(key)), ...byRun });
}

/** The last value of a metric that `fetchMetrics` asked for. */
export const lastOf = (run, metric) => lasts.get(metric)?.[run.name];

/** The runs that pass: archived ones only where the filter says `is=archived`, failed starts where it names that state. */
export function passing(table, text) {
  const terms = parse(text);
  const wantsArchived = terms.some((term) => term.key === "is" && term.value === "archived");
  const wantsFailedStarts = terms.some((term) => term.key === "state" && term.value === "failed_start");
  return table.runs.filter(
    (run) =>
      run.is_archived === wantsArchived &&
      (wantsFailedStarts || run.state !== "failed_start") &&
      terms.every((term) => admits(table, run, term)),
  );
}

function admits(table, run, { kind, key, operator, value }) {
  if (kind === "text") {
    const texts = [run.name, run.note, run.state, ...run.tags];
    return texts.some((text) => text.toLowerCase().includes(value));
  }
  if (key === "is") return true;
  if (key === "tag") return run.tags.includes(value) !== (operator === "!=");
  return compared(factOf(table, run, key), operator, value);
}

/** A fact or setting of a run; a setting may be named by the end of its key. */
function factOf(table, run, key) {
  if (FACTS.includes(key)) return run[key];
  if (key === "score") return scoreOf(table, run);
  if (key === "collapse") return run.collapses.join(", ");
  if (key.includes("/")) return lastOf(run, key);
  const settingOf = (name) => run.settings[name] ?? table.shared[name];
  if (key in run.settings || key in table.shared) return settingOf(key);
  const names = [...Object.keys(run.settings), ...Object.keys(table.shared)];
  return settingOf(names.find((name) => name.endsWith(`.${key}`)));
}

function compared(value, operator, wanted) {
  if (operator === "!=") return !equal(value, wanted);
  if (value === undefined || value === null) return false;
  if (operator === "=") return equal(value, wanted);
  const [left, right] = [Number(value), Number(wanted)];
  return { ">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right }[operator];
}

function equal(value, wanted) {
  if (value === undefined || value === null) return false;
  const text = String(value).toLowerCase();
  const other = wanted.toLowerCase();
  return text === other || (other !== "" && Number(text) === Number(other));
}

/** The last Mean@k in percent, on the first of the test problems that the run answered. */
function scoreOf(table, run) {
  const names = table.benchmarks.filter((name) => run.scores[name]);
  const score = run.scores[names.find((name) => !name.includes("validation")) ?? names[0]]?.last.mean_at_k;
  return score === undefined || score === null ? undefined : 100 * score;
}

/** A term for a key and value, quoted where it has to be. */
export function term(key, value) {
  return /\s/.test(value) ? `${key}="${value}"` : `${key}=${value}`;
}
