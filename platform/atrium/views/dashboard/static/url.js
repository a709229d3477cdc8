// The state of a view lives in its address, so that every view can be shared and found again.

/** The view and its parameters that the address names. */
export function here() {
  return { view: location.pathname.slice(1) || "overview", parameters: new URLSearchParams(location.search) };
}

/** One parameter, or its default. */
export function get(name, otherwise = "") {
  return new URLSearchParams(location.search).get(name) ?? otherwise;
}

/** All values of a parameter. */
export function getAll(name) {
  return new URLSearchParams(location.search).getAll(name);
}

/** Add parameters to a query; lists come one by one, null and "" not at all. */
export function append(query, parameters) {
  for (const [name, value] of Object.entries(parameters)) {
    for (const item of [value].flat()) {
      if (item !== null && item !== undefined && item !== "") query.append(name, item);
    }
  }
  return query;
}

const withQuery = (path, query) => (query.size ? `${path}?${query}` : path);

/**
 * Change parameters of the address; null, "" and empty lists remove one. A choice makes an entry in the history, the
 * letters of a text (`isTyped`) make one together, and a `default` that is written down makes none.
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

const KEPT = ["q", "run", "exp", "base"];

/** The address of another view on the same runs, with more parameters. */
export function addressOf(view, more = {}) {
  const kept = KEPT.filter((name) => !(name in more)).map((name) => [name, getAll(name)]);
  return withQuery(`/${view}`, append(new URLSearchParams(), { ...Object.fromEntries(kept), ...more }));
}
