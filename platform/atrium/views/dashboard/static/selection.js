// Which runs a view is about: those picked by name, else those that pass the filter, the latest first.

import { button, debounced, el, empty, field, fill, menu, searchInput, select } from "./dom.js";
import { fetchMetrics, passing, term } from "./filter.js";
import { shortName } from "./format.js";
import { get, getAll, set } from "./url.js";

const MOST = 2000;
const EVERY = "*";

/** The experiment that the view is about: that of the address, or the default one; none where a filter chooses, or all do. */
function experimentOf(table) {
  const wanted = get("exp");
  if (wanted === EVERY) return "";
  return wanted || (get("q") ? "" : (table.experiment ?? ""));
}

/** The runs chosen by the address, at most `MOST`, how many there would be, and the query that asks for them. */
export function selected(table) {
  const picked = new Set(getAll("run"));
  const experiment = experimentOf(table);
  const found = picked.size
    ? table.runs.filter((run) => picked.has(run.name))
    : passing(table, get("q")).filter(
        (run) => (!experiment || run.experiment === experiment) && (get("q") || !run.evaluated),
      );
  const runs = found.slice(0, MOST);
  // An address holds some hundred names: a whole experiment is asked for by its own.
  const query =
    picked.size || get("q")
      ? { run: runs.map(({ name }) => name), picked: picked.size > 0 || null }
      : { exp: experiment || EVERY };
  return { runs, num: found.length, isPicked: picked.size > 0, query };
}

/** A select of the experiment that the view is about; another one drops what is chosen in it. */
export function experimentField(table, onchange) {
  const trainings = table.runs.filter((run) => !run.evaluated && !run.is_archived);
  const names = new Set(trainings.map(({ experiment }) => experiment));
  const options = [[EVERY, "all experiments"], ...names];
  const box = select("Experiment", options, experimentOf(table) || EVERY, (exp) => {
    set({ exp, run: null, base: null, hide: null, show: null });
    onchange();
  });
  return field("experiment", box);
}

/** Says that of `num` runs only the latest are here; nothing where all are. */
export function latestOnly(num) {
  const text = `These are the latest ${MOST} of ${num} runs; choose an experiment or narrow the filter to see others.`;
  return num > MOST && el("p.banner", text);
}

/** Why a view has no run to show: there is none, the filter fits none, or those that were picked are gone. */
export function noRuns(table) {
  const inside = el("code", table.runs_dir);
  if (!table.runs.length) return noRunsYet(table);
  if (getAll("run").length)
    return empty("These runs are gone", "None of the picked runs is in ", inside, " now.");
  return empty("No run fits", "No run passes this filter.");
}

/** That there is no run, and how to make one. */
export function noRunsYet({ runs_dir: folder }) {
  const [inside, command] = [el("code", folder), el("code", "atrium train")];
  return empty("No runs yet", "Runs in ", inside, " appear here as soon as they start: ", command, ".");
}

/** The settings in which runs differ: methods first, then seed, places last. */
export function differingKeys(table, runs) {
  const differ = table.keys.filter(
    (key) => new Set(runs.map((run) => run.settings[key])).size > 1 && !["runs_dir", "resume"].includes(key),
  );
  const methods = new Set(table.method_keys);
  const rank = (key) => {
    const kinds = [key === "algorithm.name", key.startsWith("divergence."), methods.has(key), key === "seed"];
    return [...kinds, true].indexOf(true);
  };
  return differ.sort((a, b) => rank(a) - rank(b));
}

/** The search box of runs, whose text is the filter, and a menu that adds terms to it. */
export function filterControls(table, onchange) {
  const change = debounced(async (value) => {
    set({ q: value, run: null }, { isTyped: true });
    await fetchMetrics(value).catch(() => {});
    onchange();
  }, 180);
  const attributes = {
    value: get("q"),
    spellcheck: "false",
    placeholder: "Filter: atr  seed=1  score>50  rollout/reward>0.5  tag=good  ( / )",
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
  const filter = menu("Add filter", () => filterTerms(table(), choose));
  return { search, filter };
}

/** Terms that a filter may have: settings that differ, with the values they have. */
function filterTerms(table, choose) {
  const group = (key, valuesOf) => {
    const counts = new Map();
    for (const value of table.runs.flatMap(valuesOf).filter((one) => one !== undefined && one !== null))
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

/** The title of a part of a menu. */
export const menuHeading = (text) => el("h3", { style: { padding: "6px 8px 2px" } }, text);

/** The panel beside figures: of which runs they are, and a list for the view to fill. */
export function runsPanel(label, table, onchange) {
  const { search, filter } = filterControls(table, onchange);
  const experiment = el("div", { style: { marginBottom: "8px" } });
  const counted = el("div.count");
  const list = el("div");
  const element = el("aside.side", { "aria-label": label }, [
    experiment,
    search,
    el("div", { style: { marginTop: "8px" } }, filter),
    counted,
    list,
  ]);
  /** Say which runs there are now; gives them. */
  const draw = () => {
    const chosen = selected(table());
    const drop = button("drop the pick", { class: "link" }, () => {
      set({ run: null });
      onchange();
    });
    fill(experiment, experimentField(table(), onchange));
    fill(
      counted,
      el("span", `${chosen.runs.length} of ${table().runs.length} runs`),
      chosen.isPicked && drop,
    );
    return chosen;
  };
  return { element, list, draw };
}

/** A select of one run, by the parameter `name`; by default the first of the selection. */
export function runSelect(table, label, name, onchange, { allowNone = false } = {}) {
  const { runs } = selected(table);
  // Of those that were not asked for, one that got somewhere has the most to show.
  const first =
    runs.find(({ state, step }) => step > 0 && (state === "finished" || state === "running")) ??
    runs.find(({ step }) => step > 0) ??
    runs[0];
  const chosen = get(name) || (allowNone ? "" : first?.name || "");
  const others = table.runs.filter((run) => run.name === chosen && !runs.includes(run));
  const options = [...runs, ...others].map((run) => [
    run.name,
    `${shortName(run.name)}  (${run.experiment})`,
    run.name,
  ]);
  const box = select(label, [...(allowNone ? [["", "none"]] : []), ...options], chosen, (value) => {
    set({ [name]: value });
    onchange();
  });
  return { box, chosen };
}
