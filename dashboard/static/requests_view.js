// The newest instances, updated as they are decided on.

import { get } from "./api.js";
import { bars, Chart } from "./charts.js";
import { chip, h, hostLink, instanceLink, labelled, moment, options, replace, table } from "./dom.js";

const BINS = 40;
/** Which instances may be shown: the value and the text of each choice, and whether an instance belongs to it. */
const CHOICES = [
  ["", "all", () => true],
  ["refused", "refused", (one) => one.refused],
  ["error", "in error", (one) => one.state === "error"],
  ["building", "being built", (one) => one.state === "building"],
  ["tried", "with several attempts", (one) => one.attempts.length > 1],
];

export class RequestsView {
  title = "Requests";

  constructor() {
    this.only = h("select", { onchange: () => this.#draw() }, options(CHOICES));
    this.count = h("p.quiet", { role: "status" });
    this.list = h("div");
    this.chartElement = h("div");
    const shown = h("form.row.filters", labelled("Show", this.only), this.count);
    this.element = h("section", this.chartElement, shown, this.list);
    this.found = [];
  }

  show() {
    this.#draw();
  }

  async poll() {
    this.found = (await get("instances")).instances;
    this.#draw();
  }

  #draw() {
    const [, , wanted] = CHOICES.find(([value]) => value === this.only.value);
    const shown = this.found.filter(wanted);
    const part = shown.length === this.found.length ? "" : `, ${shown.length} shown`;
    this.count.textContent = `the newest ${this.found.length}${part}`;
    replace(
      this.list,
      table(
        "The newest instances",
        ["asked", "instance", "size", "outcome", "attempts", "why"],
        shown.map((one) => [
          moment(one.created_at),
          instanceLink(one.uuid),
          one.size,
          [chip(one.refused ? "refused" : one.state), " ", hostLink(one.host, one.cell_uuid)],
          attempts(one),
          one.refused ?? one.reason ?? "",
        ]),
      ),
    );
    this.#chart();
  }

  #chart() {
    if (!this.found.length || !this.element.isConnected) return;
    this.chart ??= new Chart(
      this.chartElement,
      "Requests by outcome",
      [
        { label: "all", colour: "--series1", fill: "--series1" },
        { label: "refused or in error", colour: "--bad", fill: "--bad" },
      ],
      { height: 130, paths: bars(), range: (_, __, most) => [0, Math.max(2, most)] },
    );
    const times = this.found.map((one) => one.created_at);
    const last = Math.max(...times),
      first = Math.min(...times, last - BINS);
    const width = niceWidth((last - first) / BINS),
      start = Math.floor(first / width) * width;
    const length = Math.floor((last - start) / width) + 1;
    const at = Array.from({ length }, (_, i) => start + i * width);
    // No bar for zero: it would be drawn as a line.
    const all = new Array(length).fill(null),
      bad = new Array(length).fill(null);
    for (const one of this.found) {
      const bin = Math.floor((one.created_at - start) / width);
      all[bin] += 1;
      if (one.refused || one.state === "error") bad[bin] += 1;
    }
    this.chart.show([at, all, bad], width);
  }
}

function niceWidth(seconds) {
  return [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400].find((one) => one >= seconds) ?? 604800;
}

function attempts(one) {
  if (!one.attempts.length) return "";
  return h(
    "span.attempts",
    one.attempts.map((attempt) =>
      h("i", { class: attempt.state, title: `${attempt.number}. ${attempt.host}, ${attempt.state}` }),
    ),
    one.attempts.length > 1 ? h("span.quiet", ` ${one.attempts.length}`) : null,
  );
}
