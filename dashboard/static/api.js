// Sends requests to the page's own server. If the server refuses a token, the viewer is asked for another one.

const KEY = "moorage.token";
/** Milliseconds after which the server is taken for dead. An explanation or a life may take some timeouts of calls. */
const PATIENCE = 120_000;

/** An unexpected answer, with the sentence of the server. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export function leave() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

let login = null;

/** Ask for a token until the viewer gives one; concurrent callers share one dialog. */
function ask(why) {
  login ??= new Promise((resolve) => {
    const dialog = document.querySelector("#login");
    document.querySelector("#login-why").textContent = why;
    dialog.showModal();
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, document.querySelector("#token").value.trim());
        document.querySelector("#token").value = "";
        login = null;
        resolve();
      },
      { once: true },
    );
  });
  return login;
}

/** Ask for a token instead of this one, unless another request has got a better one in the meantime. */
async function askInsteadOf(token, why) {
  if (sessionStorage.getItem(KEY) !== token) return;
  sessionStorage.removeItem(KEY);
  await ask(why);
}

/** Return the answer at a path below /api; parameters that are null are left out. */
export async function get(path, parameters = {}) {
  return request("GET", path, parameters);
}

export async function post(path) {
  return request("POST", path, {});
}

async function request(method, path, parameters) {
  const url = new URL(`api/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.append(name, value);
  }
  for (;;) {
    if (!sessionStorage.getItem(KEY)) await ask("");
    const token = sessionStorage.getItem(KEY);
    let headers;
    try {
      headers = new Headers({ "X-Auth-Token": token });
    } catch {
      await askInsteadOf(token, "The token contains a character that is not allowed in it.");
      continue;
    }
    let answer;
    try {
      answer = await fetch(url, { method, headers, signal: AbortSignal.timeout(PATIENCE) });
      if (answer.ok) return await answer.json();
    } catch {
      throw new Refused(0, "The dashboard's own server cannot be reached.");
    }
    const detail = await sentence(answer);
    if (answer.status === 401) {
      await askInsteadOf(token, "The token is not accepted.");
    } else if (answer.status === 403 && method === "GET") {
      // A token that may read keeps its session if it may not change something.
      await askInsteadOf(token, "The policy does not let this token look.");
    } else {
      throw new Refused(answer.status, detail);
    }
  }
}

async function sentence(answer) {
  try {
    return (await answer.json()).errors[0].detail.split("\n").pop();
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}
