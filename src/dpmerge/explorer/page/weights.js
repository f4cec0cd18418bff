// Any weights of two or three models: a picture with a point that can be dragged, fields to type into, and the guarantee.
// A guarantee is known at the points of a grid; the point moves from one to the next, and nothing is interpolated.

import { get, latest, messageOf, post, Problem } from "./api.js";
import { badge, byId, deltaText, epsilonText, exactWeights, fill, fitBadge, folded, h, quiet, uncoveredBadge, used, weightText } from "./dom.js";
import { Grid, sum } from "./grid.js";
import { Picture, within } from "./picture.js";

const POLL_MS = 1500;
const FIELDS = /** @type {const} */ (["weight-0", "weight-1", "weight-2"]);

export class Weights {
  /** @type {Grid | null} what the server knows */
  grid = null;
  /** @type {Picture | null} */
  picture = null;
  /** @type {string[]} */
  corners = [];
  /** @type {number[]} weights, in the order of the corners */
  point = [];
  /** @type {(Known & {key: string}) | null} what the server said of one point */
  told = null;
  /** @type {{key: string, shown: Node[]} | null} */
  sentence = null;
  /** @type {Weighted | null} weights to show once there is a picture */
  wanted = null;
  /** @type {number | undefined} */
  timer;

  /**
   * @param {PortfolioAnswer} portfolio @param {Target} target
   * @param {(rule: GridRule, weights: Weighted) => void} release
   * @param {() => void} learned more of the grid is known: there may be better weights for the target
   */
  constructor(portfolio, target, release, learned) {
    this.target = target;
    this.learned = learned;
    this.names = portfolio.models;
    this.covered = portfolio.provenance === "a-priori"; // else the utilities were measured on the private models
    this.asked = latest((/** @type {GridRule} */ rule, /** @type {Weighted} */ weights, /** @type {number} */ delta) => this.account(rule, weights, delta));
    this.alone = this.names.length < 2;
    if (this.alone) {
      fill(byId("weights"), byId("weights-title"), quiet("There is one model, so there are no weights to choose."));
      return;
    }
    for (const input of document.querySelectorAll("input[name=rule]")) {
      input.addEventListener("change", () => {
        if (this.grid === null) return;
        this.draw();
        if (byId("weights-error").textContent === "") this.moved(false);
      });
    }
    byId("release-weights").addEventListener("click", () => release(this.rule, this.named()));
  }

  /** @returns {GridRule} */
  get rule() {
    const chosen = /** @type {HTMLInputElement} */ (document.querySelector("input[name=rule]:checked"));
    return chosen.value === "selection" ? "selection" : "combination";
  }

  named() {
    return used(Object.fromEntries(this.corners.map((name, index) => [name, this.point[index]])));
  }

  key(rule = this.rule, weights = this.named(), delta = this.target.delta) {
    return `${rule} ${delta} ${exactWeights(weights)}`;
  }

  // --- what the server knows ------------------------------------------------------------------------------------------------

  /** @param {Target} target */
  async setTarget(target) {
    if (this.alone) return;
    this.target = target;
    if (this.grid === null || this.grid.answer.delta !== target.delta) await this.load();
    else {
      this.draw();
      this.judge();
    }
  }

  /** What was known is for another δ or for other models: none of it may stand beside these, even if the call fails. */
  forget() {
    clearTimeout(this.timer);
    this.grid = null;
    byId("weights-progress").replaceChildren();
    this.picture?.clear();
    this.silence();
  }

  async load() {
    this.forget();
    const asked = { delta: this.target.delta, corners: this.corners };
    /** @type {SimplexAnswer} */
    const answer = await get(this.query());
    if (asked.delta !== this.target.delta || asked.corners !== this.corners) return; // another was asked for meanwhile
    this.grid = new Grid(answer);
    this.corners = answer.models;
    if (this.point.length !== this.corners.length) this.point = this.grid.nearest(this.corners.map(() => 1 / this.corners.length));
    if (byId("weights-form").childElementCount === 0) this.fields();
    this.draw();
    this.moved();
    this.poll();
    if (this.wanted !== null) this.show(this.wanted);
  }

