// Recorded samples: completions with problem, reference answer and verdict, and tokens colored by a metric.

import { ask } from "../api.js";
import { button, choice, debounced, el, empty, field, fill, searchInput, select } from "../dom.js";
import { number } from "../format.js";
import { prose } from "../prose.js";
import { noRuns, runSelect } from "../selection.js";
import { get, set } from "../url.js";
import { colourChoices, tokenView } from "./tokens.js";

const wordsOf = (verdict) => verdict.replace("_", " ");
const NAMES = ["correct", "incorrect", "no_answer", "timed_out", "crashed"];
const VERDICTS = [["", "any verdict"], ...NAMES.map((verdict) => [verdict, wordsOf(verdict)])];
const LISTS = [
  ["", "Completions"],
  ["problems", "Problems"],
];

export async function show(root, context) {
  const table = await context.runs();
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

  function change(changes, how) {
    set({ ...changes, problem: null, sample: null }, how);
    void redraw();
  }

  /** Draw the controls, unless the user is typing in one; return the selected run. */
  function drawControls() {
    const made = runSelect(table, "Run", "at", () => change({ step: null, source: null }));
    const typing = document.activeElement;
    if (controls.contains(typing) && typing.tagName === "INPUT") {
      fill(controls.querySelector("[role=status]"), numText());
      return made.chosen;
    }
    const typed = debounced((changes) => change(changes, { isTyped: true }), 250);
    const length = (name, label, placeholder) => {
      const oninput = ({ target }) => typed({ [name]: target.value });
      const words = { placeholder, title: label, "aria-label": label };
      return el("input", { type: "number", min: "0", ...words, value: get(name), oninput });
    };
    const sources = Object.keys(answer?.sources ?? { training: [] });
    const sourceOptions = sources.map((name) => [name, name === "training" ? "training rollouts" : name]);
    const chooseSource = (source) => change({ source, step: null });
    const steps = [...stepOptions(), ["-1", "all steps"]];
    const search = { placeholder: "Search question and answer  ( / )", value: get("text") };
    const showAll = () => change({ only: null });
    fill(
      controls,
      made.box,
      el("div.row", [
        select("Source", sourceOptions, answer?.source ?? "training", chooseSource),
        select("Step", steps, answer?.step ?? "", (step) => change({ step })),
      ]),
      el("div.row", [
        select("Verdict", VERDICTS, get("verdict"), (verdict) => change({ verdict })),
        length("min", "minimum tokens", "from"),
        length("max", "maximum tokens", "to"),
      ]),
      searchInput("Search the text", search, (text) => typed({ text })),
      choice("List", LISTS, get("list"), (value) => {
        set({ list: value, only: null });
        void redraw();
      }),
      get("only") && button(`only ${get("only")}: show all`, { class: "link" }, showAll),
      el("span.muted", { role: "status" }, numText()),
      answer?.problems.map((problem) => el("p.problem", problem)),
    );
    return made.chosen;
  }

  const stepOptions = () => (answer?.sources[answer.source] ?? []).map((step) => [step, `step ${step}`]);

  function numText() {
    if (!answer) return "";
    const [num, numShown] = [answer.num, answer.rows.length];
    return `${num} completions${num > numShown ? `, the first ${numShown} shown` : ""}`;
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
      drawList();
      await read();
    } catch (error) {
      if (mine === turn) {
        fill(list);
        fill(reading, empty("These completions cannot be shown", error.message));
      }
    }
  }

  /** Return the completion named by the URL, else the first; if all steps are listed, the URL also names the step. */
  function current() {
    const [problem, sample] = [get("problem"), get("sample")];
    const step = answer.step === -1 ? get("read") : get("step");
    const isNamed = (row) => row.problem_id === problem && String(row.sample_index) === sample;
    const isAtStep = (row) => !step || String(row.step) === step;
    return answer.rows.find((row) => isNamed(row) && isAtStep(row)) ?? answer.rows[0];
  }

  function drawList() {
    const scrolled = list.scrollTop;
    const isOfProblems = get("list") === "problems" && !get("only");
    const buttons = isOfProblems ? problemButtons() : sampleButtons();
    fill(list, ...buttons.map((made) => el("li", made)));
    list.scrollTop = scrolled;
  }

  function sampleButtons() {
    const row = current();
    const choose = (one, { currentTarget }) => {
      const step = answer.step === -1 ? { read: one.step } : {};
      set({ problem: one.problem_id, sample: one.sample_index, ...step });
      for (const other of list.querySelectorAll(".sample"))
        other.setAttribute("aria-current", String(other === currentTarget));
      void read(one);
    };
    return answer.rows.map((one) => {
      const attributes = { class: "sample", "aria-current": String(one === row), onkeydown: walk };
      const facts = el("div.top", [
        verdictBadge(one),
        answer.step === -1 && el("span", `step ${one.step}`),
        el("span", `${number(one.num_tokens)} tokens`),
        one.finish_reason === "length" && el("span.warn", "cut off"),
        el("span", AT_END, `#${one.sample_index}`),
      ]);
      const texts = [el("div.preview", one.question), el("div.preview.muted", one.text)];
      return button([facts, ...texts], attributes, (event) => choose(one, event));
    });
  }

  /** Return the problems by share of correct samples, hardest first; a click lists a problem's completions. */
  function problemButtons() {
    const questions = new Map(answer.rows.map(({ problem_id: id, question }) => [id, question]));
    const rows = Object.entries(answer.rates).sort(([, a], [, b]) => a[0] / a[1] - b[0] / b[1]);
    return rows.map(([id, [correct, num]]) => {
      const share = { width: `${(100 * correct) / num}%`, background: "var(--good)" };
      const content = [
        el("div.top", el("b", id), el("span", AT_END, `${correct} of ${num}`)),
        el("div.preview", questions.get(id) ?? ""),
        el("div.meter", { style: { width: "100%" } }, el("i", { style: share })),
      ];
      return button(content, { class: "sample", "data-problem": id }, () => change({ only: id }));
    });
  }

  async function read(row = current()) {
    if (!row) {
      const isFiltered = Object.keys(answer.sources).length > 0;
      const words = isFiltered ? "No completion matches these filters." : "This run has recorded no samples.";
      return void fill(reading, empty("No completions", words));
    }
    const mine = turn;
    const again = (changes) => {
      set(changes);
      void read(row);
    };
    const isTraining = answer.source === "training";
    const mode = get("colour", isTraining ? "ratio" : "text");
    const colour = (value) => again({ colour: value });
    const { chosen } = runSelect(table, "Run", "at", () => {});
    const other = runSelect(table, "Beside run", "beside", () => void read(row), { none: "none" });
    const besideStep = get("bstep") || String(row.step);
    const besideSteps = select("Beside step", stepOptions(), besideStep, (bstep) => again({ bstep }));
    const head = el("div.toolbar", { style: { padding: "0 0 12px" } }, [
      isTraining
        ? field("color tokens by", select("Color tokens by", colourChoices(), mode, colour))
        : choice("Show as", WAYS, mode, colour),
      el("span.grow"),
      field("beside", other.box),
      other.chosen && field("at", besideSteps),
    ]);
    const wanted = { source: answer.source, problem: row.problem_id };
    const place = { run: chosen, step: row.step, index: row.sample_index };
    const panes = [await pane({ ...place, ...wanted }, mode, answer.rates[row.problem_id])];
    if (other.chosen) panes.push(await besidePane(other.chosen, besideStep, wanted, row, mode));
    if (mine === turn) fill(reading, head, el("div.panes", panes));
  }

  async function besidePane(run, step, wanted, row, mode) {
    const missing = `${run} has no completion of problem ${wanted.problem} at step ${step}. Evaluations ask the same problems at every step.`;
    try {
      const { rows } = await ask("samples", { run, step, ...wanted });
      const same = rows.find((one) => one.sample_index === row.sample_index) ?? rows[0];
      if (!same) return el("section.card.pane", empty("Not sampled at this step", missing));
      return await pane({ run, step: same.step, index: same.sample_index, ...wanted }, mode);
    } catch (error) {
      return el("section.card.pane", empty("Nothing to show beside", error.message));
    }
  }

  async function refresh() {
    await context.runs();
    if (!answer) return void redraw();
    const mine = turn;
    const found = await ask("samples", { run: get("at") || answer.run, ...parameters() });
    const content = ({ sources, rows, step }) => JSON.stringify([sources, rows.length, step]);
    // The selection may have changed meanwhile.
    if (mine !== turn || content(found) === content(answer)) return;
    answer = found;
    drawControls();
    drawList();
    if (!get("problem")) await read();
  }

  await redraw();
  return { refresh };
}

