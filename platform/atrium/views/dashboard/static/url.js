// The state of a view is stored in its URL, so that every view can be shared and bookmarked.

/** Return the view and the parameters in the URL. */
export function here() {
  return { view: location.pathname.slice(1) || "overview", parameters: new URLSearchParams(location.search) };
}

/** Return a parameter, or its default. */
export function get(name, otherwise = "") {
  return new URLSearchParams(location.search).get(name) ?? otherwise;
}

/** Return all values of a parameter. */
export function getAll(name) {
  return new URLSearchParams(location.search).getAll(name);
}

/** Add parameters to a query: each item of a list separately, but not null and "". */
export function append(query, parameters) {
  for (const [name, value] of Object.entries(parameters)) {
    for (const item of [value].flat()) {
      if (item != null && item !== "") query.append(name, item);
    }
  }
  return query;
}

const withQuery = (path, query) => (query.size ? `${path}?${query}` : path);

/**
 * Change parameters of the URL; null, "" and empty lists remove a parameter. A change adds an entry to the history.
 * Consecutive keystrokes (`isTyped`) share an entry, and defaults written to the URL (`isDefault`) add none.
 */
export function set(changes, { isTyped = false, isDefault = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const name of Object.keys(changes)) query.delete(name);
  const address = withQuery(location.pathname, append(query, changes));
  if (address === `${location.pathname}${location.search}`) return;
  const typed = isTyped ? Object.keys(changes).join() : null;
  const isSameEntry = isDefault || (isTyped && history.state === typed);
  history[isSameEntry ? "replaceState" : "pushState"](typed, "", address);
}

const KEPT = ["q", "run", "exp", "base", "panel"];

/** Return the URL of another view of the same runs, with additional parameters. */
export function addressOf(view, more = {}) {
  const kept = KEPT.filter((name) => !(name in more)).map((name) => [name, getAll(name)]);
  return withQuery(`/${view}`, append(new URLSearchParams(), { ...Object.fromEntries(kept), ...more }));
}
