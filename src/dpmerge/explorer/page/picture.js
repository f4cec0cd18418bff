// The picture of weights: a triangle of points for three models, ε over one weight for two, and a handle that can be dragged.

import { h, list, quiet, ruleText, svg } from "./dom.js";

const WIDTH = 520;
const CORNERS = [[260, 34], [30, 432], [490, 432]]; // top, left, right
const LABELS = [[260, 18, "middle"], [6, 458, "start"], [514, 458, "end"]];
const PLOT = { left: 62, right: 500, top: 20, bottom: 290 };

/** @typedef {{answer: SimplexAnswer, rule: GridRule, target: Target, covered: boolean}} View */

export class Picture {
  /** It exists as long as the corners: data may change while the user drags the handle.
   * @param {string[]} corners @param {(point: number[]) => void} dragged @param {(key: string) => boolean} pressed */
  constructor(corners, dragged, pressed) {
    this.corners = corners;
    this.dragged = dragged;
    this.dragging = false;
    /** @type {View | null} */
    this.view = null;
    /** @type {(epsilon: number) => number} */
    this.y = () => PLOT.bottom;
    const [first, second] = corners;
    const label = this.three ? `The weights of ${corners.join(", ")}, with those marked that fit the target` : `ε over the weight of ${second}, from ${first} alone to ${second} alone`;
    this.handle = svg("g", { id: "handle", class: "handle", role: "slider", tabindex: "0", "aria-valuemin": "0", "aria-valuemax": "100" },
      svg("circle", { r: 22, class: "halo" }), svg("circle", { r: 10, class: "knob-dot" }), svg("circle", { r: 2.5, class: "knob-pin" }));
    this.handle.addEventListener("keydown", (event) => { if (pressed(event.key)) event.preventDefault(); });
    this.under = svg("g", { "aria-hidden": "true" });
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${this.three ? 470 : 350}`, class: "simplex", role: "group", "aria-label": label }, this.under, this.handle);
    this.svg.addEventListener("pointerdown", (event) => this.grab(event));
    this.svg.addEventListener("pointermove", (event) => { if (this.dragging) this.drag(event); });
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, () => { this.dragging = false; });
    this.legend = h("div");
  }

  get three() {
    return this.corners.length === 3;
  }

  clear() {
    this.view = null;
    this.dragging = false;
    this.under.replaceChildren();
    this.legend.replaceChildren();
  }

  /** @param {View} view */
  draw(view) {
    this.view = view;
    this.under.replaceChildren(...(this.three ? this.triangle(view) : this.curve(view)));
    this.legend.replaceChildren(...this.summary(view));
    this.handle.setAttribute("aria-label", `Weights for ${ruleText(view.rule).toLowerCase()}; arrow keys move them`);
  }

  /** @param {number[]} point @param {number | null} epsilon where two models are drawn, how high it stands */
  placeHandle(point, epsilon) {
    const [x, y] = this.three ? inTriangle(point) : [alongAxis(point[1]), epsilon === null ? PLOT.bottom : this.y(epsilon)];
    this.handle.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
    this.handle.setAttribute("aria-valuenow", String(Math.round(100 * point[this.three ? 0 : 1])));
  }

  /** @param {View} view */
  summary({ answer, rule, target, covered }) {
    const { epsilons, standings } = answer.rules[rule];
    const count = epsilons.filter((epsilon) => within(epsilon, target)).length;
    const open = standings.filter((standing) => standing === "pending").length;
    const marks = this.three
      ? [["fits", "●", covered ? "fits the target" : "ε within the target, but not covered"], ["misses", "○", "does not"], ...(open ? [["pending", "·", "not known yet"]] : [])]
      : [["selection", "●", "random selection"], ["combination", "■", "linear combination"], ["line", "┄", "the target"]];
    const uncovered = covered ? "" : ", but weights chosen by utilities that were measured on the private models are not covered";
    const unknown = open ? `, ${open} are not known yet` : "";
    return [
      list(marks.map(([name, sign, text]) => [h("span", { class: `mark ${name}` }, sign), ` ${text}`]), { class: "legend", "aria-hidden": "true" }),
      quiet(`${ruleText(rule)}: ${count} of ${standings.length} points ${covered ? "fit" : "have"} ε ≤ ${target.epsilon}${uncovered}${unknown}. Each mark holds for its own point only.`, { id: "picture-summary" }),
    ];
  }

  /** @param {View} view */
  triangle({ answer, rule, target }) {
    const path = closed(CORNERS);
    const radius = ((CORNERS[2][0] - CORNERS[1][0]) * answer.step) / Math.sqrt(3);
    const rise = ((CORNERS[1][1] - CORNERS[0][1]) * answer.step) / 1.5;
    const dx = (radius * Math.sqrt(3)) / 2;
    const outline = [[0, -rise], [dx, -rise / 2], [dx, rise / 2], [0, rise], [-dx, rise / 2], [-dx, -rise / 2]];
    const cells = svg("g", { "clip-path": "url(#inside)" });
    const marks = svg("g");
    const { epsilons, standings } = answer.rules[rule];
    answer.points.forEach((point, index) => {
      const [x, y] = inTriangle(point);
      const kind = standings[index] === "pending" ? "pending" : within(epsilons[index], target) ? "fits" : "misses";
      if (kind === "fits") cells.append(svg("path", { class: "cell", d: closed(outline.map(([a, b]) => [x + a, y + b])) }));
      const conditional = standings[index] === "conditional";
      marks.append(conditional ? svg("path", { class: `dot ${kind}`, d: `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z` }) : svg("circle", { class: `dot ${kind}`, cx: x.toFixed(2), cy: y.toFixed(2) }));
    });
    const names = this.corners.map((name, index) => {
      const [x, y, anchor] = LABELS[index];
      return svg("text", { x, y, "text-anchor": anchor, class: "corner" }, name.length > 20 ? `${name.slice(0, 19)}…` : name);
    });
    const inside = svg("defs", {}, svg("clipPath", { id: "inside" }, svg("path", { d: path })));
    return [inside, cells, svg("path", { class: "frame", d: path }), marks, ...names];
  }

  /** @param {View} view */
  curve({ answer, rule, target }) {
    const rules = /** @type {[string, GridAnswer][]} */ (Object.entries(answer.rules));
    const seen = [target.epsilon, ...rules.flatMap(([, grid]) => grid.epsilons)].filter((epsilon) => epsilon !== null && epsilon > 0).map(Number); // a target of 0 lies below every axis
    const low = (seen.length ? Math.min(...seen) : 0.1) / 1.15;
    const high = (seen.length ? Math.max(...seen) : 10) * 1.15;
    this.y = (epsilon) => PLOT.bottom - (Math.log(Math.max(epsilon, low) / low) / Math.log(high / low)) * (PLOT.bottom - PLOT.top);
    const height = this.y(target.epsilon);
    return [
      svg("path", { class: "frame", d: `M${PLOT.left} ${PLOT.top}V${PLOT.bottom}H${PLOT.right}` }),
      ...logTicks(low, high).flatMap((tick) => [across("rule", this.y(tick)), label(PLOT.left - 8, this.y(tick) + 4, String(tick), "end")]),
      ...[0, 0.25, 0.5, 0.75, 1].map((tick) => label(alongAxis(tick), PLOT.bottom + 20, String(tick))),
      label((PLOT.left + PLOT.right) / 2, PLOT.bottom + 46, `λ, the weight of ${this.corners[1]}`, "middle", "corner"),
      label(14, PLOT.top + 4, "ε", "start", "corner"),
      across("target-line", height),
      label(PLOT.right, height - 6, `target ${target.epsilon}`, "end"),
      ...rules.map(([name, grid]) => this.line(answer.points, grid, name, name === rule)),
    ];
  }

  /** One rule's points, with a line to guide the eye. @param {number[][]} points @param {GridAnswer} grid @param {string} rule @param {boolean} chosen */
  line(points, { epsilons, standings }, rule, chosen) {
    const known = points.map((_, index) => index).filter((index) => epsilons[index] !== null).sort((a, b) => points[a][1] - points[b][1]);
    const places = known.map((index) => [alongAxis(points[index][1]), this.y(Number(epsilons[index]))]);
    const marks = places.map(([x, y], number) => {
      const kind = `point${standings[known[number]] === "conditional" ? " hollow" : ""}`;
      return rule === "selection" ? svg("circle", { class: kind, cx: x, cy: y, r: 3 }) : svg("rect", { class: kind, x: x - 3, y: y - 3, width: 6, height: 6 });
    });
    const guide = places.length > 1 ? svg("path", { class: "guide", d: `M${places.map((place) => place.join(" ")).join("L")}` }) : null;
    return svg("g", { class: `curve ${rule}${chosen ? " chosen" : ""}` }, guide, marks);
  }

  /** A mouse or pen may start anywhere; a finger on the point alone, so that a phone can still scroll past the picture.
   * @param {PointerEvent} event */
  grab(event) {
    const onHandle = event.target instanceof Node && this.handle.contains(event.target);
    if (this.view === null || event.button !== 0 || (event.pointerType === "touch" && !onHandle)) return;
    this.dragging = true;
    this.svg.setPointerCapture(event.pointerId);
    this.handle.focus({ preventScroll: true });
    event.preventDefault();
    this.drag(event);
  }

  /** @param {PointerEvent} event */
  drag(event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM()?.inverse());
    if (!this.three) {
      const share = between(0, (at.x - PLOT.left) / (PLOT.right - PLOT.left), 1);
      this.dragged([1 - share, share]);
      return;
    }
    const top = between(0, (CORNERS[1][1] - at.y) / (CORNERS[1][1] - CORNERS[0][1]), 1);
    const right = between(0, (at.x - CORNERS[1][0]) / (CORNERS[2][0] - CORNERS[1][0]) - top / 2, 1 - top);
    this.dragged([top, 1 - top - right, right]);
  }
}

/** @param {number | null} epsilon @param {Target} target */
export const within = (epsilon, target) => epsilon !== null && epsilon <= target.epsilon;

/** @param {number} low @param {number} value @param {number} high */
const between = (low, value, high) => Math.min(high, Math.max(low, value));

/** @param {number[]} point */
const inTriangle = (point) => [0, 1].map((axis) => point.reduce((total, weight, index) => total + weight * CORNERS[index][axis], 0));

/** @param {number} weight */
const alongAxis = (weight) => PLOT.left + weight * (PLOT.right - PLOT.left);

/** @param {number[][]} corners */
const closed = (corners) => `M${corners.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}Z`;

/** @param {string} kind @param {number} height */
const across = (kind, height) => svg("path", { class: kind, d: `M${PLOT.left} ${height}H${PLOT.right}` });

/** @param {number} x @param {number} y @param {string} text */
const label = (x, y, text, anchor = "middle", kind = "tick") => svg("text", { x, y, "text-anchor": anchor, class: kind }, text);

/** @param {number} low @param {number} high */
function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) ticks.push(Number((factor * 10 ** power).toPrecision(3)));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}
