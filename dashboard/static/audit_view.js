// The findings of an audit; it runs when a viewer asks for it, and all viewers see it.

import { get, post } from "./api.js";
import { chip, duration, h, instanceLink, moment, replace, short, table } from "./dom.js";

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export class AuditView {
  title = "Audit";

  constructor() {
    this.button = h("button", { type: "button", onclick: () => this.#begin() }, "Audit the cloud now");
    this.refusal = h("p.bad", { role: "alert" });
    this.result = h("div", { "aria-live": "polite" });
    this.element = h(
      "section",
      h("h2", "Audit"),
      h(
        "p.quiet",
        "Compares what the store, the conductors, the cells and the schedulers say, like ",
        h("code", "moorage audit"),
        ". It changes nothing. It reads the whole store: run it when there is a reason to.",
      ),
      this.button,
      this.refusal,
      this.result,
    );
  }

  show() {
    this.refusal.textContent = "";
  }

  async poll() {
    this.#draw(await get("audit"));
  }

  async #begin() {
    this.refusal.textContent = "";
    try {
      const found = await post("audit");
      if (found.state === "done") this.refusal.textContent = "None was begun: the last one had just ended.";
      this.#draw(found);
    } catch (fault) {
      this.refusal.textContent = fault.message;
    }
  }

  #draw(found) {
    this.button.disabled = found.state === "running";
    const key = JSON.stringify([found.state, found.ended_at, found.state === "running" ? found.now : null]);
    if (this.key === key) return;
    this.key = key;
    replace(this.result, content(found));
  }
}

function content(found) {
  if (found.state === "none") return h("p.quiet", "None has been run yet.");
  if (found.state === "running") return h("p", chip("running"), ` for ${duration(found.now - found.began_at)}`);
  const when = `at ${moment(found.ended_at)}, in ${duration(found.ended_at - found.began_at)}`;
  if (found.state === "failed") return h("p", chip("failed"), ` ${found.reason} · ${when}`);
  const unseen = Object.entries(found.unseen);
  const verdict = found.findings.length
    ? chip(`${found.findings.length} findings`, "bad")
    : unseen.length
      ? chip("nothing found, not all seen", "warn")
      : chip("nothing found", "good");
  return [
    h("p", verdict, h("span.quiet", ` ${when}`)),
    found.findings.length
      ? table(
          "Findings",
          ["finding", "subject", "detail"],
          found.findings.map((one) => [one.kind, subject(one), one.detail]),
        )
      : null,
    unseen.length ? table("Not seen", ["not seen", "why"], unseen) : null,
  ];
}

/** A subject may also be a provider, a migration, an attempt or a host: only its instance has a page. */
function subject(one) {
  const link = one.instance && instanceLink(one.instance, `${one.kind} ${one.subject}`);
  if (one.instance === one.subject) return link;
  return [UUID.test(one.subject) ? short(one.subject) : one.subject, link ? [" of ", link] : null];
}
