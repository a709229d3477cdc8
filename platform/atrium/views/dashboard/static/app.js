// The shell: which view is shown, what is live, light or dark.

import { ask, listen } from "./api.js";
import { el, empty, fill, metaContent } from "./dom.js";
import { fetchMetrics } from "./filter.js";
import { addressOf, get, getAll, here } from "./url.js";

const MODULES = {
  overview: () => import("./views/overview.js"),
  runs: () => import("./views/runs.js"),
  curves: () => import("./views/curves.js"),
  compare: () => import("./views/compare.js"),
  "trust-region": () => import("./views/trust_region.js"),
  rollouts: () => import("./views/rollouts.js"),
  sweeps: () => import("./views/sweeps.js"),
  evaluations: () => import("./views/evaluations.js"),
};
/** `trust-region` as its title. */
const titleOf = (view) => `${view[0].toUpperCase()}${view.slice(1).replace("-", " ")}`;
const REFRESH_MS = 1000;

const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
const status = document.getElementById("status");
let shown = null;
let turn = 0;
let table = null;
let asking = null;
let latest = null;
/** The server's latest version that is known here: at first the page's own. */
let known = Number(metaContent("atrium-version"));
/** The version that was known when what is shown was asked for. */
let drawn = known;
let refreshing = false;
let lastRefresh = 0;

/** What views are given: the table of runs. */
const context = {
  async runs() {
    if (table?.version === known) {
      await fetchMetrics(get("q"), { more: getAll("mcol") }).catch(() => {});
      return table;
    }
    asking ??= askTable();
    const mine = asking;
    try {
      const found = await mine;
      if (asking === mine) {
        table = found;
        if (latest !== null) showStatus();
      }
      return found;
    } finally {
      if (asking === mine) asking = null;
    }
  },
};

async function askTable() {
  const since = table?.version;
  const found = await ask("runs", { since });
  if (!found.is_whole) {
    const changed = new Set(found.runs.map(({ name }) => name));
    found.runs.push(...table.runs.filter(({ name }) => !changed.has(name)));
    found.runs.sort((a, b) => b.started - a.started || (a.name < b.name ? -1 : 1));
  }
  await fetchMetrics(get("q"), { more: getAll("mcol"), since }).catch(() => {});
  return found;
}

async function open() {
  const mine = ++turn;
  const began = known;
  const { view } = here();
  const name = view in MODULES ? titleOf(view) : "Atrium";
  document.title = `${name} · Atrium`;
  fill(document.getElementById("title"), name);
  drawTabs();
  shown?.dispose?.();
  shown = null;
  root.dataset.view = view;
  delete root.dataset.ready;
  try {
    // The table of runs, which nearly every view needs, is asked for while the view's code is loaded.
    if (table === null) context.runs().catch(() => {});
    const module = await MODULES[view]();
    if (mine !== turn) return;
    fill(root);
    const made = await module.show(root, context);
    if (mine !== turn) made?.dispose?.();
    else {
      shown = made;
      drawn = began;
      root.dataset.ready = view;
      void refresh();
    }
  } catch (error) {
    if (mine === turn) {
      fill(root, empty("This view cannot be shown", error.message));
      root.dataset.ready = view;
    }
  }
}

function drawTabs() {
  const { view } = here();
  // Where the views scroll, the one that is shown comes into sight.
  queueMicrotask(() =>
    tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }),
  );
  const tab = (name) => {
    const attributes = { "data-view": name, "aria-current": name === view && "page" };
    return el("a", { href: addressOf(name), ...attributes }, titleOf(name));
  };
  fill(tabs, Object.keys(MODULES).map(tab));
}

document.addEventListener("click", (event) => {
  /** @type {HTMLAnchorElement | null} */
  const link = /** @type {Element} */ (event.target).closest?.("a[href^='/']");
  const isPlain = !(event.button || event.metaKey || event.ctrlKey || event.shiftKey);
  const isOfPage = link && !link.target && !link.hasAttribute("download");
  if (event.defaultPrevented || !isPlain || !isOfPage || !MODULES[link.pathname.slice(1)]) return;
  event.preventDefault();
  history.pushState(null, "", link.dataset.view ? addressOf(link.dataset.view) : link.getAttribute("href"));
  void open();
});
document.addEventListener("keydown", (event) => {
  /** @type {HTMLInputElement | null} */
  const search = root.querySelector("input[type=search]");
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if (event.key !== "/" || isTyping || !search) return;
  event.preventDefault();
  search.focus();
  search.select();
});
addEventListener("popstate", async () => {
  const { scrollY } = window;
  await open();
  scrollTo(0, scrollY);
});

/** Draw the view anew until nothing has changed since what it shows was asked for. */
async function refresh() {
  if (refreshing) return;
  refreshing = true;
  while (shown?.refresh && drawn !== known) {
    const wait = lastRefresh + REFRESH_MS - Date.now();
    if (wait > 0)
      await new Promise((resolve) => {
        setTimeout(resolve, wait);
      });
    drawn = known;
    try {
      await shown?.refresh?.();
    } catch {
      /* the next change tries again */
    }
    lastRefresh = Date.now();
  }
  refreshing = false;
}

function showStatus() {
  if (latest === null) {
    fill(status, el("span.pill.lost", "server not reached"));
    return;
  }
  const { done, total, problem } = latest.index;
  const training = (table?.runs ?? []).filter(({ state }) => state === "running" || state === "starting");
  const progress = el("progress", { max: String(total), value: String(done) });
  const title = "Curves are being read into the index";
  fill(
    status,
    problem && el("span.pill.lost", { title: problem }, "index: cannot be written"),
    done < total && el("span.pill", { title }, progress, `indexing ${done} of ${total}`),
    training.length
      ? el("span.pill.live", el("i"), `${training.length} training`)
      : el("span.pill.quiet", el("i"), "live"),
  );
}

listen((state) => {
  latest = state;
  showStatus();
  if (state === null || state.version === known) return;
  known = state.version;
  asking = null; // what was asked for before may be older
  void refresh()
    .then(() => context.runs())
    .catch(() => {});
});

const button = document.getElementById("theme");
function showTheme() {
  const dark = document.documentElement.dataset.theme === "dark";
  fill(button, dark ? "☀" : "☾");
  button.setAttribute("aria-label", dark ? "Switch to light" : "Switch to dark");
}
button.addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("atrium-theme", next);
  } catch {
    /* it holds for this page only */
  }
  showTheme();
  document.dispatchEvent(new Event("atrium-theme"));
});
showTheme();
void open().then(() => {
  // Whoever looks at the table of runs is likely to look at curves next.
  requestIdleCallback(() => import("./figure.js").catch(() => {}), { timeout: 3000 });
});
