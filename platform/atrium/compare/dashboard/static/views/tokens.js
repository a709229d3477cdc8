// A completion's tokens, coloured by one of the numbers recorded with them. All text stays text.

import { el, fill } from "../dom.js";
import { number } from "../format.js";
import { theme } from "../palette.js";
import { folded, numOfLongThought, prose } from "../prose.js";

const MODES = {
  ratio: {
    label: "ratio",
    value: (sample, i) => sample.ratio?.[i],
    diverges: true,
    shown: (value) => Math.log(value),
    reach: () => 0.3,
    ends: ["w < 1", "w > 1"],
  },
  advantage: {
    label: "advantage",
    value: (sample, i) => sample.advantage?.[i],
    diverges: true,
    shown: (value) => value,
    reach: (all) => Math.max(...all.map(Math.abs), 1e-9),
    ends: ["A < 0", "A > 0"],
  },
  entropy: {
    label: "entropy",
    value: (sample, i) => sample.entropy?.[i],
    shown: (value) => value,
    reach: (all) => Math.max(...all, 0.5),
    ends: ["0", "high"],
  },
  surprise: {
    label: "surprise (−log probability)",
    value: (sample, i) => (sample.logprobs ? -sample.logprobs[i] : undefined),
    shown: (value) => value,
    reach: (all) => Math.max(...all, 1),
    ends: ["likely", "unlikely"],
  },
  clipped: {
    label: "clipped side",
    value: (sample, i) => sample.clipped?.[i],
    diverges: true,
    shown: (value) => value,
    reach: () => 1.4,
    ends: ["cut low", "cut high"],
  },
  none: { label: "nothing", value: () => undefined, ends: [] },
  text: { label: "nothing: typeset", value: () => undefined, ends: [] },
};

/** The choices of a select. */
export function colourChoices() {
  return Object.entries(MODES).map(([name, { label }]) => [name, label]);
}

/** The tokens as one text with its scale; plain text where tokens or their numbers are not known. */
export function tokenView(sample, name) {
  if (name === "text") return el("div.completion.read", prose(sample.text));
  const mode = MODES[name] || MODES.ratio;
  const pieces = sample.tokens ?? (sample.token_ids ? null : [sample.text]);
  const numTokens = sample.token_ids?.length ?? 0;
  if (!pieces || !numTokens) {
    const why = numTokens
      ? "Tokens are not shown one by one: no checkpoint of this run holds its tokenizer."
      : "";
    return el("div", [el("div.completion", sample.text), why && el("p.token-detail", why)]);
  }
  const values = pieces.map((_, i) => mode.value(sample, i));
  const known = values.filter((value) => value !== null && value !== undefined && Number.isFinite(value));
  const reach = known.length ? mode.reach(known.map(mode.shown)) : 1;
  const detail = el("p.token-detail", { role: "status" }, [
    "Point at a token, or walk with the arrow keys, to see its numbers.",
  ]);
  const tokens = pieces.map((piece, i) =>
    el(
      "span",
      {
        class: `token ${sample.clipped?.[i] > 0 ? "cut-high" : sample.clipped?.[i] < 0 ? "cut-low" : ""} ${sample.own?.[i] === false ? "other" : ""}`,
        style: { background: background(mode, values[i], reach) },
        "data-at": i,
        tabindex: i === 0 ? "0" : "-1",
      },
      [piece],
    ),
  );
  const num = numOfLongThought(pieces);
  const tell = (i) =>
    fill(detail, `token ${i + 1} of ${numTokens}, id ${sample.token_ids[i]}: `, facts(sample, i));
  const box = el(
    "div.completion",
    {
      onmouseover: (event) => {
        if (event.target.dataset.at) tell(Number(event.target.dataset.at));
      },
      onfocusin: (event) => {
        if (event.target.dataset.at) tell(Number(event.target.dataset.at));
      },
      onkeydown: (event) => {
        const to = Number(event.target.dataset.at) + { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (tokens[to]) {
          event.preventDefault();
          tokens[to].focus();
        }
      },
    },
    [num > 0 && folded(true, `thought, ${num} tokens`, tokens.slice(0, num)), tokens.slice(num)],
  );
  const missing =
    mode.ends.length > 0 &&
    !known.length &&
    el("p.token-detail", `This completion has no ${mode.label} per token: no update used it.`);
  return el("div", scale(mode, Boolean(sample.own)), box, missing || null, detail);
}

function facts(sample, i) {
  const side = sample.clipped?.[i];
  const parts = [
    ["ratio", sample.ratio?.[i]],
    ["advantage", sample.advantage?.[i]],
    ["entropy", sample.entropy?.[i]],
    ["log-probability", sample.logprobs?.[i]],
  ]
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `${name} ${number(value)}`);
  if (sample.own?.[i] === false) return "not written by the policy, and not trained on";
  if (side) parts.push(side > 0 ? "cut on the high side" : "cut on the low side");
  return parts.join(",  ");
}

function scale(mode, hasOthers) {
  if (!mode.ends.length) return null;
  const stops = mode.diverges ? [-1, -0.5, 0, 0.5, 1] : [0, 0.5, 1];
  const colours = stops.map((part) => tint(mode, part));
  return el("div.scale", { style: { marginBottom: "8px" } }, [
    mode.ends[0],
    el("i", { style: { background: `linear-gradient(90deg, ${colours.join(",")})` } }),
    mode.ends[1],
    el("span", hasOthers ? "underlined: cut, slanted: not the policy's own" : "underlined: cut"),
  ]);
}

function background(mode, value, reach) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  return tint(mode, Math.max(-1, Math.min(1, mode.shown(value) / reach)));
}

function tint(mode, part) {
  const colours = theme();
  const colour = mode.diverges ? (part > 0 ? colours.high : colours.low) : colours.series[4];
  return `color-mix(in srgb, ${colour} ${Math.round(Math.abs(part) * 70)}%, transparent)`;
}
