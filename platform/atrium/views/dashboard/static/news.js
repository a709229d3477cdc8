// The stream of events from the server.

/** Call `onstate` with the server's state on each change, and with null while the server is unreachable. */
export function follow(onstate) {
  const events = new EventSource("/api/events");
  events.onmessage = (message) => onstate(JSON.parse(message.data));
  events.onerror = () => onstate(null);
  return events;
}
