// The operations under way: the next step of each, its age, and how long it has been idle.

import { get } from "./api.js";
import { chip, duration, h, instanceLink, replace, short, table } from "./dom.js";

export class OperationsView {
  title = "Operations";

  constructor() {
    this.kinds = h("p.chips");
    this.list = h("div");
    this.element = h("section", h("h2", "Operations under way"), this.kinds, this.list);
  }

  async poll() {
    const { operations, count } = await get("operations");
    const kinds = new Map();
    for (const one of operations) kinds.set(one.kind, (kinds.get(one.kind) ?? 0) + 1);
    replace(
      this.kinds,
      [...kinds].map(([kind, of]) => chip(`${kind} ${of}`, "plain")),
      count > operations.length ? h("span.quiet", ` the oldest ${operations.length} of ${count}`) : null,
    );
    if (!count) {
      replace(this.list, h("p.quiet", "Nothing is under way."));
      return;
    }
    replace(
      this.list,
      table(
        "Operations",
        ["kind", "step", "subject", "where", "age", "idle", "tries", "owner", "why"],
        operations.map((one) => [
          one.kind,
          chip(one.step, one.tries ? "warn" : "busy"),
          isOfInstance(one) ? instanceLink(one.subject, one.uuid) : short(one.subject),
          one.cell ?? "super conductor",
          duration(one.age),
          duration(one.idle),
          one.tries,
          one.lease_owner ?? "waits",
          one.reason ?? "",
        ]),
      ),
    );
  }
}

/** A build of the super conductor is of a request, and a cleaning of an attempt; all others are of an instance. */
function isOfInstance(one) {
  return one.kind !== "clean" && (one.kind !== "build" || Boolean(one.cell_uuid));
}
