// Evaluations of models and checkpoints: what was evaluated, on which problems, and what it scored.

import { button, el, empty, fill, table as tableOf } from "../dom.js";
import { saveTable } from "../export.js";
import { passing } from "../filter.js";
import { age, DASH, intervalText, moment, percent, plural, shortName } from "../format.js";
import { filterControls } from "../selection.js";
import { addressOf, get } from "../url.js";

/** What an evaluation evaluated, in words. */
function evaluatedName({ evaluated, name }) {
  if (!evaluated) return shortName(name);
  return evaluated.run
    ? `${shortName(evaluated.run)} at step ${evaluated.step ?? "?"}`
    : evaluated.model.split("/").slice(-2).join("/");
}

/** The columns; `now` is the time by the server's clock. */
const columnsAt = (now) => [
  { title: "Evaluated", cell: ({ run, isFirst }) => isFirst && nameCell(run) },
  { title: "Benchmark", cell: ({ benchmark }) => benchmark ?? DASH },
  { title: "K", class: "num", cell: ({ point }) => point?.k ?? DASH },
  { title: "Mean@K, %", class: "num", cell: ({ point }) => meanCell(point) },
  { title: "Pass@K, %", class: "num", cell: ({ point }) => percent(point?.pass_at_k) },
  { title: "State", cell: ({ run: { state } }) => el("span.state", { class: state }, state) },
  {
    title: "Made",
    cell: ({ run: { started } }) =>
      el("span", { title: moment(started) }, started ? age(now - started) : DASH),
  },
  {
    title: "",
    cell: ({ run, benchmark }) => {
      const href = addressOf("rollouts", { run: run.name, source: benchmark, q: null });
      return benchmark && el("a", { href }, "answers");
    },
  },
];

function nameCell(run) {
  const href = addressOf("runs", { open: run.name, q: null, run: null });
  const link = el("a.run-name", { href, title: run.name }, evaluatedName(run));
  return [link, el("span.sub", run.name)];
}

function meanCell(point) {
  const interval = point && intervalText(point);
  return [el("span.value", percent(point?.mean_at_k)), interval && el("div.sub", interval)];
}

export async function show(root, context) {
  let table = await context.runs();
  const box = el("div.card.scroll", { role: "region", tabindex: "0", "aria-label": "Evaluations" });
  const counted = el("span.muted");
  const slot = el("span");
  const { search, filter } = filterControls(() => table, draw);
  const bar = el("div.toolbar", el("div.search", search), filter, counted, el("span.grow"), slot);
  root.append(bar, el("div.page", box));

  function draw() {
    const runs = passing(table, get("q")).filter(({ evaluated }) => evaluated);
    const rows = runs.flatMap((run) => {
      const scores = Object.entries(run.scores);
      return (scores.length ? scores : [[null, null]]).map(([benchmark, score], at) => ({
        run,
        benchmark,
        point: score?.last,
        isFirst: at === 0,
      }));
    });
    fill(counted, plural(runs.length, "evaluation"));
    const href = addressOf("compare", { run: runs.map(({ name }) => name), q: null });
    fill(slot, [
      button("CSV", { "data-export": "csv" }, () => save(rows)),
      " ",
      runs.length > 1 && el("a", { href }, `Compare ${runs.length}`),
    ]);
    const command = el("code", "atrium evaluate --run last");
    const words = table.runs.some(({ evaluated }) => evaluated)
      ? "No evaluation passes this filter."
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
      table = await context.runs();
      draw();
    },
  };
}
