// Groups of runs compared: what each reached, which differences are real, and what the design could show.

import { ask } from "../api.js";
import { choice, el, empty, field, fill, select } from "../dom.js";
import { axis, bandSeries, Figure, tip } from "../figure.js";
import { count, duration, number, percent, ratesText, shortName } from "../format.js";
import { seriesStyle, swatch } from "../palette.js";
import { reportButtons } from "../report.js";
import {
  differingKeys,
  experimentField,
  filterMenu,
  latestOnly,
  noRuns,
  searchBox,
  selected,
} from "../selection.js";
import { addressOf, get, set } from "../url.js";

const AT = [
  ["last", "Last", "each run's last evaluation"],
  ["steps", "Equal steps", "the last step that all runs evaluated"],
  ["tokens", "Equal tokens", "equal numbers of generated tokens"],
  ["wall_clock", "Equal time", "equal wall-clock time"],
];
const MEASURES = [
  ["mean", "Mean@K"],
  ["pass", "Pass@K"],
];

export async function show(root, context) {
  let table = await context.runs();
  let turn = 0;
  let drawn = "";
  const figures = new Map();
  const side = el("aside", { class: "side", "aria-label": "Runs" });
  const bar = el("div", { class: "toolbar" });
  const banner = el("div", {});
  const body = el("div", { class: "stack" });
  root.append(el("div", { class: "split" }, side, el("div", { class: "content" }, bar, banner, body)));
  const search = searchBox(() => void redraw());
  const counted = el("div", { class: "count" });
  const list = el("div", {});
  const experiment = el("div", { style: { marginBottom: "8px" } });
  side.append(
    experiment,
    search,
    el(
      "div",
      { style: { marginTop: "8px" } },
      filterMenu(
        () => table,
        () => {
          search.value = get("q");
          void redraw();
        },
      ),
    ),
    counted,
    list,
  );

  function drawBar(answer = null) {
    const { runs } = selected(table);
    const keys = differingKeys(table, runs).filter((key) => key !== "seed");
    const change = (changes) => {
      set(changes);
      void redraw();
    };
    const arms = answer?.arms.map(({ name }) => name) ?? [];
    const benchmarks = table.benchmarks.filter((name) => runs.some((run) => run.scores[name]));
    const focused = document.activeElement?.getAttribute?.("aria-label");
    fill(
      bar,
      choice("Compare at", AT, get("point", "last"), (value) =>
        change({ point: value === "last" ? null : value }),
      ),
      field(
        "groups",
        select(
          "Group by",
          [["", "method (all but seed)"], ...keys.map((key) => [key, key])],
          get("by"),
          (value) => change({ by: value, base: null }),
        ),
      ),
      arms.length > 1 &&
        field(
          "baseline",
          select("Baseline", arms, arms[0], (value) => change({ base: value })),
        ),
      benchmarks.length > 1 &&
        field(
          "benchmark",
          select("Benchmark", [["", "all tests"], ...benchmarks], get("bench"), (value) =>
            change({ bench: value }),
          ),
        ),
      choice(
        "Measure",
        MEASURES.map(([key, text]) => [key, answer?.titles[key] ?? text]),
        get("measure", "mean"),
        (value) => change({ measure: value === "mean" ? null : value }),
      ),
      el(
        "label",
        { class: "field", title: "The smallest difference that matters to you" },
        el("span", {}, "effect of interest"),
        el("input", {
          type: "number",
          "aria-label": "Effect of interest in points",
          min: "0.1",
          step: "0.1",
          style: { width: "64px" },
          value: get("effect", "2"),
          onchange: (event) => change({ effect: event.target.value }),
        }),
        "points",
      ),
    );
    if (focused) bar.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  async function redraw() {
    const mine = ++turn;
    const { runs, num, isPicked, query: chosen } = selected(table);
    fill(
      experiment,
      experimentField(table, () => void redraw()),
    );
    fill(
      counted,
      el("span", {}, `${runs.length} of ${table.runs.length} runs`),
      isPicked &&
        el(
          "button",
          {
            class: "link",
            type: "button",
            onclick: () => {
              set({ run: null });
              void redraw();
            },
          },
          "drop the pick",
        ),
    );
    fill(banner, latestOnly(num));
    if (!runs.length) {
      drawBar();
      drawn = "";
      dispose();
      fill(list);
      fill(body, noRuns(table));
      return;
    }
    try {
      const query = {
        ...chosen,
        by: get("by"),
        base: get("base"),
        at: get("point", "last"),
        benchmark: get("bench"),
        effect: String((Number(get("effect", "2")) || 2) / 100),
      };
      const answer = await ask("compare", query);
      if (mine !== turn) return;
      if (answer.reason) {
        drawBar();
        fail("These runs cannot be compared", answer.reason);
        return;
      }
      drawBar(answer);
      bar.append(reportButtons(query));
      const content = JSON.stringify([answer, get("measure")]);
      if (content === drawn) return;
      drawn = content;
      drawAll(answer, query);
    } catch (error) {
      if (mine === turn) {
        drawBar();
        fail("These runs cannot be compared", error.message);
      }
    }
  }

  function fail(title, reason) {
    drawn = "";
    dispose();
    fill(list);
    fill(
      body,
      empty(
        title,
        reason,
        el("br", {}),
        "Filter the list on the left, or pick runs in the table of runs: a comparison needs two methods that were evaluated on the same problems.",
      ),
    );
  }

  function drawAll(answer, query) {
    const measure = get("measure", "mean");
    const colour = new Map(answer.arms.map(({ name, place }) => [name, place]));
    drawArms(answer);
    const pairs = answer.pairs.filter(
      (pair) => pair.measure === measure && pair.benchmark === answer.headline,
    );
    dispose();
    fill(
      body,
      confoundsBox(answer),
      answer.same_methods.map((names) =>
        el(
          "section",
          { class: "card verdict-box same_method" },
          el("p", { class: "lead" }, `${names.join(" and ")} are the same method`),
          el(
            "p",
            { class: "muted" },
            "Their windows [l, u] are equal and so is everything else: what differs between them is chance.",
          ),
        ),
      ),
      pairs.map((pair) => verdictBox(pair, answer, pairs.length < 3)),
      answer.best && el("section", { class: "card pad" }, answer.best),
      answer.planned && el("section", { class: "card pad sub" }, answer.planned),
      answer.notes.length + answer.left_out.length + answer.environment.length > 0 &&
        el(
          "section",
          { class: "card pad" },
          el("h3", {}, "To keep in mind"),
          el(
            "ul",
            { style: { margin: "6px 0 0", paddingLeft: "18px" } },
            [
              ...answer.notes,
              ...answer.left_out.map(({ name, reason }) => `left out: ${shortName(name)} (${reason})`),
              ...answer.environment,
            ].map((note) => el("li", {}, note)),
          ),
        ),
      scoreTable(answer),
    );
    const grid = el("div", { class: "figures two" });
    body.append(grid);
    const place = (key, title, draw, more = {}) => {
      const figure = new Figure({ title, ...more });
      figures.set(key, figure);
      grid.append(figure.element);
      draw(figure);
      const [kind, of] = key.split(/:(.*)/s);
      figure.savedFrom("figure/comparison", { ...query, figure: kind, of, measure });
    };
    place(
      "difference",
      `Differences to ${answer.arms[0].name}, ${answer.titles[measure]}`,
      (figure) => drawDifferences(figure, answer, measure, colour),
      {
        height:
          90 +
          ((44 * answer.pairs.filter((pair) => pair.measure === measure).length) /
            Math.max(answer.arms.length - 1, 1)) *
            (answer.arms.length - 1),
      },
    );
    place("plane", "Arms on the (l, u) plane", (figure) => drawPlane(figure, answer, colour), {
      height: 300,
    });
    for (const [at, benchmark] of answer.benchmarks.entries()) {
      const isAlone = at % 2 === 0 && at === answer.benchmarks.length - 1;
      place(
        `over_k:${benchmark}`,
        `Pass@k and Mean@k against k, ${benchmark}`,
        (figure) => drawOverK(figure, answer.over_k[benchmark], colour),
        { height: 300, wide: isAlone },
      );
    }
    for (const benchmark of answer.benchmarks) {
      place(
        `grid:${benchmark}`,
        `Who solves what, ${benchmark}`,
        (figure) => drawGrid(figure, answer.grid[benchmark]),
        { height: Math.max(150, 90 + 24 * answer.arms.length), wide: true },
      );
    }
  }

  function drawArms(answer) {
    fill(
      list,
      el("h3", {}, "Arms"),
      answer.arms.map((arm, at) =>
        el(
          "div",
          { class: "series", title: arm.runs.join("\n") },
          swatch(arm.place),
          el("span", {}, arm.name, at === 0 && el("span", { class: "muted" }, "  baseline")),
          el("small", {}, `${arm.seeds.length} ${arm.seeds.length === 1 ? "seed" : "seeds"}`),
        ),
      ),
      el("p", { style: { margin: "14px 2px" } }, el("a", { href: addressOf("curves") }, "Their curves")),
    );
  }

  function dispose() {
    for (const figure of figures.values()) figure.dispose();
    figures.clear();
  }

  async function refresh() {
    table = await context.runs();
    await redraw();
  }

  await redraw();
  return { refresh, dispose };
}

/** A share as signed points; a dash for what is unknown. */
export const signed = (value) =>
  value === null || value === undefined
    ? "–"
    : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}`;
const points = (value) =>
  value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} points`;
