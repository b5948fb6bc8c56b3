// A decision as a picture: how many hosts each filter has left, and why the others were removed.

import { h, number, svg } from "./dom.js";

const LEAST = 0.8;

/** Return the picture of an explanation. */
export function funnel(explanation) {
  const all = Math.max(1, explanation.hosts);
  const width = (hosts) => (hosts ? Math.max(LEAST, (100 * hosts) / all) : 0);
  const rows = explanation.filters.map((each) => {
    const before = width(each.hosts),
      after = width(each.left);
    return h(
      "li",
      { class: each.left < each.hosts ? "removes" : null },
      h("span", { class: "name", title: each.name }, each.name),
      svg(
        "svg",
        {
          viewBox: "0 0 100 20",
          preserveAspectRatio: "none",
          role: "img",
          "aria-label": `${each.name}: ${each.left} of ${each.hosts} hosts left`,
        },
        svg("polygon", { class: "before", points: trapezoid(before, before) }),
        svg("polygon", { class: "after", points: trapezoid(before, after) }),
      ),
      h("span", { class: "left" }, number(each.left)),
      each.reasons.length
        ? h("span", { class: "why" }, each.reasons.map((one) => `${number(one.hosts)} ${one.words}`).join("; "))
        : null,
    );
  });
  return h(
    "div",
    { class: "funnel" },
    h(
      "p",
      { class: explanation.chosen ? "answer good" : "answer bad" },
      explanation.chosen ? `A host: ${explanation.chosen}` : "No valid host",
    ),
    h("p", {}, explanation.summary),
    h(
      "ol",
      { "aria-label": "Hosts left after each filter" },
      h(
        "li",
        {},
        h("span", { class: "name" }, "all hosts"),
        svg(
          "svg",
          { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" },
          svg("polygon", { class: "after", points: trapezoid(100, 100) }),
        ),
        h("span", { class: "left" }, number(explanation.hosts)),
      ),
      rows,
    ),
    lists(explanation),
  );
}

function trapezoid(top, bottom) {
  const x = (share, sign) => 50 + (sign * share) / 2;
  return `${x(top, -1)},0 ${x(top, 1)},0 ${x(bottom, 1)},20 ${x(bottom, -1)},20`;
}

function lists(explanation) {
  const of = (title, entries) =>
    entries.length
      ? h(
          "details",
          { open: entries.length < 6 },
          h("summary", {}, title),
          h(
            "ul",
            {},
            entries.map((entry) => h("li", {}, entry)),
          ),
        )
      : null;
  const misses = (explanation.nearest_misses ?? []).map((miss) => [
    hostLink(miss.host),
    `: ${number(miss.asked)} ${miss.resource_class} asked, ${number(miss.free)} free`,
  ]);
  const pairs = (of) => Object.entries(of ?? {}).map(([host, why]) => [hostLink(host), ` ${why}`]);
  return [
    of("Named hosts", pairs(explanation.named_hosts)),
    of("Nearest misses", misses),
    of("Hosts that came furthest", pairs(explanation.nearest_hosts)),
    of(
      "Others were faster on",
      Object.entries(explanation.lost_races ?? {}).map(([host, times]) => [hostLink(host), ` ${times} times`]),
    ),
    of(
      "The best hosts",
      (explanation.top_hosts ?? []).map((one) => [
        `${one.rank}. `,
        hostLink(one.host),
        ` ${one.weight.toFixed(3)} = ${one.scores.map((s) => `${s.weigher} ${s.counts.toFixed(3)}`).join(" + ")}`,
      ]),
    ),
    of(
      "Decided without",
      Object.entries(explanation.skipped_plugins ?? {}).map(([plugin, why]) => `${plugin}: ${why}`),
    ),
  ];
}

/** Return a link that opens a host on the map. */
export function hostLink(name) {
  return name ? h("a", { href: `#/hosts/${encodeURIComponent(name)}`, "data-key": `host ${name}` }, name) : "";
}
