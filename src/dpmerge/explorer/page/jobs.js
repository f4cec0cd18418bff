// Long work: its progress, and a way to stop it.

import { cancelJob, follow, get, messageOf, post, Problem } from "./api.js";
import { fault, fill, h, quiet } from "./dom.js";

/**
 * Start a job, show it in `place` while it runs, and give its result; null if it failed or was stopped.
 * @param {HTMLElement} place @param {string} title @param {string} path @param {object} body
 * @returns {Promise<{id: string, result: any} | null>}
 */
export async function runJob(place, title, path, body, stoppable = true) {
  const label = h("span", {}, `${title} …`);
  const bar = h("progress", { "aria-label": title });
  const stop = h("button", { type: "button" }, "Stop");
  fill(place, h("div", { class: "row job" }, label, bar, stoppable ? stop : null));
  try {
    /** @type {Promise<JobAnswer>} */
    const started = post(path, body);
    stop.addEventListener("click", async () => { // heard from the first moment on: who stops early waits for the job's name
      stop.disabled = true; // once is enough; while it is so, the label says that the job is stopping
      label.textContent = `${title}: stopping …`;
      try {
        await cancelJob((await started).id);
      } catch (error) {
        label.textContent = messageOf(error);
        stop.disabled = false;
      }
    });
    const job = await started;
    const told = await follow(job.id, (state) => {
      if (!stop.disabled) label.textContent = state.total ? `${title}: ${state.done} of ${state.total}` : `${title}: ${state.label || "at work"}`;
      if (state.total) {
        bar.max = state.total;
        bar.value = state.done;
      }
    });
    if (told === null || told.state === "running") throw new Problem(0, "the connection to the server was lost");
    if (told.problem !== null) throw new Problem(0, told.problem);
    fill(place, told.state === "cancelled" ? quiet(`${title}: stopped.`) : null);
    return told.state === "done" ? await get(`/v1/jobs/${job.id}`) : null;
  } catch (error) {
    fill(place, fault(`${title}: ${messageOf(error)}`));
    return null;
  }
}
