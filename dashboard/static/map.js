// The map: a square for each host on one canvas, in labelled groups. Ten thousand are drawn in some milliseconds.

import { cloud } from "./cloud.js";
import { colour, h, isDark, number, percent } from "./dom.js";

const LIGHT = ["#dfe9f2", "#c3d9ec", "#9fc5e3", "#74add7", "#4a93c8", "#2c79b4", "#19609b", "#104a80", "#0b3562"];
const DARK = ["#22303d", "#274257", "#2b5673", "#306c91", "#3a84b0", "#4e9dcb", "#6fb5de", "#97ccec", "#c4e2f6"];
const FULL = 0.999;
const SMALLEST = 6,
  LARGEST = 34,
  TITLE = 22,
  GAP_BELOW = 8,
  FLASH = 1500;

export class HostMap {
  /**
   * @param chosen called with the host that was clicked, or entered by key.
   */
  constructor(chosen) {
    this.chosen = chosen;
    this.groups = [];
    this.flashes = new Map();
    this.cursor = null;
    this.canvas = h("canvas", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "map of hosts",
      "aria-describedby": "map-said",
      "aria-label": "Map of hosts. The arrow keys go from host to host, Enter opens one.",
      onclick: (event) => this.#click(event),
      onmousemove: (event) => this.#hover(event),
      onmouseleave: () => {
        this.tip.hidden = true;
      },
      onkeydown: (event) => this.#key(event),
      onblur: () => this.draw(),
      onfocus: () => {
        this.cursor ??= this.groups[0]?.hosts[0];
        this.draw();
      },
    });
    this.tip = h("div.tip", { hidden: true });
    this.said = h("p", { id: "map-said", class: "hidden", "aria-live": "polite" });
    this.element = h("div.map", this.canvas, this.tip, this.said);
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(this.element);
  }

  /** Show groups, each `{name, hosts}`, coloured by the used share of a resource class. */
  show(groups, by) {
    this.groups = groups;
    this.by = by;
    // By its name, because the rows may belong to other hosts now.
    const host = this.cursor && cloud.find(this.cursor.name, this.cursor.node, this.cursor.cellUuid);
    this.cursor = host && groups.some((group) => group.hosts.includes(host)) ? host : null;
    this.layout();
  }

  /** Mark hosts whose servers have just changed. */
  flash(rows) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches || rows.size > 500) return;
    const until = performance.now() + FLASH;
    for (const row of rows) this.flashes.set(row, until);
  }

  layout() {
    const width = this.element.clientWidth;
    if (!width) return;
    const room = Math.max(240, window.innerHeight - this.element.getBoundingClientRect().top - window.scrollY - 190);
    let size = LARGEST;
    while (size > SMALLEST && this.#height(size, width) > room) size -= 1;
    this.size = size;
    this.columns = Math.max(1, Math.floor(width / size));
    let top = 0;
    this.placed = new Map();
    for (const group of this.groups) {
      group.top = top;
      group.hosts.forEach((host, i) => this.placed.set(host.row, { group, i }));
      top += TITLE + Math.ceil(group.hosts.length / this.columns) * size + GAP_BELOW;
    }
    const ratio = window.devicePixelRatio || 1;
    const height = Math.max(top, 60);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    this.draw();
  }

  #height(size, width) {
    const columns = Math.max(1, Math.floor(width / size));
    return this.groups.reduce(
      (sum, group) => sum + TITLE + Math.ceil(group.hosts.length / columns) * size + GAP_BELOW,
      0,
    );
  }

  draw() {
    if (!this.placed) return;
    const context = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const colours = palette();
    const gap = this.size > 9 ? 2 : 1,
      side = this.size - gap;
    context.textBaseline = "middle";
    for (const group of this.groups) {
      context.fillStyle = colours.text;
      context.textAlign = "left";
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(group.name, 0, group.top + TITLE / 2);
      const used = context.measureText(group.name).width;
      context.fillStyle = colours.quiet;
      context.font = "12px system-ui, sans-serif";
      context.fillText(
        `${number(group.hosts.length)} host${group.hosts.length === 1 ? "" : "s"}`,
        used + 8,
        group.top + TITLE / 2,
      );
      group.hosts.forEach((host, i) => {
        const x = (i % this.columns) * this.size,
          y = group.top + TITLE + Math.floor(i / this.columns) * this.size;
        this.#square(context, colours, host, x, y, side);
      });
    }
    this.#rings(context, colours, side);
  }

  #square(context, colours, host, x, y, side) {
    const share = host.share(this.by);
    context.fillStyle = fillOf(colours, host, share);
    context.fillRect(x, y, side, side);
    if (side < 12) return;
    context.strokeStyle = context.fillStyle = colours.onState;
    if (!host.up || host.disabled) {
      context.lineWidth = 2;
      context.beginPath();
      const inset = side * 0.28;
      context.moveTo(x + inset, y + side - inset);
      context.lineTo(x + side - inset, y + inset);
      if (!host.up) {
        context.moveTo(x + inset, y + inset);
        context.lineTo(x + side - inset, y + side - inset);
      }
      context.stroke();
    } else if (side >= 26 && share !== null) {
      context.fillStyle = share > 0.45 && share < FULL ? colours.onDeep : share >= FULL ? "#fff" : colours.onPale;
      context.textAlign = "center";
      context.font = "11px system-ui, sans-serif";
      context.fillText(Math.round(share * 100), x + side / 2, y + side / 2 + 0.5);
    }
  }

  #rings(context, colours, side) {
    const now = performance.now();
    for (const [row, until] of this.flashes) {
      const at = this.#at(row);
      if (until < now || !at) {
        this.flashes.delete(row);
        continue;
      }
      context.globalAlpha = Math.max(0, (until - now) / FLASH);
      ring(context, colours.flash, at, side, 2);
    }
    context.globalAlpha = 1;
    if (this.marked) {
      const at = this.#at(this.marked.row);
      if (at) ring(context, colours.text, at, side, 2);
    }
    if (this.cursor && document.activeElement === this.canvas) {
      const at = this.#at(this.cursor.row);
      if (at) ring(context, colours.accent, at, side, 3);
    }
    if (this.flashes.size && !this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        this.draw();
      });
    }
  }

  #at(row) {
    const place = this.placed.get(row);
    if (!place) return null;
    return {
      x: (place.i % this.columns) * this.size,
      y: place.group.top + TITLE + Math.floor(place.i / this.columns) * this.size,
    };
  }

  /** Return the host under the pointer. */
  host(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left,
      y = event.clientY - box.top;
    const group = this.groups.findLast((one) => one.top + TITLE <= y);
    const column = Math.floor(x / this.size);
    if (!group || column < 0 || column >= this.columns) return null;
    return group.hosts[Math.floor((y - group.top - TITLE) / this.size) * this.columns + column] ?? null;
  }

  #click(event) {
    const host = this.host(event);
    if (!host) return;
    this.cursor = host;
    this.chosen(host);
    this.draw();
  }

  #hover(event) {
    const host = this.host(event);
    this.tip.hidden = !host;
    this.canvas.style.cursor = host ? "pointer" : "default";
    if (!host) return;
    this.tip.textContent = inWords(host);
    const box = this.element.getBoundingClientRect();
    const x = event.clientX - box.left,
      left = x > box.width - 240 ? x - 230 : x + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  #key(event) {
    const place = this.cursor && this.placed.get(this.cursor.row);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    if (event.key === "Enter" || event.key === " ") {
      if (this.cursor) this.chosen(this.cursor);
    } else if (event.key in steps && place) {
      this.#go(place.group, place.i + steps[event.key], steps[event.key]);
    } else if (event.key === "Home" || event.key === "End") {
      const group = event.key === "Home" ? this.groups[0] : this.groups.at(-1);
      this.cursor = event.key === "Home" ? group?.hosts[0] : group?.hosts.at(-1);
      this.#tell();
    } else {
      return;
    }
    event.preventDefault();
  }

  #go(group, i, step) {
    const hosts = group.hosts;
    if (i >= 0 && i < hosts.length) this.cursor = hosts[i];
    else {
      const next = this.groups[this.groups.indexOf(group) + Math.sign(step)];
      if (next) this.cursor = step > 0 ? next.hosts[0] : next.hosts.at(-1);
    }
    this.#tell();
  }

  #tell() {
    this.said.textContent = this.cursor ? inWords(this.cursor) : "";
    this.draw();
  }
}

