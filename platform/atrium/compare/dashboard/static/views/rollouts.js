// Reading what was sampled: completions beside problem, gold and verdict, tokens coloured by what happened.

import { ask } from "../api.js";
import { choice, debounced, el, empty, field, fill, select } from "../dom.js";
import { number } from "../format.js";
import { prose } from "../prose.js";
import { noRuns, runSelect } from "../selection.js";
import { get, set } from "../url.js";
import { colourChoices, tokenView } from "./tokens.js";

const VERDICTS = ["", "correct", "incorrect", "no_answer", "timed_out", "crashed"];

export async function show(root, context) {
  let table = await context.runs();
  const controls = el("div.controls");
  const list = el("ol", { "aria-label": "Completions" });
  const reading = el("div.reading", { tabindex: "0", role: "region", "aria-label": "Completion" });
  root.append(el("div.rollouts", el("div.rollout-list", controls, list), reading));
  let answer = null;
  let turn = 0;

  const parameters = () => ({
    source: get("source", "training"),
    step: get("step"),
    verdict: get("verdict"),
    text: get("text"),
    min_tokens: get("min"),
    max_tokens: get("max"),
    problem: get("only"),
  });

  function change(changes) {
    set({ ...changes, problem: null, sample: null });
    void redraw();
  }

  function drawControls() {
    const focus = document.activeElement?.getAttribute?.("aria-label");
    const made = runSelect(table, "Run", "at", () => change({ step: null, source: null }));
    const steps = answer?.sources[answer.source] ?? [];
    const typed = debounced((name, value) => change({ [name]: value }), 250);
    const length = (name, label, hint) =>
      el("input", {
        type: "number",
        min: "0",
        placeholder: hint,
        title: label,
        "aria-label": label,
        value: get(name),
        oninput: (event) => typed(name, event.target.value),
      });
    if (focus && controls.contains(document.activeElement) && document.activeElement.tagName === "INPUT")
      return made.chosen;
    fill(
      controls,
      made.box,
      el("div.row", [
        select(
          "Source",
          Object.keys(answer?.sources ?? { training: [] }).map((name) => [
            name,
            name === "training" ? "training rollouts" : name,
          ]),
          answer?.source ?? "training",
          (value) => change({ source: value, step: null }),
        ),
        select(
          "Step",
          [...steps.map((step) => [String(step), `step ${step}`]), ["-1", "all steps"]],
          String(answer?.step ?? ""),
          (value) => change({ step: value }),
        ),
      ]),
      el("div.row", [
        select(
          "Verdict",
          VERDICTS.map((verdict) => [verdict, verdict ? verdict.replace("_", " ") : "any verdict"]),
          get("verdict"),
          (value) => change({ verdict: value }),
        ),
        length("min", "least tokens", "from"),
        length("max", "most tokens", "to"),
      ]),
      el("input", {
        type: "search",
        "aria-label": "Search the text",
        placeholder: "Search question and answer  ( / )",
        value: get("text"),
        oninput: (event) => typed("text", event.target.value),
      }),
      choice(
        "List",
        [
          ["", "Completions"],
          ["problems", "Problems"],
        ],
        get("list"),
        (value) => {
          set({ list: value, only: null });
          void redraw();
        },
      ),
      get("only") &&
        el("button.link", { type: "button", onclick: () => change({ only: null }) }, [
          `only ${get("only")}: show all`,
        ]),
      el("span.muted", { role: "status" }, [
        answer
          ? `${answer.num} completions${answer.num > answer.rows.length ? `, the first ${answer.rows.length} shown` : ""}`
          : "",
      ]),
      answer?.problems.map((problem) => el("p.problem", problem)),
    );
    return made.chosen;
  }

  async function redraw() {
    const mine = ++turn;
    const chosen = drawControls();
    if (!chosen) {
      fill(list);
      fill(reading, noRuns(table));
      return;
    }
    try {
      const found = await ask("samples", { run: chosen, ...parameters() });
      if (mine !== turn) return;
      answer = found;
      drawControls();
      const status = controls.querySelector("[role=status]");
      fill(
        status,
        `${answer.num} completions${answer.num > answer.rows.length ? `, the first ${answer.rows.length} shown` : ""}`,
      );
      drawList();
      await read();
    } catch (error) {
      if (mine === turn) {
        fill(list);
        fill(reading, empty("These completions cannot be shown", error.message));
      }
    }
  }

  function current() {
    const [problem, sample, step] = [get("problem"), get("sample"), get("step")];
    return (
      answer.rows.find(
        (row) =>
          row.problem_id === problem &&
          String(row.sample_index) === sample &&
          (!step || step === "-1" || String(row.step) === step),
      ) || answer.rows[0]
    );
  }

  function drawList() {
    const row = current();
    const scrolled = list.scrollTop;
    if (get("list") === "problems" && !get("only")) {
      drawProblems();
      list.scrollTop = scrolled;
      return;
    }
    fill(
      list,
      answer.rows.map((one) =>
        el("li", [
          el(
            "button.sample",
            {
              type: "button",
              "aria-current": String(one === row),
              onclick: (event) => {
                set({
                  problem: one.problem_id,
                  sample: String(one.sample_index),
                  ...(answer.step === -1 ? { read: String(one.step) } : {}),
                });
                for (const other of list.querySelectorAll(".sample"))
                  other.setAttribute("aria-current", String(other === event.currentTarget));
                void read(one);
              },
              onkeydown: (event) => {
                const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[
                  event.key
                ];
                const button = next && event.currentTarget.parentElement[next]?.firstElementChild;
                if (button) {
                  event.preventDefault();
                  button.focus();
                  button.click();
                }
              },
            },
            [
              el("div.top", [
                el("span", { class: `verdict ${one.verdict}` }, (one.verdict || "unknown").replace("_", " ")),
                answer.step === -1 && el("span", `step ${one.step}`),
                el("span", `${number(one.num_tokens)} tokens`),
                one.finish_reason === "length" && el("span.warn", "cut off"),
                el("span", { style: { marginLeft: "auto" } }, `#${one.sample_index}`),
              ]),
              el("div.preview", one.question),
              el("div.preview.muted", one.text),
            ],
          ),
        ]),
      ),
    );
    list.scrollTop = scrolled;
  }

  /** Problems by the share of their samples that are correct, the hardest first; a click lists their completions. */
  function drawProblems() {
    const questions = new Map(answer.rows.map(({ problem_id: id, question }) => [id, question]));
    const rows = Object.entries(answer.rates).sort(([, a], [, b]) => a[0] / a[1] - b[0] / b[1]);
    fill(
      list,
      rows.map(([id, [correct, num]]) =>
        el("li", [
          el("button.sample", { type: "button", "data-problem": id, onclick: () => change({ only: id }) }, [
            el("div.top", [
              el("b", id),
              el("span", { style: { marginLeft: "auto" } }, `${correct} of ${num}`),
            ]),
            el("div.preview", questions.get(id) ?? ""),
            el("div.meter", { style: { width: "100%" } }, [
              el("i", { style: { width: `${(100 * correct) / num}%`, background: "var(--good)" } }),
            ]),
          ]),
        ]),
      ),
    );
  }

  async function read(row = current()) {
    if (!row) {
      fill(
        reading,
        empty(
          "No completions",
          Object.keys(answer.sources).length
            ? "None passes these filters."
            : "This run has recorded no samples.",
        ),
      );
      return;
    }
    const mine = turn;
    const { chosen } = runSelect(table, "Run", "at", () => {});
    const options = colourChoices();
    const mode = get("colour", answer.source === "training" ? "ratio" : "text");
    const other = runSelect(table, "Beside run", "beside", () => void read(row), { allowNone: true });
    const steps = answer.sources[answer.source] ?? [];
    const besideStep = get("bstep") || String(row.step);
    const head = el("div.toolbar", { style: { padding: "0 0 12px" } }, [
      answer.source === "training"
        ? field(
            "colour tokens by",
            select("Colour tokens by", options, mode, (value) => {
              set({ colour: value });
              void read(row);
            }),
          )
        : choice(
            "Show as",
            [
              ["text", "Typeset"],
              ["none", "As written"],
            ],
            mode,
            (value) => {
              set({ colour: value });
              void read(row);
            },
          ),
      el("span.grow"),
      field("beside", other.box),
      other.chosen &&
        field(
          "at",
          select(
            "Beside step",
            steps.map((step) => [String(step), `step ${step}`]),
            besideStep,
            (value) => {
              set({ bstep: value });
              void read(row);
            },
          ),
        ),
    ]);
    const wanted = { source: answer.source, problem: row.problem_id };
    const panes = [
      await pane(
        { run: chosen, step: row.step, index: row.sample_index, ...wanted },
        mode,
        answer.rates[row.problem_id],
      ),
    ];
    if (other.chosen) panes.push(await besidePane(other.chosen, besideStep, wanted, row, mode));
    if (mine !== turn) return;
    fill(reading, head, el("div.panes", panes));
  }

  async function besidePane(run, step, wanted, row, mode) {
    try {
      const found = await ask("samples", { run, source: wanted.source, step, problem: wanted.problem });
      if (!found.rows.length) {
        return el("section.card.pane", [
          empty(
            "Not sampled there",
            `${run} has no completion of problem ${wanted.problem} at step ${step}. Evaluations ask the same problems at every step.`,
          ),
        ]);
      }
      const same = found.rows.find((one) => one.sample_index === row.sample_index) || found.rows[0];
      return await pane({ run, step: same.step, index: same.sample_index, ...wanted }, mode);
    } catch (error) {
      return el("section.card.pane", empty("Nothing to show beside", error.message));
    }
  }

  async function refresh() {
    table = await context.runs();
    if (!answer) return void redraw();
    const asked = { run: get("at") || answer?.run, ...parameters() };
    if (!asked.run) return;
    const mine = turn;
    const found = await ask("samples", asked);
    if (mine !== turn) return; // something else has been chosen
    const before = JSON.stringify([answer?.sources, answer?.rows.length, answer?.step]);
    if (JSON.stringify([found.sources, found.rows.length, found.step]) === before) return;
    const kept = get("problem");
    answer = found;
    drawControls();
    drawList();
    if (!kept) await read();
  }

  await redraw();
  return { refresh };
}

