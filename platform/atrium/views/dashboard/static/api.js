// Requests to the server: queries, annotations, and news.

import { metaContent } from "./dom.js";
import { follow } from "./news.js";
import { append } from "./url.js";

const token = metaContent("atrium-token");

/** Return the answer to a query. Parameters may be lists; null and empty values are left out. */
export async function ask(path, parameters = {}, signal = undefined) {
  return answer(await fetch(addressed(path, parameters), { signal }));
}

/** Return the URL of a query; parameters are as in `ask`. */
export function addressed(path, parameters) {
  return `/api/${path}?${append(new URLSearchParams(), parameters)}`;
}

/** Save annotations of a run. */
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

/** Call `onstate` with the server's state on each change, and with null while the server is unreachable. */
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
