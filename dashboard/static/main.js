// The page: which view is shown, and how often each request is repeated.

import { leave, Refused } from "./api.js";
import { AuditView } from "./audit_view.js";
import { cloud } from "./cloud.js";
import { h, isDark, number, percent, replace } from "./dom.js";
import { HostsView } from "./hosts_view.js";
import { InstanceView } from "./instance_view.js";
import { OperationsView } from "./operations_view.js";
import { question } from "./question.js";
import { RequestsView } from "./requests_view.js";

const views = {
  hosts: new HostsView(),
  requests: new RequestsView(),
  instance: new InstanceView(),
  operations: new OperationsView(),
  audit: new AuditView(),
};
const KEYS = { 1: "hosts", 2: "requests", 3: "operations", 4: "audit" };
/** While another view is shown, the numbers at the top are refreshed less often. */
const RARELY = 5;

let view = null;

/** Return a part of the address; a part that is not encoded properly is taken as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  const [, name, ...rest] = location.hash.split("/").map(decoded);
  const next = views[name] ?? views.hosts;
  if (next !== view) {
    view?.hide?.();
    view = next;
    document.querySelector("#view").replaceChildren(view.element);
    document.title = `${view.title} · Moorage`;
    for (const link of document.querySelectorAll("nav a")) {
      const own = link.hash === `#/${Object.keys(views).find((key) => views[key] === view)}`;
      if (own || (view === views.instance && link.hash === "#/requests")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  view.show?.(rest);
  banner();
  wake();
}

function banner() {
  document.querySelector("#view .banner")?.remove();
  if (view !== views.hosts || !question.uuid) return;
  const forget = () => {
    question.uuid = null;
    banner();
  };
  view.element.prepend(
    h(
      "p.banner",
      "Choose a host: why is instance ",
      h("code", question.uuid.slice(0, 8)),
      " not there? ",
      h("button.small", { type: "button", onclick: forget }, "stop asking"),
    ),
  );
}

function fault(error) {
  const line = document.querySelector("#fault");
  line.hidden = !error;
  line.textContent = error ? error.message : "";
  if (error && !(error instanceof Refused)) console.error(error);
}

function totals() {
  const { hosts, up, servers, amounts } = cloud.totals;
  const entries = [
    ["hosts up", `${number(up)} of ${number(hosts)}`],
    ["servers", number(servers)],
  ];
  for (const name of ["VCPU", "MEMORY_MB", "DISK_GB"]) {
    const sum = amounts.get(name);
    if (sum) entries.push([name, percent(sum.used / sum.capacity)]);
  }
  replace(
    document.querySelector("#totals"),
    entries.map(([name, value]) => h("div", h("dt", name), h("dd", value))),
  );
}

let turn = 0,
  timer = null,
  asking = false,
  again = false;

async function poll() {
  timer = null;
  if (document.hidden) return;
  asking = true;
  again = false;
  const began = performance.now();
  // If one request fails, the other one still counts.
  const questions = [view.poll()];
  if (view === views.hosts || cloud.version === null || turn % RARELY === 0) questions.push(cloud.refresh());
  const failed = (await Promise.allSettled(questions)).find((one) => one.status === "rejected");
  asking = false;
  turn += 1;
  fault(failed?.reason);
  if (!failed) answered(performance.now() - began);
  timer = setTimeout(poll, again ? 0 : cloud.interval * 1000);
}

function answered(milliseconds) {
  const pulse = document.querySelector("#pulse");
  document.querySelector("#leave").hidden = false;
  pulse.textContent = new Date().toLocaleTimeString("en-GB");
  pulse.title = `asked every ${cloud.interval} s; answered in ${Math.round(milliseconds)} ms`;
}

/** Ask at once, or as soon as the current requests have been answered. */
function wake() {
  again = true;
  if (asking) return;
  clearTimeout(timer);
  poll();
}

cloud.addEventListener("change", totals);
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) wake();
});
document.querySelector("#leave").addEventListener("click", leave);
document.querySelector("#theme").addEventListener("click", toggleTheme);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (event.key in KEYS) location.hash = `#/${KEYS[event.key]}`;
  else if (event.key === "/") {
    if (view !== views.hosts) {
      location.hash = "#/hosts";
      // The event of the changed address comes later: the field would not be there yet.
      route();
    }
    views.hosts.search();
  } else if (event.key === "t") toggleTheme();
  else if (event.key === "Escape" && view === views.hosts) location.hash = "#/hosts";
  else return;
  event.preventDefault();
});

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("moorage.theme", theme);
  recolour();
}

/** Draw the map and the charts anew: the colours of a canvas do not change by themselves. */
function recolour() {
  views.hosts.update();
  route();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

route();
