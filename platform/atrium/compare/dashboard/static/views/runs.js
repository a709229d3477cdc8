// The table of runs: search, filter, sort, what differs, results; pick runs to look at together.

import { ask } from "../api.js";
import { el, empty, field, fill, select, svg } from "../dom.js";
import { csv, download } from "../export.js";
import { fetchMetrics, lastOf, passing } from "../filter.js";
import { age, count, duration, moment, number, percent, shortName } from "../format.js";
import { closeOutside, differingKeys, filterMenu, searchBox } from "../selection.js";
import { addressOf, get, getAll, set } from "../url.js";
import { openDrawer } from "./run_drawer.js";

const MOST_SETTINGS = 6;
const GROUPS = [
  ["", "nothing"],
  ["method", "method"],
  ["experiment", "experiment"],
  ["state", "state"],
];
const PAGE = 60;

export async function show(root, context) {
  let table = await context.runs();
  let sparks = {};
  let drawer = null;
  let limit = PAGE;
  const picked = new Set(getAll("run"));
  const bar = el("div.toolbar");
  const banner = el("div");
  const box = el("div.card.runs-table", {
    tabindex: "0",
    role: "region",
    "aria-label": "Table of runs",
  });
  const actions = el("div.actions");
  const counted = el("span.muted");
  const search = searchBox(() => {
    picked.clear();
    draw();
  });
  root.append(bar, banner, el("div.page", box));

  function benchmarks() {
    const known = table.benchmarks;
    return [
      ...known.filter((name) => !name.includes("validation")),
      ...known.filter((name) => name.includes("validation")),
    ];
  }

  function draw() {
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    if (active !== search) search.value = get("q");
    const trainings = table.runs.filter(({ evaluated }) => !evaluated);
    const runs = sorted(passing(table, get("q")).filter(({ evaluated }) => !evaluated));
    const keys = shownKeys(runs);
    fill(banner, table.problem && el("p.banner", table.problem));
    drawBar(runs, keys, trainings.length);
    if (!trainings.length) {
      fill(
        box,
        empty(
          "No runs yet",
          "Runs in ",
          el("code", table.runs_dir),
          " appear here as soon as they start: ",
          el("code", "atrium train"),
          ".",
        ),
      );
      return;
    }
    if (!runs.length) {
      fill(
        box,
        empty(
          "No run fits",
          "No run passes this filter. ",
          el(
            "button.link",
            {
              type: "button",
              onclick: () => {
                set({ q: null });
                draw();
              },
            },
            ["Clear it"],
          ),
        ),
      );
      return;
    }
    const scrolled = [box.scrollTop, box.scrollLeft];
    const focused = /** @type {HTMLElement} */ (active?.closest("[data-run]"))?.dataset.run;
    const columns = allColumns(keys, benchmark());
    const group = get("group");
    const shown = group ? grouped(runs, group) : [[null, runs]];
    let left = limit;
    fill(
      box,
      el("table", [
        head(columns, runs),
        shown.map(([label, members]) => {
          const page = members.slice(0, left);
          left -= page.length;
          return (
            page.length > 0 &&
            el("tbody", [
              label !== null && groupRow(label, members, columns),
              page.map((run) => row(run, columns)),
            ])
          );
        }),
      ]),
      runs.length > limit && more(runs.length - limit),
    );
    [box.scrollTop, box.scrollLeft] = scrolled;
    if (focused) box.querySelector(`[data-run="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  }

  /** The end of the rows shown; the next ones come when it comes into sight. */
  function more(num) {
    const show = () => {
      limit += PAGE;
      draw();
    };
    const element = el("p", { style: { padding: "10px" } }, [
      el("button", { type: "button", onclick: show }, `Show more (${num})`),
    ]);
    const end = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        end.disconnect();
        if (element.isConnected) show();
      },
      { root: box, rootMargin: "400px" },
    );
    end.observe(element);
    return element;
  }

  function benchmark() {
    const known = benchmarks();
    return known.includes(get("bench")) ? get("bench") : known[0];
  }

  function shownKeys(runs) {
    const chosen = getAll("col");
    return chosen.length
      ? chosen.filter((key) => key !== "none")
      : differingKeys(table, runs)
          .filter((key) => !["experiment_name", "seed"].includes(key))
          .slice(0, MOST_SETTINGS);
  }

  /** Runs by the value that they have; groups in the order of their first run. */
  function grouped(runs, key) {
    const found = new Map();
    for (const run of runs) {
      const label = String(run[key] ?? settingOf(run, key) ?? "not set");
      found.set(label, [...(found.get(label) ?? []), run]);
    }
    return [...found];
  }

  function groupRow(label, members, columns) {
    const mean = (column) => {
      const known = members
        .filter((run) => !column.isScore || isWhole(run))
        .map((run) => column.sort?.(run))
        .filter((value) => typeof value === "number");
      return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    };
    const cell = (column) => (column.mean ? column.mean(mean(column)) : "");
    return el("tr.group", [
      el("td"),
      columns.map((column, at) =>
        el("td", { class: column.number ? "num" : null }, [
          at === 0
            ? [
                el("b", label),
                el("span.muted", [`  ${members.length} ${members.length === 1 ? "run" : "runs"}`]),
              ]
            : cell(column),
        ]),
      ),
    ]);
  }

  function drawBar(runs, keys, num) {
    if (!bar.childNodes.length) {
      bar.append(
        el("div.search", search),
        filterMenu(
          () => table,
          () => {
            picked.clear();
            draw();
          },
        ),
        el("span.slot-columns"),
        el("span.slot-bench"),
        el("span.slot-group"),
        counted,
        el("span.grow"),
        actions,
      );
    }
    const columnSlot = bar.querySelector(".slot-columns");
    if (!columnSlot.querySelector("details[open]")) fill(columnSlot, columnMenu(runs, keys));
    const known = benchmarks();
    const slot = bar.querySelector(".slot-bench");
    if (slot.firstChild?.firstChild !== document.activeElement) {
      fill(
        slot,
        known.length > 1 &&
          select("Benchmark", known, benchmark(), (value) => {
            set({ bench: value });
            draw();
          }),
      );
    }
    const groupSlot = bar.querySelector(".slot-group");
    if (!groupSlot.contains(document.activeElement)) {
      const more = differingKeys(table, runs)
        .slice(0, 12)
        .map((key) => [key, key]);
      fill(
        groupSlot,
        field(
          "group by",
          select("Group by", [...GROUPS, ...more], get("group"), (value) => {
            set({ group: value });
            draw();
          }),
        ),
      );
    }
    fill(counted, `${runs.length} of ${num} ${num === 1 ? "run" : "runs"}`);
    const names = [...picked].filter((name) => runs.some((run) => run.name === name));
    const more = names.length ? { run: names, q: null } : {};
    fill(
      actions,
      names.length > 0 &&
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              picked.clear();
              set({ run: null });
              draw();
            },
          },
          [`Clear ${names.length} picked`],
        ),
      el(
        "button",
        {
          type: "button",
          "data-export": "csv",
          title: "Save the table as CSV",
          onclick: () => save(runs, keys),
        },
        ["CSV"],
      ),
      el("a", { href: addressOf("compare", more) }, [
        el("button", { type: "button", tabindex: "-1" }, [
          names.length ? `Compare ${names.length}` : "Compare",
        ]),
      ]),
      el("a", { href: addressOf("curves", more) }, [
        el("button.primary", { type: "button", tabindex: "-1" }, [
          names.length ? `Curves of ${names.length}` : "Curves",
        ]),
      ]),
    );
  }

  function columnMenu(runs, keys) {
    const differ = differingKeys(table, runs);
    const rest = Object.keys(table.shared);
    const change = (key, on) => {
      const next = on ? [...keys, key] : keys.filter((other) => other !== key);
      set({ col: next.length ? next : "none" });
      draw();
    };
    const option = (key) =>
      el("label.option", [
        el("input", {
          type: "checkbox",
          checked: keys.includes(key),
          onchange: (event) => change(key, event.target.checked),
        }),
        el("span", key),
      ]);
    const menu = el("details.menu", [
      el("summary", "Columns"),
      el("div", [
        getAll("col").length > 0 &&
          el(
            "button.link",
            {
              type: "button",
              onclick: () => {
                set({ col: null });
                menu.open = false;
                draw();
              },
            },
            ["Show what differs"],
          ),
        metricOptions(runs),
        el("h3", { style: { padding: "6px 8px 2px" } }, "settings that differ here"),
        differ.map(option),
        el("h3", { style: { padding: "6px 8px 2px" } }, "other settings"),
        [...table.keys.filter((key) => !differ.includes(key)), ...rest].sort().map(option),
      ]),
    ]);
    closeOutside(menu);
    return menu;
  }

  /** A box per metric, whose last value becomes a column. They are asked for when the list is opened. */
  function metricOptions(runs) {
    const lines = el("div");
    const chosen = new Set(getAll("mcol"));
    const part = el("details", [
      el("summary.option", `last values of metrics${chosen.size ? ` (${chosen.size})` : ""}`),
      lines,
    ]);
    part.addEventListener("toggle", async () => {
      if (!part.open || lines.childNodes.length) return;
      const { quantities } = await ask("quantities", { run: runs.slice(0, PAGE).map(({ name }) => name) });
      fill(
        lines,
        quantities
          .filter(({ name }) => !name.startsWith("evaluation/"))
          .map(({ name, meaning }) =>
            el("label.option", { title: meaning }, [
              el("input", {
                type: "checkbox",
                checked: chosen.has(name),
                onchange: async (event) => {
                  chosen[event.target.checked ? "add" : "delete"](name);
                  set({ mcol: [...chosen] });
                  await fetchMetrics("", { more: [...chosen] }).catch(() => {});
                  draw();
                },
              }),
              el("span", name),
            ]),
          ),
      );
    });
    return part;
  }

  function allColumns(keys, bench) {
    const point = (run) => run.scores[bench]?.last;
    return [
      {
        id: "name",
        title: "Run",
        cell: nameCell,
        sort: (run) => shortName(run.name),
        text: (run) => run.name,
      },
      { id: "state", title: "State", cell: stateCell, sort: (run) => run.state, text: (run) => run.state },
      {
        id: "seed",
        title: "Seed",
        number: true,
        sort: (run) => natural(run.seed),
        cell: (run) => run.seed ?? "–",
        text: (run) => run.seed,
      },
      { id: "spark", title: "Reward", cell: (run) => sparkline(sparks[run.name]) },
      ...(bench
        ? [
            {
              id: "mean",
              title: `Mean@${kOf(bench)}`,
              number: true,
              isScore: true,
              mean: percent,
              sort: (run) => point(run)?.mean_at_k,
              cell: (run) => score(point(run), run),
              text: (run) => point(run)?.mean_at_k,
              about: `${bench}, latest evaluation, %; 95 % interval over problems`,
            },
            {
              id: "pass",
              title: `Pass@${kOf(bench)}`,
              number: true,
              isScore: true,
              mean: percent,
              sort: (run) => point(run)?.pass_at_k,
              cell: (run) =>
                el("span", { class: isWhole(run) ? null : "muted" }, percent(point(run)?.pass_at_k)),
              text: (run) => point(run)?.pass_at_k,
              about: bench,
            },
          ]
        : []),
      ...getAll("mcol").map((metric) => ({
        id: metric,
        title: metric.split("/").at(-1),
        about: `${metric}, the last value`,
        number: true,
        mean: number,
        sort: (run) => lastOf(run, metric),
        cell: (run) => number(lastOf(run, metric)),
        text: (run) => lastOf(run, metric),
      })),
      {
        id: "wall",
        title: "Time",
        number: true,
        sort: (run) => run.wall_s,
        cell: (run) => (run.wall_s ? duration(run.wall_s) : "–"),
        text: (run) => run.wall_s,
      },
      {
        id: "started",
        title: "Started",
        number: true,
        sort: (run) => run.started,
        cell: (run) =>
          el("span", { title: moment(run.started) }, run.started ? age(table.now - run.started) : "–"),
        text: (run) => moment(run.started),
      },
      ...keys.map((key) => ({
        id: key,
        title: key.split(".").slice(-2).join("."),
        about: key,
        setting: true,
        sort: (run) => natural(settingOf(run, key)),
        text: (run) => settingOf(run, key),
        cell: (run) => settingOf(run, key) ?? "",
      })),
      {
        id: "tokens",
        title: "Tokens",
        number: true,
        sort: (run) => run.num_tokens,
        cell: (run) => count(run.num_tokens),
        text: (run) => run.num_tokens,
      },
    ];
  }

  const settingOf = (run, key) => run.settings[key] ?? table.shared[key];
  const kOf = (bench) => {
    const ks = new Set(
      table.runs.map((run) => run.scores[bench]?.last.k).filter((k) => k !== undefined && k !== null),
    );
    return ks.size === 1 ? [...ks][0] : "k";
  };

  function sorted(runs) {
    const wanted = get("sort");
    if (!wanted) return runs;
    const down = wanted.startsWith("-");
    const columns = allColumns(shownKeys(runs), benchmark());
    const column = columns.find(({ id, sort }) => sort && id === wanted.replace(/^-/, ""));
    if (!column) return runs;
    const keyed = runs.map((run) => [column.sort(run), run]);
    const known = keyed.filter(([value]) => value !== undefined && value !== null && value !== "");
    const unknown = keyed.filter((pair) => !known.includes(pair));
    known.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
    return [...known, ...unknown].map(([, run]) => run);
  }

  function head(columns, runs) {
    const [name, down] = [get("sort").replace(/^-/, ""), get("sort").startsWith("-")];
    const every = runs.length > 0 && runs.every((run) => picked.has(run.name));
    return el("thead", [
      el("tr", [
        el("th", [
          el("input", {
            type: "checkbox",
            "aria-label": "Pick all",
            checked: every,
            onchange: (event) => {
              for (const run of runs) picked[event.target.checked ? "add" : "delete"](run.name);
              set({ run: [...picked] });
              draw();
            },
          }),
        ]),
        columns.map((column) =>
          el(
            "th",
            {
              class: `${column.number ? "num" : ""} ${column.setting ? "setting" : ""}`,
              title: column.about,
              "aria-sort": column.id === name ? (down ? "descending" : "ascending") : null,
            },
            [
              column.sort
                ? el(
                    "button",
                    {
                      type: "button",
                      onclick: () => {
                        // Of numbers the greatest come first, of words the first of the alphabet; a third click undoes it.
                        const [first, second] = column.number
                          ? [`-${column.id}`, column.id]
                          : [column.id, `-${column.id}`];
                        set({ sort: column.id !== name ? first : get("sort") === first ? second : null });
                        draw();
                      },
                    },
                    [column.title, column.id === name ? (down ? " ↓" : " ↑") : ""],
                  )
                : column.title,
            ],
          ),
        ),
      ]),
    ]);
  }

  function row(run, columns) {
    return el("tr", { class: picked.has(run.name) ? "chosen" : null, "data-run": run.name }, [
      el("td", [
        el("input", {
          type: "checkbox",
          "aria-label": `Pick ${run.name}`,
          checked: picked.has(run.name),
          onchange: (event) => {
            picked[event.target.checked ? "add" : "delete"](run.name);
            set({ run: [...picked] });
            draw();
          },
        }),
      ]),
      columns.map((column) =>
        el(
          "td",
          {
            "data-spark": column.id === "spark" ? run.name : null,
            class: `${column.number ? "num" : ""} ${column.setting ? "setting mono" : ""}`,
            title: column.setting ? `${column.id}: ${settingOf(run, column.id) ?? "not set"}` : null,
          },
          [column.cell(run)],
        ),
      ),
    ]);
  }

  function nameCell(run) {
    const notes = [...run.collapses, ...run.problems, ...(run.error ? [run.error] : [])];
    return el("div", [
      el(
        "a.run-name",
        {
          href: addressOf("runs", { open: run.name }),
          title: run.name,
          onclick: (event) => {
            event.preventDefault();
            open(run.name);
          },
        },
        [shortName(run.name)],
      ),
      " ",
      notes.length > 0 &&
        el("span.warn", { title: notes.join("\n"), role: "img", "aria-label": notes.join("; ") }, ["⚠ "]),
      run.note && el("span.muted", { title: run.note, role: "img", "aria-label": `note: ${run.note}` }, "✎ "),
      run.tags.map((tag) => el("span.tag", tag)),
      el("span.sub", run.experiment),
    ]);
  }

  async function open(name) {
    drawer?.close();
    set({ open: name });
    drawer = openDrawer(root, name, {
      closed: () => {
        drawer = null;
        set({ open: null });
      },
      changed: async () => {
        context.forget();
        table = await context.runs();
        draw();
      },
    });
  }

  function save(runs, keys) {
    const columns = allColumns(keys, benchmark()).filter((column) => column.text);
    const rows = runs.map((run) => columns.map((column) => column.text(run)));
    download(
      "runs.csv",
      csv({ columns: columns.map((column) => (column.setting ? column.id : column.title)), rows }),
      "text/csv",
    );
  }

  async function refresh() {
    table = await context.runs();
    draw();
    await drawSparks();
    await drawer?.refresh();
  }

  async function drawSparks() {
    sparks = (await ask("sparks")).sparks;
    for (const cell of box.querySelectorAll("td[data-spark]"))
      fill(cell, sparkline(sparks[cell.dataset.spark]));
  }

  draw();
  void drawSparks().catch(() => {});
  if (get("open")) await open(get("open"));
  return { refresh, dispose: () => drawer?.close({ silent: true }) };
}

function stateCell(run) {
  const share = run.num_steps ? Math.min(run.step / run.num_steps, 1) : 0;
  return el("div", { class: `state-cell` }, [
    el("span", { class: `state ${run.state}` }, run.state),
    run.num_steps > 0 && el("span.sub", ` ${number(run.step)}/${number(run.num_steps)}`),
    run.left_s && el("span.sub", `, ${duration(run.left_s)} left`),
    run.state !== "finished" &&
      run.num_steps > 0 &&
      el("div", { class: `meter state ${run.state}`, style: { display: "block" } }, [
        el("i", { style: { width: `${100 * share}%` } }),
      ]),
  ]);
}

/** Whether a run's last score is that of its end. */
const isWhole = (run) => run.state === "finished";

function score(point, run) {
  if (!point || point.mean_at_k === null) return "–";
  const span = point.interval_over_problems
    ? `${percent(point.interval_over_problems[0])} – ${percent(point.interval_over_problems[1])}`
    : "";
  if (!isWhole(run))
    return el("div.muted", [
      percent(point.mean_at_k),
      el("div.sub", point.step ? `at step ${number(point.step)}` : "before training"),
    ]);
  return el("div", [el("span.value", percent(point.mean_at_k)), span && el("div.sub", span)]);
}

function sparkline(values) {
  const known = (values || []).map((value, at) => [at, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return "";
  const [low, high] = [
    Math.min(...known.map(([, value]) => value)),
    Math.max(...known.map(([, value]) => value)),
  ];
  const points = known.map(
    ([at, value]) =>
      `${(2 + (at / (values.length - 1)) * 76).toFixed(1)} ${(18 - ((value - low) / (high - low || 1)) * 16).toFixed(1)}`,
  );
  return svg(
    "svg.spark",
    {
      width: 80,
      height: 20,
      role: "img",
      "aria-label": `reward from ${number(known[0][1])} to ${number(known.at(-1)[1])}`,
    },
    [svg("path", { d: `M${points.join("L")}` })],
  );
}

function natural(value) {
  if (value === undefined || value === null) return undefined;
  return value !== "" && !Number.isNaN(Number(value)) ? Number(value) : String(value);
}
