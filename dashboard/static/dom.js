// Builds elements. Texts are text nodes, so that nothing from the cloud is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    // Set as a property: the page's own security policy would refuse an attribute `style`.
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Return an HTML element. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Return an SVG element. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Replace the children of an element; the element with the same `data-key` keeps the focus. */
export function replace(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren();
  append(element, children);
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** Return a table with the given columns; cells are texts or elements. */
export function table(caption, columns, rows) {
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((cells) =>
          h(
            "tr",
            {},
            cells.map((cell, i) => h("td", { "data-label": columns[i] }, cell)),
          ),
        ),
      ),
    ),
  );
}

/** Return a state as a coloured word. */
export function chip(state, kind = kindOf(state)) {
  return h("span", { class: `chip ${kind}` }, state);
}

const KINDS = {
  good: ["active", "up", "done", "confirmed"],
  bad: ["error", "failed", "down", "forced down", "refused"],
  busy: [
    "building",
    "starting",
    "moving",
    "placing",
    "pending",
    "shelving",
    "unshelving",
    "rebuilding",
    "deleting",
    "confirming",
    "reverting",
    "running",
  ],
  warn: ["moved", "held", "skipped", "disabled"],
};

function kindOf(state) {
  return Object.keys(KINDS).find((kind) => KINDS[kind].includes(state)) ?? "plain";
}

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Return a number with separators. */
export function number(value) {
  return NUMBER.format(value);
}

/** Return a share as a percentage. */
export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** Return a duration in its largest unit of which there are at least two. */
export function duration(seconds) {
  for (const [unit, length] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (Math.abs(seconds) >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${seconds < 2 ? Math.round(seconds * 100) / 100 : Math.round(seconds)} s`;
}

/** Return a time of the day, with the date unless it is today's. */
export function moment(seconds) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** Return the beginning of a uuid, with the whole as its title. */
export function short(uuid) {
  return h("code", { title: uuid }, uuid.slice(0, 8));
}

/** Return a link to an instance. */
export function instanceLink(uuid, key = uuid) {
  return h("a", { href: `#/instance/${uuid}`, "data-key": `instance ${key}` }, short(uuid));
}

/** Return a colour of the style sheet as the canvas understands it. */
export function colour(name) {
  const probe = h("span", { style: { color: `var(${name})` }, hidden: true });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** True while the page is dark. */
export function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
