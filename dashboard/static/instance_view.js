// The history of one instance: a time line of its attempts, moves and operations; its allocations; why it was refused.

import { get } from "./api.js";
import { chip, duration, form, h, hostLink, labelled, moment, number, replace, short, table } from "./dom.js";
import { explain, funnel } from "./funnel.js";
import { question } from "./question.js";

export class InstanceView {
  title = "Instance";

  constructor() {
    this.life = h("div");
    this.explained = h("div");
    this.host = h("input", { type: "search", name: "host", placeholder: "host", required: true });
    this.asking = form(
      () => this.#explain(this.host.value),
      labelled("Why not on", this.host),
      h("button", { type: "submit" }, "Ask"),
      h("button", { type: "button", onclick: () => this.#pick() }, "Choose it on the map"),
      h("button", { type: "button", onclick: () => this.#explain(null) }, "Decide again"),
    );
    this.element = h("section", this.life, h("h3", "The decision"), this.asking, this.explained);
  }

  async show([uuid]) {
    if (this.uuid === uuid) return;
    this.uuid = uuid;
    this.asked = false;
    replace(this.life, h("p.quiet", "Reading …"));
    replace(this.explained);
  }

  async poll() {
    const uuid = this.uuid;
    const found = await get(`instances/${encodeURIComponent(uuid)}`);
    if (uuid !== this.uuid) return;
    replace(this.life, life(found));
    this.asking.hidden = ["deleted", "deleting"].includes(found.state);
    if (this.asked) return;
    this.asked = true;
    const refused = found.explanation ?? found.migrations.find((one) => one.explanation)?.explanation;
    if (refused) replace(this.explained, h("p.quiet", "On record, from when it was refused:"), funnel(refused));
  }

  #pick() {
    question.uuid = this.uuid;
    location.hash = "#/hosts";
  }

  #explain(host) {
    this.asked = true;
    explain(this.explained, { instance: this.uuid, host, now: true });
  }
}

function life(found) {
  return [
    h("h2", "Instance ", h("code", found.uuid)),
    h(
      "p",
      chip(found.state),
      " ",
      hostLink(found.host, found.cell_uuid),
      found.cell ? ` in ${found.cell}` : null,
      ` · ${found.size} · project ${found.project} · asked for at ${moment(found.created_at)}`,
    ),
    found.reason ? h("p.bad", found.reason) : null,
    timeline(found),
    h("h3", "Holds"),
    holds(found),
  ];
}

function holds(found) {
  if (!found.claims) return h("p.bad", `unknown: ${found.claims_unknown}`);
  if (!found.claims.length) return h("p.quiet", "nothing");
  return table(
    "Claims",
    ["node", "as", "claim", "accepted", "age"],
    found.claims.map((claim) => [
      claim.at ? hostLink(claim.at.host, claim.at.cell_uuid, claim.at.node, claim.node) : claim.node,
      claim.claim_id ? claim.consumer_type.toLowerCase() : "residue",
      claim.claim_id ? short(claim.claim_id) : "",
      claim.accepted_host ?? (claim.claim_id ? "not yet" : ""),
      duration(claim.age),
    ]),
  );
}

/** Lay events out from left to right; long pauses are shortened, or a build of two seconds would be invisible. */
function timeline(found) {
  const rows = events(found);
  const times = [...new Set(rows.flatMap((row) => [row.from, row.to]))].sort((a, b) => a - b);
  const places = new Map();
  let width = 0;
  times.forEach((at, i) => {
    if (i) width += Math.log1p((at - times[i - 1]) * 20) + 0.15;
    places.set(at, width);
  });
  const place = (at) => (100 * places.get(at)) / (width || 1);
  const track = (row) =>
    h("i", {
      class: row.state,
      style: { left: `${place(row.from)}%`, width: `max(0.5rem, ${place(row.to) - place(row.from)}%)` },
    });
  const event = (row) =>
    h(
      "li",
      h("span.name", row.name),
      h("span.track", track(row)),
      h(
        "span",
        chip(row.state),
        ` +${duration(row.from - times[0])}`,
        row.to > row.from ? `, for ${duration(row.to - row.from)}` : null,
        row.note ? h("span.quiet", ` · ${row.note}`) : null,
      ),
    );
  return h(
    "figure.timeline",
    h("figcaption.quiet", `From ${moment(times[0])} on, ${duration(times.at(-1) - times[0])}; not to scale`),
    h("ol", rows.map(event)),
  );
}

function events(found) {
  const rows = [];
  const add = (name, state, from, to, note) => rows.push({ name, state, from, to: Math.max(from, to), note });
  add("asked for", found.state, found.created_at, found.updated_at);
  for (const one of found.attempts) {
    const name = [`${one.migration_uuid ? "move" : "attempt"} ${one.number} `, hostLink(one.host, found.cell_uuid)];
    add(name, one.state, one.created_at, one.updated_at, one.reason);
  }
  for (const one of found.migrations) {
    const name = `${one.kind} to ${one.destination ?? "?"}`;
    add(name, one.state, one.created_at, one.updated_at, one.reason);
  }
  for (const one of found.operations) {
    const name = `${one.kind}, ${one.cell_uuid ? (found.cell ?? "cell") : "super conductor"}`;
    const note = [`step ${one.step}`, one.tries ? `${number(one.tries)} tries` : null, one.reason];
    add(name, one.state, found.now - one.age, found.now - one.idle, note.filter(Boolean).join(", "));
  }
  return rows.sort((a, b) => a.from - b.from);
}
