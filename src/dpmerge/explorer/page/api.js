// Calls to the server. The token lives in this page's memory alone: never in the address, never stored.

/** @type {string | null} */
let token = null;
/** @type {((why: string) => Promise<string | null>) | null} */
let askForToken = null;

/** @param {(why: string) => Promise<string | null>} ask shows why, resolves to a token, or to null */
export function onTokenNeeded(ask) {
  askForToken = ask;
}

/** @type {(offered: boolean) => void} */
let offerToken = () => {};

/** @param {(offered: boolean) => void} offer is told whether the token would help: the server is busy, and it was not sent */
export function onBusy(offer) {
  offerToken = offer;
}

/** Send the token with every call from now on. */
export async function giveToken() {
  const given = await askForToken?.("With the token that the terminal printed, your requests have a share of their own.");
  if (given) {
    token = given;
    offerToken(false);
  }
}

export class Problem extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @param {string} method @param {string} path @param {object} [body] */
async function request(method, path, body) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (token !== null) headers.authorization = `Bearer ${token}`;
  try {
    return await fetch(path, { method, headers, cache: "no-store", credentials: "omit", body: body && JSON.stringify(body) });
  } catch {
    throw new Problem(0, "the server does not answer: was it stopped?");
  }
}

/** @param {string} method @param {string} path @param {object} [body] */
async function checked(method, path, body) {
  let response = await request(method, path, body);
  while (response.status === 401 && askForToken !== null) {
    const why = token === null ? "This needs the token that the terminal printed when the explorer was started." : "That token was not the right one.";
    const given = await askForToken(why);
    if (given === null) break;
    token = given;
    response = await request(method, path, body);
  }
  if (response.ok) return response;
  if (response.status === 429 && token === null) offerToken(true);
  const told = await response.json().catch(() => ({}));
  if (response.status === 401) token = null;
  throw new Problem(response.status, told.detail || `the server answered ${response.status}`);
}

/** @param {string} path @returns {Promise<any>} */
export const get = async (path) => (await checked("GET", path)).json();
/** @param {string} path @param {object} body @returns {Promise<any>} */
export const post = async (path, body) => (await checked("POST", path, body)).json();
/** @param {string} id */
export const cancelJob = (id) => checked("DELETE", `/v1/jobs/${encodeURIComponent(id)}`);

/**
 * Follow a job by its server-sent events to its last state. EventSource cannot send a token, so the stream is read here.
 * @param {string} id @param {(state: JobAnswer) => void} told hears every event
 * @returns {Promise<JobAnswer | null>}
 */
export async function follow(id, told) {
  const response = await checked("GET", `/v1/jobs/${encodeURIComponent(id)}/events`);
  if (response.body === null) return null;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return last;
    rest += value;
    const pieces = rest.split("\n\n");
    rest = pieces.pop() ?? "";
    for (const piece of pieces) {
      const line = piece.split("\n").find((one) => one.startsWith("data: "));
      if (line === undefined) continue;
      last = JSON.parse(line.slice(6));
      told(last);
    }
  }
}

/**
 * Only the latest of many calls matters: while one is under way, the next waits, and those between are dropped.
 * @template {unknown[]} Given
 * @param {(...given: Given) => Promise<void>} call
 */
export function latest(call) {
  let running = false;
  /** @type {Given | null} */
  let waiting = null;
  return async function run(/** @type {Given} */ ...given) {
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