  query() {
    const query = new URLSearchParams({ delta: String(this.target.delta) });
    for (const name of this.corners) query.append("model", name);
    return `/v1/simplex?${query}`;
  }

  poll() {
    clearTimeout(this.timer);
    if (this.grid === null || this.grid.answer.done >= this.grid.answer.total) return;
    this.timer = setTimeout(async () => {
      try {
        /** @type {SimplexAnswer} */
        const answer = await get(this.query());
        if (this.grid !== null && answer.delta === this.target.delta && String(answer.models) === String(this.corners)) {
          this.grid = new Grid(answer);
          this.draw();
          this.judge();
          this.learned();
        }
      } catch { /* told elsewhere: every other call fails as well */ }
      this.poll();
    }, POLL_MS);
  }

  /** @param {Weighted} weights */
  show(weights) {
    if (this.alone) return;
    this.wanted = this.grid === null ? weights : null;
    if (this.grid === null) return;
    const names = Object.keys(used(weights));
    if (names.every((name) => this.corners.includes(name))) {
      this.point = this.corners.map((name) => weights[name] || 0);
      this.moved();
    } else if (names.length > 3) {
      this.refuse("More than three models have weight: the picture has no room for them.");
      return;
    } else this.choose([...names, ...this.corners.filter((name) => !names.includes(name))].slice(0, 3), weights);
    byId("weights").scrollIntoView({ block: "nearest" });
  }

  /** @param {string[]} corners @param {Weighted | null} [weights] */
  choose(corners, weights = null) {
    this.forget();
    this.corners = corners;
    this.point = weights === null ? [] : corners.map((name) => weights[name] || 0);
    byId("weights-form").replaceChildren();
    this.load().catch((error) => { byId("weights-error").textContent = messageOf(error); });
  }

  // --- fields ---------------------------------------------------------------------------------------------------------------

  fields() {
    fill(byId("weights-form"), this.corners.map((name, index) => {
      const input = h("input", { type: "number", min: "0", max: "1", step: "any", inputmode: "decimal", id: FIELDS[index], "aria-describedby": "weights-error", oninput: () => this.typed() });
      return h("span", { class: "field" }, h("label", { for: FIELDS[index] }, name), input);
    }));
    if (this.names.length <= 3) return;
    fill(byId("corners"), h("span", {}, "Corners:"), this.corners.map((name, index) => {
      const choice = h("select", { "aria-label": `corner ${index + 1}` }, this.names.map((one) => h("option", { value: one, selected: one === name }, one)));
      choice.addEventListener("change", () => {
        const corners = [...this.corners];
        const other = corners.indexOf(choice.value);
        if (other >= 0) corners[other] = corners[index];
        corners[index] = choice.value;
        this.choose(corners);
      });
      return choice;
    }));
  }

  typed() {
    const values = this.corners.map((_, index) => byId(FIELDS[index]).valueAsNumber);
    if (values.some((value) => !Number.isFinite(value) || value < 0)) this.refuse("Each weight is a number from 0 to 1: nothing is accounted.");
    else if (Math.abs(sum(values) - 1) > 1e-9) this.refuse(`The weights sum to ${Number(sum(values).toPrecision(6))}, not 1: nothing is accounted.`);
    else {
      this.point = values;
      this.moved(false);
    }
  }

  /** @param {string} why */
  refuse(why) {
    byId("weights-error").textContent = why;
    this.silence();
  }

  /** No guarantee stands beside numbers that it is not for, and nothing can be released by them. */
  silence() {
    byId("weights-verdict").replaceChildren();
    byId("weights-sentence").replaceChildren();
    byId("release-weights").disabled = true;
    this.announce();
  }

  // --- moving ---------------------------------------------------------------------------------------------------------------

