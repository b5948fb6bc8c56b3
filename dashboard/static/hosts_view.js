// The view of all hosts: the map, its filters, and what the cloud has used since the page was opened.

import { Chart } from "./charts.js";
import { cloud } from "./cloud.js";
import { form, h, hostAddress, labelled, options, percent, replace } from "./dom.js";
import { HostPanel } from "./host_panel.js";
import { HostMap, legend } from "./map.js";

const ALL = "";
const LINES = ["--series1", "--series2", "--series3", "--series4"];
const STANDARD = ["VCPU", "PCPU", "MEMORY_MB", "DISK_GB"];

export class HostsView {
  title = "Hosts";

  constructor() {
    this.map = new HostMap((host) => {
      location.hash = hostAddress(host.name, host.node, host.cellUuid);
    });
    this.panel = new HostPanel(() => {
      location.hash = "#/hosts";
    });
    const select = (label, ...choices) => {
      const element = h("select", { onchange: () => this.update() }, options(choices));
      return { element, label: labelled(label, element) };
    };
    this.group = select("Group by", ["cell", "cell"], ["zone", "zone"], ["aggregate", "aggregate"], [ALL, "nothing"]);
    this.by = select("Colour by", ["*", "the fullest"]);
    this.filters = {
      cell: select("Cell", [ALL, "all"]),
      zone: select("Zone", [ALL, "all"]),
      aggregate: select("Aggregate", [ALL, "all"]),
      trait: select("Trait", [ALL, "any"]),
      status: select("State", [ALL, "any"], ["up", "up"], ["disabled", "disabled"], ["down", "down"]),
    };
    this.name = h("input", {
      type: "search",
      id: "search",
      placeholder: "Name (press /)",
      oninput: () => this.update(),
    });
    this.legend = h("div");
    this.count = h("p.quiet", { role: "status" });
    this.chartElement = h("div");
    const fields = form(
      () => {},
      labelled("Host", this.name),
      this.group.label,
      this.by.label,
      Object.values(this.filters).map((one) => one.label),
    );
    // On a phone the map comes first.
    const open = matchMedia("(min-width: 40rem)").matches;
    this.element = h(
      "section",
      h("details.choices", { open }, h("summary", "Filters and colours"), fields),
      h("div.row", this.legend, this.count),
      this.map.element,
      this.chartElement,
    );
    cloud.addEventListener("change", (event) => this.#changed(event.detail));
  }

  /** Show the view, with the panel of a host if one is named. */
  show(named) {
    this.named = named;
    this.update();
    this.#open();
  }

  hide() {
    this.panel.close();
  }

  /** Go to the field of the host's name. */
  search() {
    this.name.closest("details").open = true;
    this.name.focus();
  }

  async poll() {
    // The hosts are refreshed for all views; this view refreshes only its own panel.
    await this.panel.refresh();
  }

  #open() {
    const host = this.named.length ? cloud.find(...this.named) : null;
    this.map.marked = host || null;
    if (host) this.panel.open(host);
    else this.panel.close();
    this.map.draw();
  }

  #changed({ changed, whole }) {
    this.map.flash(changed);
    if (!this.element.isConnected) return;
    this.update();
    if (whole) this.#open();
  }

  /** Filter and group anew, and draw. */
  update() {
    this.#choices();
    const wanted = Object.fromEntries(Object.entries(this.filters).map(([name, one]) => [name, one.element.value]));
    const text = this.name.value.trim().toLowerCase();
    const shown = cloud.sorted.filter(
      (host) =>
        (!text || host.name.toLowerCase().includes(text) || host.node.toLowerCase().includes(text)) &&
        (!wanted.cell || host.cell === wanted.cell) &&
        (!wanted.zone || host.zone === wanted.zone) &&
        (!wanted.aggregate || host.aggregates.includes(wanted.aggregate)) &&
        (!wanted.trait || host.traits.includes(wanted.trait)) &&
        (!wanted.status || (wanted.status === "down" ? !host.up : host.status === wanted.status)),
    );
    this.count.textContent = `${shown.length.toLocaleString("en")} of ${cloud.hosts.length.toLocaleString("en")} hosts`;
    replace(this.legend, legend(this.by.element.value));
    this.map.show(this.#groups(shown), this.by.element.value);
    this.#draw_chart();
  }

  #groups(hosts) {
    // A host of several aggregates is in the group of that combination, so that it is on the map once.
    const aggregates = (host) => host.aggregates.map((uuid) => cloud.aggregate(uuid)).sort();
    const of =
      {
        cell: (host) => host.cell,
        zone: (host) => host.zone,
        aggregate: (host) => aggregates(host).join(" + ") || "no aggregate",
      }[this.group.element.value] ?? (() => "all");
    const groups = new Map();
    for (const host of hosts) {
      const name = of(host);
      if (!groups.has(name)) groups.set(name, { name, hosts: [] });
      groups.get(name).hosts.push(host);
    }
    return [...groups.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  }

  #choices() {
    const give = (select, entries) => {
      const key = entries.map(([value, text]) => `${value} ${text}`).join("\n");
      if (select.known === key) return;
      select.known = key;
      const fixed = select.element.options[0],
        before = select.element.value;
      select.element.replaceChildren(fixed, ...options(entries));
      select.element.value = entries.some(([value]) => value === before) ? before : fixed.value;
    };
    const plain = (values) => values.map((value) => [value, value]);
    give(this.filters.cell, plain(cloud.choices((host) => host.cell)));
    give(this.filters.zone, plain(cloud.choices((host) => host.zone)));
    give(this.filters.trait, plain(cloud.choices((host) => host.traits)));
    give(
      this.filters.aggregate,
      cloud.choices((host) => host.aggregates).map((uuid) => [uuid, cloud.aggregate(uuid)]),
    );
    give(this.by, plain([...(cloud.totals?.amounts.keys() ?? [])].sort()));
  }

  #draw_chart() {
    if (!cloud.history.length || !this.element.isConnected) return;
    // All standard classes: hosts with further classes may be added while the page is open.
    this.chart ??= new Chart(
      this.chartElement,
      "Used since this page was opened",
      STANDARD.map((label, i) => ({ label, colour: LINES[i], value: percent })),
      { range: [0, 1], values: (_, ticks) => ticks.map(percent), height: 140 },
    );
    const share = (sum) => (sum ? sum.used / sum.capacity : null);
    this.chart.show([
      cloud.history.map(([at]) => at),
      ...STANDARD.map((name) => cloud.history.map(([, amounts]) => share(amounts.get(name)))),
    ]);
  }
}
