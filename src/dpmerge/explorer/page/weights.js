// Any weights of two or three models: a picture with a point that can be dragged, fields to type into, and the guarantee.
// A guarantee is known at the points of a grid; the point moves from one to the next, and nothing is interpolated.

import { get, latest, post } from "./api.js";
import { badge, byId, deltaText, epsilonText, exactWeights, fitBadge, h, ruleText, svg, uncoveredBadge, weightText } from "./dom.js";

const WIDTH = 520;
const CORNERS = [[260, 34], [30, 432], [490, 432]]; // top, left, right
const PLOT = { left: 62, right: 500, top: 20, bottom: 290 };
const POLL_MS = 1500;

export class Weights {
  constructor(portfolio, release, learned) {
    this.learned = learned; // more of the grid is known: there may be better weights for the target
    this.names = portfolio.models.map((model) => model.name);
    this.grid = null;
    this.target = null;
    this.point = null; // weights, in the order of the corners
    this.corners = [];
    this.dragging = false;
    this.told = null; // what the server said of one point
    this.wanted = null; // weights to show once there is a picture
    this.covered = portfolio.provenance === "a-priori"; // else the utilities were measured on the private models
    this.asked = latest((...given) => this.account(...given));
    this.alone = this.names.length < 2;
    if (this.alone) {
      byId("weights").replaceChildren(byId("weights-title"), h("p", { class: "quiet" }, "There is one model: nothing to weigh."));
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

  get rule() {
    return document.querySelector("input[name=rule]:checked").value;
  }

  get cells() {
    return Math.round(1 / this.grid.step);
  }

  named(point = this.point) {
    return Object.fromEntries(this.corners.map((name, index) => [name, point[index]]).filter(([, weight]) => weight > 0));
  }

  // --- what the server knows ------------------------------------------------------------------------------------------------

  async setTarget(target) {
    if (this.alone) return;
    this.target = target;
    if (this.grid === null || this.grid.delta !== target.delta) await this.load();
    else {
      this.draw();
      this.judge();
    }
  }

  // What was known is for another δ or for other models: none of it may stand beside these, even if the call fails.
  forget() {
    clearTimeout(this.timer);
    this.grid = null;
    this.dragging = false;
    for (const id of ["weights-verdict", "weights-sentence", "weights-progress"]) byId(id).replaceChildren();
    this.under?.replaceChildren();
    this.legend?.replaceChildren();
    byId("release-weights").disabled = true;
    this.announce();
  }

  async load() {
    this.forget();
    const asked = { delta: this.target.delta, corners: this.corners };
    const grid = await get(this.query());
    if (asked.delta !== this.target.delta || asked.corners !== this.corners) return; // another was asked for meanwhile
    this.grid = grid;
    this.corners = grid.models;
    if (this.point === null || this.point.length !== this.corners.length) this.point = this.nearest(this.corners.map(() => 1 / this.corners.length));
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
    if (this.grid === null || this.grid.done >= this.grid.total) return;
    this.timer = setTimeout(async () => {
      try {
        const grid = await get(this.query());
        if (this.grid !== null && grid.delta === this.target.delta && String(grid.models) === String(this.corners)) {
          this.grid = grid;
          this.draw();
          this.judge();
          this.learned();
        }
      } catch { /* told elsewhere: every other call fails as well */ }
      this.poll();
    }, POLL_MS);
  }

  show(weights) {
    if (this.alone) return;
    this.wanted = this.grid === null ? weights : null;
    if (this.grid === null) return;
    const used = Object.keys(weights).filter((name) => weights[name] > 0);
    if (!used.every((name) => this.corners.includes(name))) {
      const rest = this.corners.filter((name) => !used.includes(name));
      if (used.length > 3) {
        this.refuse("More than three models have weight: the picture has no room for them.");
        return;
      }
      this.choose([...used, ...rest].slice(0, 3), weights);
    } else {
      this.point = this.corners.map((name) => weights[name] || 0);
      this.moved();
    }
    byId("weights").scrollIntoView({ block: "nearest" });
  }

  choose(corners, weights = null) {
    this.forget();
    this.corners = corners;
    this.point = weights === null ? null : corners.map((name) => weights[name] || 0);
    byId("weights-form").replaceChildren();
    this.load().catch((error) => { byId("weights-error").textContent = error.message; });
  }

  // --- fields ---------------------------------------------------------------------------------------------------------------

  fields() {
    byId("weights-form").replaceChildren(...this.corners.map((name, index) => {
      const input = h("input", { type: "number", min: "0", max: "1", step: "any", inputmode: "decimal", id: `weight-${index}`, "aria-describedby": "weights-error" });
      input.addEventListener("input", () => this.typed());
      return h("span", { class: "field" }, h("label", { for: `weight-${index}` }, name), input);
    }));
    const place = byId("corners");
    if (this.names.length <= 3) return;
    place.replaceChildren(h("span", {}, "Corners:"), ...this.corners.map((name, index) => {
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
    const values = this.corners.map((_, index) => byId(`weight-${index}`).valueAsNumber);
    const sum = values.reduce((a, b) => a + b, 0);
    if (values.some((value) => !Number.isFinite(value) || value < 0)) this.refuse("Each weight is a number from 0 to 1: nothing is accounted.");
    else if (Math.abs(sum - 1) > 1e-9) this.refuse(`The weights sum to ${Number(sum.toPrecision(6))}, not 1: nothing is accounted.`);
    else {
      this.point = values;
      this.moved(false);
    }
  }

  // No guarantee stands beside numbers that it is not for, and nothing can be released by them.
  refuse(why) {
    byId("weights-error").textContent = why;
    byId("weights-verdict").replaceChildren();
    byId("weights-sentence").replaceChildren();
    byId("release-weights").disabled = true;
    this.announce();
  }

  // --- moving ---------------------------------------------------------------------------------------------------------------

  nearest(point) {
    const cells = this.cells;
    const parts = point.map((weight) => Math.max(0, weight) * cells);
    const scale = cells / parts.reduce((a, b) => a + b, 0);
    const whole = parts.map((part) => Math.floor(part * scale + 1e-9));
    const order = parts.map((part, index) => [part * scale - whole[index], index]).sort((a, b) => b[0] - a[0]);
    for (let left = cells - whole.reduce((a, b) => a + b, 0), turn = 0; left > 0; left -= 1, turn += 1) whole[order[turn][1]] += 1;
    return this.grid.points[this.index(whole)];
  }

  index(whole) {
    if (this.places === undefined || this.placesOf !== this.grid.points) {
      this.placesOf = this.grid.points;
      this.places = new Map(this.grid.points.map((point, index) => [String(point.map((weight) => Math.round(weight * this.cells))), index]));
    }
    return this.places.get(String(whole));
  }

  // The grid's own knowledge of the point, or null off the grid.
  known(point = this.point) {
    const index = this.index(point.map((weight) => Math.round(weight * this.cells)));
    if (index === undefined || this.grid.points[index].some((weight, place) => weight !== point[place])) return null;
    const rule = this.grid.rules[this.rule];
    return { epsilon: rule.epsilons[index], standing: rule.standings[index] };
  }

  // What the grid or the server said of the point, or null where neither has yet.
  sure(point = this.point) {
    const known = this.known(point);
    if (known !== null && known.standing !== "pending") return known;
    return this.told !== null && this.told.key === this.key(this.rule, this.named(point)) ? this.told : null;
  }

  step(key) {
    if (this.grid === null) return false;
    const parts = this.nearest(this.point).map((weight) => Math.round(weight * this.cells));
    const move = (from, to) => { if (parts[from] > 0) { parts[from] -= 1; parts[to] += 1; } };
    if (parts.length === 2) {
      const keys = { ArrowRight: [0, 1], ArrowUp: [0, 1], ArrowLeft: [1, 0], ArrowDown: [1, 0] };
      if (key === "Home") { parts[0] = this.cells; parts[1] = 0; } else if (key === "End") { parts[0] = 0; parts[1] = this.cells; } else if (keys[key]) move(...keys[key]);
      else return false;
    } else if (key === "ArrowRight") move(1, 2);
    else if (key === "ArrowLeft") move(2, 1);
    else if (key === "ArrowUp") move(parts[1] >= parts[2] ? 1 : 2, 0);
    else if (key === "ArrowDown") move(0, parts[1] <= parts[2] ? 1 : 2);
    else if (key === "Home") { parts[0] = this.cells; parts[1] = 0; parts[2] = 0; } else return false;
    this.point = this.grid.points[this.index(parts)];
    this.moved();
    return true;
  }

  moved(fill = true) {
    byId("weights-error").textContent = "";
    byId("release-weights").disabled = this.grid === null;
    if (fill) this.corners.forEach((_, index) => { byId(`weight-${index}`).value = String(this.point[index]); });
    this.placeHandle();
    this.judge();
    this.asked(this.rule, this.named(), this.target.delta);
  }

  // At once from what the grid knows; the sentence follows from the server.
  judge() {
    if (this.grid === null || byId("weights-error").textContent !== "") return;
    const place = byId("weights-verdict");
    const known = this.sure();
    if (known !== null) this.tell(place, known.epsilon, known.standing);
    else place.replaceChildren(h("span", { class: "quiet" }, this.sentence?.key === this.key() ? "not known" : "accounting for these weights …"));
    this.announce();
    if (this.sentence && this.sentence.key === this.key()) byId("weights-sentence").replaceChildren(...this.sentence.shown);
    else byId("weights-sentence").replaceChildren();
  }

  key(rule = this.rule, weights = this.named(), delta = this.target.delta) {
    return `${rule} ${delta} ${exactWeights(weights)}`;
  }

  tell(place, epsilon, standing) {
    const fits = epsilon !== null && epsilon <= this.target.epsilon;
    if (standing === "refused" || standing === "none") place.replaceChildren(badge(standing), " nothing is guaranteed for these weights");
    else place.replaceChildren(h("strong", { class: "big" }, `ε = ${epsilonText(epsilon)}`), ` at δ = ${deltaText(this.target.delta)} `, badge(standing), " ", this.covered ? fitBadge(fits, this.target.epsilon) : uncoveredBadge());
  }

  // The handle says what stands beside it, and nothing else.
  announce() {
    if (!this.handle || this.point === null) return;
    const weights = this.corners.map((name, index) => `${name} ${weightText(this.point[index])}`).join(", ");
    this.handle.setAttribute("aria-valuetext", `${weights}: ${byId("weights-verdict").textContent || "nothing is accounted"}`);
  }

  async account(rule, weights, delta) {
    const started = performance.now();
    const key = this.key(rule, weights, delta);
    let shown;
    try {
      const found = await post("/v1/account", { rule, weights, delta });
      shown = [
        h("p", { class: "sentence" }, found.sentence),
        h("details", {}, h("summary", {}, "Theorem and exact weights"), h("p", {}, `${found.theorem_title} (${found.theorem_source})`), h("p", { class: "quiet" }, exactWeights(weights))),
      ];
      this.told = { key, epsilon: found.epsilon, standing: found.standing };
    } catch (error) {
      shown = [h("p", { class: "sentence" }, error.message)];
      if (error.status === 422) this.told = { key, epsilon: null, standing: "refused" }; // else it is only not known
    }
    if (this.grid === null || this.key() !== key) return;
    this.sentence = { key, shown };
    this.placeHandle();
    this.judge();
    byId("weights-sentence").dataset.ms = (performance.now() - started).toFixed(0);
  }

  // --- the picture ----------------------------------------------------------------------------------------------------------

  draw() {
    if (this.grid === null) return;
    if (this.framed !== String(this.corners)) this.frame();
    this.under.replaceChildren(...(this.corners.length === 3 ? this.triangle() : this.curve()));
    this.legend.replaceChildren(...this.summary());
    this.handle.setAttribute("aria-label", `Weights for ${ruleText(this.rule).toLowerCase()}; arrow keys move them`);
    this.placeHandle();
    const left = this.grid.total - this.grid.done;
    byId("weights-progress").textContent = left > 0 ? `${this.grid.done} of ${this.grid.total} guarantees are known; the others follow` : "";
  }

  // The picture and its handle last as long as the corners: they may be in somebody's hand while what is under them changes.
  frame() {
    const three = this.corners.length === 3;
    const [first, second] = this.corners;
    const label = three ? `The weights of ${this.corners.join(", ")}, with those marked that fit the target` : `ε over the weight of ${second}, from ${first} alone to ${second} alone`;
    this.handle = svg("g", { id: "handle", class: "handle", role: "slider", tabindex: "0", "aria-valuemin": "0", "aria-valuemax": "100" },
      svg("circle", { r: 22, class: "halo" }), svg("circle", { r: 10, class: "knob-dot" }), svg("circle", { r: 2.5, class: "knob-pin" }));
    this.handle.addEventListener("keydown", (event) => { if (this.step(event.key)) event.preventDefault(); });
    this.under = svg("g", { "aria-hidden": "true" });
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${three ? 470 : 350}`, class: "simplex", role: "group", "aria-label": label }, this.under, this.handle);
    this.picture.addEventListener("pointerdown", (event) => this.grab(event));
    this.picture.addEventListener("pointermove", (event) => { if (this.dragging) this.drag(event); });
    for (const name of ["pointerup", "pointercancel"]) this.picture.addEventListener(name, () => { this.dragging = false; });
    this.dragging = false;
    this.legend = h("div");
    byId("picture").replaceChildren(this.picture, this.legend);
    this.framed = String(this.corners);
  }

  fits(rule, index) {
    const epsilon = this.grid.rules[rule].epsilons[index];
    return epsilon !== null && epsilon <= this.target.epsilon;
  }

  summary() {
    const standings = this.grid.rules[this.rule].standings;
    const count = standings.filter((_, index) => this.fits(this.rule, index)).length;
    const open = standings.filter((standing) => standing === "pending").length;
    const marks = this.corners.length === 3
      ? [["fits", "●", this.covered ? "fits the target" : "ε within the target, but not covered"], ["misses", "○", "does not"], ...(open ? [["pending", "·", "not known yet"]] : [])]
      : [["selection", "●", "random selection"], ["combination", "■", "linear combination"], ["line", "┄", "the target"]];
    return [
      h("ul", { class: "legend", "aria-hidden": "true" }, marks.map(([name, sign, text]) => h("li", {}, h("span", { class: `mark ${name}` }, sign), ` ${text}`))),
      h("p", { class: "quiet", id: "picture-summary" }, `${ruleText(this.rule)}: ${count} of ${standings.length} points ${this.covered ? "fit" : "have"} ε ≤ ${this.target.epsilon}${this.covered ? "" : ", but weights chosen by utilities that were measured on the private models are not covered"}${open ? `, ${open} are not known yet` : ""}. Each mark stands for its own point; nothing is said between them.`),
    ];
  }

  place(point) {
    if (point.length === 3) return [0, 1].map((axis) => point.reduce((sum, weight, index) => sum + weight * CORNERS[index][axis], 0));
    const epsilon = this.sure(point)?.epsilon ?? null;
    return [this.x(point[1]), epsilon === null ? PLOT.bottom : this.y(epsilon)];
  }

  triangle() {
    const path = `M${CORNERS.map((corner) => corner.join(" ")).join("L")}Z`;
    const inside = svg("defs", {}, svg("clipPath", { id: "inside" }, svg("path", { d: path })));
    const radius = ((CORNERS[2][0] - CORNERS[1][0]) * this.grid.step) / Math.sqrt(3);
    const rise = ((CORNERS[1][1] - CORNERS[0][1]) * this.grid.step) / 1.5;
    const cells = svg("g", { "clip-path": "url(#inside)" });
    const marks = svg("g");
    const standings = this.grid.rules[this.rule].standings;
    this.grid.points.forEach((point, index) => {
      const [x, y] = this.place(point);
      const kind = standings[index] === "pending" ? "pending" : this.fits(this.rule, index) ? "fits" : "misses";
      if (kind === "fits") {
        const dx = radius * Math.sqrt(3) / 2;
        const outline = [[0, -rise], [dx, -rise / 2], [dx, rise / 2], [0, rise], [-dx, rise / 2], [-dx, -rise / 2]];
        cells.append(svg("path", { class: "cell", d: `M${outline.map(([a, b]) => `${(x + a).toFixed(2)} ${(y + b).toFixed(2)}`).join("L")}Z` }));
      }
      const at = { cx: x.toFixed(2), cy: y.toFixed(2) };
      if (standings[index] === "conditional") marks.append(svg("path", { class: `dot ${kind}`, d: `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z` }));
      else marks.append(svg("circle", { class: `dot ${kind}`, ...at }));
    });
    const labels = [[260, 18, "middle"], [6, 458, "start"], [514, 458, "end"]];
    const names = this.corners.map((name, index) => {
      const [x, y, anchor] = labels[index];
      return svg("text", { x, y, "text-anchor": anchor, class: "corner" }, name.length > 20 ? `${name.slice(0, 19)}…` : name);
    });
    return [inside, cells, svg("path", { class: "frame", d: path }), marks, ...names];
  }

  curve() {
    const all = Object.values(this.grid.rules).flatMap((rule) => rule.epsilons).filter((epsilon) => epsilon !== null && epsilon > 0);
    const seen = [...all, this.target.epsilon].filter((epsilon) => epsilon > 0); // a target of 0 lies below every axis
    const low = Math.min(...seen, seen.length ? Infinity : 0.1) / 1.15;
    const high = Math.max(...seen, seen.length ? 0 : 10) * 1.15;
    this.x = (weight) => PLOT.left + weight * (PLOT.right - PLOT.left);
    this.y = (epsilon) => PLOT.bottom - (Math.log(Math.max(epsilon, low) / low) / Math.log(high / low)) * (PLOT.bottom - PLOT.top);
    const frame = svg("g", {}, svg("path", { class: "frame", d: `M${PLOT.left} ${PLOT.top}V${PLOT.bottom}H${PLOT.right}` }));
    for (const tick of logTicks(low, high)) {
      frame.append(svg("path", { class: "rule", d: `M${PLOT.left} ${this.y(tick)}H${PLOT.right}` }), svg("text", { x: PLOT.left - 8, y: this.y(tick) + 4, "text-anchor": "end", class: "tick" }, String(tick)));
    }
    for (const tick of [0, 0.25, 0.5, 0.75, 1]) frame.append(svg("text", { x: this.x(tick), y: PLOT.bottom + 20, "text-anchor": "middle", class: "tick" }, String(tick)));
    frame.append(svg("text", { x: (PLOT.left + PLOT.right) / 2, y: PLOT.bottom + 46, "text-anchor": "middle", class: "corner" }, `λ, the weight of ${this.corners[1]}`), svg("text", { x: 14, y: PLOT.top + 4, class: "corner" }, "ε"));
    const target = this.y(this.target.epsilon);
    frame.append(svg("path", { class: "target-line", d: `M${PLOT.left} ${target}H${PLOT.right}` }), svg("text", { x: PLOT.right, y: target - 6, "text-anchor": "end", class: "tick" }, `target ${this.target.epsilon}`));
    for (const [rule, grid] of Object.entries(this.grid.rules)) {
      const group = svg("g", { class: `curve ${rule}${rule === this.rule ? " chosen" : ""}` });
      const known = this.grid.points.map((point, index) => [point[1], grid.epsilons[index], grid.standings[index]]).filter(([, epsilon]) => epsilon !== null).sort((a, b) => a[0] - b[0]);
      if (known.length > 1) group.append(svg("path", { class: "guide", d: `M${known.map(([weight, epsilon]) => `${this.x(weight)} ${this.y(epsilon)}`).join("L")}` }));
      for (const [weight, epsilon, standing] of known) {
        const hollow = standing === "conditional" ? " hollow" : "";
        if (rule === "selection") group.append(svg("circle", { class: `point${hollow}`, cx: this.x(weight), cy: this.y(epsilon), r: 3 }));
        else group.append(svg("rect", { class: `point${hollow}`, x: this.x(weight) - 3, y: this.y(epsilon) - 3, width: 6, height: 6 }));
      }
      frame.append(group);
    }
    return [frame];
  }

  placeHandle() {
    if (!this.handle || this.grid === null) return;
    const [x, y] = this.place(this.point);
    this.handle.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
    this.handle.setAttribute("aria-valuenow", String(Math.round(100 * this.point[this.point.length === 3 ? 0 : 1])));
  }

  // A mouse or pen may start anywhere; a finger on the point alone, so that a phone can still scroll past the picture.
  grab(event) {
    if (this.grid === null || event.button !== 0 || (event.pointerType === "touch" && !this.handle.contains(event.target))) return;
    this.dragging = true;
    this.picture.setPointerCapture(event.pointerId);
    this.handle.focus({ preventScroll: true });
    event.preventDefault();
    this.drag(event);
  }

  drag(event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.picture.getScreenCTM().inverse());
    let point;
    if (this.corners.length === 2) {
      const share = Math.min(1, Math.max(0, (at.x - PLOT.left) / (PLOT.right - PLOT.left)));
      point = [1 - share, share];
    } else {
      const top = Math.min(1, Math.max(0, (CORNERS[1][1] - at.y) / (CORNERS[1][1] - CORNERS[0][1])));
      const right = (at.x - CORNERS[1][0]) / (CORNERS[2][0] - CORNERS[1][0]) - top / 2;
      const rest = 1 - top;
      const third = Math.min(rest, Math.max(0, right));
      point = [top, rest - third, third];
    }
    const next = this.nearest(point);
    if (String(next) === String(this.point)) return;
    this.point = next;
    this.moved();
  }
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) {
      const tick = Number((factor * 10 ** power).toPrecision(3));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}