/** Return the legend of the map. */
export function legend(by) {
  const steps = isDark() ? DARK : LIGHT;
  const key = (background, words) => h("span.key", h("i", { style: { background } }), words);
  return h(
    "p.legend",
    h("span", `used of ${by === "*" ? "the fullest resource" : by}`),
    h(
      "span.ramp",
      "0 %",
      steps.map((one) => h("i", { style: { background: one } })),
      "100 %",
    ),
    key(colour("--full"), "full"),
    key(colour("--off"), "disabled"),
    key(colour("--bad"), "down"),
  );
}

function inWords(host) {
  const amounts = host.classes
    .map((name, i) => (host.capacity[i] ? `${name} ${number(host.used[i])}/${number(host.capacity[i])}` : null))
    .filter(Boolean);
  const servers = `${host.servers} server${host.servers === 1 ? "" : "s"}`;
  return `${host.name}, ${host.status}, ${servers} · ${amounts.join(" · ")}`;
}

function ring(context, stroke, at, side, width) {
  context.strokeStyle = stroke;
  context.lineWidth = width;
  context.strokeRect(at.x - 1, at.y - 1, side + 2, side + 2);
}

function fillOf(colours, host, share) {
  if (!host.up) return colours.bad;
  if (host.disabled) return colours.off;
  if (share === null) return colours.none;
  if (share >= FULL) return colours.full;
  return colours.steps[Math.min(colours.steps.length - 1, Math.floor(share * colours.steps.length))];
}

let cached = null;

function palette() {
  const dark = isDark();
  if (cached?.dark !== dark) {
    cached = {
      dark,
      steps: dark ? DARK : LIGHT,
      text: colour("--text"),
      quiet: colour("--quiet"),
      bad: colour("--bad"),
      off: colour("--off"),
      full: colour("--full"),
      none: colour("--line"),
      accent: colour("--accent"),
      flash: colour("--flash"),
      onState: "#fff",
      onDeep: dark ? "#0b1a26" : "#fff",
      onPale: dark ? "#cfe0ee" : "#1d3349",
    };
  }
  return cached;
}
