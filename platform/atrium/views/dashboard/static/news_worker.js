// A single stream of events for all tabs. Each stream keeps one of the six connections that a browser opens to a
// server, so with a stream per tab, the sixth tab would wait forever.

import { follow } from "./news.js";

const tabs = new Set();
let events = null;
let latest = null;

function tell(state) {
  latest = state;
  for (const tab of tabs) tab.postMessage(state);
}

globalThis.onconnect = ({ ports: [tab] }) => {
  tabs.add(tab);
  tab.onmessage = () => tabs.delete(tab); // the only message of a tab is that it closes
  if (latest !== null) tab.postMessage(latest);
  // A stream that the server refused does not reopen by itself.
  if (events === null || events.readyState === EventSource.CLOSED) events = follow(tell);
};
