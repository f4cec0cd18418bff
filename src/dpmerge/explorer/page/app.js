// The page where people turn the privacy knob: one target, and everything that follows from it.

import { get, latest, onTokenNeeded, post } from "./api.js";
import { byId, deltaText } from "./dom.js";
import { Frontier } from "./frontier.js";
import { runJob } from "./jobs.js";
import { showModels } from "./models.js";
import { forgetPlan, showOptions, showVerdict } from "./options.js";
import { Releases } from "./releases.js";
import { Weights } from "./weights.js";

const POLL_MS = 2000;
const SMALLEST_DELTA = 1e-100;
const page = { target: null, delta: null, range: [0.1, 10] };

const problems = new Map(); // by the part of the page that has one

function tell(problem, part) {
  if (problem === "") problems.delete(part);
  else problems.set(part, problem);
  byId("problem").textContent = [...new Set(problems.values())].join(" ");
  byId("problem").hidden = problems.size === 0;
}

function refuse(why) {
  byId("target-error").textContent = `${why} What is shown is for ε = ${page.target.epsilon}, δ = ${page.target.delta}.`;
}

// --- the knob ---------------------------------------------------------------------------------------------------------------

const slider = byId("epsilon-slider");
const box = byId("epsilon-box");
const deltaSlider = byId("delta-slider");
const deltaBox = byId("delta-box");

function epsilonAt(position) {
  const [low, high] = page.range;
  return Number((low * (high / low) ** (position / 1000)).toPrecision(3));
}

function positionOf(epsilon) {
  const [low, high] = page.range;
  return Math.round(1000 * Math.min(1, Math.max(0, Math.log(Math.max(epsilon, 1e-12) / low) / Math.log(high / low))));
}

function setTarget(epsilon, delta, from) {
  page.target = { epsilon, delta };
  if (from !== "box") box.value = String(epsilon);
  if (from !== "slider") slider.value = String(positionOf(epsilon));
  if (from !== "delta-box") deltaBox.value = delta.toExponential().replace("+", "");
  if (from !== "delta-slider") deltaSlider.value = String(Math.round(Math.log10(delta)));
  slider.setAttribute("aria-valuetext", `ε at most ${epsilon}`);
  deltaSlider.setAttribute("aria-valuetext", `δ at most ${deltaText(delta)}`);
  byId("target-error").textContent = "";
  ask();
}

slider.addEventListener("input", () => setTarget(epsilonAt(slider.valueAsNumber), page.target.delta, "slider"));
deltaSlider.addEventListener("input", () => setTarget(page.target.epsilon, Number(`1e${deltaSlider.value}`), "delta-slider"));
box.addEventListener("input", () => {
  const value = box.valueAsNumber;
  if (!Number.isFinite(value) || value < 0 || value > 1e6) refuse("ε is a number from 0 to a million.");
  else setTarget(value, page.target.delta, "box");
});
deltaBox.addEventListener("input", () => {
  const value = deltaBox.valueAsNumber;
  if (!Number.isFinite(value) || value < SMALLEST_DELTA || value >= 1) refuse("δ is a number between 0 and 1, such as 1e-5.");
  else setTarget(page.target.epsilon, value, "delta-box");
});
byId("target-form").addEventListener("submit", (event) => event.preventDefault());

// --- what follows from it ---------------------------------------------------------------------------------------------------

// Each part goes its own way: what is slow or fails keeps no other from following the target.
const parts = [["plan", () => plan(page.target)], ["weights", () => page.weights.setTarget(page.target)], ["models", () => models(page.target.delta)]]
  .map(([name, follow]) => latest(async () => {
    try {
      await follow();
      tell("", name);
    } catch (error) {
      tell(error.message, name);
    }
  }));

function ask() {
  for (const part of parts) part();
}

async function plan(target) {
  const started = performance.now();
  let found;
  try {
    found = await post("/v1/plan", target);
  } catch (error) {
    forgetPlan();
    page.frontier.setTarget(target, null);
    throw error;
  }
  showPlan(found);
  byId("verdict").dataset.ms = (performance.now() - started).toFixed(1);
  byId("verdict").dataset.target = `${target.epsilon} ${target.delta}`;
  page.frontier.setTarget(target, found);
}

async function models(delta) {
  if (page.delta === delta) return;
  showModels(await get(`/v1/portfolio?delta=${encodeURIComponent(delta)}`));
  page.delta = delta;
}

function showPlan(plan) {
  showVerdict(plan);
  // One model alone is the combination that gives it all the weight.
  const rule = (option) => (option.rule === "single" ? "combination" : option.rule);
  showOptions(plan, {
    show: (option) => { chooseRule(rule(option)); page.weights.show(option.weights); },
    release: (option) => page.releases.open(rule(option), option.weights, page.target, option.feasible),
  });
  const { done, total } = plan.warming;
  byId("warming").textContent = done < total ? `${done} of ${total} plans are made beforehand; until all are, better weights may turn up` : "";
  clearTimeout(page.timer);
  if (done < total) page.timer = setTimeout(ask, POLL_MS);
}

function chooseRule(rule) {
  const input = document.querySelector(`input[name=rule][value="${rule}"]`);
  if (input && !input.checked) {
    input.checked = true;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

byId("search").addEventListener("click", async () => {
  const target = page.target;
  byId("search").disabled = true;
  await runJob(byId("search-job"), `Searching at ε = ${target.epsilon}, δ = ${deltaText(target.delta)}`, "/v1/plan", { ...target, effort: "full" });
  byId("search").disabled = false;
  ask();
});

// --- the token --------------------------------------------------------------------------------------------------------------

let answering = null; // calls that need the token at the same time share one question

onTokenNeeded((why) => {
  answering ??= new Promise((resolve) => {
    const dialog = byId("token-dialog");
    const input = byId("token");
    byId("token-why").textContent = why;
    input.value = "";
    let given = null;
    const submitted = () => { given = input.value || null; };
    const closed = () => {
      byId("token-form").removeEventListener("submit", submitted);
      input.value = "";
      answering = null;
      resolve(given);
    };
    byId("token-form").addEventListener("submit", submitted);
    dialog.addEventListener("close", closed, { once: true });
    dialog.showModal();
    input.focus();
  });
  return answering;
});
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close());

// --- the beginning ----------------------------------------------------------------------------------------------------------

async function start() {
  const portfolio = await get("/v1/portfolio");
  const known = portfolio.models.map((model) => Math.min(...Object.values(model.epsilon).filter((one) => one !== null && one > 0))).filter(Number.isFinite);
  if (known.length) page.range = [Number((Math.min(...known) / 2).toPrecision(2)), Number((Math.max(...known) * 1.5).toPrecision(2))];
  byId("about").textContent = `${portfolio.models.length} ${portfolio.models.length === 1 ? "model" : "models"} trained on ${portfolio.dataset}; neighbouring datasets: ${portfolio.adjacency}.`;
  byId("provenance").textContent = `Utilities: ${portfolio.utilities_source}${portfolio.provenance === "a-priori" ? " (stated without looking at the private models)" : " — measured on the private models, so weights chosen by them are not covered"}.`;
  page.delta = portfolio.delta;
  showModels(portfolio);
  page.releases = new Releases(portfolio);
  page.weights = new Weights(portfolio, (rule, weights) => page.releases.open(rule, weights, page.target, false), ask);
  page.frontier = new Frontier(page.range);
  const [low, high] = page.range;
  setTarget(Number(Math.sqrt(low * high).toPrecision(2)), portfolio.delta);
  await page.releases.refresh();
  await page.frontier.make(portfolio.delta);
}

start().catch((error) => tell(error.message, "start"));
