// One host: its provider tree, the consumers that hold something there, and why a request does not go there.

import { get } from "./api.js";
import { chip, duration, folded, form, h, instanceLink, labelled, number, percent, replace, short } from "./dom.js";
import { explain } from "./funnel.js";
import { question } from "./question.js";

export class HostPanel {
  /**
   * @param closed called when the panel is closed by its button or by Escape.
   */
  constructor(closed) {
    this.element = document.querySelector("#panel");
    this.closed = closed;
    this.host = null;
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") closed();
    });
  }

  open(host) {
    const same = (name) => this.host?.[name] === host[name];
    if (same("name") && same("node") && same("cellUuid") && !this.element.hidden) return;
    this.host = host;
    this.body = h("div", h("p.quiet", "Reading …"));
    this.answer = h("div");
    const close = h("button", { type: "button", onclick: () => this.closed(), "aria-label": "Close" }, "✕");
    replace(
      this.element,
      h("div.row", h("h2", host.name), close),
      this.body,
      h("h3", "Why not here?"),
      this.#form(),
      this.answer,
    );
    this.element.hidden = false;
    document.body.classList.add("with-panel");
    if (question.uuid) this.#ask({ instance: question.uuid });
    // If it cannot be read, the next refresh shows why.
    this.refresh().catch(() => {});
  }

  close() {
    this.host = null;
    this.element.hidden = true;
    document.body.classList.remove("with-panel");
  }

  /** Read the host anew, if one is open. */
  async refresh() {
    const host = this.host;
    if (!host) return;
    const found = await get("host", { name: host.name, node: host.node, cell: host.cellUuid });
    if (this.host === host) replace(this.body, content(found, host));
  }

  #form() {
    const field = (name, label, value) =>
      labelled(label, h("input", { type: "number", name, min: 0, value, required: true }));
    const forget = () => {
      question.uuid = null;
      replace(this.answer);
    };
    const asked = question.uuid
      ? h(
          "p",
          "Asked about the request of instance ",
          instanceLink(question.uuid, "asked"),
          " ",
          h("button.small", { type: "button", onclick: forget }, "another question"),
        )
      : null;
    return form(
      (given) => this.#ask(Object.fromEntries(new FormData(given))),
      asked,
      field("vcpus", "VCPU", 2),
      field("memory_mb", "MiB", 2048),
      field("root_gb", "GiB", 10),
      h("button", { type: "submit" }, "Would it fit?"),
    );
  }

  #ask(what) {
    explain(this.answer, { ...what, host: this.host.name });
  }
}

function content(found, host) {
  const children = new Map();
  for (const provider of found.providers) {
    const of = children.get(provider.parent) ?? [];
    children.set(provider.parent, [...of, provider]);
  }
  const status = found.forced_down ? "forced down" : found.up ? "up" : "down";
  return [
    h(
      "p",
      chip(status),
      found.disabled ? [" ", chip("disabled")] : null,
      ` cell ${host.cell} · zone ${found.zone}`,
      found.io_ops ? ` · ${found.io_ops} being built or moved` : null,
      found.failed_builds ? ` · ${number(found.failed_builds)} recent failed builds` : null,
    ),
    tree(children, null),
    h("h3", `Guests and other holders (${found.consumers.length})`),
    found.consumers.length ? h("ul.guests", found.consumers.map(consumer)) : h("p.quiet", "none"),
    folded(
      "Metadata of its aggregates",
      Object.entries(found.metadata).map(([key, values]) => `${key} = ${values.join(", ")}`),
    ),
    folded(
      "Attributes",
      Object.entries(found.attributes).map(([key, value]) => `${key} = ${value}`),
    ),
  ];
}

function tree(children, parent) {
  const branch = (provider) =>
    h(
      "li",
      h("span.provider", { title: provider.uuid }, provider.name),
      Object.entries(provider.inventories).map(([name, one]) => bar(name, one)),
      folded(`${provider.traits.length} traits`, provider.traits, false, `traits ${provider.uuid}`),
      tree(children, provider.uuid),
    );
  return children.has(parent) ? h("ul.tree", children.get(parent).map(branch)) : null;
}

function bar(name, one) {
  const share = one.capacity > 0 ? one.used / one.capacity : 0;
  const detail = `total ${number(one.total)}, reserved ${number(one.reserved)}, ratio ${number(one.ratio)}`;
  const filled = h("i", { style: { width: `${Math.min(100, share * 100)}%` } });
  return h(
    "div.amount",
    { title: detail },
    h("span", name),
    h(share >= 0.999 ? "span.bar.full" : "span.bar", filled),
    h("span.figure", `${number(one.used)} of ${number(one.capacity)} · ${percent(share)}`),
  );
}

function consumer({ uuid, held, claim }) {
  const sums = {};
  for (const resources of Object.values(held)) {
    for (const [name, amount] of Object.entries(resources)) sums[name] = (sums[name] ?? 0) + amount;
  }
  const amounts = Object.entries(sums)
    .map(([name, amount]) => `${number(amount)} ${name}`)
    .join(", ");
  const type = claim?.consumer_type ?? "without a claim";
  const since = claim ? `${claim.claim_id ? "" : "residue, "}${duration(claim.age)} old` : null;
  return h(
    "li",
    type === "INSTANCE" ? instanceLink(uuid) : [short(uuid), ` ${type}`],
    ` ${amounts}`,
    since ? h("span.quiet", ` · ${since}`) : null,
    claim && claim.claim_id && !claim.accepted_by ? [" ", chip("not accepted", "warn")] : null,
  );
}
