// Which runs a view is about: those picked by name, else those that pass the filter, the latest first.

import { debounced, el, empty, field, fill, select } from "./dom.js";
import { fetchMetrics, passing, term } from "./filter.js";
import { shortName } from "./format.js";
import { get, getAll, set } from "./url.js";

const MOST = 2000;
const EVERY = "*";

/** The experiment that the view is about: that of the address, or the default one; none where a filter chooses, or all do. */
export function experimentOf(table) {
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

/** A select of the experiment that the view is about; another one drops the pick and the baseline. */
export function experimentField(table, onchange) {
  const names = [
    ...new Set(
      table.runs
        .filter(({ evaluated, is_archived: isArchived }) => !evaluated && !isArchived)
        .map(({ experiment }) => experiment),
    ),
  ];
  return field(
    "experiment",
    select(
      "Experiment",
      [[EVERY, "all experiments"], ...names.map((name) => [name, name])],
      experimentOf(table) || EVERY,
      (value) => {
        set({ exp: value, run: null, base: null });
        onchange();
      },
    ),
  );
}

/** Says that of `num` runs only the latest are here; nothing where all are. */
export function latestOnly(num) {
  return (
    num > MOST &&
    el("p.banner", [
      `These are the latest ${MOST} of ${num} runs; choose an experiment or narrow the filter to see others.`,
    ])
  );
}

/** Why a view has no run to show: there is none, the filter fits none, or those that were picked are gone. */
export function noRuns(table) {
  const inside = el("code", table.runs_dir);
  if (!table.runs.length)
    return empty(
      "No runs yet",
      "Runs in ",
      inside,
      " appear here as soon as they start: ",
      el("code", "atrium train"),
      ".",
    );
  if (getAll("run").length)
    return empty("These runs are gone", "None of the picked runs is in ", inside, " now.");
  return empty("No run fits", "No run passes this filter.");
}

/** The settings in which runs differ: methods first, then seed, places last. */
export function differingKeys(table, runs) {
  const differ = table.keys.filter(
    (key) => new Set(runs.map((run) => run.settings[key])).size > 1 && !["runs_dir", "resume"].includes(key),
  );
  const methods = new Set(table.method_keys);
  const rank = (key) =>
    key === "algorithm.name"
      ? 0
      : key.startsWith("divergence.")
        ? 1
        : methods.has(key)
          ? 2
          : key === "seed"
            ? 3
            : 4;
  return differ
    .map((key, at) => [rank(key), at, key])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1])
    .map(([, , key]) => key);
}

/** The search box of runs; its text is the filter. */
export function searchBox(onchange) {
  const change = debounced(async (value) => {
    set({ q: value, run: null });
    await fetchMetrics(value).catch(() => {});
    onchange();
  }, 180);
  return el("input", {
    type: "search",
    value: get("q"),
    "aria-label": "Filter runs",
    spellcheck: "false",
    placeholder: "Filter: atr  seed=1  score>50  rollout/reward>0.5  tag=good  ( / )",
    oninput: (event) => change(event.target.value),
    onkeydown: (event) => {
      if (event.key === "Escape") {
        event.target.value = "";
        change("");
      }
    },
  });
}

/** A menu that adds terms to the filter: settings that differ, with the values they have. */
export function filterMenu(table, onchange) {
  const body = el("div");
  const menu = el("details.menu", el("summary", "Add filter"), body);
  const choose = (key, value) => {
    set({ q: `${get("q")} ${term(key, value)}`.trim(), run: null });
    menu.open = false;
    onchange();
  };
  const counted = (values) => {
    const counts = new Map();
    for (const value of values)
      if (value !== undefined && value !== null) counts.set(value, (counts.get(value) || 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12);
  };
  const group = (key, pairs) =>
    pairs.length > 0 &&
    el("div", [
      el("h3", { style: { padding: "6px 8px 2px" } }, key),
      pairs.map(([value, num]) =>
        el(
          "div.option",
          {
            role: "button",
            tabindex: "0",
            onclick: () => choose(key, value),
            onkeydown: (event) => {
              if (event.key === "Enter") choose(key, value);
            },
          },
          [el("span", value), el("small", num)],
        ),
      ),
    ]);
  menu.addEventListener("toggle", () => {
    if (!menu.open) return;
    const runs = table().runs;
    fill(
      body,
      group("state", counted(runs.map((run) => run.state))),
      group("experiment", counted(runs.map((run) => run.experiment))),
      group("tag", counted(runs.flatMap((run) => run.tags))),
      group("collapse", counted(runs.map((run) => run.collapses.join(", ") || null))),
      differingKeys(table(), runs).map((key) => group(key, counted(runs.map((run) => run.settings[key])))),
      runs.some((run) => run.is_archived) &&
        group("is", [["archived", runs.filter((run) => run.is_archived).length]]),
    );
  });
  closeOutside(menu);
  return menu;
}

/** Close an open menu on Escape and on a click elsewhere. */
export function closeOutside(menu) {
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  document.addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(event.target)) menu.open = false;
  });
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
  const shown =
    runs.some((run) => run.name === chosen) || !chosen
      ? runs
      : [...runs, ...table.runs.filter((run) => run.name === chosen)];
  const box = el(
    "select",
    {
      "aria-label": label,
      onchange: () => {
        set({ [name]: box.value });
        onchange();
      },
    },
    [
      allowNone && el("option", { value: "", selected: !chosen }, "none"),
      shown.map((run) =>
        el("option", { value: run.name, selected: run.name === chosen, title: run.name }, [
          `${shortName(run.name)}  (${run.experiment})`,
        ]),
      ),
    ],
  );
  return { box, chosen };
}
