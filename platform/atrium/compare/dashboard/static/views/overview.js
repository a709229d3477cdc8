// The first page: which method is better in the latest experiment, by how much, and how sure that is.

import { ask } from "../api.js";
import { el, empty, field, fill, oneAtATime, select } from "../dom.js";
import { Figure } from "../figure.js";
import { duration, number, percent, ratesText, shortName } from "../format.js";
import { swatch } from "../palette.js";
import { reportButtons } from "../report.js";
import { addressOf, get, set } from "../url.js";
import { confoundsBox, drawDifferences, signed } from "./compare.js";
import { curveOption, titleOf } from "./curves.js";
import { openDrawer } from "./run_drawer.js";

const REWARD = "rollout/reward";

export async function show(root, context) {
  const bar = el("div", { class: "toolbar" });
  const said = el("section", { class: "card pad answer", "aria-label": "Answer", "aria-live": "polite" });
  const rows = el("section", { class: "card scroll", "aria-label": "Methods" });
  const forest = new Figure({ title: "Differences", height: 120 });
  const curves = [REWARD, "score"].map((key) => new Figure({ title: key, linked: "overview" }));
  const curveGrid = el(
    "div",
    { class: "figures two" },
    curves.map(({ element }) => element),
  );
  const body = el(
    "div",
    { class: "stack", style: { paddingBottom: "40px" } },
    el("div", { class: "answers" }, said, forest.element),
    rows,
    curveGrid,
  );
  root.append(bar, body);
  const opened = new Set();
  let drawer = null;
  let drawn = "";
  let known = "";

  function pin(baseline) {
    set({ base: baseline });
    void refresh();
  }

  const refresh = oneAtATime(async () => {
    const answer = await ask("overview", {
      experiment: get("exp") === "*" ? null : get("exp"),
      base: get("base"),
    });
    const content = JSON.stringify(answer);
    if (content === known) return drawer?.refresh();
    known = content;
    await draw(answer);
    await drawer?.refresh();
  });

  async function draw(answer) {
    if (!answer.experiment) {
      const table = await context.runs();
      fill(bar);
      fill(
        body,
        table.problem && el("p", { class: "problem bad" }, table.problem),
        empty(
          table.runs.length ? "No experiment of methods here" : "No experiment yet",
          table.runs.length > 0 && "Sweeps and evaluations have tabs of their own. ",
          "Methods that train into ",
          el("code", {}, table.runs_dir),
          " are compared here as soon as they start: ",
          el("code", {}, "atrium train --multirun algorithm=atr,grpo seed=0,1,2"),
          ".",
        ),
      );
      drawn = "";
      return;
    }
    if (!body.contains(rows))
      fill(body, el("div", { class: "answers" }, said, forest.element), rows, curveGrid);
    drawBar(answer);
    drawAnswer(answer);
    drawForest(answer);
    drawRows(answer);
    await drawCurves(answer);
  }

  function drawBar(answer) {
    if (bar.contains(document.activeElement) && document.activeElement.tagName === "SELECT") return;
    const label = (one) =>
      `${one.name} · ${one.num_methods} ${one.num_methods === 1 ? "method" : "methods"}, ${one.num_runs} ${one.num_runs === 1 ? "run" : "runs"}${one.num_running ? `, ${one.num_running} training` : ""}`;
    const arms = answer.rows.filter((row) => row.runs.some((run) => run.is_counted));
    const elsewhere = answer.experiments.find((one) => one.num_running && one.name !== answer.experiment);
    fill(
      bar,
      field(
        "experiment",
        select(
          "Experiment",
          answer.experiments.map((one) => [one.name, label(one)]),
          answer.experiment,
          (value) => {
            set({ exp: value, base: null });
            void refresh();
          },
        ),
      ),
      answer.baseline &&
        field(
          "baseline",
          select(
            "Baseline",
            arms.map(({ name }) => [name, name]),
            answer.baseline,
            pin,
          ),
        ),
      elsewhere &&
        el(
          "button",
          {
            type: "button",
            class: "link",
            onclick: () => {
              set({ exp: elsewhere.name, base: null });
              void refresh();
            },
          },
          `${elsewhere.num_running} training in ${elsewhere.name}`,
        ),
      el("span", { class: "grow" }),
      el("a", { href: addressOf("compare", here(answer)) }, "Whole comparison"),
      el("a", { href: addressOf("curves", here(answer)) }, "All curves"),
      answer.baseline && reportButtons({ exp: answer.experiment, base: answer.baseline }),
    );
  }

  function drawAnswer(answer) {
    const pairs = answer.rows.map(({ pair }) => pair).filter(Boolean);
    const notes = [...(answer.notes ?? []), ...(answer.environment ?? [])];
    const on = `${answer.title} on ${answer.benchmark}${answer.num_problems ? `, ${answer.num_problems} problems` : ""}`;
    fill(
      said,
      confoundsBox(answer),
      el(
        "p",
        { class: "muted" },
        pairs.length
          ? `${answer.experiment}: ${on}; points${pairs.some(({ difference }) => difference.another) ? " with 95 % intervals for new seeds and new problems" : ""}`
          : answer.experiment,
      ),
      pairs.map((pair) => {
        const { kind, sign, label, lead, words } = pair.verdict;
        return el(
          "div",
          { class: `lead ${kind}` },
          el("span", { class: "sign", role: "img", "aria-label": label }, sign),
          el("div", {}, el("p", {}, lead), el("p", { class: "sub" }, `${pair.seeds.words}: ${words}`)),
        );
      }),
      answer.best && el("p", { class: "sub" }, answer.best),
      answer.planned && el("p", { class: "sub" }, answer.planned),
      !pairs.length && el("p", { class: "lead none" }, answer.reason),
      collapsesOf(answer.rows).map((line) => el("p", { class: "alert", role: "alert" }, "⚠ ", line)),
      answer.left_out.length > 0 &&
        el(
          "details",
          {},
          el(
            "summary",
            {},
            `${answer.left_out.length} ${answer.left_out.length === 1 ? "run is" : "runs are"} left out`,
          ),
          el(
            "ul",
            {},
            answer.left_out.map(({ name, reason }) => el("li", {}, `${shortName(name)}: ${reason}`)),
          ),
        ),
      notes.length > 0 &&
        el(
          "details",
          {},
          el("summary", {}, `${notes.length} ${notes.length === 1 ? "note" : "notes"}`),
          el(
            "ul",
            {},
            notes.map((note) => el("li", {}, note)),
          ),
        ),
    );
  }

  function drawForest(answer) {
    const pairs = answer.rows.map(({ pair }) => pair).filter(Boolean);
    forest.element.hidden = !pairs.length;
    if (!pairs.length) return;
    const height = 76 + 34 * pairs.length;
    forest.place.style.height = `${height}px`;
    forest.resize();
    const content = JSON.stringify(pairs);
    if (content === drawn) return;
    drawn = content;
    forest.retitle(`Difference to ${answer.baseline}, ${answer.title}`);
    const places = new Map(answer.rows.map(({ name, place }) => [name, place]));
    drawDifferences(
      forest,
      { pairs, benchmarks: [answer.benchmark], titles: { mean: answer.title } },
      "mean",
      places,
    );
    forest.savedFrom("figure/comparison", {
      exp: answer.experiment,
      base: answer.baseline,
      figure: "difference",
      measure: "mean",
    });
  }

  function drawRows(answer) {
    const toggle = (name) => {
      opened[opened.has(name) ? "delete" : "add"](name);
      drawRows(answer);
    };
    const head = [
      "Method",
      "Seeds",
      `${answer.title}, %`,
      answer.baseline ? `Difference to ${answer.baseline}` : "Difference",
      "Verdict",
      "Runs",
    ];
    const focused = document.activeElement?.getAttribute?.("data-toggle");
    fill(
      rows,
      el(
        "table",
        { class: "methods" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            head.map((title, at) => el("th", { class: at === 2 || at === 3 ? "num" : null }, title)),
          ),
        ),
        el(
          "tbody",
          {},
          answer.rows.map((row, at) => [
            row.is_other &&
              !answer.rows[at - 1]?.is_other &&
              el(
                "tr",
                { class: "group" },
                el(
                  "td",
                  { colspan: "6", class: "muted" },
                  "Other runs: single runs with other settings than their method's other runs",
                ),
              ),
            methodRow(row, answer, toggle),
            opened.has(row.name) && runRow(row),
          ]),
        ),
      ),
    );
    if (focused) rows.querySelector(`[data-toggle="${CSS.escape(focused)}"]`)?.focus();
  }

  function methodRow(row, answer, toggle) {
    const { outcome, pair } = row;
    const isBaseline = row.name === answer.baseline;
    const counted = row.runs.find((run) => run.is_counted);
    const difference = pair?.difference;
    return el(
      "tr",
      { "data-method": row.name },
      el(
        "td",
        { class: "method" },
        swatch(row.place),
        " ",
        el("b", {}, row.name),
        row.window &&
          el(
            "div",
            { class: "sub" },
            `window [${number(row.window[0])}, ${row.window[1] === null ? "∞" : number(row.window[1])}]`,
          ),
        row.collapsed && el("div", { class: "sub warn" }, `ended below their start: ${row.collapsed}`),
      ),
      el("td", { class: "num" }, row.num_seeds),
      el(
        "td",
        { class: "num" },
        outcome
          ? [
              el("span", { class: "value" }, percent(outcome.value)),
              row.rates && el("div", { class: "sub" }, ratesText(row.rates)),
              outcome.low !== null &&
                el("div", { class: "sub" }, `${percent(outcome.low)} – ${percent(outcome.high)}`),
            ]
          : "–",
      ),
      el(
        "td",
        { class: "num" },
        difference
          ? [
              el("span", { class: "value" }, signed(difference.value)),
              difference.another &&
                el(
                  "div",
                  { class: "sub" },
                  `${signed(difference.another.interval[0])} to ${signed(difference.another.interval[1])}`,
                ),
              el("div", { class: "sub" }, pair.seeds.words),
            ]
          : "–",
      ),
      el(
        "td",
        {},
        isBaseline
          ? "baseline"
          : pair
            ? el("span", { class: `kind ${pair.verdict.kind}` }, `${pair.verdict.sign} ${pair.verdict.label}`)
            : el("span", { class: "muted" }, answer.baseline ? "not counted" : "–"),
        !isBaseline &&
          counted &&
          el(
            "div",
            {},
            el(
              "button",
              { type: "button", class: "link sub", onclick: () => pin(row.name) },
              "make it the baseline",
            ),
          ),
      ),
      el(
        "td",
        {},
        el(
          "button",
          {
            type: "button",
            class: "link",
            "data-toggle": row.name,
            "aria-expanded": String(opened.has(row.name)),
            onclick: () => toggle(row.name),
          },
          `${opened.has(row.name) ? "▾" : "▸"} ${statesOf(row.runs)}`,
        ),
      ),
    );
  }

  function runRow(row) {
    return el(
      "tr",
      { class: "inside" },
      el(
        "td",
        { colspan: "6" },
        el(
          "table",
          {},
          el(
            "tbody",
            {},
            row.runs.map((run) =>
              el(
                "tr",
                {},
                el(
                  "td",
                  {},
                  el(
                    "a",
                    {
                      href: addressOf("overview", { open: run.name }),
                      onclick: (event) => {
                        event.preventDefault();
                        void open(run.name);
                      },
                    },
                    shortName(run.name),
                  ),
                ),
                el("td", {}, `seed ${run.seed ?? "–"}`),
                el(
                  "td",
                  {},
                  el("span", { class: `state ${run.state}` }, run.state),
                  ` ${number(run.step)}/${number(run.num_steps)}`,
                  run.left_s && el("span", { class: "muted" }, `, ${duration(run.left_s)} left`),
                ),
                el("td", { class: "num" }, run.score === null ? "–" : `${percent(run.score)} %`),
                el("td", { class: "words muted" }, run.error ?? (run.is_counted ? "" : "not counted")),
              ),
            ),
          ),
        ),
      ),
    );
  }

  /** The experiment and the baseline for a link: no pick and no filter of other views. */
  const here = ({ experiment, baseline }) => ({ exp: experiment, base: baseline, run: null, q: null });

  async function open(name) {
    drawer?.close({ silent: true });
    set({ open: name });
    drawer = openDrawer(root, name, {
      closed: () => {
        drawer = null;
        set({ open: null });
      },
      changed: async () => {
        context.forget();
        await refresh();
      },
    });
  }

  async function drawCurves(answer) {
    const scores =
      answer.benchmark === "macro average"
        ? null
        : answer.benchmark && `evaluation/${answer.benchmark}/mean_at_k`;
    const hide = answer.rows.filter((row) => row.is_other).map(({ name }) => name);
    const found = await ask("curves", {
      exp: answer.experiment,
      metric: [REWARD, scores],
      group: "method",
      points: 300,
    });
    for (const [at, figure] of curves.entries()) {
      const panel = found.panels[at];
      figure.element.hidden = !panel?.series.length;
      if (!panel?.series.length) continue;
      const series = panel.series.filter(({ label }) => !hide.includes(label));
      figure.savedFrom("figure/curves", {
        exp: answer.experiment,
        metric: panel.name,
        group: "method",
        hide,
      });
      figure.draw({
        title: panel.name === REWARD ? "Training reward" : titleOf(panel.name),
        subtitle: "mean over seeds by step; band: least to greatest seed",
        option: (colours) =>
          curveOption(series, { axis: "step", log: false, isShare: panel.is_share, colours }),
        table: () => ({
          columns: ["method", "step", "mean", "low", "high"],
          rows: series.flatMap((one) =>
            one.x.map((x, i) => [one.label, x, one.y[i], one.low?.[i] ?? "", one.high?.[i] ?? ""]),
          ),
        }),
      });
    }
  }

  await refresh();
  if (get("open")) await open(get("open"));
  return {
    refresh,
    dispose: () => {
      drawer?.close({ silent: true });
      for (const figure of [forest, ...curves]) figure.dispose();
    },
  };
}

/** What went wrong by its name: `reinforce: ratios running away in 2 of 3 runs`. */
function collapsesOf(rows) {
  return rows.flatMap(({ name, runs }) => {
    const rules = [...new Set(runs.flatMap(({ collapses }) => collapses))];
    return rules.map(
      (rule) =>
        `${name}: ${rule} in ${runs.filter(({ collapses }) => collapses.includes(rule)).length} of ${runs.length} ${runs.length === 1 ? "run" : "runs"}`,
    );
  });
}

/** `2 finished, 1 running (4/6, 12 s left)`. */
function statesOf(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  const left = Math.max(...runs.map((run) => run.left_s ?? 0));
  return (
    [...counts].map(([state, num]) => `${num} ${state}`).join(", ") + (left ? `, ${duration(left)} left` : "")
  );
}
