// A comparison as files to send: the server makes them from the query of the view.

import { el } from "./dom.js";
import { saveFromServer } from "./export.js";

const FILES = [
  ["html", "Report", "One HTML file with verdicts, figures and tables, to send"],
  ["tex", "LaTeX table", "A table with caption and label, and the sentences that may be written"],
];

/** Buttons that save the report on the comparison that `query` asks for. */
export function reportButtons(query) {
  return el(
    "span",
    {
      style: { display: "inline-flex", gap: "6px", marginLeft: "auto" },
      role: "group",
      "aria-label": "Report",
    },
    FILES.map(([suffix, text, title]) =>
      el(
        "button",
        {
          type: "button",
          title,
          "data-report": suffix,
          onclick: ({ target }) =>
            saveFromServer("report", { ...query, suffix }).catch(({ message }) => {
              target.textContent = message;
            }),
        },
        text,
      ),
    ),
  );
}
