// Trust regions: the document of one run's ratios against its window, or of methods side by side.

import { ask } from "../api.js";
import { alertLines, foldedList, notesOf } from "../document.js";
import { drawSections } from "../document_figures.js";
import { choice, debounced, el, field, fill, oneAtATime, select } from "../dom.js";
import { experimentField, filterControls, latestOnly, noRuns, runSelect, selected } from "../selection.js";
import { addressOf, get, set } from "../url.js";

const MODES = [
  ["", "One run"],
  ["arms", "Methods side by side"],
];

/** One run or several methods, as the address says. */
export async function show(root, context) {
  let table = await context.runs();
  let drawn = "";
  let chosen = "";
  const figures = [];
  const bar = el("div.toolbar");
  const banner = el("div");
  const body = el("div.stack", { style: { paddingBottom: "40px" } });
  root.append(bar, banner, body);
  const redraw = debounced(() => void refresh(), 50);
  const { search, filter } = filterControls(() => table, redraw);
  const isOfMethods = () => get("mode") === "arms";

  function drawBar(steps = []) {
    const modes = choice("Show", MODES, get("mode"), (mode) => {
      set({ mode });
      drawBar();
      void refresh();
    });
    if (isOfMethods()) {
      fill(bar, modes, experimentField(table, redraw), el("div.search", search), filter);
      return;
    }
    const made = runSelect(table, "Run", "at", () => {
      set({ step: null });
      drawBar();
      void refresh();
    });
    chosen = made.chosen;
    if (chosen && !get("at")) set({ at: chosen }, { isDefault: true }); // it stays when newer runs begin
    const all = ["", `all ${steps.length} recorded steps`];
    const options = [all, ...steps.map((step) => [step, `step ${step}`])];
    const box = select("Step", options, get("step"), (step) => {
      set({ step });
      void refresh();
    });
    const about = el("a", { href: addressOf("runs", { open: chosen, run: null }) }, "About this run");
    fill(bar, modes, chosen && [field("run", made.box), field("at", box), about]);
  }

  const refresh = oneAtATime(async () => {
    table = await context.runs();
    if (!isOfMethods() && !chosen) drawBar();
    const { runs, num, query } = selected(table);
    if (isOfMethods() ? !runs.length : !chosen) {
      dispose();
      fill(banner, noRuns(table));
      return;
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

  function drawBody(made, asked) {
    dispose();
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
      drawSections(made.sections, (figure, { key }) => {
        figures.push(figure);
        figure.savedFrom("figure/trust-region", { ...asked, figure: key });
      }),
    );
  }

  function dispose() {
    drawn = "";
    for (const figure of figures.splice(0)) figure.dispose();
    fill(body);
  }

  drawBar();
  await refresh();
  return { refresh, dispose };
}
