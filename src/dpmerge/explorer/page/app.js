// The explorer's page: one privacy target, and everything computed for it.

import { get, latest, messageOf, onTokenNeeded, post } from "./api.js";
import { byId, deltaText } from "./dom.js";
import { Frontier } from "./frontier.js";
import { runJob } from "./jobs.js";
import { showModels } from "./models.js";
import { forgetPlan, showOptions, showVerdict } from "./options.js";
import { Releases } from "./releases.js";
import { Weights } from "./weights.js";

const POLL_MS = 2000;
const SMALLEST_DELTA = 1e-100;

/** @type {Map<string, string>} by the part of the page that has one */
const problems = new Map();

/** @param {string} part @param {string} problem */
function tell(part, problem) {
  if (problem === "") problems.delete(part);
  else problems.set(part, problem);
  byId("problem").textContent = [...new Set(problems.values())].join(" ");
  byId("problem").hidden = problems.size === 0;
}

/** The page, once the portfolio is known. */
class Page {
  /** @type {number | undefined} */
  timer;

  /** @param {PortfolioAnswer} portfolio */
  constructor(portfolio) {
    const alone = portfolio.models.map((model) => Math.min(...Object.values(model.epsilon).filter((one) => one !== null && one > 0).map(Number))).filter(Number.isFinite);
    /** @type {[number, number]} */
    this.range = alone.length ? [Number((Math.min(...alone) / 2).toPrecision(2)), Number((Math.max(...alone) * 1.5).toPrecision(2))] : [0.1, 10];
    const [low, high] = this.range;
    this.target = { epsilon: Number(Math.sqrt(low * high).toPrecision(2)), delta: portfolio.delta };
    this.delta = portfolio.delta; // the δ of the models shown
    this.releases = new Releases(portfolio);
    this.weights = new Weights(portfolio, this.target, (rule, weights) => this.releases.open(rule, weights, this.target, false), () => this.ask());
    this.frontier = new Frontier(this.range, this.target);
    // Each part updates independently: a slow or failing part does not block the others.
    this.parts = [
      following("plan", () => this.plan(this.target)),
      following("weights", () => this.weights.setTarget(this.target)),
      following("models", () => this.models(this.target.delta)),
    ];
    this.listen();
  }

  // --- the knob -------------------------------------------------------------------------------------------------------------

  listen() {
    const [slider, box, deltaSlider, deltaBox] = [byId("epsilon-slider"), byId("epsilon-box"), byId("delta-slider"), byId("delta-box")];
    slider.addEventListener("input", () => this.setTarget({ epsilon: this.epsilonAt(slider.valueAsNumber) }, slider));
    deltaSlider.addEventListener("input", () => this.setTarget({ delta: Number(`1e${deltaSlider.value}`) }, deltaSlider));
    box.addEventListener("input", () => {
      const epsilon = box.valueAsNumber;
      if (!Number.isFinite(epsilon) || epsilon < 0 || epsilon > 1e6) this.refuse("ε is a number from 0 to a million.");
      else this.setTarget({ epsilon }, box);
    });
    deltaBox.addEventListener("input", () => {
      const delta = deltaBox.valueAsNumber;
      if (!Number.isFinite(delta) || delta < SMALLEST_DELTA || delta >= 1) this.refuse("δ is a number between 0 and 1, such as 1e-5.");
      else this.setTarget({ delta }, deltaBox);
    });
    byId("target-form").addEventListener("submit", (event) => event.preventDefault());
    byId("search").addEventListener("click", () => this.search());
  }

  /** @param {number} position */
  epsilonAt(position) {
    const [low, high] = this.range;
    return Number((low * (high / low) ** (position / 1000)).toPrecision(3));
  }

  /** @param {number} epsilon */
  positionOf(epsilon) {
    const [low, high] = this.range;
    return Math.round(1000 * Math.min(1, Math.max(0, Math.log(Math.max(epsilon, 1e-12) / low) / Math.log(high / low))));
  }

  /** @param {string} why */
  refuse(why) {
    byId("target-error").textContent = `${why} The page still shows ε = ${this.target.epsilon}, δ = ${this.target.delta}.`;
  }

  /** @param {Partial<Target>} changed @param {HTMLInputElement | null} [from] the input being edited: it is not overwritten */
  setTarget(changed, from = null) {
    this.target = { ...this.target, ...changed };
    const { epsilon, delta } = this.target;
    /** @type {[HTMLInputElement, string][]} */
    const shown = [
      [byId("epsilon-box"), String(epsilon)],
      [byId("epsilon-slider"), String(this.positionOf(epsilon))],
      [byId("delta-box"), delta.toExponential().replace("+", "")],
      [byId("delta-slider"), String(Math.round(Math.log10(delta)))],
    ];
    for (const [input, value] of shown) if (input !== from) input.value = value;
    byId("epsilon-slider").setAttribute("aria-valuetext", `ε at most ${epsilon}`);
    byId("delta-slider").setAttribute("aria-valuetext", `δ at most ${deltaText(delta)}`);
    byId("target-error").textContent = "";
    this.ask();
  }

