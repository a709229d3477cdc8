// Sweeps: settings, scores and pruned trials, from the server's document.

import { ask } from "../api.js";
import { alertLines } from "../document.js";
import { drawSections } from "../document_figures.js";
import { choice, el, empty, fill, oneAtATime, refill, selectField } from "../dom.js";
import { age, plural } from "../format.js";
import { addressOf, get, set } from "../url.js";

const STATES = { finished: "finished", running: "running", stopped: "interrupted" };
// The first value is the server's default, and is not written to the URL.
const SCORES = [
  ["", "Mean@K"],
  ["pass_at_k", "Pass@K"],
];

export async function show(root) {
  const bar = el("div.toolbar");
  const body = el("div.stack", { style: { paddingBottom: "40px" } });
  root.append(bar, body);
  let drawn = "";

  function change(changes) {
    set(changes);
    void refresh();
  }

  function drawBar(sweeps, sweep) {
    const names = sweeps.map(({ name }) => name);
    const stages = sweep.stages.map((stage) => [stage, stage]);
    const choose = (name) => change({ sweep: name, stage: null, key: null });
    refill(
      bar,
      selectField("sweep", "Sweep", names, sweep.name, choose),
      el("span", { class: `state ${STATES[sweep.state] ?? "unknown"}` }, sweep.state),
      sweep.num_workers > 0 && el("span.muted", plural(sweep.num_workers, "worker")),
      sweep.updated && el("span.muted", `updated ${age(Date.now() / 1000 - sweep.updated)}`),
      el("span.grow"),
      stages.length > 1 && choice("Stage", stages, sweep.stage, (stage) => change({ stage })),
      sweep.keys.length > 1 &&
        selectField("against", "Setting on the x axis", sweep.keys, sweep.key, (key) => change({ key })),
      choice("Score", SCORES, get("score"), (score) => change({ score })),
    );
  }

  function drawBody({ document, name, runs }, choices) {
    const cells = (_, at) => el("td", runs[at].length > 0 && curvesOf(runs[at]));
    const more = (key) => (key === "trials" ? { titles: ["Curves"], cells } : {});
    fill(
      body,
      el(
        "section.card.pad",
        el("h2", document.title || name),
        el("p.muted.sub", document.subtitle),
        document.answer.map(({ text }) => el("p.sub", text)),
      ),
      alertLines(document),
      drawSections(document.sections, { path: "figure/sweep", query: { ...choices, name }, more }),
    );
  }

  const refresh = oneAtATime(async () => {
    try {
      const { sweeps } = await ask("sweeps");
      if (!sweeps.length) {
        fill(bar);
        const command = el("code", "atrium sweep delta");
        fill(body, empty("No sweeps yet", "Sweeps appear here as soon as they start: ", command, "."));
        return;
      }
      const wanted = sweeps.find(({ name }) => name === get("sweep")) ?? sweeps[0];
      const choices = { stage: get("stage"), key: get("key"), score: get("score") };
      const sweep = await ask("sweep", { name: wanted.name, ...choices });
      const content = JSON.stringify([sweep, location.search]);
      if (content === drawn) return;
      drawn = content;
      drawBar(sweeps, sweep);
      drawBody(sweep, choices);
    } catch (error) {
      fill(body, empty("This sweep cannot be shown", error.message));
    }
  });

  await refresh();
  return { refresh };
}

const curvesOf = (run) => el("a", { href: addressOf("curves", { run, q: null }) }, "curves");