const between = (known, show = signed) =>
  known ? `[${show(known.interval[0])}, ${show(known.interval[1])}]` : "not estimable";

/** What else differs between the arms besides their methods; nothing where nothing does. */
export function confoundsBox({ confounds }) {
  return (
    confounds.length > 0 &&
    el(
      "section",
      { class: "card pad problem", role: "alert", "aria-label": "Confounds" },
      el("b", {}, "The arms differ in more than their methods"),
      el(
        "ul",
        { style: { margin: "6px 0 0", paddingLeft: "18px" } },
        confounds.map((line) => el("li", {}, line.replace(/^confound: /, ""))),
      ),
    )
  );
}

function verdictBox(pair, answer, isOpen) {
  const { difference } = pair;
  const { plan } = answer;
  const facts = [
    ["difference", `${signed(difference.value)} points`, pair.seeds.words],
    ["another exam, 95 %", between(difference.another), "new seeds and new problems"],
    ["this exam, 95 %", between(difference.this), "new seeds, these problems"],
    [
      "probability of improvement",
      pair.improvement === null ? "needs 10 seeds per arm" : `${percent(pair.improvement)} %`,
      pair.improvement_interval
        ? `[${percent(pair.improvement_interval[0])}, ${percent(pair.improvement_interval[1])}]`
        : "",
    ],
    [
      "IQM over seeds",
      pair.iqm[0] === null ? "needs 4 seeds" : `${percent(pair.iqm[0])} → ${percent(pair.iqm[1])}`,
      "",
    ],
    ["intervals hold together over", pair.together || "this difference alone", ""],
    [
      "pairing multiplies the error by",
      pair.rho.another === null ? "–" : Math.sqrt(Math.max(1 - pair.rho.another, 0)).toFixed(2),
      "",
    ],
    ...(plan
      ? [
          [
            "other runs would detect",
            Object.entries(plan.detectable.another)
              .map(([num, share]) => `${points(share)} with ${num} seeds`)
              .join(", "),
            "on another exam; power 0.8, assurance 0.8",
          ],
          [
            `seeds for ${number(100 * plan.effect)} points`,
            plan.seeds.another,
            `on another exam; on this one ${plan.seeds.this}`,
          ],
        ]
      : []),
  ];
  return el(
    "section",
    { class: `card verdict-box ${pair.verdict.kind}`, "aria-label": `Verdict on ${pair.candidate}` },
    el(
      "p",
      { class: "muted" },
      `${pair.candidate} against ${pair.baseline}, ${answer.titles[pair.measure]}, ${pair.benchmark}; ${pair.seeds.words}`,
    ),
    el("p", { class: "lead" }, pair.verdict.words),
    el(
      "details",
      { open: isOpen },
      el("summary", {}, `${signed(difference.value)} points, another exam ${between(difference.another)}`),
      el(
        "dl",
        { class: "stats" },
        facts.map(([name, value, more]) =>
          el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("small", {}, more))),
        ),
      ),
    ),
  );
}

