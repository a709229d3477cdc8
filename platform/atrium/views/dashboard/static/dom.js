// Construction of elements. Text always becomes text nodes: nothing in this application parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element, such as `el("p.note", { title }, "text")`, from its tag with classes, optional attributes, and
 * children. Attributes `on...` are event listeners, `class` adds a class, and null or false omits an attribute.
 * @param {string} name
 * @param {any[]} parts
 * @returns {any}
 */
export function el(name, ...parts) {
  return filled((tag) => document.createElement(tag), name, parts);
}

/** Create an SVG element; arguments are as in `el`. */
export function svg(name, ...parts) {
  return filled((tag) => document.createElementNS(SVG, tag), name, parts);
}

function filled(create, name, parts) {
  const [attributes, ...children] = parts[0]?.constructor === Object ? parts : [{}, ...parts];
  const [tag, ...classes] = name.split(".");
  const element = create(tag);
  const className = [...classes, attributes.class].filter(Boolean).join(" ");
  for (const [name, value] of Object.entries({ ...attributes, class: className || null })) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return add(element, children);
}

/** Return the content of a `<meta>` element of the page. */
export function metaContent(name) {
  return /** @type {HTMLMetaElement} */ (document.querySelector(`meta[name=${name}]`)).content;
}

/** Append children: elements, text, numbers, or nested lists; null and false are skipped. */
export function add(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child == null || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

/** Replace the children of an element. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  return add(parent, children);
}

/** Replace the children of an element, and keep the focus on the control with the same name. */
export function refill(parent, ...children) {
  const focused = document.activeElement?.getAttribute("aria-label");
  fill(parent, ...children);
  if (focused) parent.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

/** Create a select element; `options` are [value, label, title] or plain values. */
export function select(label, options, value, onchange) {
  const made = options.map((option) => {
    const [key, text, title] = Array.isArray(option) ? option : [option, option];
    return el("option", { value: key, selected: String(key) === String(value), title }, text);
  });
  return el("select", { "aria-label": label, onchange: ({ target }) => onchange(target.value) }, made);
}

/** Create a labeled control. */
export function field(label, control) {
  return el("label.field", el("span", label), control);
}

/** Create a labeled select element; the other arguments are as in `select`. */
export function selectField(text, label, options, value, onchange) {
  return field(text, select(label, options, value, onchange));
}

/** Create a button, such as `button("Clear", { class: "link" }, () => clear())`; attributes are optional. */
export function button(text, ...parts) {
  const onclick = parts.pop();
  return el("button", { type: "button", onclick, ...parts[0] }, text);
}

/** Create a checkbox; the last argument, `onchange`, receives whether it is checked; attributes are optional. */
export function checkbox(checked, ...parts) {
  const onchange = parts.pop();
  const change = ({ target }) => onchange(target.checked);
  return el("input", { type: "checkbox", checked, onchange: change, ...parts[0] });
}

/** Create a labeled checkbox for a menu. */
export function option(text, checked, ...parts) {
  const onchange = parts.pop();
  return el("label.option", { ...parts[0] }, checkbox(checked, onchange), el("span", text));
}

/** Create a search box; the last argument, `ontext`, receives its text; attributes are optional. */
export function searchInput(label, ...parts) {
  const ontext = parts.pop();
  const oninput = ({ target }) => ontext(target.value);
  return el("input", { type: "search", "aria-label": label, placeholder: label, oninput, ...parts[0] });
}

/** Create a menu; `body` returns its content on opening. Escape or a click outside closes it. */
export function menu(title, body) {
  const box = el("div");
  const made = el("details.menu", el("summary", title), box);
  made.addEventListener("toggle", () => {
    made.classList.toggle("right", made.getBoundingClientRect().left > innerWidth / 2); // within the window
    if (made.open) fill(box, body());
  });
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

/** Create a row of buttons for one of a few choices. */
export function choice(label, options, value, onchange) {
  const buttons = options.map(([key, text, title]) =>
    button(text, { title, "aria-pressed": String(key === value) }, () => onchange(key)),
  );
  return el("div.choice", { role: "group", "aria-label": label }, buttons);
}

/** Create a table. Columns are { title, class, cell }; `cell` returns a row's content, `attributes` its attributes. */
export function table(columns, rows, attributes = (_row) => ({})) {
  const heads = columns.map(({ title, ...column }) =>
    el(title ? "th" : "td", { class: column.class }, title),
  );
  const cellsOf = (row) => columns.map(({ cell, ...column }) => el("td", { class: column.class }, cell(row)));
  const lines = rows.map((row) => el("tr", attributes(row), cellsOf(row)));
  return el("table", el("thead", el("tr", heads)), el("tbody", lines));
}

/** Create a message that is shown instead of content. */
export function empty(title, ...text) {
  return el("div.empty", el("h2", title), el("p", text));
}

/** Return a function that runs the action once, after a burst of calls. */
export function debounced(action, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

/** Return a function that never runs the action concurrently: a call during a run causes one more run after it. */
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
