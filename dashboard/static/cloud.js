// All hosts as last seen: first all of them, then only the changes.

import { get } from "./api.js";

export const ALIVE = 1,
  DISABLED = 2,
  FORCED_DOWN = 4;

/** One host; `used` and `capacity` are in the order of `classes`. */
class Host {
  constructor(row, answer) {
    const hosts = answer.hosts;
    let cell, zone, traits, aggregates, node;
    [
      this.row,
      this.name,
      node,
      cell,
      zone,
      traits,
      aggregates,
      this.state,
      this.servers,
      this.ioOps,
      this.failed,
      this.used,
      this.capacity,
    ] = row;
    this.node = node ?? this.name;
    this.cellUuid = hosts.cells[cell];
    this.cell = answer.cell_names[this.cellUuid] ?? this.cellUuid;
    this.zone = hosts.zones[zone];
    this.traits = hosts.trait_sets[traits];
    this.aggregates = hosts.aggregate_sets[aggregates];
    this.classes = hosts.classes;
  }

  get up() {
    return (this.state & (ALIVE | FORCED_DOWN)) === ALIVE;
  }

  get disabled() {
    return (this.state & DISABLED) !== 0;
  }

  get status() {
    if (this.state & FORCED_DOWN) return "forced down";
    if (!this.up) return "down";
    return this.disabled ? "disabled" : "up";
  }

  /** The used share of one resource class, or of the fullest; null if the host has none of it. */
  share(name) {
    if (name !== "*") {
      const i = this.classes.indexOf(name);
      return i >= 0 && this.capacity[i] > 0 ? this.used[i] / this.capacity[i] : null;
    }
    let most = null;
    for (let i = 0; i < this.classes.length; i++) {
      if (this.capacity[i] > 0) most = Math.max(most ?? 0, this.used[i] / this.capacity[i]);
    }
    return most;
  }
}

const names = new Intl.Collator("en", { numeric: true });

class Cloud extends EventTarget {
  hosts = [];
  sorted = [];
  aggregateNames = {};
  interval = 2;
  version = null;
  /** Shares used of each class, at each refresh since the page was opened. */
  history = [];

  async refresh() {
    const answer = await get("hosts", { since: this.version });
    const { hosts } = answer;
    const changed = new Set();
    if (hosts.whole) this.hosts = [];
    for (const row of hosts.rows) {
      const host = new Host(row, answer);
      const before = this.hosts[host.row];
      if (before && before.servers !== host.servers) changed.add(host.row);
      this.hosts[host.row] = host;
    }
    this.version = hosts.version;
    this.interval = answer.interval;
    this.aggregateNames = answer.aggregate_names;
    if (hosts.whole) this.sorted = [...this.hosts];
    else if (hosts.rows.length) this.sorted = this.sorted.map((host) => this.hosts[host.row]);
    if (hosts.whole) this.sorted.sort((a, b) => names.compare(a.name, b.name) || names.compare(a.node, b.node));
    this.totals = totals(this.hosts);
    this.history.push([Date.now() / 1000, this.totals.amounts]);
    if (this.history.length > 900) this.history.shift();
    this.dispatchEvent(new CustomEvent("change", { detail: { changed, whole: hosts.whole } }));
  }

  aggregate(uuid) {
    return this.aggregateNames[uuid] ?? uuid;
  }

  /** Return the host of that name; `node` and `cellUuid` select one of several nodes or cells. */
  find(name, node, cellUuid) {
    return this.sorted.find(
      (host) =>
        host.name === name && (!node || host.node === node) && (!cellUuid || host.cellUuid === cellUuid),
    );
  }

  /** The names that are in use, sorted. */
  choices(of) {
    const found = new Set();
    let last;
    for (const host of this.hosts) {
      const values = of(host);
      // Most hosts share one list.
      if (values === last) continue;
      last = values;
      for (const value of [].concat(values)) found.add(value);
    }
    return [...found].sort(names.compare);
  }
}

function totals(hosts) {
  const amounts = new Map();
  let up = 0,
    servers = 0;
  for (const host of hosts) {
    up += host.up;
    servers += host.servers;
    host.classes.forEach((name, i) => {
      if (!host.capacity[i]) return;
      const sum = amounts.get(name) ?? { used: 0, capacity: 0 };
      sum.used += host.used[i];
      sum.capacity += host.capacity[i];
      amounts.set(name, sum);
    });
  }
  return { hosts: hosts.length, up, servers, amounts };
}

export const cloud = new Cloud();
