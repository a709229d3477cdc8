// File downloads: CSV files made in the page, and files made by the server.

import { addressed } from "./api.js";
import { el } from "./dom.js";

/** Return a table as CSV, with numbers in full precision. */
function csv({ columns, rows }) {
  const cell = (value) => {
    const text = value == null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("");
}

/** Save a table as CSV. */
export function saveTable(name, table) {
  download(`${name}.csv`, csv(table), "text/csv");
}

/** Download a file that the server makes, under the server's name for it. Throws the server's error message. */
export async function saveFromServer(path, parameters) {
  const response = await fetch(addressed(path, parameters));
  if (!response.ok)
    throw new Error((await response.json()).error || `the server answered ${response.status}`);
  const [, name] = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition"));
  const blob = await response.blob();
  download(name, blob, blob.type);
}

/** Start the download of a file in the browser. */
function download(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type: `${type};charset=utf-8` });
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
