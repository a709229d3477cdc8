// Trust regions: the document of a run's ratios and window, or of several methods.

import { ask } from "../api.js";
import { alertLines, foldedList, notesOf } from "../document.js";
import { drawSections } from "../document_figures.js";
import { choice, debounced, el, field, fill, oneAtATime, selectField } from "../dom.js";
import { experimentField, filterControls, latestOnly, noRuns, runSelect, selected } from "../selection.js";
import { addressOf, get, set } from "../url.js";

const MODES = [
  ["", "One run"],
  ["arms", "Methods side by side"],
];

/** Show one run or several methods, depending on the URL. */
export async function show(root, context) {
  const table = await context.runs();
  let drawn = "";
  let chosen = "";
  const bar = el("div.toolbar");
  const banner = el("div");
  const body = el("div.stack", { style: { paddingBottom: "40px" } });
  root.append(bar, banner, body);
  const redraw = debounced(() => void refresh(), 50);
  const { search, filter } = filterControls(table, redraw);
  const isOfMethods = () => get("mode") === "arms";

  function drawBar(steps = []) {
    const change = (changes) => {
      set(changes);
      drawBar();
      void refresh();
    };
    const modes = choice("Show", MODES, get("mode"), (mode) => change({ mode }));
    if (isOfMethods()) {
      fill(bar, modes, experimentField(table, redraw), el("div.search", search), filter);
      return;
    }
    const made = runSelect(table, "Run", "at", () => change({ step: null }));
    chosen = made.chosen;
    if (chosen && !get("at")) set({ at: chosen }, { isDefault: true }); // keep this run selected when newer runs begin
    const options = [["", "all steps"], ...steps.map((step) => [step, `step ${step}`])];
    const step = selectField("at", "Step", options, get("step"), (value) => {
      set({ step: value });
      void refresh();
    });
    const about = el("a", { href: addressOf("runs", { open: chosen, run: null }) }, "About this run");
    fill(bar, modes, chosen && [field("run", made.box), step, about]);
  }

  const refresh = oneAtATime(async () => {
    await context.runs();
    if (!isOfMethods() && !chosen) drawBar();
    const { runs, num, query } = selected(table);
    if (isOfMethods() ? !runs.length : !chosen) {
      drawn = "";
      fill(body);
      return void fill(banner, noRuns(table));
    }
    const asked = isOfMethods() ? query : { run: chosen, step: get("step") };
    try {
      const answer = await ask(isOfMethods() ? "trust-region/arms" : "trust-region", asked);
      if (!isOfMethods() && document.activeElement?.tagName !== "SELECT") drawBar(answer.steps);
      fill(banner, isOfMethods() && latestOnly(num));
      const content = JSON.stringify(answer);
      if (content === drawn) return;
      drawBody(answer.document, { ...asked, is_arms: isOfMethods() });
      drawn = content;
    } catch (error) {
      fill(banner, el("p.banner", error.message));
    }
  });

  function drawBody(made, query) {
    const { warnings } = notesOf(made);
    fill(
      body,
      el(
        "section.card.pad",
        { "aria-label": "Window" },
        el("b", made.title),
        made.answer.map(({ text }) => el("p.sub", text)),
        foldedList("Not in these figures", warnings),
      ),
      alertLines(made),
      drawSections(made.sections, { path: "figure/trust-region", query }),
    );
  }

  drawBar();
  await refresh();
  return { refresh };
}
