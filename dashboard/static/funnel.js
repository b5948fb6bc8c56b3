// A decision as a picture: how many hosts each filter has left, and why the others were removed.

import { get } from "./api.js";
import { folded, h, hostLink, number, replace, svg } from "./dom.js";

const LEAST = 0.8;

/**
 * Ask a scheduler to explain, and show its decision, and why it refuses `parameters.host`, unless the element shows
 * something else by then.
 */
export async function explain(element, parameters) {
  const asking = h("p.quiet", "Asking a scheduler …");
  replace(element, asking);
  const isCurrent = () => asking.parentNode === element;
  try {
    const found = await get("explain", parameters);
    if (!isCurrent()) return;
    const asked = parameters.host?.toLowerCase();
    const refused = Object.entries(found.named_hosts ?? {}).find(([name]) => name.toLowerCase() === asked);
    replace(element, refused ? h("p.verdict", h("b", refused[0]), ` ${refused[1]}.`) : null, funnel(found));
  } catch (fault) {
    if (isCurrent()) replace(element, h("p.bad", fault.message));
  }
}

/** Return the picture of an explanation. */
export function funnel(explanation) {
  const all = Math.max(1, explanation.hosts);
  const width = (hosts) => (hosts ? Math.max(LEAST, (100 * hosts) / all) : 0);
  const rows = explanation.filters.map((each) => {
    const before = width(each.hosts),
      after = width(each.left);
    const reasons = each.reasons.map((one) => `${number(one.hosts)} ${one.words}`).join("; ");
    return h(
      "li",
      h("span.name", { title: each.name }, each.name),
      picture(
        { role: "img", "aria-label": `${each.name}: ${each.left} of ${each.hosts} hosts left` },
        svg("polygon.before", { points: trapezoid(before, before) }),
        svg("polygon.after", { points: trapezoid(before, after) }),
      ),
      h("span.left", number(each.left)),
      reasons ? h("span.why", reasons) : null,
    );
  });
  const everything = h(
    "li",
    h("span.name", "all hosts"),
    picture({ "aria-hidden": "true" }, svg("polygon.after", { points: trapezoid(100, 100) })),
    h("span.left", number(explanation.hosts)),
  );
  return h(
    "div.funnel",
    explanation.chosen ? h("p.answer.good", `A host: ${explanation.chosen}`) : h("p.answer.bad", "No valid host"),
    h("p", explanation.summary),
    h("ol", { "aria-label": "Hosts left after each filter" }, everything, rows),
    lists(explanation),
  );
}

function picture(properties, ...polygons) {
  return svg("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", ...properties }, polygons);
}

function trapezoid(top, bottom) {
  const x = (share, sign) => 50 + (sign * share) / 2;
  return `${x(top, -1)},0 ${x(top, 1)},0 ${x(bottom, 1)},20 ${x(bottom, -1)},20`;
}

function lists(explanation) {
  const of = (title, entries) => folded(title, entries, entries.length < 6);
  const pairs = (found, words = (why) => ` ${why}`) =>
    Object.entries(found ?? {}).map(([host, why]) => [hostLink(host), words(why)]);
  const misses = (explanation.nearest_misses ?? []).map((miss) => [
    hostLink(miss.host),
    `: ${number(miss.asked)} ${miss.resource_class} asked, ${number(miss.free)} free`,
  ]);
  const best = (explanation.top_hosts ?? []).map((one) => [
    `${one.rank}. `,
    hostLink(one.host, one.cell_uuid),
    ` ${one.weight.toFixed(3)} = ${one.scores.map((s) => `${s.weigher} ${s.counts.toFixed(3)}`).join(" + ")}`,
  ]);
  const skipped = Object.entries(explanation.skipped_plugins ?? {}).map(([plugin, why]) => `${plugin}: ${why}`);
  return [
    of("Named hosts", pairs(explanation.named_hosts)),
    of("Nearest misses", misses),
    of("Hosts that came furthest", pairs(explanation.nearest_hosts)),
    of(
      "Others were faster on",
      pairs(explanation.lost_races, (times) => ` ${times} times`),
    ),
    of("The best hosts", best),
    of("Decided without", skipped),
  ];
}