  /** What the grid or the server said of the point, or null where neither has yet. */
  sure() {
    const told = this.told?.key === this.key() ? this.told : null;
    return this.grid?.known(this.point, this.rule) ?? told;
  }

  /** @param {string} key */
  step(key) {
    const next = this.grid?.step(this.point, key) ?? null;
    if (next === null) return false;
    this.point = next;
    this.moved();
    return true;
  }

  /** @param {number[]} point */
  dragged(point) {
    const next = this.grid?.nearest(point);
    if (next === undefined || String(next) === String(this.point)) return;
    this.point = next;
    this.moved();
  }

  moved(write = true) {
    byId("weights-error").textContent = "";
    byId("release-weights").disabled = this.grid === null;
    if (write) this.corners.forEach((_, index) => { byId(FIELDS[index]).value = String(this.point[index]); });
    this.placeHandle();
    this.judge();
    this.asked(this.rule, this.named(), this.target.delta);
  }

  /** At once from what the grid knows; the sentence follows from the server. */
  judge() {
    if (this.grid === null || byId("weights-error").textContent !== "") return;
    const said = this.sentence?.key === this.key() ? this.sentence.shown : null;
    const known = this.sure();
    const unknown = h("span", { class: "quiet" }, said === null ? "accounting for these weights …" : "not known");
    fill(byId("weights-verdict"), known === null ? unknown : this.verdict(known));
    this.announce();
    fill(byId("weights-sentence"), said);
  }

  /** @param {Known} known @returns {Child} */
  verdict({ epsilon, standing }) {
    if (standing === "refused" || standing === "none") return [badge(standing), " nothing is guaranteed for these weights"];
    const fit = this.covered ? fitBadge(within(epsilon, this.target), this.target.epsilon) : uncoveredBadge();
    return [h("strong", { class: "big" }, `ε = ${epsilonText(epsilon)}`), ` at δ = ${deltaText(this.target.delta)} `, badge(standing), " ", fit];
  }

  /** The handle says what stands beside it, and nothing else. */
  announce() {
    if (this.picture === null || this.point.length === 0) return;
    const weights = this.corners.map((name, index) => `${name} ${weightText(this.point[index])}`).join(", ");
    this.picture.handle.setAttribute("aria-valuetext", `${weights}: ${byId("weights-verdict").textContent || "nothing is accounted"}`);
  }

  /** @param {GridRule} rule @param {Weighted} weights @param {number} delta */
  async account(rule, weights, delta) {
    const started = performance.now();
    const key = this.key(rule, weights, delta);
    let shown;
    try {
      /** @type {GuaranteeAnswer} */
      const found = await post("/v1/account", { rule, weights, delta });
      const theorem = h("p", {}, `${found.theorem_title} (${found.theorem_source})`);
      shown = [h("p", { class: "sentence" }, found.sentence), folded("Theorem and exact weights", [theorem, quiet(exactWeights(weights))])];
      this.told = { key, epsilon: found.epsilon, standing: found.standing };
    } catch (error) {
      shown = [h("p", { class: "sentence" }, messageOf(error))];
      if (error instanceof Problem && error.status === 422) this.told = { key, epsilon: null, standing: "refused" }; // else it is only not known
    }
    if (this.grid === null || this.key() !== key) return;
    this.sentence = { key, shown };
    this.placeHandle();
    this.judge();
    byId("weights-sentence").dataset.ms = (performance.now() - started).toFixed(0);
  }

  draw() {
    if (this.grid === null) return;
    const { answer } = this.grid;
    if (String(this.picture?.corners) !== String(this.corners)) {
      this.picture = new Picture(this.corners, (point) => this.dragged(point), (key) => this.step(key));
      fill(byId("picture"), this.picture.svg, this.picture.legend);
    }
    this.picture?.draw({ answer, rule: this.rule, target: this.target, covered: this.covered });
    this.placeHandle();
    byId("weights-progress").textContent = this.grid.progress();
  }

  placeHandle() {
    if (this.grid !== null) this.picture?.placeHandle(this.point, this.sure()?.epsilon ?? null);
  }
}