const AT_END = { style: { marginLeft: "auto" } };
const WAYS = [
  ["text", "Typeset"],
  ["none", "As written"],
];

const verdictBadge = ({ verdict }) => el("span.verdict", { class: verdict }, wordsOf(verdict || "unknown"));

/** Select the previous or next completion with the arrow keys. */
function walk(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const target = next && event.currentTarget.parentElement[next]?.firstElementChild;
  if (!target) return;
  event.preventDefault();
  target.focus();
  target.click();
}

async function pane(parameters, mode, solved = null) {
  const sample = await ask("sample", parameters);
  const kind = sample.reward_kind;
  const origin = kind ? `, from the reward function “${kind}”; the verdict is the grader's` : "";
  const facts = [
    ["question", prose(sample.question ?? "")],
    ["gold", sample.gold],
    ["solved", solved && `by ${solved[0]} of ${solved[1]} samples here`],
    ["extracted", sample.extracted ?? "nothing"],
    ["reason", sample.reason],
    ["reward", sample.reward === undefined ? null : `${number(sample.reward)}${origin}`],
    ...Object.entries(sample)
      .filter(([name]) => name.startsWith("reward/"))
      .map(([name, value]) => [name.replace("/", " "), value === null ? "abstained" : number(value)]),
    ["length", `${number(sample.num_tokens)} tokens${sample.finish_reason === "length" ? ", cut off" : ""}`],
  ].filter(([, value]) => value != null && value !== "");
  const fact = ([name, value]) => [
    el("dt", name),
    el("dd", { class: (name === "gold" || name === "extracted") && "mono" }, value),
  ];
  return el("section.card.pane", { "aria-label": `Completion of ${sample.run}` }, [
    el("div", { style: { display: "flex", gap: "10px", alignItems: "center", flexWrap: "wrap" } }, [
      verdictBadge(sample),
      el("b", sample.problem_id),
      el("span.muted", `sample ${sample.sample_index}, step ${sample.step}`),
    ]),
    el("p.muted", { style: { fontSize: "12px", marginTop: "3px" } }, sample.run),
    el("dl", facts.map(fact)),
    tokenView(sample, mode),
  ]);
}
