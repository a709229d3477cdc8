// The filter language: words, and terms `key=value`, `key!=value`, `key>1`, `key<1`. Keys are settings, facts, and
// metrics (names with a slash), which stand for their last values.

import { ask } from "./api.js";

const lasts = new Map();

const FACTS = ["state", "experiment", "algorithm", "seed", "step", "host", "method"];
const TERM = /^([A-Za-z_][\w.@+/-]*)(!=|>=|<=|=|>|<|:)(.*)$/;

/** Return the terms of a filter; quotes group words. */
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
 * Fetch the unknown last values of the metrics named in a filter text or in `more`. With `since`, fetch them again, if
 * possible only for runs that changed after that version.
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

/** Return the last value of a metric that `fetchMetrics` has fetched. */
export const lastOf = (run, metric) => lasts.get(metric)?.[run.name];

/** Return the runs that pass. Archived runs need the term `is=archived`, failed starts `state=failed_start`. */
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

/** Return a fact or setting of a run; the end of a key is enough for a setting. */
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
  if (value == null) return false;
  if (operator === "=") return equal(value, wanted);
  const [left, right] = [Number(value), Number(wanted)];
  return { ">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right }[operator];
}

function equal(value, wanted) {
  if (value == null) return false;
  const text = String(value).toLowerCase();
  const other = wanted.toLowerCase();
  return text === other || (other !== "" && Number(text) === Number(other));
}

/** Return the last Mean@k in percent on the run's first test benchmark. */
function scoreOf(table, run) {
  const benchmark = table.benchmarks.find((name) => run.scores[name]);
  const score = run.scores[benchmark]?.last.mean_at_k;
  return score == null ? undefined : 100 * score;
}

/** Return a term for a key and value, quoted if necessary. */
export function term(key, value) {
  return /\s/.test(value) ? `${key}="${value}"` : `${key}=${value}`;
}
