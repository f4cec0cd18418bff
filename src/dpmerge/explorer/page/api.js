// Calls to the server. The token lives in this page's memory alone: never in the address, never stored.

let token = null;
let askForToken = null; // set by the page: shows why, resolves to a token or to null

export function onTokenNeeded(ask) {
  askForToken = ask;
}

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function request(method, path, body) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (token !== null) headers.authorization = `Bearer ${token}`;
  try {
    return await fetch(path, { method, headers, cache: "no-store", credentials: "omit", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "the server does not answer: was it stopped?");
  }
}

async function checked(method, path, body) {
  let response = await request(method, path, body);
  while (response.status === 401 && askForToken !== null) {
    const given = await askForToken(token === null ? "This needs the token that the terminal printed when the explorer was started." : "That token was not the right one.");
    if (given === null) break;
    token = given;
    response = await request(method, path, body);
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  if (response.status === 401) token = null;
  throw new Problem(response.status, told.detail || `the server answered ${response.status}`);
}

export const get = async (path) => (await checked("GET", path)).json();
export const post = async (path, body) => (await checked("POST", path, body)).json();
export const cancelJob = async (id) => (await checked("DELETE", `/v1/jobs/${encodeURIComponent(id)}`)).json();

// Follow a job by its server-sent events; `told` hears every one. EventSource cannot send a token, so the stream is read here.
export async function follow(id, told) {
  const response = await checked("GET", `/v1/jobs/${encodeURIComponent(id)}/events`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return last;
    rest += value;
    const pieces = rest.split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      const line = piece.split("\n").find((one) => one.startsWith("data: "));
      if (line === undefined) continue;
      last = JSON.parse(line.slice(6));
      told(last);
    }
  }
}

// Only the latest of many calls matters: while one is under way, the next waits, and those between are dropped.
export function latest(call) {
  let running = false;
  let waiting = null;
  return async function run(...given) {
    if (running) {
      waiting = given;
      return;
    }
    running = true;
    try {
      await call(...given);
    } finally {
      running = false;
      if (waiting !== null) {
        const next = waiting;
        waiting = null;
        run(...next);
      }
    }
  };
}
