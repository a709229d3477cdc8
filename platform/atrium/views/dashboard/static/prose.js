// Rendering of problems and completions: typeset formulas, a subset of Markdown, and folded reasoning. Everything
// becomes DOM nodes; all other text stays unchanged.

import { el } from "./dom.js";
import temml from "./vendor/temml/temml.esm.min.js";

const LONGEST_FORMULA = 4000;
const LIMITS = { throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 20] };
const LONG_THOUGHT = 400;
const DELIMITERS = [
  { open: "$$", close: "$$", isDisplay: true },
  { open: "\\[", close: "\\]", isDisplay: true },
  { open: "\\(", close: "\\)", isDisplay: false },
  { open: "$", close: "$", isDisplay: false },
];
const LISTS = { ul: /^\s*[-*]\s+/, ol: /^\s*\d+[.)]\s+/ };
const THOUGHT_END = "</think>";

/** Return a text as an element: folded reasoning if it is long, then paragraphs, lists, code and formulas. */
export function prose(text) {
  const end = text.indexOf(THOUGHT_END);
  if (end < 0) return el("div.prose", blocks(text));
  const thought = text.slice(0, end).replace(/^\s*<think>/, "");
  return el(
    "div.prose",
    folded(thought.length > LONG_THOUGHT, `thought, ${thought.length} characters`, blocks(thought)),
    blocks(text.slice(end + THOUGHT_END.length)),
  );
}

/** Return content under a summary, which is open if the content is short. */
export function folded(isLong, summary, content) {
  return el("details.thought", { open: !isLong }, el("summary", summary), content);
}

/** Return how many of the first pieces of a text are its reasoning; 0 if there is none, or it is short. */
export function numOfLongThought(pieces) {
  let before = "";
  for (const [at, piece] of pieces.entries()) {
    before = (before + piece).slice(-LONG_THOUGHT - THOUGHT_END.length);
    if (before.includes(THOUGHT_END))
      return pieces.slice(0, at + 1).join("").length > LONG_THOUGHT ? at + 1 : 0;
  }
  return 0;
}

function blocks(text) {
  // Find code and formulas across lines first, since Markdown does not apply within them.
  const parts = text.split(/(```[^\n]*\n[\s\S]*?(?:```|$)|\$\$[\s\S]*?\$\$|\\\[[\s\S]*?\\\])/);
  return parts.map((part, at) => {
    if (at % 2 === 0) return lines(part);
    return part.startsWith("```")
      ? el("pre", part.replace(/^```[^\n]*\n/, "").replace(/```$/, ""))
      : formula(part, part.slice(2, -2), true);
  });
}

function lines(text) {
  const paragraphs = text.split(/\n{2,}/).filter((paragraph) => paragraph.trim());
  return paragraphs.map((paragraph) => {
    const heading = /^#{1,6}[^\S\n]+(.+)$/.exec(paragraph.trim());
    if (heading) return el("p.heading", inline(heading[1]));
    const rows = paragraph.replace(/^\n|\n$/g, "").split("\n");
    for (const [tag, mark] of Object.entries(LISTS)) {
      if (!rows.every((row) => mark.test(row))) continue;
      const start = tag === "ol" ? Number.parseInt(rows[0], 10) : null;
      const items = rows.map((row) => el("li", inline(row.replace(mark, ""))));
      return el(tag, { start }, items);
    }
    const broken = rows.map((row, at) => [at > 0 && el("br"), inline(row)]);
    return el("p", broken);
  });
}

function inline(text) {
  const found = [];
  let plain = "";
  const keep = () => {
    if (plain) found.push(marked(plain));
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    const piece = text[at] === "`" ? codeAt(text, at) : formulaAt(text, at);
    if (piece) {
      keep();
      found.push(piece.node);
      at = piece.end;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  keep();
  return found;
}

function codeAt(text, at) {
  const end = text.indexOf("`", at + 1);
  return end > at + 1 ? { node: el("code", text.slice(at + 1, end)), end: end + 1 } : null;
}

function formulaAt(text, at) {
  if (text[at] !== "$" && text[at] !== "\\") return null;
  if (text.startsWith("\\boxed{", at)) {
    const end = closing(text, at + 6);
    return end < 0 ? null : { node: formula(text.slice(at, end), text.slice(at, end), false), end };
  }
  for (const { open, close, isDisplay } of DELIMITERS) {
    if (!text.startsWith(open, at)) continue;
    const start = at + open.length;
    const end = text.indexOf(close, start);
    const content = text.slice(start, end);
    // `$5 and $6` are prices, not a formula.
    const isPrice = open === "$" && (/^\s|\s$/.test(content) || /\d/.test(text[end + 1] ?? ""));
    const after = end + close.length;
    if (end > start && !isPrice)
      return { node: formula(text.slice(at, after), content, isDisplay), end: after };
  }
  return null;
}

/** Return the index after the bracket that closes the bracket at `at`, or -1. */
function closing(text, at) {
  let depth = 0;
  for (let i = at; i < text.length; i += 1) {
    if (text[i] === "{") depth += 1;
    if (text[i] === "}" && --depth === 0) return i + 1;
  }
  return -1;
}

/** Return a typeset formula, or its source if it cannot be typeset. */
function formula(written, content, isDisplay) {
  const box = el("span", { class: isDisplay ? "formula display" : "formula", title: written });
  try {
    if (content.length > LONGEST_FORMULA) throw new Error("too long");
    temml.render(content, box, { displayMode: isDisplay, ...LIMITS });
  } catch {
    return el("code", written);
  }
  return box;
}

/** Return text with **bold** and *italic* parts. */
function marked(text) {
  return text
    .split(/(\*\*\S(?:[^*\n]*\S)?\*\*|(?<=^|\s)\*[^\s*](?:[^*\n]*[^\s*])?\*(?=[\s.,;:!?)]|$))/)
    .map((part, at) => {
      if (at % 2 === 0) return part;
      return part.startsWith("**") ? el("b", part.slice(2, -2)) : el("i", part.slice(1, -1));
    });
}
