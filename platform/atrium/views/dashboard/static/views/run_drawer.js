// The panel of a run beside the table: problems, results, notes and tags, settings, and log.

import { annotate, ask } from "../api.js";
import { tableCard } from "../document.js";
import { button, checkbox, el, fill, searchInput, table } from "../dom.js";
import { duration, moment, number, shortName } from "../format.js";
import { addressOf, get, here, set } from "../url.js";

const AROUND = 20;

/** Return a link that opens the panel of a run. */
export function runLink(name, attributes, open) {
  const onclick = (event) => {
    event.preventDefault();
    open(name);
  };
  return el("a", { href: addressOf(here().view, { open: name }), onclick, ...attributes }, shortName(name));
}

/** Return links to a run's records at the start of a problem: curves around the step, ratios, and rollouts. */
export function beginningOf(name, step) {
  const zoom = `${Math.max(step - AROUND, 1)}_${step + AROUND}`;
  const link = (view, text, more) =>
    el("a", { href: addressOf(view, { run: null, q: null, ...more }) }, text);
  return [
    link("curves", `step ${number(step)}`, { run: name, group: "run", zoom }),
    " · ",
    link("trust-region", "ratios", { at: name, step }),
    " · ",
    link("rollouts", "rollouts", { at: name, step }),
  ];
}

/** Create the panel of the run named by the URL; `changed` is called after an annotation. */
export function runDrawer(root, changed) {
  let panel = null;
  /** The element that had the focus before the panel opened. */
  let before = null;

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
    // Select the run but keep the filter, so that the other runs stay in the list.
    const view = (name, text, more) => el("a", { href: addressOf(name, more) }, text);
    const links = [
      view("curves", "Curves", { run: run.name, q: null }),
      view("trust-region", "Trust region", { at: run.name, run: null }),
      view("rollouts", "Rollouts", { at: run.name, run: null }),
    ];
    const finding = ({ text, step }) => el("p.problem", `${text} (from `, beginningOf(run.name, step), ")");
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
      run.problems.map((problem) => el("p.problem", problem)),
      run.findings.map(finding),
      el("p", { style: { marginTop: "10px", display: "flex", gap: "14px" } }, links),
      cards(run.document.sections[0]),
      people(run),
      cards(run.document.sections[1]),
      section("Provenance", linesOf(Object.entries(run.provenance), "key")),
      section("Commands", table(COMMANDS, Object.entries(run.commands))),
      settings(run),
      run.log && section("Log", el("pre", { tabindex: "0" }, run.log)),
    );
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
    const named = (label, placeholder, value, ontext) => {
      const onchange = ({ target }) => ontext(target.value);
      return { "aria-label": label, placeholder, value, onchange };
    };
    const note = named("Note", "A note about this run", run.note, (text) => write({ note: text }));
    const tags = named("Tags", "tags, separated by commas", run.tags.join(", "), (text) => {
      const parts = text.split(",").map((tag) => tag.trim());
      return write({ tags: parts.filter(Boolean) });
    });
    const archived = checkbox(run.is_archived, (on) => write({ is_archived: on }));
    const archive = el("label.field", archived, "archived: hidden from the table");
    return section("Notes and tags", [
      el("textarea", { rows: "3", ...note }),
      el("div", { style: { height: "6px" } }),
      el("input", { type: "text", style: { width: "100%" }, ...tags }),
      el("div", { style: { display: "flex", gap: "12px", marginTop: "8px" } }, archive, said),
    ]);
  }

  return { open, reopen: () => get("open") && open(get("open")), refresh, dispose };
}

const cards = ({ tables }) => tables.map((one) => tableCard(one));
const section = (title, content) => el("section", el("h3", title), content);

const COMMANDS = [
  { title: "to", cell: ([verb]) => verb },
  { title: "command", class: "mono", cell: ([, command]) => command },
  { title: "", cell: ([verb, command]) => copying(`Copy the command to ${verb}`, command) },
];

/** Return a button that copies text. */
const copying = (label, text) =>
  button("Copy", { class: "small", "aria-label": label }, async ({ currentTarget }) => {
    await navigator.clipboard.writeText(text).catch(() => {});
    fill(currentTarget, "Copied");
  });

/** Return a table of entries [name, value]; the cells of names have the class `kind`. */
function linesOf(entries, kind) {
  const row = ([key, value]) => el("tr", el(`td.muted.${kind}`, key), el("td.mono", value));
  return el("table", el("tbody", entries.map(row)));
}

function settings(run) {
  const rows = Object.entries(run.settings);
  const found = el("div");
  const draw = (wanted) => {
    const fits = ([key, value]) => `${key} ${value}`.includes(wanted);
    fill(found, linesOf(rows.filter(fits), "mono"));
  };
  draw("");
  const content = [
    run.overrides.length > 0 && el("pre", run.overrides.join("\n")),
    searchInput("Find a setting", { style: { margin: "8px 0" } }, draw),
    found,
  ];
  return rows.length > 0 && section("Settings", content);
}
