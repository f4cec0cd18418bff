// The line of the best known releases over ε, which the slider moves along. Every point on it was computed for itself.

import { get } from "./api.js";
import { byId, deltaText, epsilonText, fill, numberText, row, ruleText, svg, table } from "./dom.js";

const PLOT = { left: 96, right: 704, top: 24, bottom: 240 };
/** @type {Record<string, string>} */
const SIGNS = { combination: "■", selection: "●", single: "▲", joint: "◆" };

export class Line {
  /** @type {LineAnswer | null} */
  answer = null;
  /** @type {OptionAnswer | null} */
  best = null;

  /** @param {Target} target */
  constructor(target) {
    this.target = target;
  }

  /** Whether all that the slider can reach first is computed. */
  get complete() {
    return this.answer !== null && this.answer.delta === this.target.delta && this.answer.done >= this.answer.total;
  }

  /** Whether no better bound for its points is on the way. */
  get settled() {
    return this.complete && this.answer !== null && this.answer.refined >= this.answer.total;
  }

  /** @param {number} delta */
  async load(delta) {
    if (this.answer?.delta !== delta) this.forget();
    const answer = await get(`/v1/line?delta=${encodeURIComponent(delta)}`);
    if (delta !== this.target.delta) return; // another was asked for meanwhile
    this.answer = answer;
    this.draw();
  }

  forget() {
    this.answer = this.best = null;
    byId("frontier").replaceChildren();
    byId("frontier-table").replaceChildren();
    byId("frontier-numbers").hidden = true;
  }

  /** @param {Target} target @param {OptionAnswer | null} best */
  setTarget(target, best) {
    this.target = target;
    this.best = best;
    if (this.answer !== null && this.answer.delta !== target.delta) this.forget();
    this.draw();
  }

  draw() {
    if (this.answer === null) return;
    const { range, points, delta, done, refined, total, worst } = this.answer;
    const high = range[1];
    const inside = points.filter(({ epsilon }) => epsilon >= range[0] / 2 && epsilon <= high);
    const low = Math.min(range[0], inside[0]?.epsilon ?? range[0]); // the least noisy points that span the range lie a little outside
    const predicted = points.some((point) => point.utility_kind === "predicted");
    /** @param {{expected_utility: number | null, predicted_deviation: number | null}} point how high it stands: less noise is higher; what is worse than every model, below them all */
    const value = (point) => (predicted ? -Math.log(point.predicted_deviation || 1e-300) : Math.max(Number(point.expected_utility), worst));
    const values = inside.map(value);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const x = (/** @type {number} */ epsilon) => PLOT.left + (Math.log(Math.min(Math.max(epsilon, low), high) / low) / Math.log(high / low)) * (PLOT.right - PLOT.left);
    const y = (/** @type {number} */ height) => PLOT.bottom - 8 - ((height - least) / (most - least || 1)) * (PLOT.bottom - PLOT.top - 16);
    const places = inside.map((point) => [x(point.epsilon), y(value(point))]);
    const heights = inside.length ? (most > least ? [least, (least + most) / 2, most] : [most]) : [];
    const tick = (/** @type {number} */ height) => numberText(predicted ? Number(Math.exp(-height).toPrecision(2)) : Number(height.toPrecision(3)));
    const marker = this.best !== null && this.best.epsilon !== null ? svg("circle", { class: "marker", cx: x(this.best.epsilon), cy: y(value(this.best)), r: 9 }) : null;
    const label = predicted ? "less predicted noise" : "utility";
    fill(byId("frontier"),
      svg("svg", { viewBox: "0 0 720 300", class: "line", "aria-hidden": "true" },
        svg("path", { class: "frame", d: `M${PLOT.left} ${PLOT.top}V${PLOT.bottom}H${PLOT.right}` }),
        heights.map((height) => svg("text", { class: "tick", x: PLOT.left - 6, y: y(height) + 4, "text-anchor": "end" }, tick(height))),
        ticks(low, high).map((epsilon) => svg("text", { class: "tick", x: x(epsilon), y: PLOT.bottom + 24, "text-anchor": "middle" }, String(epsilon))),
        svg("text", { class: "tick", x: (PLOT.left + PLOT.right) / 2, y: PLOT.bottom + 52, "text-anchor": "middle" }, `ε at δ = ${deltaText(delta)}`),
        svg("text", { class: "tick", x: PLOT.left + 8, y: PLOT.top - 4 }, `↑ ${label}`),
        places.length > 1 ? svg("path", { class: "guide", d: `M${places.map((place) => place.map((one) => one.toFixed(1)).join(" ")).join("L")}` }) : null,
        places.map(([a, b], index) => svg("text", { class: `sign ${inside[index].rule}`, x: a, y: b + 4, "text-anchor": "middle" }, SIGNS[inside[index].rule] ?? "●")),
        svg("path", { class: "target-line", d: `M${x(this.target.epsilon)} ${PLOT.top}V${PLOT.bottom}` }),
        marker));
    byId("frontier").setAttribute("aria-label", this.told(predicted));
    const rules = [...new Set(inside.map((point) => point.rule))].map((rule) => `${SIGNS[rule]} ${ruleText(rule).toLowerCase()}`).join(", ");
    const rest = done < total ? ` ${done} of ${total} points with noise are computed.` : refined < total ? ` All hold; a smaller ε is known for ${refined} of ${total} points with noise, the others follow.` : "";
    byId("frontier-note").textContent = `${rules}. Each sign is a guarantee of its own; the line between them only guides the eye.${rest}`;
    this.table(inside, predicted);
  }

  /** @param {boolean} predicted */
  told(predicted) {
    const worth = this.best && (predicted ? `predicted noise ${numberText(this.best.predicted_deviation)}` : `utility ${numberText(this.best.expected_utility)}`);
    const best = this.best ? `the best known for it has ε = ${epsilonText(this.best.epsilon)} and ${worth}` : "nothing known fits it";
    return `The best known release at every ε, at δ = ${deltaText(this.target.delta)}; the target ε = ${this.target.epsilon} is marked by a line, and ${best}. The numbers follow below.`;
  }

  /** @param {LinePoint[]} points @param {boolean} predicted */
  table(points, predicted) {
    const rows = points.map((point) => {
      const weights = Object.entries(point.weights).filter(([, weight]) => weight > 0).map(([name, weight]) => `${name} ${numberText(weight)}`).join(", ");
      return row([epsilonText(point.epsilon), ruleText(point.rule).toLowerCase(), point.standing, numberText(point.noise), numberText(predicted ? point.predicted_deviation : point.expected_utility), weights]);
    });
    const columns = ["ε", "rule", "standing", "noise at release", predicted ? "predicted noise in all" : "utility", "weights"];
    fill(byId("frontier-table"), table(`The best known at δ = ${deltaText(this.target.delta)}`, columns, rows));
    byId("frontier-numbers").hidden = rows.length === 0;
  }
}

/** @param {number} low @param {number} high */
function ticks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const digit of [1, 2, 5]) found.push(Number((digit * 10 ** power).toPrecision(1)));
  }
  return found.filter((tick) => tick >= low && tick <= high);
}
