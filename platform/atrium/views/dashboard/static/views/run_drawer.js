// One run in full, beside the table: what is wrong, results, notes and tags, settings, log.

import { annotate, ask } from "../api.js";
import { button, checkbox, el, fill, searchInput, svg, table } from "../dom.js";
import { DASH, duration, intervalText, moment, number, percent, shortName } from "../format.js";
import { addressOf, get, here, set } from "../url.js";

/** A link that opens the panel of a run. */
export function runLink(name, attributes, open) {
  const onclick = (event) => {
    event.preventDefault();
    open(name);
  };
  return el("a", { href: addressOf(here().view, { open: name }), onclick, ...attributes }, shortName(name));
}

/** The panel of the run that the address names; `changed` is called after an annotation. */
export function runDrawer(root, changed) {
  let panel = null;
  /** What had the focus before the panel opened. */
  let before = null;
  const health = el("section");

  function open(name) {
    dispose();
    set({ open: name });
    before = document.activeElement;
    panel = el("div.drawer", { tabindex: "-1", role: "dialog", "aria-label": name });
    document.addEventListener("keydown", onkey);
    root.append(panel);
    panel.focus({ preventScroll: true });
    void refresh();
  }

  function dispose() {
    document.removeEventListener("keydown", onkey);
    panel?.remove();
    panel = null;
  }

  function close() {
    dispose();
    set({ open: null });
    before?.focus?.();
  }

  const onkey = (event) => event.key === "Escape" && close();

  async function refresh() {
    const shown = panel;
    const active = document.activeElement;
    if (!shown || (shown.contains(active) && /^(INPUT|TEXTAREA)$/.test(active.tagName))) return;
    const name = shown.getAttribute("aria-label");
    const scrolled = shown.scrollTop;
    try {
      const run = await ask("run", { name });
      if (shown === panel) draw(run);
    } catch (error) {
      fill(shown, closeButton(), el("h2", name), el("p.problem.bad", error.message));
    }
    shown.scrollTop = scrolled;
  }

  const closeButton = () => button("✕", { class: "icon close", "aria-label": "Close" }, close);

  function draw(run) {
    // The run is chosen, and those beside it stay: the filter is kept.
    const view = (name, text, more = /** @type {object} */ ({ at: run.name, run: null })) =>
      el("a", { href: addressOf(name, more) }, text);
    fill(
      panel,
      closeButton(),
      el("h2", run.name),
      el("p.muted", [
        el("span.state", { class: run.state }, run.state),
        run.num_steps > 0 && `  step ${number(run.step)} of ${number(run.num_steps)}`,
        run.wall_s > 0 && `, ${duration(run.wall_s)}`,
        run.started > 0 && `, started ${moment(run.started)}`,
        run.host && ` on ${run.host}`,
        run.step > 0 && run.wall_s > 0 && `, ${number((3600 * run.step) / run.wall_s)} steps per hour`,
        run.left_s > 0 && `, ${duration(run.left_s)} left`,
        run.left_s > 0 && `, last step written ${moment(run.updated)}`,
      ]),
      run.error && el("p.problem.bad", run.error),
      [...run.problems, ...run.findings].map((problem) => el("p.problem", problem)),
      el("p", { style: { marginTop: "10px", display: "flex", gap: "14px" } }, [
        view("curves", "Curves", { run: run.name, q: null }),
        view("trust-region", "Trust region"),
        view("rollouts", "Rollouts"),
      ]),
      health,
      people(run),
      results(run),
      made(run),
      section("Commands", table(COMMANDS, Object.entries(run.commands))),
      settings(run),
      run.log && section("Log", el("pre", { tabindex: "0" }, run.log)),
    );
    void drawHealth(run);
  }

  /** What tells early that a training goes wrong: its course, its first and its last value. */
  async function drawHealth({ name }) {
    const asked = { run: name, group: "run", metric: HEALTH, points: 80 };
    const { panels } = await ask("curves", asked).catch(() => ({ panels: [] }));
    const shown = panels.filter(({ series: [one] }) => one?.y.length > 1);
    const isHere = panel?.getAttribute("aria-label") === name;
    if (isHere) fill(health, shown.length > 0 && [el("h3", "Health"), table(HEALTH_COLUMNS, shown)]);
  }

  function people(run) {
    const said = el("span.muted", { role: "status" });
    const write = async (changes) => {
      try {
        await annotate(run.name, changes);
        fill(said, "saved");
        await changed();
      } catch (error) {
        fill(said, error.message);
      }
    };
    const named = (label, placeholder, value, onchange) => ({
      "aria-label": label,
      placeholder,
      value,
      onchange: ({ target }) => onchange(target.value),
    });
    const note = named("Note", "A note about this run", run.note, (text) => write({ note: text }));
    const tags = named("Tags", "tags, separated by commas", run.tags.join(", "), (text) => {
      const parts = text.split(",").map((tag) => tag.trim());
      return write({ tags: parts.filter(Boolean) });
    });
    const archived = checkbox(run.is_archived, (on) => write({ is_archived: on }));
    return section("Notes and tags", [
      el("textarea", { rows: "3", ...note }),
      el("div", { style: { height: "6px" } }),
      el("input", { type: "text", style: { width: "100%" }, ...tags }),
      el("div", { style: { display: "flex", gap: "12px", marginTop: "8px" } }, [
        el("label.field", archived, "archived: hidden from the table"),
        said,
      ]),
    ]);
  }

  return { open, reopen: () => get("open") && open(get("open")), refresh, dispose };
}

