// The page where people turn the privacy knob: one target, and everything that follows from it.

import { get, giveToken, latest, messageOf, onBusy, onTokenNeeded, post } from "./api.js";
import { byId, deltaText } from "./dom.js";
import { runJob } from "./jobs.js";
import { Line } from "./line.js";
import { showModels } from "./models.js";
import { bestOf, forgetPlan, showOptions, showVerdict } from "./options.js";
import { Releases } from "./releases.js";
import { Weights } from "./weights.js";
import { setGlossary, showAfter, showAloud, showAssumptions } from "./words.js";

const POLL_MS = 1000;
const STILL_MS = 300; // after which a slider stands still: then the answer is for the very target
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

  /** @type {number | undefined} */
  still;
  /** @type {PlanAnswer | null} */
  shown = null;

  /** @param {PortfolioAnswer} portfolio @param {Line} line */
  constructor(portfolio, line) {
    this.portfolio = portfolio;
    this.line = line;
    const [low, high] = line.answer?.range ?? [0.1, 10];
    this.range = [low, high];
    this.target = { epsilon: Number(Math.sqrt(low * high).toPrecision(2)), delta: portfolio.delta };
    this.delta = 0; // the δ of the models shown: none yet
    this.releases = new Releases(portfolio);
    this.weights = new Weights(portfolio, this.target, (rule, weights) => this.releases.open(rule, weights, this.target, false), () => this.ask());
    // Each part goes its own way: what is slow or fails keeps no other from following the target.
    const plan = following("plan", () => this.plan(this.target, "quick"));
    this.exact = following("exact", () => this.exactly(this.target));
    this.redraw = following("line", () => this.draw(this.target.delta));
    this.later = [following("weights", () => this.weights.setTarget(this.target)), following("models", () => this.models(this.target.delta))];
    this.ask = () => {
      plan();
      if (this.line.complete) this.askLater();
      if (!this.line.settled) this.redraw();
    };
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
    byId("release-best").addEventListener("click", () => {
      const best = this.shown && bestOf(this.shown);
      if (best) this.release(best);
    });
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

  /** @param {Partial<Target>} changed @param {HTMLInputElement | null} [from] the input that somebody uses: it is left as it is */
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
    this.line.target = this.target;
    showAfter([]);
    this.ask();
    clearTimeout(this.still);
    this.still = setTimeout(() => this.exact(), STILL_MS);
  }

  // --- what follows from it -------------------------------------------------------------------------------------------------

  /** What is not in view at first waits for the line, so that it does not slow it down. */
  askLater() {
    for (const part of this.later) part();
  }

  /** @param {number} delta */
  async draw(delta) {
    const before = this.line.complete;
    await this.line.load(delta);
    if (this.line.answer !== null) [this.range[0], this.range[1]] = this.line.answer.range;
    byId("epsilon-slider").value = String(this.positionOf(this.target.epsilon));
    if (this.line.complete && !before) this.askLater();
  }

  /** @param {Target} target @param {"quick" | "exact"} effort */
  async plan(target, effort) {
    const started = performance.now();
    /** @type {PlanAnswer} */
    let found;
    try {
      found = await post("/v1/plan", { ...target, effort });
    } catch (error) {
      this.forget(target);
      throw error;
    }
    if (target.delta !== this.target.delta || (effort === "exact" && target !== this.target)) return;
    this.showPlan(found);
    byId("verdict").dataset.ms = (performance.now() - started).toFixed(1);
    byId("verdict").dataset.target = `${target.epsilon} ${target.delta}`;
    this.line.setTarget(target, bestOf(found));
  }

  /** @param {Target} target nothing is known for it: what was known is for another */
  forget(target) {
    forgetPlan();
    this.shown = null;
    showAloud([]);
    showAssumptions(null);
    byId("release-best").disabled = true;
    this.line.setTarget(target, null);
  }

  /** Where the slider stands still: the noise for this very target, and what the budget allows after it. @param {Target} target */
  async exactly(target) {
    await this.plan(target, "exact");
    if (target !== this.target) return;
    byId("aloud").dataset.exact = `${target.epsilon} ${target.delta}`;
    this.redraw();
    const best = this.shown && bestOf(this.shown);
    if (!best) return;
    const after = await this.releases.after(ruleOf(best), best.weights, target, best.noise);
    if (target === this.target) showAfter(after);
  }

  /** @param {number} delta */
  async models(delta) {
    if (this.delta === delta) return;
    showModels(await get(`/v1/models?delta=${encodeURIComponent(delta)}`));
    this.delta = delta;
  }

  /** @param {PlanAnswer} plan */
  showPlan(plan) {
    this.shown = plan;
    showAloud(plan.aloud);
    showAssumptions(bestOf(plan));
    showVerdict(plan);
    byId("release-best").disabled = plan.best === null;
    byId("provenance").textContent = `Utilities: ${plan.utilities_source}${this.portfolio.provenance === "a-priori" ? " (stated without looking at the private models)" : " — measured on the private models, so weights chosen by them are not covered"}.`;
    showOptions(plan, {
      show: (option) => {
        chooseRule(ruleOf(option));
        this.weights.show(option.weights);
      },
      release: (option) => this.release(option),
    });
    const { done, total } = plan.warming;
    byId("warming").textContent = done < total ? `${done} of ${total} plans are ready; better weights may still be found` : "";
    clearTimeout(this.timer);
    if (done < total || !this.line.settled) this.timer = setTimeout(() => this.ask(), POLL_MS);
  }

  /** @param {OptionAnswer} option */
  release(option) {
    this.releases.open(ruleOf(option), option.weights, this.target, option.feasible, option.noise);
  }

  async search() {
    const { target } = this;
    byId("search").disabled = true;
    await runJob(byId("search-job"), `Searching at ε = ${target.epsilon}, δ = ${deltaText(target.delta)}`, "/v1/plan", { ...target, effort: "full" });
    byId("search").disabled = false;
    this.ask();
  }
}

/** One model alone is the combination that gives it all the weight. @param {OptionAnswer} option */
const ruleOf = (option) => /** @type {ReleaseRequest["rule"]} */ (option.rule === "single" ? "combination" : option.rule);

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

/** @type {Promise<string | null> | null} calls that need the token at the same time share one question */
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
onBusy((offered) => {
  byId("busy").hidden = !offered;
});
byId("give-token").addEventListener("click", giveToken);
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close());

// --- the beginning ----------------------------------------------------------------------------------------------------------

async function start() {
  /** @type {PortfolioAnswer} */
  const portfolio = await get("/v1/portfolio");
  const { models, dataset, adjacency, delta } = portfolio;
  byId("about").textContent = `${models.length} ${models.length === 1 ? "model" : "models"} trained on ${dataset}; neighbouring datasets: ${adjacency}.`;
  setGlossary(portfolio.glossary);
  const line = new Line({ epsilon: 1, delta });
  await line.load(delta);
  const page = new Page(portfolio, line);
  page.setTarget({});
  await page.releases.refresh();
}

start().catch((error) => tell("start", messageOf(error)));
