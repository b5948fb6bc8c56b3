// Builds elements. Texts are text nodes, so that nothing from the cloud is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Set what precedes the children in the arguments of `h`, and append the children. */
function fill(element, classes, rest) {
  const properties = rest[0]?.constructor === Object ? rest.shift() : {};
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    // Set as a property: the page's own security policy would refuse an attribute `style`.
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, rest);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Return an HTML element: `h("p.quiet", { id: "count" }, ...children)`; classes and properties may be left out. */
export function h(tag, ...rest) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElement(name), classes, rest);
}

/** Return an SVG element, as `h` does. */
export function svg(tag, ...rest) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElementNS(SVG, name), classes, rest);
}

/** Return a list that can be folded away; null without entries. `replace` leaves it as it is by its key. */
export function folded(title, entries, open = false, key = title) {
  const items = entries.map((entry) => h("li", entry));
  const summary = h("summary", { "data-key": `fold ${key}` }, title);
  return items.length ? h("details", { open }, summary, h("ul", items)) : null;
}

/** Return a field with its label. */
export function labelled(label, field) {
  return h("label", h("span", label), field);
}

/** Return a form with its fields in a row; `submitted` is called with it instead of a request to the server. */
export function form(submitted, ...children) {
  const onsubmit = (event) => {
    event.preventDefault();
    submitted(event.target);
  };
  return h("form.filters", { onsubmit }, children);
}

/** Return the options of a selection, of values and texts. */
export function options(entries) {
  return entries.map(([value, text]) => h("option", { value }, text));
}

/** Replace the children of an element; those with the same `data-key` keep the focus, and stay folded or unfolded. */
export function replace(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const summaries = () => element.querySelectorAll("summary[data-key]");
  const unfolded = new Map([...summaries()].map((one) => [one.dataset.key, one.parentNode.open]));
  element.replaceChildren();
  append(element, children);
  for (const one of summaries()) one.parentNode.open = unfolded.get(one.dataset.key) ?? one.parentNode.open;
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** Return a table with the given columns; cells are texts or elements. */
export function table(caption, columns, rows) {
  const cell = (content, i) => h("td", { "data-label": columns[i] }, content);
  const head = columns.map((name) => h("th", { scope: "col" }, name));
  const body = rows.map((cells) => h("tr", cells.map(cell)));
  return h("div.scroll", h("table", h("caption.hidden", caption), h("thead", h("tr", head)), h("tbody", body)));
}

/** Return a state as a coloured word. */
export function chip(state, kind = kindOf(state)) {
  return h(`span.chip.${kind}`, state);
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

/** Return the address of a host on this page; without a node or a cell, of the first host that matches. */
export function hostAddress(name, node, cellUuid) {
  const parts = [name, node, cellUuid].map((part) => encodeURIComponent(part ?? ""));
  return `#/hosts/${parts.join("/")}`.replace(/\/+$/, "");
}

/** Return a link that opens a host on the map. */
export function hostLink(name, cellUuid, node, text = name) {
  const href = hostAddress(name, node, cellUuid);
  return name ? h("a", { href, "data-key": `host ${href}` }, text) : "";
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
