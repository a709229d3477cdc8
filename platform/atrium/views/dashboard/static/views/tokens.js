// A completion's tokens, colored by a recorded value. Token text is never parsed as HTML.

import { el, fill } from "../dom.js";
import { number } from "../format.js";
import { seriesVariable } from "../palette.js";
import { folded, numOfLongThought, prose } from "../prose.js";

/**
 * The values by which tokens are colored. `values` returns them for a sample (default: the sample's field of the same
 * name), `shown` transforms a value for the color scale, and `reach` returns the end of the scale.
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
  clipped: { label: "clipped side", diverges: true, reach: () => 1.4, ends: ["clipped low", "clipped high"] },
  none: { label: "nothing", ends: [] },
  text: { label: "nothing: typeset", ends: [] },
};

/** Return the options for a select. */
export function colourChoices() {
  return Object.entries(MODES).map(([name, { label }]) => [name, label]);
}

/** Return the colored tokens with their color scale, or plain text if tokens or their values are unknown. */
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
  if (sample.own?.[i] === false) return "not sampled by the policy, and not trained on";
  const numbers = [
    ["ratio", sample.ratio?.[i]],
    ["advantage", sample.advantage?.[i]],
    ["entropy", sample.entropy?.[i]],
    ["log-probability", sample.logprobs?.[i]],
  ].filter(([, value]) => value != null);
  const side = sample.clipped?.[i];
  const cut = side > 0 ? ["clipped above"] : side < 0 ? ["clipped below"] : [];
  return [...numbers.map(([name, value]) => `${name} ${number(value)}`), ...cut].join(",  ");
}

function scale(mode, hasOthers) {
  const stops = mode.diverges ? [-1, -0.5, 0, 0.5, 1] : [0, 0.5, 1];
  const colours = stops.map((part) => tint(mode, part));
  return el("div.scale", { style: { marginBottom: "8px" } }, [
    mode.ends[0],
    el("i", { style: { background: `linear-gradient(90deg, ${colours.join(",")})` } }),
    mode.ends[1],
    el("span", hasOthers ? "underlined: clipped, slanted: not sampled by the policy" : "underlined: clipped"),
  ]);
}

function tint(mode, part) {
  const colour = mode.diverges ? (part > 0 ? 1 : 0) : 4;
  return `color-mix(in srgb, ${seriesVariable(colour)} ${Math.round(Math.abs(part) * 70)}%, transparent)`;
}
