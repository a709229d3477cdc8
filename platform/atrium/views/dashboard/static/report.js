// Download of a comparison's report, which the server makes from the query of the view.

import { button, el, fill } from "./dom.js";
import { saveFromServer } from "./export.js";

const FILES = [
  ["html", "Report", "One HTML file with verdicts, figures and tables, to send"],
  ["tex", "LaTeX table", "A table with caption and label, and the sentences that may be written"],
];

/** Return buttons that save the report of the comparison selected by `query`. */
export function reportButtons(query) {
  const style = { display: "inline-flex", gap: "6px", marginLeft: "auto" };
  const save = ([suffix, text, title]) => {
    const made = button(text, { title, "data-report": suffix }, () =>
      saveFromServer("report", { ...query, suffix }).catch(({ message }) => fill(made, message)),
    );
    return made;
  };
  return el("span", { style, role: "group", "aria-label": "Report" }, FILES.map(save));
}
