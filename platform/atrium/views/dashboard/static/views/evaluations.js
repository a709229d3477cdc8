// Evaluations of models and checkpoints: the evaluated policy, the problems, and the scores.

import { scoreCell } from "../document.js";
import { button, el, empty, fill, table as tableOf } from "../dom.js";
import { saveTable } from "../export.js";
import { passing } from "../filter.js";
import { DASH, percent, plural, shortName } from "../format.js";
import { filterControls, startedCell } from "../selection.js";
import { addressOf, get } from "../url.js";

/** Describe the evaluated model or checkpoint. */
function evaluatedName({ evaluated, name }) {
  if (!evaluated) return shortName(name);
  return evaluated.run
    ? `${shortName(evaluated.run)} at step ${evaluated.step ?? "?"}`
    : evaluated.model.split("/").slice(-2).join("/");
}

/** Return the columns; `now` is the time on the server's clock. */
const columnsAt = (now) => [
  { title: "Evaluated", cell: ({ run, isFirst }) => isFirst && nameCell(run) },
  { title: "Benchmark", cell: ({ benchmark }) => benchmark ?? DASH },
  { title: "K", class: "num", cell: ({ point }) => point?.k ?? DASH },
  { title: "Mean@K, %", class: "num", cell: ({ point }) => scoreCell(point) },
  { title: "Pass@K, %", class: "num", cell: ({ point }) => percent(point?.pass_at_k) },
  { title: "State", cell: ({ run: { state } }) => el("span.state", { class: state }, state) },
  { title: "Made", cell: ({ run }) => startedCell(run, now) },
  { title: "", cell: ({ run, benchmark }) => benchmark && answersLink(run.name, benchmark) },
];

function answersLink(run, source) {
  return el("a", { href: addressOf("rollouts", { run, source, q: null }) }, "answers");
}

function nameCell(run) {
  const href = addressOf("runs", { open: run.name, q: null, run: null });
  const link = el("a.run-name", { href, title: run.name }, evaluatedName(run));
  return [link, el("span.sub", run.name)];
}

export async function show(root, context) {
  const table = await context.runs();
  const box = el("div.card.scroll", { role: "region", tabindex: "0", "aria-label": "Evaluations" });
  const counted = el("span.muted");
  const slot = el("span");
  const { search, filter } = filterControls(table, draw);
  const bar = el("div.toolbar", el("div.search", search), filter, counted, el("span.grow"), slot);
  root.append(bar, el("div.page", box));

  function draw() {
    const runs = passing(table, get("q")).filter(({ evaluated }) => evaluated);
    const rows = runs.flatMap((run) => {
      const scores = Object.entries(run.scores);
      const row = ([benchmark, score], at) => ({ run, benchmark, point: score?.last, isFirst: at === 0 });
      return (scores.length ? scores : [[null, null]]).map(row);
    });
    fill(counted, plural(runs.length, "evaluation"));
    const href = addressOf("compare", { run: runs.map(({ name }) => name), q: null });
    const csv = button("CSV", { "data-export": "csv" }, () => save(rows));
    fill(slot, csv, " ", runs.length > 1 && el("a", { href }, `Compare ${runs.length}`));
    const command = el("code", "atrium evaluate --run last");
    const words = table.runs.some(({ evaluated }) => evaluated)
      ? "No evaluation matches this filter."
      : ["Evaluations of models and checkpoints appear here: ", command, "."];
    const attributes = ({ run }) => ({ "data-run": run.name });
    fill(box, rows.length ? tableOf(columnsAt(table.now), rows, attributes) : empty("No evaluations", words));
  }

  function save(rows) {
    saveTable("evaluations", {
      columns: ["run", "evaluated", "benchmark", "k", "mean_at_k", "pass_at_k", "state"],
      rows: rows.map(({ run, benchmark, point }) => {
        const scores = [point?.k, point?.mean_at_k, point?.pass_at_k];
        return [run.name, evaluatedName(run), benchmark, ...scores, run.state];
      }),
    });
  }

  draw();
  return {
    refresh: async () => {
      await context.runs();
      draw();
    },
  };
}