async function pane(parameters, mode, solved = null) {
  const sample = await ask("sample", parameters);
  const facts = [
    ["question", prose(sample.question ?? "")],
    ["gold", sample.gold],
    ["solved", solved && `by ${solved[0]} of ${solved[1]} samples here`],
    ["extracted", sample.extracted ?? "nothing"],
    ["reason", sample.reason],
    ["reward", sample.reward === undefined ? null : number(sample.reward)],
    ["length", `${number(sample.num_tokens)} tokens${sample.finish_reason === "length" ? ", cut off" : ""}`],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("section.card.pane", { "aria-label": `Completion of ${sample.run}` }, [
    el("div", { style: { display: "flex", gap: "10px", alignItems: "center", flexWrap: "wrap" } }, [
      el("span", { class: `verdict ${sample.verdict}` }, (sample.verdict || "unknown").replace("_", " ")),
      el("b", sample.problem_id),
      el("span.muted", `sample ${sample.sample_index}, step ${sample.step}`),
    ]),
    el("p.muted", { style: { fontSize: "12px", marginTop: "3px" } }, sample.run),
    el("dl", [
      facts.map(([name, value]) => [
        el("dt", name),
        el("dd", { class: name === "gold" || name === "extracted" ? "mono" : null }, value),
      ]),
    ]),
    tokenView(sample, mode),
  ]);
}