function scoreTable(answer) {
  const names =
    answer.headline in answer.num_problems ? answer.benchmarks : [...answer.benchmarks, answer.headline];
  const cell = (mean) =>
    el(
      "td",
      { class: "num" },
      el("span", { class: "value" }, percent(mean?.value)),
      mean?.another &&
        el(
          "div",
          { class: "sub" },
          `${percent(mean.another.interval[0])} – ${percent(mean.another.interval[1])}`,
        ),
    );
  const span = (pair, show) =>
    pair === null ? "–" : pair[0] === pair[1] ? show(pair[0]) : `${show(pair[0])} – ${show(pair[1])}`;
  return el(
    "section",
    { class: "card scroll", "aria-label": "Scores" },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", {}, ""),
          el("th", {}, ""),
          names.map((name) =>
            el(
              "th",
              { class: "num", colspan: "2" },
              name,
              answer.num_problems[name] ? ` (${answer.num_problems[name]})` : "",
            ),
          ),
          el("th", { colspan: "3" }, ""),
        ),
        el(
          "tr",
          {},
          el("th", {}, "Arm"),
          el("th", {}, "Seeds"),
          names.map(() => [
            el("th", { class: "num" }, answer.titles.mean),
            el("th", { class: "num" }, answer.titles.pass),
          ]),
          el("th", { class: "num" }, "Steps"),
          el("th", { class: "num" }, "Tokens"),
          el("th", { class: "num" }, "Time"),
        ),
      ),
      el(
        "tbody",
        {},
        answer.arms.map((arm) =>
          el(
            "tr",
            {},
            el(
              "td",
              {},
              swatch(arm.place),
              " ",
              el("b", {}, arm.name),
              el("div", { class: "sub" }, ratesText(arm.rates)),
              arm.collapsed && el("div", { class: "sub" }, `ended below their start: ${arm.collapsed}`),
            ),
            el("td", { class: "muted" }, arm.seeds.join(", ")),
            names.map((name) => [cell(arm.scores.mean[name]), cell(arm.scores.pass[name])]),
            el("td", { class: "num" }, span(arm.steps, number)),
            el("td", { class: "num" }, span(arm.num_tokens, count)),
            el("td", { class: "num" }, span(arm.wall_s, duration)),
          ),
        ),
      ),
    ),
    el(
      "p",
      { class: "muted", style: { padding: "8px 12px", fontSize: "12px" } },
      answer.arms.some(({ scores }) => scores.mean[answer.headline].another)
        ? "In percent, with 95 % intervals for another exam: new seeds and new problems of the same kind."
        : "In percent.",
    ),
  );
}