  // --- results for the target -----------------------------------------------------------------------------------------------

  ask() {
    for (const part of this.parts) part();
  }

  /** @param {Target} target */
  async plan(target) {
    const started = performance.now();
    /** @type {PlanAnswer} */
    let found;
    try {
      found = await post("/v1/plan", target);
    } catch (error) {
      forgetPlan();
      this.frontier.setTarget(target, null);
      throw error;
    }
    this.showPlan(found);
    byId("verdict").dataset.ms = (performance.now() - started).toFixed(1);
    byId("verdict").dataset.target = `${target.epsilon} ${target.delta}`;
    this.frontier.setTarget(target, found);
  }

  /** @param {number} delta */
  async models(delta) {
    if (this.delta === delta) return;
    showModels(await get(`/v1/portfolio?delta=${encodeURIComponent(delta)}`));
    this.delta = delta;
  }

  /** @param {PlanAnswer} plan */
  showPlan(plan) {
    showVerdict(plan);
    // One model alone is the combination that gives it all the weight.
    const rule = (/** @type {OptionAnswer} */ option) => /** @type {ReleaseRequest["rule"]} */ (option.rule === "single" ? "combination" : option.rule);
    showOptions(plan, {
      show: (option) => {
        chooseRule(rule(option));
        this.weights.show(option.weights);
      },
      release: (option) => this.releases.open(rule(option), option.weights, this.target, option.feasible),
    });
    const { done, total } = plan.warming;
    byId("warming").textContent = done < total ? `${done} of ${total} plans are ready; better weights may still be found` : "";
    clearTimeout(this.timer);
    if (done < total) this.timer = setTimeout(() => this.ask(), POLL_MS);
  }

  async search() {
    const { target } = this;
    byId("search").disabled = true;
    await runJob(byId("search-job"), `Searching at ε = ${target.epsilon}, δ = ${deltaText(target.delta)}`, "/v1/plan", { ...target, effort: "full" });
    byId("search").disabled = false;
    this.ask();
  }
}

/** @param {string} part @param {() => Promise<void>} follow */
function following(part, follow) {
  return latest(async () => {
    try {
      await follow();
      tell(part, "");
    } catch (error) {
      tell(part, messageOf(error));
    }
  });
}

/** @param {string} rule */
function chooseRule(rule) {
  const input = document.querySelector(`input[name=rule][value="${rule}"]`);
  if (input instanceof HTMLInputElement && !input.checked) {
    input.checked = true;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

// --- the token --------------------------------------------------------------------------------------------------------------

/** @type {Promise<string | null> | null} concurrent calls that need the token share one dialog */
let answering = null;

/** @param {string} why @returns {Promise<string | null>} */
function askForToken(why) {
  return new Promise((resolve) => {
    const input = byId("token");
    byId("token-why").textContent = why;
    input.value = "";
    /** @type {string | null} */
    let given = null;
    const submitted = () => { given = input.value || null; };
    const closed = () => {
      byId("token-form").removeEventListener("submit", submitted);
      input.value = "";
      answering = null;
      resolve(given);
    };
    byId("token-form").addEventListener("submit", submitted);
    byId("token-dialog").addEventListener("close", closed, { once: true });
    byId("token-dialog").showModal();
    input.focus();
  });
}

onTokenNeeded((why) => (answering ??= askForToken(why)));
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close());

// --- the beginning ----------------------------------------------------------------------------------------------------------

async function start() {
  /** @type {PortfolioAnswer} */
  const portfolio = await get("/v1/portfolio");
  const { models, dataset, adjacency, utilities_source, provenance } = portfolio;
  byId("about").textContent = `${models.length} ${models.length === 1 ? "model" : "models"} trained on ${dataset}; neighbouring datasets: ${adjacency}.`;
  const looked = provenance === "a-priori" ? " (stated without looking at the private models)" : " — measured on the private models, so weights chosen by them are not covered";
  byId("provenance").textContent = `Utilities: ${utilities_source}${looked}.`;
  showModels(portfolio);
  const page = new Page(portfolio);
  page.setTarget({});
  await page.releases.refresh();
  await page.frontier.make(portfolio.delta);
}

start().catch((error) => tell("start", messageOf(error)));
