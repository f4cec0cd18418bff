// Long work: its progress, and a way to stop it.

import { cancelJob, follow, get, post, Problem } from "./api.js";
import { h } from "./dom.js";

// Start a job, show it in `place` while it runs, and give its last state; null if it failed or was stopped.
export async function runJob(place, title, path, body, stoppable = true) {
  const label = h("span", {}, `${title} …`);
  const bar = h("progress", { "aria-label": title });
  const stop = h("button", { type: "button" }, "Stop");
  place.replaceChildren(h("div", { class: "row job" }, label, bar, ...(stoppable ? [stop] : [])));
  let told = null;
  try {
    const job = await post(path, body);
    stop.addEventListener("click", async () => {
      try {
        await cancelJob(job.id);
        label.textContent = `${title}: stopping …`;
      } catch (error) {
        label.textContent = error.message;
      }
    });
    told = await follow(job.id, (state) => {
      label.textContent = state.total ? `${title}: ${state.done} of ${state.total}` : `${title}: ${state.label || "at work"}`;
      if (state.total) {
        bar.max = state.total;
        bar.value = state.done;
      }
    });
    if (told === null || told.state === "running") throw new Problem(0, "the connection to the server was lost");
    if (told.state === "failed") throw new Problem(0, told.problem);
    place.replaceChildren(...(told.state === "cancelled" ? [h("p", { class: "quiet" }, `${title}: stopped.`)] : []));
    return told.state === "done" ? await get(`/v1/jobs/${job.id}`) : null;
  } catch (error) {
    place.replaceChildren(h("p", { class: "fault", role: "alert" }, `${title}: ${error.message}`));
    return null;
  }
}