/** The forest plot: each candidate's difference to the baseline by a measure. */
export function drawDifferences(figure, answer, measure, colour) {
  const rows = answer.pairs.filter((pair) => pair.measure === measure && pair.difference).reverse();
  if (!rows.length) {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }) });
    figure.drawNothing("Nothing was compared.");
    return;
  }
  const label = (pair) =>
    answer.benchmarks.length > 1 ? `${pair.candidate}, ${pair.benchmark}` : pair.candidate;
  figure.draw({
    subtitle: rows.some(({ difference }) => difference.another)
      ? "points; thick: this exam, thin: another exam; both 95 %"
      : "points",
    option: (colours) => ({
      grid: { left: 8, right: 20, top: 12, bottom: 24, containLabel: true },
      xAxis: axis(colours, {
        scale: false,
        axisLabel: { color: colours.muted, formatter: (value) => signed(value / 100) },
        name: "points",
        nameLocation: "middle",
        nameGap: 26,
      }),
      yAxis: {
        type: "category",
        data: rows.map(label),
        axisLine: { show: false },
        axisTick: { show: false },
        axisLabel: { color: colours.text, fontSize: 12, width: 180, overflow: "break" },
      },
      tooltip: {
        trigger: "item",
        formatter: ({ dataIndex }) => {
          const pair = rows[dataIndex];
          return tip(label(pair), [
            [null, "difference", `${signed(pair.difference.value)} points`],
            [null, "seeds", pair.seeds.words],
            [null, "another exam", between(pair.difference.another)],
            [null, "this exam", between(pair.difference.this)],
          ]);
        },
      },
      series: [
        {
          type: "custom",
          z: 2,
          encode: { x: [1, 2, 3, 4, 5], y: 0 },
          data: rows.map((pair, i) => [
            i,
            100 * pair.difference.value,
            ...["another", "this"].flatMap((exam) =>
              pair.difference[exam] ? pair.difference[exam].interval.map((bound) => 100 * bound) : [NaN, NaN],
            ),
          ]),
          renderItem: (parameters, api) => {
            const at = (value) => api.coord([value, api.value(0)]);
            const place = colour.get(rows[parameters.dataIndex].candidate);
            const { color } = seriesStyle(place, colours);
            const line = (low, high, width, opacity) =>
              Number.isFinite(api.value(low))
                ? [
                    {
                      type: "line",
                      shape: {
                        x1: at(api.value(low))[0],
                        x2: at(api.value(high))[0],
                        y1: at(0)[1],
                        y2: at(0)[1],
                      },
                      style: { stroke: color, lineWidth: width, opacity },
                    },
                  ]
                : [];
            return {
              type: "group",
              children: [
                ...line(2, 3, 2, 1),
                ...line(4, 5, 9, 0.32),
                {
                  type: "circle",
                  shape: { cx: at(api.value(1))[0], cy: at(0)[1], r: 5 },
                  style: { fill: color, stroke: colours.surface, lineWidth: 1.5 },
                },
              ],
            };
          },
        },
        {
          type: "line",
          data: [],
          markLine: {
            symbol: "none",
            silent: true,
            animation: false,
            label: { show: false },
            lineStyle: { color: colours.text, type: "dashed" },
            data: [{ xAxis: 0 }],
          },
        },
      ],
    }),
    table: () => ({
      columns: [
        "candidate",
        "baseline",
        "seeds",
        "measure",
        "benchmark",
        "difference",
        "another_exam_low",
        "another_exam_high",
        "this_exam_low",
        "this_exam_high",
        "verdict",
      ],
      rows: [...rows]
        .reverse()
        .map((pair) => [
          pair.candidate,
          pair.baseline,
          pair.seeds.words,
          answer.titles[measure],
          pair.benchmark,
          pair.difference.value,
          ...["another", "this"].flatMap((exam) => pair.difference[exam]?.interval ?? ["", ""]),
          pair.verdict.words,
        ]),
    }),
  });
}

