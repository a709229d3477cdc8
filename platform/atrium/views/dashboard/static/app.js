// The application shell: navigation between views, live updates, and the color theme.

import { ask, listen } from "./api.js";
import { el, empty, fill, metaContent, oneAtATime } from "./dom.js";
import { fetchMetrics } from "./filter.js";
import { addressOf, get, getAll, here } from "./url.js";

const VIEWS = metaContent("atrium-views").split(" ");
/** Return the title of a view, such as `Trust region` for `trust-region`. */
const titleOf = (view) => `${view[0].toUpperCase()}${view.slice(1).replace("-", " ")}`;
const REFRESH_MS = 1000;

const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
const status = document.getElementById("status");
let shown = null;
let turn = 0;
/** The latest table of runs: always the same object, which views keep. */
const table = /** @type {any} */ ({ runs: [] });
let asking = null;
let latest = null;
/** Latest known version of the server's data; at first, the version of the page. */
let known = Number(metaContent("atrium-version"));
/** Version of the data that was known when the shown content was requested. */
let drawn = known;
let lastRefresh = 0;

/** The context passed to views: the table of runs. */
const context = {
  async runs() {
    if (table.version === known) await fetchMetrics(get("q"), { more: getAll("mcol") }).catch(() => {});
    else {
      asking ??= askTable();
      const mine = asking;
      await mine.finally(() => {
        if (asking === mine) asking = null;
      });
      if (latest !== null) showStatus();
    }
    return table;
  },
};

async function askTable() {
  const since = table.version;
  const found = await ask("runs", { since });
  await fetchMetrics(get("q"), { more: getAll("mcol"), since }).catch(() => {});
  if (found.version < table.version) return; // a later request was answered earlier
  if (!found.is_whole) {
    const changed = new Set(found.runs.map(({ name }) => name));
    found.runs.push(...table.runs.filter(({ name }) => !changed.has(name)));
    found.runs.sort((a, b) => b.started - a.started || (a.name < b.name ? -1 : 1));
  }
  Object.assign(table, found);
}

async function open() {
  const mine = ++turn;
  const began = known;
  const { view } = here();
  const name = VIEWS.includes(view) ? titleOf(view) : "Atrium";
  document.title = `${name} · Atrium`;
  fill(document.getElementById("title"), name);
  drawTabs();
  shown?.dispose?.();
  shown = null;
  root.dataset.view = view;
  delete root.dataset.ready;
  try {
    // Nearly every view needs the table of runs, so it is requested while the view's code loads.
    if (!table.version) context.runs().catch(() => {});
    const module = await import(`./views/${view.replace("-", "_")}.js`);
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
  const tab = (name) => {
    const attributes = { "data-view": name, "aria-current": name === view && "page" };
    return el("a", { href: addressOf(name), ...attributes }, titleOf(name));
  };
  fill(tabs, VIEWS.map(tab));
}

document.addEventListener("click", (event) => {
  /** @type {HTMLAnchorElement | null} */
  const link = /** @type {Element} */ (event.target).closest?.("a[href^='/']");
  const isPlain = !(event.button || event.metaKey || event.ctrlKey || event.shiftKey);
  const isOfPage = link && !link.target && !link.hasAttribute("download");
  if (event.defaultPrevented || !isPlain || !isOfPage || !VIEWS.includes(link.pathname.slice(1))) return;
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

/** Redraw the view until it shows the latest version of the data. */
const refresh = oneAtATime(async () => {
  if (!shown?.refresh || drawn === known) return;
  await new Promise((resolve) => {
    setTimeout(resolve, lastRefresh + REFRESH_MS - Date.now());
  });
  drawn = known;
  await shown?.refresh?.().catch(() => {}); // the next change tries again
  lastRefresh = Date.now();
});

function showStatus() {
  if (latest === null) {
    fill(status, el("span.pill.lost", "server unreachable"));
    return;
  }
  const { done, total, problem } = latest.index;
  const training = table.runs.filter(({ state }) => state === "running" || state === "starting");
  const progress = el("progress", { max: String(total), value: String(done) });
  const title = "Curves are being indexed";
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
  if (state.version < known) delete table.version; // the server has been restarted
  known = state.version;
  asking = null; // a pending request may return older data
  void refresh()
    .then(() => context.runs())
    .catch(() => {});
});

const button = document.getElementById("theme");
function showTheme(theme) {
  const other = theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  fill(button, theme === "dark" ? "☀" : "☾");
  button.setAttribute("aria-label", `Switch to ${other}`);
  button.onclick = () => {
    try {
      localStorage.setItem("atrium-theme", other);
    } catch {
      /* it holds for this page only */
    }
    showTheme(other);
    document.dispatchEvent(new Event("atrium-theme"));
  };
}
showTheme(document.documentElement.dataset.theme);
void open().then(() => {
  // Preload the code of figures, since users often open curves after the table of runs.
  requestIdleCallback(() => import("./figure.js").catch(() => {}), { timeout: 3000 });
});
