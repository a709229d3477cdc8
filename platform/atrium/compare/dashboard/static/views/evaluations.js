// Evaluations of models and checkpoints: what was evaluated, on which problems, and what it scored.

import { el, empty, fill } from "../dom.js";
import { csv, download } from "../export.js";
import { passing } from "../filter.js";
import { age, moment, percent, shortName } from "../format.js";
import { filterMenu, searchBox } from "../selection.js";
import { addressOf, get } from "../url.js";

const COLUMNS = ["Evaluated", "Benchmark", "K", "Mean@K, %", "Pass@K, %", "State", "Made", ""];

/** What an evaluation evaluated, in words. */
export function evaluatedName({ evaluated, name }) {
  if (!evaluated) return shortName(name);
  return evaluated.run
    ? `${shortName(evaluated.run)} at step ${evaluated.step ?? "?"}`
    : evaluated.model.split("/").slice(-2).join("/");
}

export async function show(root, context) {
  let table = await context.runs();
  const bar = el("div.toolbar");
  const box = el("div.card.scroll", { role: "region", tabindex: "0", "aria-label": "Evaluations" });
  const counted = el("span.muted");
  const slot = el("span");
  const search = searchBox(() => draw());
  bar.append(
    el("div.search", search),
    filterMenu(
      () => table,
      () => {
        search.value = get("q");
        draw();
      },
    ),
    counted,
    el("span.grow"),
    slot,
  );
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
    fill(counted, `${runs.length} ${runs.length === 1 ? "evaluation" : "evaluations"}`);
    fill(
      slot,
      el("button", { type: "button", "data-export": "csv", onclick: () => save(rows) }, "CSV"),
      " ",
      runs.length > 1 &&
        el("a", { href: addressOf("compare", { run: runs.map(({ name }) => name), q: null }) }, [
          `Compare ${runs.length}`,
        ]),
    );
    if (!rows.length) {
      fill(
        box,
        empty(
          "No evaluations",
          table.runs.some(({ evaluated }) => evaluated)
            ? "No evaluation passes this filter."
            : [
                "Evaluations of models and checkpoints appear here: ",
                el("code", "atrium evaluate --run last"),
                ".",
              ],
        ),
      );
      return;
    }
    fill(
      box,
      el("table", [
        el("thead", [
          el("tr", [COLUMNS.map((title, at) => el("th", { class: at > 1 && at < 5 ? "num" : null }, title))]),
        ]),
        el("tbody", [
          rows.map(({ run, benchmark, point, isFirst }) =>
            el("tr", { "data-run": run.name }, [
              el("td", [
                isFirst && [
                  el(
                    "a.run-name",
                    { href: addressOf("runs", { open: run.name, q: null, run: null }), title: run.name },
                    [evaluatedName(run)],
                  ),
                  el("span.sub", run.name),
                ],
              ]),
              el("td", benchmark ?? "–"),
              el("td.num", point?.k ?? "–"),
              el("td.num", [
                el("span.value", percent(point?.mean_at_k)),
                point?.interval_over_problems &&
                  el("div.sub", point.interval_over_problems.map(percent).join(" – ")),
              ]),
              el("td.num", percent(point?.pass_at_k)),
              el("td", el("span", { class: `state ${run.state}` }, run.state)),
              el("td", [
                el("span", { title: moment(run.started) }, run.started ? age(table.now - run.started) : "–"),
              ]),
              el("td", [
                benchmark &&
                  el("a", { href: addressOf("rollouts", { run: run.name, source: benchmark, q: null }) }, [
                    "answers",
                  ]),
              ]),
            ]),
          ),
        ]),
      ]),
    );
  }

  function save(rows) {
    download(
      "evaluations.csv",
      csv({
        columns: ["run", "evaluated", "benchmark", "k", "mean_at_k", "pass_at_k", "state"],
        rows: rows.map(({ run, benchmark, point }) => [
          run.name,
          evaluatedName(run),
          benchmark,
          point?.k,
          point?.mean_at_k,
          point?.pass_at_k,
          run.state,
        ]),
      }),
      "text/csv",
    );
  }

  draw();
  return {
    refresh: async () => {
      table = await context.runs();
      draw();
    },
  };
}