function drawPlane(figure, answer, colour) {
  const known = answer.arms.filter((arm) => arm.window && arm.window[1] !== null);
  const rest = answer.arms.filter((arm) => !known.includes(arm));
  const subtitle =
    "the window [l, u] of each arm; equal points cut the same tokens, whatever the divergence is called";
  const note = rest.length
    ? `Without a constant window of two sides: ${rest.map((arm) => (arm.window ? `${arm.name} [${number(arm.window[0])}, ∞]` : arm.name)).join(", ")}.`
    : "";
  if (!known.length) {
    figure.draw({ option: () => ({}), table: () => ({ columns: [], rows: [] }), subtitle });
    figure.drawNothing(note);
    return;
  }
  // Never closer than hundredths: windows that differ by less cut nearly the same tokens.
  const room = ({ min, max }) => Math.max(0.15 * (max - min), 0.02);
  const hundredths = (value, round) => round(Number((100 * value).toFixed(6))) / 100;
  const around = {
    min: (span) => Math.max(hundredths(span.min - room(span), Math.floor), 0),
    max: (span) => hundredths(span.max + room(span), Math.ceil),
  };
  figure.draw({
    subtitle,
    note,
    option: (colours) => {
      const fine = {
        color: colours.muted,
        fontSize: 11,
        formatter: (value) => String(Number(value.toPrecision(4))),
      };
      return {
        grid: { left: 22, right: 24, top: 16, bottom: 24, containLabel: true },
        xAxis: axis(colours, { name: "l", nameLocation: "middle", nameGap: 26, ...around, axisLabel: fine }),
        yAxis: axis(colours, {
          name: "u",
          nameLocation: "middle",
          nameGap: 40,
          nameRotate: 0,
          ...around,
          axisLabel: fine,
        }),
        tooltip: {
          trigger: "item",
          formatter: ({ data }) =>
            tip(data.name, [
              [null, "l", data.value[0].toPrecision(5)],
              [null, "u", data.value[1].toPrecision(5)],
              [null, answer.titles.mean, `${percent(data.score)} %`],
            ]),
        },
        series: [
          {
            type: "scatter",
            symbolSize: 15,
            data: known.map((arm) => ({
              name: arm.name,
              value: arm.window,
              score: arm.scores.mean[answer.headline]?.value,
              itemStyle: {
                color: seriesStyle(colour.get(arm.name), colours).color,
                borderColor: colours.surface,
                borderWidth: 2,
              },
              label: {
                show: true,
                position: "top",
                color: colours.text,
                fontSize: 11,
                formatter: () => arm.name,
              },
            })),
            labelLayout: { moveOverlap: "shiftY" },
          },
        ],
      };
    },
    table: () => ({
      columns: ["arm", "lower", "upper", "mean"],
      rows: answer.arms.map((arm) => [
        arm.name,
        arm.window?.[0] ?? "",
        arm.window?.[1] ?? "",
        arm.scores.mean[answer.headline]?.value,
      ]),
    }),
  });
}

