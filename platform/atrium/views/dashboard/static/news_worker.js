// One stream of news for all tabs. A stream keeps one of the six connections that a browser opens to a server,
// so with a stream per tab the sixth tab would wait for ever.

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
  tab.onmessage = () => tabs.delete(tab); // a tab has one thing to say: that it closes
  if (latest !== null) tab.postMessage(latest);
  // A stream that the server refused does not open again by itself.
  if (events === null || events.readyState === EventSource.CLOSED) events = follow(tell);
};
