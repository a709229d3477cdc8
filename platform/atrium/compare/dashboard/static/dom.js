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

/** A select; `options` are [value, label] pairs or plain values. */
export function select(label, options, value, onchange, attributes = {}) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const box = el("select", { "aria-label": label, onchange: () => onchange(box.value), ...attributes }, [
    pairs.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)),
  ]);
  return box;
}

/** A labelled control. */
export function field(label, control) {
  return el("label.field", el("span", label), control);
}

/** One of a few choices as a row of buttons. */
export function choice(label, options, value, onchange) {
  return el("div.choice", { role: "group", "aria-label": label }, [
    options.map(([key, text, title]) =>
      el(
        "button",
        {
          type: "button",
          title,
          "aria-pressed": String(key === value),
          onclick: () => onchange(key),
        },
        [text],
      ),
    ),
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