function drawOverK(figure, curves, colour) {
  figure.draw({
    subtitle:
      "%; solid: Pass@k with its 95 % band for another exam, dotted: Mean@K, which more samples only make surer",
    option: (colours) => ({
      grid: { left: 8, right: 20, top: 14, bottom: 24, containLabel: true },
      xAxis: axis(colours, {
        type: "log",
        logBase: 2,
        name: "k",
        nameLocation: "middle",
        nameGap: 26,
        min: 1,
        max: curves[0].pass.length,
        splitLine: { show: false },
      }),
      yAxis: axis(colours, { scale: false }),
      tooltip: {
        trigger: "axis",
        formatter: (found) =>
          tip(
            `k = ${found[0].value[0]}`,
            found
              .filter(({ seriesId }) => seriesId?.startsWith("pass"))
              .sort((a, b) => b.value[1] - a.value[1])
              .map(({ color, seriesName, value }) => {
                const one = curves.find(({ arm }) => arm === seriesName);
                return [
                  color,
                  seriesName,
                  `${percent(one.pass[value[0] - 1])} [${percent(one.low[value[0] - 1])}, ${percent(one.high[value[0] - 1])}]`,
                ];
              }),
          ),
      },
      series: curves.flatMap((one) => {
        const { color, dash } = seriesStyle(colour.get(one.arm), colours);
        return [
          bandSeries(
            one.arm,
            one.pass.map((_, i) => [i + 1, 100 * one.low[i], 100 * one.high[i]]),
            color,
          ),
          {
            type: "line",
            id: `pass ${one.arm}`,
            name: one.arm,
            data: one.pass.map((value, i) => [i + 1, 100 * value]),
            symbolSize: 5,
            lineStyle: { color, width: 2, type: dash },
            itemStyle: { color },
          },
          {
            type: "line",
            id: `mean ${one.arm}`,
            name: one.arm,
            data: [
              [1, 100 * one.mean],
              [one.pass.length, 100 * one.mean],
            ],
            symbol: "none",
            lineStyle: { color, width: 1.4, type: "dotted" },
            itemStyle: { color },
            tooltip: { show: false },
          },
        ];
      }),
    }),
    table: () => ({
      columns: ["arm", "k", "pass_at_k", "low", "high", "mean_at_k"],
      rows: curves.flatMap((one) =>
        one.pass.map((value, i) => [one.arm, i + 1, value, one.low[i], one.high[i], one.mean]),
      ),
    }),
  });
}

function drawGrid(figure, grid) {
  const arms = [...grid.arms].reverse();
  figure.draw({
    subtitle: `${grid.problems.length} problems, the easiest on the left; share of correct answers over seeds and samples`,
    option: (colours) => ({
      grid: { left: 8, right: 20, top: 8, bottom: 50, containLabel: true },
      xAxis: {
        type: "category",
        data: grid.problems,
        axisLabel: { show: false },
        axisTick: { show: false },
        axisLine: { show: false },
      },
      yAxis: {
        type: "category",
        data: arms,
        axisLine: { show: false },
        axisTick: { show: false },
        axisLabel: { color: colours.text, fontSize: 12, width: 170, overflow: "break" },
      },
      visualMap: {
        min: 0,
        max: 1,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        itemHeight: 160,
        itemWidth: 10,
        calculable: false,
        text: ["all correct", "none"],
        textStyle: { color: colours.muted, fontSize: 11 },
        inRange: {
          color: [
            colours.surface === "#ffffff" ? "#eef0f3" : "#242a33",
            colours.series[0],
            colours.series[2],
          ],
        },
      },
      tooltip: {
        trigger: "item",
        formatter: ({ value }) =>
          tip(grid.problems[value[0]], [[null, arms[value[1]], `${percent(value[2])} %`]]),
      },
      series: [
        {
          type: "heatmap",
          progressive: 0,
          data: arms.flatMap((arm, y) =>
            grid.shares[grid.arms.indexOf(arm)].map((share, x) => [x, y, share]),
          ),
          itemStyle: { borderColor: colours.surface, borderWidth: grid.problems.length > 250 ? 0 : 1 },
        },
      ],
    }),
    table: () => ({
      columns: ["problem", ...grid.arms],
      rows: grid.problems.map((problem, i) => [problem, ...grid.shares.map((row) => row[i])]),
    }),
  });
}
