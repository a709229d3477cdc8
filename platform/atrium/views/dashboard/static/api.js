// Talking to the server: queries, annotations, and news.

import { metaContent } from "./dom.js";
import { follow } from "./news.js";
import { append } from "./url.js";

const token = metaContent("atrium-token");

/** The answer to a query. Parameters may be lists; what is null or empty is left out. */
export async function ask(path, parameters = {}, signal = undefined) {
  return answer(await fetch(addressed(path, parameters), { signal }));
}

/** The address of a query; parameters as for `ask`. */
export function addressed(path, parameters) {
  return `/api/${path}?${append(new URLSearchParams(), parameters)}`;
}

/** Write what people say about a run. */
export async function annotate(name, changes) {
  const response = await fetch(`/api/run?${new URLSearchParams({ name })}`, {
    method: "PATCH",
    headers: { "Content-Type": "application/json", "X-Atrium-Token": token },
    body: JSON.stringify(changes),
  });
  return answer(response);
}

async function answer(response) {
  let content = null;
  try {
    content = await response.json();
  } catch {
    /* not JSON: the status says enough */
  }
  if (!response.ok) throw new Error(content?.error || `the server answered ${response.status}`);
  return content;
}

/** Call with the server's state whenever it changes, and with null while it cannot be reached. */
export function listen(onstate) {
  if (typeof SharedWorker === "undefined") {
    const events = follow(onstate);
    addEventListener("pagehide", () => events.close());
    return;
  }
  const { port } = new SharedWorker("/static/news_worker.js", { type: "module" });
  port.onmessage = ({ data }) => onstate(data);
  addEventListener("pagehide", ({ persisted }) => {
    if (!persisted) port.postMessage("closes");
  });
}
