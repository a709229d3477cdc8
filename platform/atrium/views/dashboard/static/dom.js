// Building elements. Text always becomes text nodes: nothing in this application parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element, such as `el("p.note", { title }, "text")`: its tag with its classes, its attributes where there are any,
 * and its children. Of attributes, `on...` are listeners, `class` adds one, null and false leave out.
 * @param {string} name
 * @param {any[]} parts
 * @returns {any}
 */
export function el(name, ...parts) {
  return filled((tag) => document.createElement(tag), name, parts);
}

/**
 * The same for SVG.
 * @param {string} name
 * @param {any[]} parts
 */
export function svg(name, ...parts) {
  return filled((tag) => document.createElementNS(SVG, tag), name, parts);
}

function filled(create, name, parts) {
  const [attributes, ...children] = parts[0]?.constructor === Object ? parts : [{}, ...parts];
  const [tag, ...classes] = name.split(".");
  const element = create(tag);
  const className = [...classes, attributes.class].filter(Boolean).join(" ");
  for (const [name, value] of Object.entries({ ...attributes, class: className || null })) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return add(element, children);
}

/**
 * The content of a `<meta>` of the page.
 * @param {string} name
 * @returns {string}
 */
export function metaContent(name) {
  return /** @type {HTMLMetaElement} */ (document.querySelector(`meta[name=${name}]`)).content;
}

/** Append children: elements, text, numbers, nested lists; null and false are nothing. */
export function add(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

/** Replace all that an element holds. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  return add(parent, children);
}

/** The same, with the focus left on the control of its name. */
export function refill(parent, ...children) {
  const focused = document.activeElement?.getAttribute("aria-label");
  fill(parent, ...children);
  if (focused) parent.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

/** A select; `options` are [value, label, title] or plain values. */
export function select(label, options, value, onchange) {
  const box = el(
    "select",
    { "aria-label": label, onchange: () => onchange(box.value) },
    options.map((option) => {
      const [key, text, title] = Array.isArray(option) ? option : [option, option];
      return el("option", { value: key, selected: String(key) === String(value), title }, text);
    }),
  );
  return box;
}

/** A labelled control. */
export function field(label, control) {
  return el("label.field", el("span", label), control);
}

/** A button, such as `button("Clear", { class: "link" }, () => clear())`; attributes where there are any. */
export function button(text, ...parts) {
  const onclick = parts.pop();
  return el("button", { type: "button", onclick, ...parts[0] }, text);
}

/** A box to tick: `onchange`, the last argument, gets whether it is ticked; attributes where there are any. */
export function checkbox(checked, ...parts) {
  const onchange = parts.pop();
  const change = ({ target }) => onchange(target.checked);
  return el("input", { type: "checkbox", checked, onchange: change, ...parts[0] });
}

/** A box to tick in a menu. */
export function option(text, checked, ...parts) {
  const onchange = parts.pop();
  return el("label.option", { ...parts[0] }, checkbox(checked, onchange), el("span", text));
}

/** A box to search in: `oninput`, the last argument, gets its text; more attributes where there are any. */
export function searchInput(label, ...parts) {
  const oninput = parts.pop();
  const change = ({ target }) => oninput(target.value);
  return el("input", {
    type: "search",
    "aria-label": label,
    placeholder: label,
    oninput: change,
    ...parts[0],
  });
}

/** A menu: `body`, the last argument, makes what it holds when it opens. Escape and a click elsewhere close it. */
export function menu(title, ...parts) {
  const body = parts.pop();
  const box = el("div");
  const made = el("details.menu", { ...parts[0] }, el("summary", title), box);
  made.addEventListener("toggle", () => made.open && fill(box, body()));
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    made.open = false;
    made.querySelector("summary").focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (made.open && !made.contains(event.target)) made.open = false;
  });
  return made;
}

/** One of a few choices as a row of buttons. */
export function choice(label, options, value, onchange) {
  const buttons = options.map(([key, text, title]) =>
    button(text, { title, "aria-pressed": String(key === value) }, () => onchange(key)),
  );
  return el("div.choice", { role: "group", "aria-label": label }, buttons);
}

/** A table; columns are { title, class, cell }, `cell` makes what a row has there, `attributes` are those of a row. */
export function table(columns, rows, attributes = (_row) => ({})) {
  return el("table", [
    el("thead", el("tr", [columns.map((column) => el("th", { class: column.class }, column.title))])),
    el("tbody", [
      rows.map((row) =>
        el("tr", attributes(row), [
          columns.map(({ cell, ...of }) => el("td", { class: of.class }, cell(row))),
        ]),
      ),
    ]),
  ]);
}

/** A message in place of content. */
export function empty(title, ...text) {
  return el("div.empty", el("h2", title), el("p", text));
}

/** Call at the end of a burst of calls. */
export function debounced(action, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

/** The action, one at a time: asked for while it is under way it is done once more, so the newest ends last. */
export function oneAtATime(action) {
  let running = null;
  let again = false;
  const run = async () => {
    try {
      do {
        again = false;
        await action().catch((error) => {
          if (!again) throw error;
        });
      } while (again);
    } finally {
      running = null;
    }
  };
  return () => {
    again = true;
    running ??= run();
    return running;
  };
}
