// The stream of news from the server.

/** Call with the server's state whenever it changes, and with null while it cannot be reached. */
export function follow(onstate) {
  const events = new EventSource("/api/events");
  events.onmessage = (message) => onstate(JSON.parse(message.data));
  events.onerror = () => onstate(null);
  return events;
}
