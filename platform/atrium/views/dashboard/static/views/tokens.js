// A completion's tokens, coloured by one of the numbers recorded with them. All text stays text.

import { el, fill } from "../dom.js";
import { number } from "../format.js";
import { theme } from "../palette.js";
import { folded, numOfLongThought, prose } from "../prose.js";

/**
 * What tokens are coloured by: `values` are those of a sample, one of the name where there is none; `shown` is what the
 * colour stands for, and `reach` where it is full.
 */
const MODES = {
  ratio: { label: "ratio", diverges: true, shown: Math.log, reach: () => 0.3, ends: ["w < 1", "w > 1"] },
  advantage: {
    label: "advantage",
    diverges: true,
    reach: (all) => Math.max(...all.map(Math.abs), 1e-9),
    ends: ["A < 0", "A > 0"],
  },
  entropy: { label: "entropy", reach: (all) => Math.max(...all, 0.5), ends: ["0", "high"] },
  surprise: {
    label: "surprise (−log probability)",
    values: (sample) => sample.logprobs?.map((logprob) => -logprob),
    reach: (all) => Math.max(...all, 1),
    ends: ["likely", "unlikely"],
  },
  clipped: { label: "clipped side", diverges: true, reach: () => 1.4, ends: ["cut low", "cut high"] },
  none: { label: "nothing", ends: [] },
  text: { label: "nothing: typeset", ends: [] },
};

/** The choices of a select. */
export function colourChoices() {
  return Object.entries(MODES).map(([name, { label }]) => [name, label]);
}

/** The tokens as one text with its scale; plain text where tokens or their numbers are not known. */
export function tokenView(sample, name) {
  if (name === "text") return el("div.completion.read", prose(sample.text));
  const pieces = sample.tokens ?? (sample.token_ids ? null : [sample.text]);
  const numTokens = sample.token_ids?.length ?? 0;
  if (!pieces || !numTokens) {
    const why = "Tokens are not shown one by one: no checkpoint of this run holds its tokenizer.";
    return el("div", el("div.completion", sample.text), numTokens > 0 && el("p.token-detail", why));
  }
  const of = name in MODES ? name : "ratio";
  const mode = MODES[of];
  const all = mode.values ? mode.values(sample) : sample[of];
  const values = pieces.map((_, i) => all?.[i] ?? Number.NaN);
  const shown = mode.shown ?? ((value) => value);
  const known = values.filter(Number.isFinite);
  const reach = known.length ? mode.reach(known.map(shown)) : 1;
  const tokens = pieces.map((piece, i) => {
    const part = Math.max(-1, Math.min(1, shown(values[i]) / reach));
    const background = Number.isFinite(values[i]) ? tint(mode, part) : "";
    const side = sample.clipped?.[i];
    const classes = [side > 0 && "cut-high", side < 0 && "cut-low", sample.own?.[i] === false && "other"];
    const tabindex = i === 0 ? "0" : "-1";
    const attributes = { class: classes.filter(Boolean).join(" "), style: { background }, tabindex };
    return el("span.token", { ...attributes, "data-at": i }, piece);
  });
  const num = numOfLongThought(pieces);
  const hint = "Point at a token, or walk with the arrow keys, to see its numbers.";
  const detail = el("p.token-detail", { role: "status" }, hint);
  const tell = ({ target: { dataset } }) => {
    if (!dataset.at) return;
    const i = Number(dataset.at);
    fill(detail, `token ${i + 1} of ${numTokens}, id ${sample.token_ids[i]}: `, facts(sample, i));
  };
  const onkeydown = (event) => {
    const to = Number(event.target.dataset.at) + { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!tokens[to]) return;
    event.preventDefault();
    tokens[to].focus();
  };
  const box = el("div.completion", { onmouseover: tell, onfocusin: tell, onkeydown }, [
    num > 0 && folded(true, `thought, ${num} tokens`, tokens.slice(0, num)),
    tokens.slice(num),
  ]);
  const missing = `This completion has no ${mode.label} per token: no update used it.`;
  return el("div", [
    mode.ends.length > 0 && scale(mode, Boolean(sample.own)),
    box,
    mode.ends.length > 0 && !known.length && el("p.token-detail", missing),
    detail,
  ]);
}

function facts(sample, i) {
  if (sample.own?.[i] === false) return "not written by the policy, and not trained on";
  const numbers = [
    ["ratio", sample.ratio?.[i]],
    ["advantage", sample.advantage?.[i]],
    ["entropy", sample.entropy?.[i]],
    ["log-probability", sample.logprobs?.[i]],
  ].filter(([, value]) => value !== null && value !== undefined);
  const side = sample.clipped?.[i];
  const cut = side > 0 ? ["cut on the high side"] : side < 0 ? ["cut on the low side"] : [];
  return [...numbers.map(([name, value]) => `${name} ${number(value)}`), ...cut].join(",  ");
}

function scale(mode, hasOthers) {
  const stops = mode.diverges ? [-1, -0.5, 0, 0.5, 1] : [0, 0.5, 1];
  const colours = stops.map((part) => tint(mode, part));
  return el("div.scale", { style: { marginBottom: "8px" } }, [
    mode.ends[0],
    el("i", { style: { background: `linear-gradient(90deg, ${colours.join(",")})` } }),
    mode.ends[1],
    el("span", hasOthers ? "underlined: cut, slanted: not the policy's own" : "underlined: cut"),
  ]);
}

function tint(mode, part) {
  const colours = theme();
  const colour = mode.diverges ? (part > 0 ? colours.high : colours.low) : colours.series[4];
  return `color-mix(in srgb, ${colour} ${Math.round(Math.abs(part) * 70)}%, transparent)`;
}
