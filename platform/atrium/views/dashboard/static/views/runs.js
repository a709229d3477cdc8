// The table of runs: search, filter, sorting, differing settings, results, and the selection of runs.

import { annotate, ask } from "../api.js";
import { scoreCell, sparkline, tableCard } from "../document.js";
import { button, checkbox, el, empty, field, fill, menu, option, select } from "../dom.js";
import { saveTable } from "../export.js";
import { fetchMetrics, lastOf, passing } from "../filter.js";
import { count, DASH, duration, moment, number, percent, plural, shortName } from "../format.js";
import { differingKeys, filterControls, menuHeading, noRunsYet, startedCell } from "../selection.js";
import { addressOf, get, getAll, set } from "../url.js";
import { runDrawer, runLink } from "./run_drawer.js";

const MOST_SETTINGS = 6;
const [SETTING_WIDTH, OTHER_WIDTH] = [125, 860];
const MOST_GROUPS = 12;
const GROUPS = [["", "nothing"], "method", "experiment", "state"];
const PAGE = 60;
const MOST_DIFFERENCES = 20;

export async function show(root, context) {
  const table = await context.runs();
  let limit = PAGE;
  const picked = new Set(getAll("run"));
  const banner = el("div");
  const compared = el("div.stack", { role: "region", "aria-label": "Differences" });
  const box = el("div.card.runs-table", { tabindex: "0", role: "region", "aria-label": "Table of runs" });
  const { search, filter } = filterControls(table, () => {
    picked.clear();
    draw();
  });
  const slots = { benchmark: el("span"), group: el("span.slot-group") };
  const counted = el("span.muted");
  const actions = el("div.actions");
  const columnMenu = menu("Columns", columnChoices);
  const choices = [el("div.search", search), filter, columnMenu, slots.benchmark, slots.group, counted];
  const bar = el("div.toolbar", choices, el("span.grow"), actions);
  root.append(bar, banner, el("div.page", compared, box));
  const drawer = runDrawer(root, async () => {
    await context.runs();
    draw();
  });

  const change = (changes) => {
    set(changes);
    draw();
  };

  function draw() {
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    if (active !== search) search.value = get("q");
    const trainings = table.runs.filter(({ evaluated }) => !evaluated);
    const runs = sorted(shownRuns());
    fill(banner, table.problem && el("p.banner", table.problem));
    drawBar(runs, trainings.length);
    if (!runs.length) {
      const clear = button("Clear it", { class: "link" }, () => change({ q: null }));
      const fitsNone = empty("No matching run", "No run matches this filter. ", clear);
      fill(box, trainings.length ? fitsNone : noRunsYet(table));
      return;
    }
    const scrolled = [box.scrollTop, box.scrollLeft];
    const focused = /** @type {HTMLElement} */ (active?.closest("[data-run]"))?.dataset.run;
    const columns = allColumns();
    let left = limit;
    const folded = getAll("fold");
    const bodies = grouped(runs).map(([label, members]) => {
      const page = folded.includes(label) ? [] : members.slice(0, left);
      left -= page.length;
      const rows = page.map((run) => row(run, columns));
      if (!page.length && !folded.includes(label)) return null;
      return el("tbody", label !== null && groupRow(label, members, columns, folded), rows);
    });
    fill(box, el("table", head(columns, runs), bodies), runs.length > limit && more(runs.length - limit));
    [box.scrollTop, box.scrollLeft] = scrolled;
    if (focused) box.querySelector(`[data-run="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  }

  const shownRuns = () => passing(table, get("q")).filter(({ evaluated }) => !evaluated);

  /** The end of the shown rows; more rows are added when it becomes visible. */
  function more(num) {
    const show = () => {
      limit += PAGE;
      draw();
    };
    const element = el("p", { style: { padding: "10px" } }, button(`Show more (${num})`, show));
    const end = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        end.disconnect();
        if (element.isConnected) show();
      },
      { root: box, rootMargin: "400px" },
    );
    end.observe(element);
    return element;
  }

  function benchmark() {
    const known = table.benchmarks;
    return known.includes(get("bench")) ? get("bench") : known[0];
  }

  /** Return the settings with a column: the settings in the URL, or else some that differ, if there is room. */
  function shownKeys() {
    const chosen = getAll("col");
    const room = Math.floor((innerWidth - OTHER_WIDTH) / SETTING_WIDTH);
    return chosen.length
      ? chosen.filter((key) => key !== "none")
      : differingKeys(table, shownRuns())
          .filter((key) => !["experiment_name", "seed"].includes(key))
          .slice(0, Math.max(1, Math.min(room, MOST_SETTINGS)));
  }

  /** Return the runs grouped by a value; groups are in the order of their first runs. */
  function grouped(runs) {
    const key = get("group");
    if (!key) return [[null, runs]];
    const found = new Map();
    for (const run of runs) {
      const label = String(run[key] ?? settingOf(run, key) ?? "not set");
      found.set(label, [...(found.get(label) ?? []), run]);
    }
    return [...found];
  }

  /** Return the row of a group: its name, which folds its runs, and mean, standard deviation and n of columns. */
  function groupRow(label, members, columns, folded) {
    const spread = ({ isScore, value, shown }) => {
      const counting = members.filter((run) => !isScore || isWhole(run));
      const known = counting.map(value).filter((one) => typeof one === "number");
      const num = known.length;
      const mean = known.reduce((sum, one) => sum + one, 0) / num;
      if (num < 2) return num ? shown(mean) : DASH;
      const deviation = Math.sqrt(known.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (num - 1));
      return [el("span.value", shown(mean)), el("div.sub", `± ${shown(deviation)}, n = ${num}`)];
    };
    const isFolded = folded.includes(label);
    const toggle = () =>
      change({ fold: isFolded ? folded.filter((one) => one !== label) : [...folded, label] });
    const attributes = { class: "link", "aria-expanded": String(!isFolded) };
    const title = [
      button([isFolded ? "▸ " : "▾ ", el("b", label)], attributes, toggle),
      el("span.muted", `  ${plural(members.length, "run")}`),
    ];
    const cell = (column, at) => (at === 0 ? title : column.hasMean && spread(column));
    const cells = columns.map((column, at) => el("td", { class: column.class }, cell(column, at)));
    return el("tr.group", el("td"), cells);
  }

  function drawBar(runs, num) {
    const known = table.benchmarks;
    const keys = differingKeys(table, runs).slice(0, MOST_GROUPS);
    const bench = select("Benchmark", known, benchmark(), (value) => change({ bench: value }));
    const group = select("Group by", [...GROUPS, ...keys], get("group"), (value) => change({ group: value }));
    // Keep an open list open.
    if (!slots.benchmark.contains(document.activeElement)) fill(slots.benchmark, known.length > 1 && bench);
    if (!slots.group.contains(document.activeElement)) fill(slots.group, field("group by", group));
    fill(counted, `${runs.length} of ${plural(num, "run")}`);
    const names = runs.map(({ name }) => name).filter((name) => picked.has(name));
    const link = (view, words, attributes) => {
      const text = names.length ? `${words[1]} ${names.length}` : words[0];
      const href = addressOf(view, names.length ? { run: names, q: null } : {});
      return el("a", { href }, el("button", { type: "button", tabindex: "-1", ...attributes }, text));
    };
    const clear = button(`Clear ${names.length} picked`, () => {
      picked.clear();
      change({ run: null });
    });
    const chosen = runs.filter(({ name }) => picked.has(name));
    const isOpen = get("diff") === "1" && chosen.length > 1;
    const attributes = { "aria-pressed": String(isOpen) };
    const toggle = () => change({ diff: isOpen ? null : "1" });
    void drawDifferences(isOpen ? names : []);
    if (actions.querySelector("details[open]")) return;
    fill(
      actions,
      names.length > 0 && clear,
      names.length > 1 && button("Differences", attributes, toggle),
      names.length > 0 && menu(`Tag ${names.length}`, () => bulk(chosen)),
      button("CSV", { "data-export": "csv", title: "Save the table as CSV" }, () => save(runs)),
      link("compare", ["Compare", "Compare"]),
      link("curves", ["Curves", "Curves of"], { class: "primary" }),
    );
  }

  /** Draw the differences between the picked runs: settings, code, environment, and uncommitted changes. */
  async function drawDifferences(names) {
    const asked = JSON.stringify(names);
    if (compared.dataset.runs === asked) return;
    compared.dataset.runs = asked;
    if (names.length < 2) return void fill(compared);
    const run = names.slice(0, MOST_DIFFERENCES);
    const answer = await ask("differences", { run }).catch(({ message }) => el("p.problem", message));
    if (compared.dataset.runs !== asked) return;
    if (answer instanceof Node) return void fill(compared, answer);
    const { alerts, answer: sentences, sections } = answer.document;
    const lines = sections.at(-1).sentences.map(({ text, tone }) => el("span", { class: tone }, `${text}\n`));
    const of = `These are the first ${run.length} of ${names.length} runs.`;
    fill(
      compared,
      names.length > run.length && el("p.banner", of),
      [...alerts, ...sentences].map(({ text }) => el("p.problem", text)),
      sections[0].sentences.map(({ text }) => el("p.muted", text)),
      sections[0].tables.map((one) => tableCard(one)),
      lines.length > 0 &&
        el("pre.card.pad.diff", { tabindex: "0", "aria-label": "Differences in code" }, lines),
    );
  }

  /** Return controls that tag or archive all picked runs. */
  function bulk(runs) {
    const said = el("span.muted", { role: "status" });
    const write = async (changes) => {
      try {
        for (const run of runs) await annotate(run.name, changes(run));
        fill(said, `saved for ${plural(runs.length, "run")}`);
        await context.runs();
        draw();
      } catch ({ message }) {
        fill(said, message);
      }
    };
    const onchange = ({ target: { value } }) => {
      const tag = value.trim();
      if (tag) void write(({ tags }) => ({ tags: [...tags, tag] }));
    };
    const archive = (isArchived) => () => write(() => ({ is_archived: isArchived }));
    const words = { "aria-label": "Tag of all picked", placeholder: "a tag for all selected runs" };
    return [
      el("input", { type: "text", ...words, onchange }),
      el("div.row", button("Archive", archive(true)), " ", button("Unarchive", archive(false))),
      said,
    ];
  }

  function columnChoices() {
    const differ = differingKeys(table, shownRuns());
    const rest = [...table.keys.filter((key) => !differ.includes(key)), ...Object.keys(table.shared)].sort();
    const choose = (key, on) => {
      const others = shownKeys().filter((other) => other !== key);
      const keys = on ? [...others, key] : others;
      change({ col: keys.length ? keys : "none" });
    };
    const shown = shownKeys();
    const choiceOf = (key) => option(key, shown.includes(key), (on) => choose(key, on));
    const reset = button("Show what differs", { class: "link" }, () => {
      columnMenu.open = false;
      change({ col: null });
    });
    return [
      getAll("col").length > 0 && reset,
      metricOptions(),
      menuHeading("settings that differ here"),
      differ.map(choiceOf),
      menuHeading("other settings"),
      rest.map(choiceOf),
    ];
  }

  /** Return a checkbox per metric, which adds a column with its last values; metrics load when the list opens. */
  function metricOptions() {
    const lines = el("div");
    const chosen = new Set(getAll("mcol"));
    const text = `last values of metrics${chosen.size ? ` (${chosen.size})` : ""}`;
    const choiceOf = ({ name, meaning }) =>
      option(name, chosen.has(name), { title: meaning }, async (on) => {
        chosen[on ? "add" : "delete"](name);
        set({ mcol: [...chosen] });
        await fetchMetrics("", { more: [...chosen] }).catch(() => {});
        draw();
      });
    const ontoggle = async () => {
      if (!part.open || lines.childNodes.length) return;
      const run = shownRuns().map(({ name }) => name);
      const { quantities } = await ask("quantities", { run: run.slice(0, PAGE) });
      fill(lines, quantities.filter(({ name }) => !name.startsWith("evaluation/")).map(choiceOf));
    };
    const part = el("details", { ontoggle }, el("summary.option", text), lines);
    return part;
  }

  /** Return the columns of the table. */
  function allColumns() {
    const bench = benchmark();
    const k = kOf(bench);
    const point = (run) => run.scores[bench]?.last;
    const meanOf = (run) => point(run)?.mean_at_k;
    const passOf = (run) => point(run)?.pass_at_k;
    const passCell = (run) => el("span", { class: !isWhole(run) && "muted" }, percent(passOf(run)));
    const ofScore = { class: "num", hasMean: true, isScore: true, shown: percent };
    const scores = [
      column("mean", `Mean@${k}`, meanOf, {
        ...ofScore,
        cell: (run) => score(point(run), run),
        about: `${bench}, latest evaluation, %; 95 % interval over problems`,
      }),
      column("pass", `Pass@${k}`, passOf, { ...ofScore, cell: passCell, about: bench }),
    ];
    const ofMetric = (metric) =>
      column(metric, metric.split("/").at(-1), (run) => lastOf(run, metric), {
        class: "num",
        hasMean: true,
        shown: number,
        about: `${metric}, the last value`,
      });
    const ofSetting = (key) =>
      column(key, key.split(".").slice(-2).join("."), (run) => settingOf(run, key), {
        class: "setting",
        shown: (value) => value ?? "",
        order: natural,
        about: key,
        isSetting: true,
      });
    const started = { class: "num", cell: (run) => startedCell(run, table.now), text: moment };
    const wallText = (seconds) => (seconds ? duration(seconds) : DASH);
    return [
      column("name", "Run", (run) => run.name, { cell: nameCell, order: shortName }),
      column("state", "State", (run) => run.state, { cell: stateCell }),
      column("seed", "Seed", (run) => run.seed, { class: "num", order: natural }),
      { id: "spark", title: "Reward", cell: (run) => sparkline(run.spark) },
      ...(bench ? scores : []),
      ...getAll("mcol").map(ofMetric),
      column("wall", "Time", (run) => run.wall_s, { class: "num", shown: wallText }),
      column("started", "Started", (run) => run.started, started),
      ...shownKeys().map(ofSetting),
      column("tokens", "Tokens", (run) => run.num_tokens, { class: "num", shown: count }),
    ];
  }

  const settingOf = (run, key) => run.settings[key] ?? table.shared[key];
  const kOf = (bench) => {
    const ks = new Set(table.runs.flatMap((run) => run.scores[bench]?.last.k ?? []));
    return ks.size === 1 ? [...ks][0] : "k";
  };

  /** Return the column by which the table is sorted, and whether the order is descending. */
  const sorting = () => ({ id: get("sort").replace(/^-/, ""), isDown: get("sort").startsWith("-") });

  function sorted(runs) {
    const { id, isDown } = sorting();
    const by = allColumns().find((one) => one.order && one.id === id);
    if (!by) return runs;
    const keyed = runs.map((run) => [by.order(by.value(run)), run]);
    const known = keyed.filter(([value]) => value != null && value !== "");
    const unknown = keyed.filter((pair) => !known.includes(pair));
    known.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (isDown ? -1 : 1));
    return [...known, ...unknown].map(([, run]) => run);
  }

  /** Return a checkbox that picks runs. */
  const pick = (label, runs) => {
    const isPicked = runs.every(({ name }) => picked.has(name));
    return checkbox(isPicked, { "aria-label": label }, (on) => {
      for (const { name } of runs) picked[on ? "add" : "delete"](name);
      change({ run: [...picked] });
    });
  };

  function head(columns, runs) {
    const { id: by, isDown } = sorting();
    const titleOf = ({ id, title, order, ...column }) => {
      // Numbers are sorted in descending order first, words alphabetically; a third click removes the sorting.
      const [first, second] = column.class === "num" ? [`-${id}`, id] : [id, `-${id}`];
      const arrow = id === by && (isDown ? " ↓" : " ↑");
      const next = id !== by ? first : get("sort") === first ? second : null;
      const attributes = {
        class: column.class,
        title: column.about,
        "aria-sort": id === by && (isDown ? "descending" : "ascending"),
      };
      return el("th", attributes, order ? button([title, arrow], () => change({ sort: next })) : title);
    };
    return el("thead", el("tr", el("th", pick("Pick all", runs)), columns.map(titleOf)));
  }

  function row(run, columns) {
    const cellOf = ({ id, isSetting, cell, ...column }) => {
      const attributes = {
        class: `${column.class ?? ""}${isSetting ? " mono" : ""}`,
        title: isSetting && `${id}: ${settingOf(run, id) ?? "not set"}`,
      };
      return el("td", attributes, cell(run));
    };
    const attributes = { class: picked.has(run.name) && "chosen", "data-run": run.name };
    return el("tr", attributes, el("td", pick(`Pick ${run.name}`, [run])), columns.map(cellOf));
  }

  function nameCell(run) {
    const { collapses, other_findings: others, problems, error } = run;
    const collapsed = collapses.map((one) => `collapsed: ${one}`);
    const notes = [...collapsed, ...others, ...problems, ...(error ? [error] : [])];
    const sign = (name, text, title, label) =>
      el(`span.${name}`, { title, role: "img", "aria-label": label }, text);
    return el("div", [
      runLink(run.name, { class: "run-name", title: run.name }, drawer.open),
      " ",
      notes.length > 0 && sign("warn", "⚠ ", notes.join("\n"), notes.join("; ")),
      run.note && sign("muted", "✎ ", run.note, `note: ${run.note}`),
      run.tags.map((tag) => el("span.tag", tag)),
      el("span.sub", run.experiment),
    ]);
  }

  function save(runs) {
    const columns = allColumns().filter(({ value }) => value);
    const cellOf = (run, { value, text }) => text(value(run));
    saveTable("runs", {
      columns: columns.map(({ isSetting, id, title }) => (isSetting ? id : title)),
      rows: runs.map((run) => columns.map((column) => cellOf(run, column))),
    });
  }

  async function refresh() {
    await context.runs();
    draw();
    await drawer.refresh();
  }

  draw();
  drawer.reopen();
  return { refresh, dispose: drawer.dispose };
}

/**
 * Return a column of the values that `value` returns for a run. `shown` converts a value for the cell (unless `cell`
 * makes the cell from the run), `text` for the CSV, and `order` for sorting. With `hasMean`, the row of a group shows
 * the mean; for scores, over finished runs only.
 */
function column(id, title, value, more) {
  const [shown, itself] = [(one) => one ?? DASH, (one) => one];
  const made = { id, title, value, shown, text: itself, order: itself, ...more };
  return { cell: (run) => made.shown(value(run)), ...made };
}

function stateCell(run) {
  const share = run.num_steps ? Math.min(run.step / run.num_steps, 1) : 0;
  const bar = el("i", { style: { width: `${100 * share}%` } });
  const meter = el("div.meter.state", { class: run.state, style: { display: "block" } }, bar);
  return el("div.state-cell", [
    el("span.state", { class: run.state }, run.state),
    run.num_steps > 0 && el("span.sub", ` ${number(run.step)}/${number(run.num_steps)}`),
    run.left_s && el("span.sub", `, ${duration(run.left_s)} left`),
    run.state !== "finished" && run.num_steps > 0 && meter,
  ]);
}

/** Whether a run's last score is its final score. */
const isWhole = (run) => run.state === "finished";

function score(point, run) {
  if (!point || point.mean_at_k === null) return DASH;
  if (isWhole(run)) return el("div", scoreCell(point));
  const when = point.step ? `at step ${number(point.step)}` : "before training";
  return el("div.muted", percent(point.mean_at_k), el("div.sub", when));
}

/** Return a setting as a number if possible, so that 2 is sorted before 10. */
function natural(value) {
  if (value == null) return undefined;
  return value !== "" && !Number.isNaN(Number(value)) ? Number(value) : String(value);
}
