// One run in full, beside the table: what is wrong, results, notes and tags, settings, log.

import { annotate, ask } from "../api.js";
import { el, fill } from "../dom.js";
import { duration, moment, number, percent } from "../format.js";
import { addressOf } from "../url.js";

/** Open the panel of a run; `changed` is called after an annotation, `closed` when it goes. */
export function openDrawer(root, name, { closed, changed }) {
  const panel = el("aside.drawer", { tabindex: "-1", role: "dialog", "aria-label": name });
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  let isOpen = true;

  function close({ silent = false } = {}) {
    if (!isOpen) return;
    isOpen = false;
    panel.remove();
    document.removeEventListener("keydown", onkey);
    if (!silent) {
      closed();
      before?.focus?.();
    }
  }
  const onkey = (event) => {
    if (event.key === "Escape") close();
  };
  document.addEventListener("keydown", onkey);

  async function refresh() {
    if (panel.contains(document.activeElement) && /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName))
      return;
    const scrolled = panel.scrollTop;
    try {
      draw(await ask("run", { name }));
    } catch (error) {
      fill(panel, closeButton(), el("h2", name), el("p.problem.bad", error.message));
    }
    panel.scrollTop = scrolled;
  }

  const closeButton = () =>
    el("button.icon.close", { type: "button", "aria-label": "Close", onclick: () => close() }, "✕");

  function draw(run) {
    // The run is chosen, and those beside it stay: the filter is kept.
    const view = (address, text) =>
      el(
        "a",
        {
          href: addressOf(
            address,
            address === "curves" ? { run: run.name, q: null } : { at: run.name, run: null },
          ),
        },
        [text],
      );
    fill(
      panel,
      closeButton(),
      el("h2", run.name),
      el("p.muted", [
        el("span", { class: `state ${run.state}` }, run.state),
        run.num_steps > 0 && `  step ${number(run.step)} of ${number(run.num_steps)}`,
        run.wall_s > 0 && `, ${duration(run.wall_s)}`,
        run.started > 0 && `, started ${moment(run.started)}`,
        run.host && ` on ${run.host}`,
      ]),
      run.error && el("p.problem.bad", run.error),
      [...run.problems, ...run.findings].map((problem) => el("p.problem", problem)),
      el("p", { style: { marginTop: "10px", display: "flex", gap: "14px" } }, [
        view("curves", "Curves"),
        view("trust-region", "Trust region"),
        view("rollouts", "Rollouts"),
      ]),
      people(run),
      results(run),
      made(run),
      settings(run),
      run.log && el("section", el("h3", "Log"), el("pre", { tabindex: "0" }, run.log)),
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
    const note = el("textarea", {
      rows: "3",
      "aria-label": "Note",
      placeholder: "A note about this run",
      value: run.note,
      onchange: () => write({ note: note.value }),
    });
    const tags = el("input", {
      type: "text",
      "aria-label": "Tags",
      placeholder: "tags, separated by commas",
      value: run.tags.join(", "),
      style: { width: "100%" },
      onchange: () =>
        write({
          tags: tags.value
            .split(",")
            .map((tag) => tag.trim())
            .filter(Boolean),
        }),
    });
    const archived = el("input", {
      type: "checkbox",
      checked: run.is_archived,
      onchange: () => write({ is_archived: archived.checked }),
    });
    return el("section", [
      el("h3", "Notes and tags"),
      note,
      el("div", { style: { height: "6px" } }),
      tags,
      el("div", { style: { display: "flex", gap: "12px", marginTop: "8px" } }, [
        el("label.field", archived, "archived: hidden from the table"),
        said,
      ]),
    ]);
  }

  void refresh();
  root.append(panel);
  panel.focus({ preventScroll: true });
  return { close, refresh };
}

function results(run) {
  const rows = Object.entries(run.evaluations).flatMap(([benchmark, points]) =>
    points.map((point, at) =>
      el("tr", [
        el("td", at === 0 ? benchmark : ""),
        el("td.num", number(point.step)),
        el("td.num.value", percent(point.mean_at_k)),
        el("td.num.muted", [
          point.interval_over_problems
            ? `${percent(point.interval_over_problems[0])} – ${percent(point.interval_over_problems[1])}`
            : "–",
        ]),
        el("td.num", percent(point.pass_at_k)),
      ]),
    ),
  );
  return (
    rows.length > 0 &&
    el("section", [
      el("h3", "Evaluations, %"),
      el("table", [
        el("thead", [
          el("tr", [
            ["benchmark", "step", "Mean@k", "95 %, over problems", "Pass@k"].map((title, at) =>
              el("th", { class: at ? "num" : null }, title),
            ),
          ]),
        ]),
        el("tbody", rows),
      ]),
    ])
  );
}

function made(run) {
  const facts = [
    ["command", run.command],
    ["commit", run.commit && `${run.commit.slice(0, 12)}${run.is_dirty ? " with changes" : ""}`],
    ["python", run.python],
    ["platform", run.platform],
    ["folder", run.folder],
  ].filter(([, value]) => value);
  return el("section", [
    el("h3", "Where it comes from"),
    el("table", [
      el("tbody", [facts.map(([key, value]) => el("tr", el("td.muted.key", key), el("td.mono", value)))]),
    ]),
  ]);
}

function settings(run) {
  const rows = Object.entries(run.settings);
  const body = el("tbody");
  const draw = (wanted) =>
    fill(
      body,
      rows
        .filter(([key, value]) => `${key} ${value}`.includes(wanted))
        .map(([key, value]) => el("tr", el("td.mono.muted", key), el("td.mono", value))),
    );
  draw("");
  return (
    rows.length > 0 &&
    el("section", [
      el("h3", "Settings"),
      run.overrides.length > 0 && el("pre", run.overrides.join("\n")),
      el("input", {
        type: "search",
        "aria-label": "Find a setting",
        placeholder: "Find a setting",
        style: { margin: "8px 0" },
        oninput: (event) => draw(event.target.value),
      }),
      el("table", body),
    ])
  );
}
