// The runs that a view shows: runs picked by name, or else runs that pass the filter, the latest first.

import { button, debounced, el, empty, fill, menu, searchInput, select, selectField } from "./dom.js";
import { fetchMetrics, passing, term } from "./filter.js";
import { age, DASH, moment, shortName } from "./format.js";
import { get, getAll, set } from "./url.js";

const MOST = 2000;
const EVERY = "*";

/** Return the view's experiment: from the URL, or else the default one; empty for a filter or all experiments. */
function experimentOf(table) {
  const wanted = get("exp");
  if (wanted === EVERY) return "";
  return wanted || (get("q") ? "" : (table.experiment ?? ""));
}

/** Return the runs selected by the URL (at most `MOST`), their number without this limit, and the server's query. */
export function selected(table) {
  const picked = new Set(getAll("run"));
  const experiment = experimentOf(table);
  const found = picked.size
    ? table.runs.filter((run) => picked.has(run.name))
    : passing(table, get("q")).filter(
        (run) => (!experiment || run.experiment === experiment) && (get("q") || !run.evaluated),
      );
  const runs = found.slice(0, MOST);
  // A URL can hold about a hundred names, so a whole experiment is requested by its own name.
  const query =
    picked.size || get("q")
      ? { run: runs.map(({ name }) => name), picked: picked.size > 0 || null }
      : { exp: experiment || EVERY };
  return { runs, num: found.length, isPicked: picked.size > 0, query };
}

/** Return a select of the view's experiment; a change removes the selection within the old experiment. */
export function experimentField(table, onchange) {
  const trainings = table.runs.filter((run) => !run.evaluated && !run.is_archived);
  const names = new Set(trainings.map(({ experiment }) => experiment));
  const options = [[EVERY, "all experiments"], ...names];
  return selectField("experiment", "Experiment", options, experimentOf(table) || EVERY, (exp) => {
    set({ exp, run: null, base: null, hide: null, show: null });
    onchange();
  });
}

/** Return a banner if only the latest of `num` runs are shown, else false. */
export function latestOnly(num) {
  const text = `These are the latest ${MOST} of ${num} runs; choose an experiment or narrow the filter to see others.`;
  return num > MOST && el("p.banner", text);
}

/** Return the reason why a view has no runs: none exist, none match the filter, or the picked runs are gone. */
export function noRuns(table) {
  if (!table.runs.length) return noRunsYet(table);
  if (!getAll("run").length) return empty("No matching run", "No run matches this filter.");
  const inside = el("code", table.runs_dir);
  return empty("These runs no longer exist", "None of the selected runs is in ", inside, " now.");
}

/** Return a message that there are no runs yet, with the command that creates one. */
export function noRunsYet({ runs_dir: folder }) {
  const [inside, command] = [el("code", folder), el("code", "atrium train")];
  return empty("No runs yet", "Runs in ", inside, " appear here as soon as they start: ", command, ".");
}

/** Return the settings in which runs differ. */
export function differingKeys(table, runs) {
  const isShown = (key) => key !== "runs_dir" && key !== "resume";
  return table.keys.filter((key) => isShown(key) && new Set(runs.map((run) => run.settings[key])).size > 1);
}

/** Return a search box whose text is the filter, and a menu that adds terms to the filter. */
export function filterControls(table, onchange) {
  const change = debounced(async (value) => {
    set({ q: value, run: null }, { isTyped: true });
    await fetchMetrics(value).catch(() => {});
    onchange();
  }, 180);
  const attributes = {
    value: get("q"),
    spellcheck: "false",
    placeholder: "Filter: atr  seed=1  score>50",
    title: "For example: atr  seed=1  score>50  rollout/reward>0.5  tag=good (press / to type)",
    onkeydown: ({ key }) => {
      if (key !== "Escape") return;
      search.value = "";
      change("");
    },
  };
  const search = searchInput("Filter runs", attributes, change);
  const choose = (key, value) => {
    search.value = `${get("q")} ${term(key, value)}`.trim();
    set({ q: search.value, run: null });
    filter.open = false;
    onchange();
  };
  const filter = menu("Add filter", () => filterTerms(table, choose));
  return { search, filter };
}

/** Return suggested terms of a filter: settings that differ, with their values. */
function filterTerms(table, choose) {
  const group = (key, valuesOf) => {
    const counts = new Map();
    for (const value of table.runs.flatMap(valuesOf).filter((one) => one != null))
      counts.set(value, (counts.get(value) ?? 0) + 1);
    const pairs = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12);
    return pairs.length > 0 && el("div", menuHeading(key), [pairs.map((pair) => line(key, ...pair))]);
  };
  const line = (key, value, num) => {
    const onclick = () => choose(key, value);
    const onkeydown = (event) => event.key === "Enter" && onclick();
    const attributes = { role: "button", tabindex: "0", onclick, onkeydown };
    return el("div.option", attributes, el("span", value), el("small", num));
  };
  return [
    group("state", (run) => run.state),
    group("experiment", (run) => run.experiment),
    group("tag", (run) => run.tags),
    group("collapse", (run) => run.collapses.join(", ") || null),
    differingKeys(table, table.runs).map((key) => group(key, (run) => run.settings[key])),
    group("is", (run) => (run.is_archived ? "archived" : null)),
  ];
}

/** Return how long ago a run started; `now` is the time on the server's clock. */
export function startedCell({ started }, now) {
  return el("span", { title: moment(started) }, started ? age(now - started) : DASH);
}

/** Return the heading of a part of a menu. */
export const menuHeading = (text) => el("h3", { style: { padding: "6px 8px 2px" } }, text);

/** Return the panel beside figures: the selection of runs, and a list that the view fills. */
export function runsPanel(label, table, onchange) {
  const { search, filter } = filterControls(table, onchange);
  const experiment = el("div", { style: { marginBottom: "8px" } });
  const counted = el("div.count");
  const list = el("div");
  const add = el("div", { style: { marginTop: "8px" } }, filter);
  const element = el("aside.side", { "aria-label": label }, experiment, search, add, counted, list);
  /** Draw the current selection, and return it. */
  const draw = () => {
    const chosen = selected(table);
    const drop = button("drop the pick", { class: "link" }, () => {
      set({ run: null });
      onchange();
    });
    const count = el("span", `${chosen.runs.length} of ${table.runs.length} runs`);
    fill(experiment, experimentField(table, onchange));
    fill(counted, count, chosen.isPicked && drop);
    return chosen;
  };
  return { element, list, draw };
}

/** Return a select of one run, stored in the parameter `name`; by default a run of the selection. */
export function runSelect(table, label, name, onchange, { none = "" } = {}) {
  const { runs } = selected(table);
  // By default, choose a run that has made steps, since it has more to show.
  const first =
    runs.find(({ state, step }) => step > 0 && (state === "finished" || state === "running")) ??
    runs.find(({ step }) => step > 0) ??
    runs[0];
  const chosen = get(name) || (none ? "" : first?.name || "");
  const others = table.runs.filter((run) => run.name === chosen && !runs.includes(run));
  const optionOf = ({ name, experiment }) => [name, `${shortName(name)}  (${experiment})`, name];
  const options = [...(none ? [["", none]] : []), ...[...runs, ...others].map(optionOf)];
  const box = select(label, options, chosen, (value) => {
    set({ [name]: value });
    onchange();
  });
  return { box, chosen };
}