const section = (title, content) => el("section", el("h3", title), content);

const COMMANDS = [
  { title: "to", cell: ([verb]) => verb },
  { title: "command", class: "mono", cell: ([, command]) => command },
  { title: "", cell: ([verb, command]) => copying(`Copy the command to ${verb}`, command) },
];

/** A button that copies text. */
const copying = (label, text) =>
  button("Copy", { class: "small", "aria-label": label }, async ({ currentTarget }) => {
    await navigator.clipboard.writeText(text).catch(() => {});
    fill(currentTarget, "Copied");
  });

const HEALTH = [
  "rollout/reward",
  "objective/entropy",
  "rollout/completion_length",
  "objective/clip_high_frac",
  "objective/clip_low_frac",
  "optimizer/grad_norm",
];
const valueAt = (at) => (panel) => {
  const value = panel.series[0].y.at(at);
  return panel.is_share ? `${percent(value)} %` : number(value);
};
const HEALTH_COLUMNS = [
  { title: "metric", cell: ({ name, meaning }) => el("span", { title: meaning }, name) },
  { title: "first", class: "num", cell: valueAt(0) },
  { title: "course", cell: ({ name, series: [{ y }] }) => sparkline(y, name) },
  { title: "last", class: "num value", cell: valueAt(-1) },
];

const RESULTS = [
  { title: "benchmark", cell: ({ benchmark, at }) => (at === 0 ? benchmark : "") },
  { title: "step", class: "num", cell: ({ point }) => number(point.step) },
  { title: "Mean@k", class: "num value", cell: ({ point }) => percent(point.mean_at_k) },
  { title: "95 %, over problems", class: "num muted", cell: ({ point }) => intervalText(point) ?? DASH },
  { title: "Pass@k", class: "num", cell: ({ point }) => percent(point.pass_at_k) },
];

function results(run) {
  const rows = Object.entries(run.evaluations).flatMap(([benchmark, points]) =>
    points.map((point, at) => ({ benchmark, point, at })),
  );
  return rows.length > 0 && section("Evaluations, %", table(RESULTS, rows));
}

function made(run) {
  const facts = [
    ["command", run.command],
    ["commit", run.commit && `${run.commit.slice(0, 12)}${run.is_dirty ? " with changes" : ""}`],
    ["python", run.python],
    ["platform", run.platform],
    ["folder", run.folder],
  ].filter(([, value]) => value);
  const rows = facts.map(([key, value]) => el("tr", el("td.muted.key", key), el("td.mono", value)));
  return section("Where it comes from", el("table", el("tbody", rows)));
}

function settings(run) {
  const rows = Object.entries(run.settings);
  const body = el("tbody");
  const row = ([key, value]) => el("tr", el("td.mono.muted", key), el("td.mono", value));
  const draw = (wanted) => {
    const fits = ([key, value]) => `${key} ${value}`.includes(wanted);
    fill(body, rows.filter(fits).map(row));
  };
  draw("");
  const content = [
    run.overrides.length > 0 && el("pre", run.overrides.join("\n")),
    searchInput("Find a setting", { style: { margin: "8px 0" } }, draw),
    el("table", body),
  ];
  return rows.length > 0 && section("Settings", content);
}

/** The course of numbers in a line. */
export function sparkline(values, name = "reward") {
  const known = values.map((value, at) => [at, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return "";
  const numbers = known.map(([, value]) => value);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const points = known.map(([at, value]) => {
    const [x, y] = [at / (values.length - 1), (value - low) / (high - low || 1)];
    return `${(2 + x * 76).toFixed(1)} ${(18 - y * 16).toFixed(1)}`;
  });
  const label = `${name} from ${number(numbers[0])} to ${number(numbers.at(-1))}`;
  const attributes = { width: 80, height: 20, role: "img", "aria-label": label };
  return svg("svg.spark", attributes, svg("path", { d: `M${points.join("L")}` }));
}
