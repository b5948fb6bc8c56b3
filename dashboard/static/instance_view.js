// The history of one instance: a time line of its attempts, moves and operations; its allocations; why it was refused.

import { get } from "./api.js";
import { chip, duration, h, moment, number, replace, short, table } from "./dom.js";
import { funnel, hostLink } from "./funnel.js";
import { question } from "./question.js";

export class InstanceView {
  title = "Instance";

  constructor() {
    this.life = h("div");
    this.explained = h("div");
    this.host = h("input", { type: "search", name: "host", placeholder: "host", required: true });
    this.asking = h(
      "form",
      {
        class: "filters",
        onsubmit: (event) => {
          event.preventDefault();
          this.#explain(this.host.value);
        },
      },
      h("label", {}, h("span", {}, "Why not on"), this.host),
      h("button", { type: "submit" }, "Ask"),
      h("button", { type: "button", onclick: () => this.#pick() }, "Choose it on the map"),
      h("button", { type: "button", onclick: () => this.#explain(null) }, "Decide again"),
    );
    this.element = h(
      "section",
      { class: "instance" },
      this.life,
      h("h3", {}, "The decision"),
      this.asking,
      this.explained,
    );
  }

  async show([uuid]) {
    if (this.uuid === uuid) return;
    this.uuid = uuid;
    this.asked = false;
    replace(this.life, h("p", { class: "quiet" }, "Reading …"));
    replace(this.explained);
  }

  hide() {}

  async poll() {
    const uuid = this.uuid;
    const found = await get(`instances/${encodeURIComponent(uuid)}`);
    if (uuid !== this.uuid) return;
    replace(this.life, life(found));
    this.asking.hidden = ["deleted", "deleting"].includes(found.state);
    if (this.asked) return;
    this.asked = true;
    const refused = found.explanation ?? found.migrations.find((one) => one.explanation)?.explanation;
    if (refused)
      replace(this.explained, h("p", { class: "quiet" }, "On record, from when it was refused:"), funnel(refused));
  }

  #pick() {
    question.uuid = this.uuid;
    location.hash = "#/hosts";
  }

  async #explain(host) {
    const uuid = this.uuid;
    replace(this.explained, h("p", { class: "quiet" }, "Asking a scheduler …"));
    try {
      const found = await get("explain", { instance: uuid, host, now: true });
      if (uuid !== this.uuid) return;
      const why = Object.entries(found.named_hosts ?? {}).find(([name]) => name.toLowerCase() === host?.toLowerCase());
      replace(
        this.explained,
        why ? h("p", { class: "verdict" }, h("b", {}, why[0]), ` ${why[1]}.`) : null,
        funnel(found),
      );
    } catch (fault) {
      if (uuid !== this.uuid) return;
      replace(this.explained, h("p", { class: "bad" }, fault.message));
    }
  }
}

function life(found) {
  return [
    h("h2", {}, "Instance ", h("code", {}, found.uuid)),
    h(
      "p",
      {},
      chip(found.state),
      " ",
      hostLink(found.host),
      found.cell ? ` in ${found.cell}` : null,
      ` · ${found.size} · project ${found.project} · asked for at ${moment(found.created_at)}`,
    ),
    found.reason ? h("p", { class: "bad" }, found.reason) : null,
    timeline(found),
    h("h3", {}, "Holds"),
    holds(found),
  ];
}

function holds(found) {
  if (!found.claims) return h("p", { class: "bad" }, `unknown: ${found.claims_unknown}`);
  if (!found.claims.length) return h("p", { class: "quiet" }, "nothing");
  return table(
    "Claims",
    ["node", "as", "claim", "accepted", "age"],
    found.claims.map((claim) => [
      hostLink(claim.node),
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
  return h(
    "figure",
    { class: "timeline" },
    h(
      "figcaption",
      { class: "quiet" },
      `From ${moment(times[0])} on, ${duration(times.at(-1) - times[0])}; not to scale`,
    ),
    h(
      "ol",
      {},
      rows.map((row) =>
        h(
          "li",
          { class: row.kind },
          h("span", { class: "name" }, row.name),
          h(
            "span",
            { class: "track" },
            h("i", {
              class: row.state,
              style: { left: `${place(row.from)}%`, width: `max(0.5rem, ${place(row.to) - place(row.from)}%)` },
            }),
          ),
          h(
            "span",
            { class: "what" },
            chip(row.state),
            ` +${duration(row.from - times[0])}`,
            row.to > row.from ? `, for ${duration(row.to - row.from)}` : null,
            row.note ? h("span", { class: "quiet" }, ` · ${row.note}`) : null,
          ),
        ),
      ),
    ),
  );
}

function events(found) {
  const rows = [{ name: "asked for", kind: "asked", state: found.state, from: found.created_at, to: found.updated_at }];
  for (const attempt of found.attempts) {
    rows.push({
      name: [`${attempt.migration_uuid ? "move" : "attempt"} ${attempt.number} `, hostLink(attempt.host)],
      kind: "attempt",
      state: attempt.state,
      from: attempt.created_at,
      to: Math.max(attempt.created_at, attempt.updated_at),
      note: attempt.reason,
    });
  }
  for (const one of found.migrations) {
    rows.push({
      name: `${one.kind} to ${one.destination ?? "?"}`,
      kind: "migration",
      state: one.state,
      from: one.created_at,
      to: Math.max(one.created_at, one.updated_at),
      note: one.reason,
    });
  }
  for (const one of found.operations) {
    rows.push({
      name: `${one.kind}, ${one.cell_uuid ? (found.cell ?? "cell") : "super conductor"}`,
      kind: "operation",
      state: one.state,
      from: found.now - one.age,
      to: Math.max(found.now - one.age, found.now - one.idle),
      note: [`step ${one.step}`, one.tries ? `${number(one.tries)} tries` : null, one.reason]
        .filter(Boolean)
        .join(", "),
    });
  }
  return rows.sort((a, b) => a.from - b.from);
}
