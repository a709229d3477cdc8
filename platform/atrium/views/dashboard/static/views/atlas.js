// The atlas: methods with equal gradients, on random rollouts or on the rollouts of a run.

import { ask } from "../api.js";
import { notesOf } from "../document.js";
import { drawSections } from "../document_figures.js";
import { el, field, fill, refill } from "../dom.js";
import { runSelect } from "../selection.js";
import { get } from "../url.js";

export async function show(root, context) {
  const bar = el("div.toolbar");
  const body = el("div.stack", { style: { paddingBottom: "40px" } });
  root.append(bar, body);
  const table = await context.runs();

  async function draw() {
    refill(bar, field("rollouts", runSelect(table, "Rollouts", "of", draw, { none: "random" }).box));
    fill(body, el("p.muted", "Gradients are computed, which takes about 20 seconds."));
    try {
      const { document: made } = await ask("atlas", { run: get("of") });
      const head = [el("h2", made.title), made.answer.map(({ text }) => el("p.sub", text))];
      const notes = notesOf(made).warnings.map((text) => el("p.muted.sub", text));
      fill(body, el("section.card.pad", head, notes), drawSections(made.sections));
    } catch (error) {
      fill(body, el("p.banner", error.message));
    }
  }

  await draw();
}
