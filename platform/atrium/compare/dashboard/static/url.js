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

/** Change parameters; null, "" and empty lists remove one. Replaces the entry in the history. */
export function set(changes, { push = false } = {}) {
  const parameters = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    parameters.delete(name);
    for (const item of [value].flat()) {
      if (item !== null && item !== undefined && item !== "") parameters.append(name, item);
    }
  }
  const query = String(parameters);
  const address = `${location.pathname}${query ? `?${query}` : ""}`;
  if (address === `${location.pathname}${location.search}`) return;
  history[push ? "pushState" : "replaceState"](null, "", address);
}

const KEPT = ["q", "run", "exp", "base"];

/** The address of another view on the same runs, with more parameters. */
export function addressOf(view, more = {}) {
  const from = new URLSearchParams(location.search);
  const parameters = new URLSearchParams();
  for (const name of KEPT) {
    if (name in more) continue;
    for (const value of from.getAll(name)) parameters.append(name, value);
  }
  for (const [name, value] of Object.entries(more)) {
    for (const item of [value].flat()) {
      if (item !== null && item !== undefined && item !== "") parameters.append(name, item);
    }
  }
  const query = String(parameters);
  return `/${view}${query ? `?${query}` : ""}`;
}
