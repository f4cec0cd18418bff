// The frontier: a job on the server, drawn by plotly.js, with the target marked.

import { get, messageOf } from "./api.js";
import { byId, deltaText, epsilonText, fault, fill, h, numberText, row, table } from "./dom.js";
import { runJob } from "./jobs.js";
import { bestOf } from "./options.js";

const TARGETS = 40;
const CLEAR = "rgba(0,0,0,0)";

/** @typedef {{delta: number, document: any, figure: FigureAnswer}} Drawn a picture and the δ it is for */

export class Frontier {
  /** @type {Drawn | null} */
  drawn = null;
  /** @type {OptionAnswer | null} */
  best = null;
  painted = false;
  waiting = false;
  tried = false;
  making = false;
  ink = "";

  /** @param {[number, number]} range @param {Target} target */
  constructor(range, target) {
    this.range = range;
    this.target = target;
    this.narrow = matchMedia("(max-width: 40rem)");
    for (const query of [this.narrow, matchMedia("(prefers-color-scheme: dark)")]) query.addEventListener("change", () => this.repaint());
  }

  /** @param {number} delta */
  async make(delta) {
    if (this.making) return;
    this.making = this.tried = true;
    this.note();
    try {
      const [low, high] = this.range;
      const epsilons = Array.from({ length: TARGETS }, (_, index) => Number((low * (high / low) ** (index / (TARGETS - 1))).toPrecision(4)));
      const job = await runJob(byId("frontier-job"), `The frontier at δ = ${deltaText(delta)}`, "/v1/frontier", { delta, epsilons });
      if (job === null) return;
      const figure = await get(`/v1/jobs/${job.id}/figure`);
      await loadPlotly();
      this.drawn = { delta, document: job.result, figure }; // all at once: no picture is called another's
      await this.repaint();
      this.table(this.drawn);
      byId("frontier-warning").textContent = job.result.warning || "";
      byId("frontier-warning").hidden = !job.result.warning;
    } catch (error) {
      fill(byId("frontier-job"), fault(`The frontier cannot be drawn: ${messageOf(error)}`));
    } finally {
      this.making = false;
      this.note();
    }
  }

  /** @param {Target} target @param {PlanAnswer | null} plan */
  setTarget(target, plan) {
    this.target = target;
    this.best = plan && bestOf(plan);
    this.note();
    if (!this.painted || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const { shapes, best } = this.marks();
      Plotly.update(byId("frontier"), best, { shapes }, [byId("frontier").data.length - 1]);
      this.label();
    });
  }

  /** What hangs on δ is drawn for one; another is drawn when it is asked for. */
  note() {
    const { delta } = this.target;
    const other = this.tried && !this.making && this.drawn?.delta !== delta;
    const text = this.drawn && `The picture is for δ = ${deltaText(this.drawn.delta)}. `;
    const button = h("button", { type: "button", onclick: () => this.make(this.target.delta) }, `Draw it for δ = ${deltaText(delta)}`);
    fill(byId("frontier-note"), other ? [text, button] : null);
  }

  marks() {
    const { epsilon } = this.target;
    const line = { type: "line", x0: epsilon, x1: epsilon, y0: 0, y1: 1, yref: "paper", line: { color: this.ink, width: 2, dash: "dash" } };
    const best = this.best !== null && this.best.expected_utility !== null && this.drawn?.delta === this.target.delta ? [this.best] : [];
    return { shapes: [line], best: { x: [best.map((one) => one.epsilon)], y: [best.map((one) => one.expected_utility)] } };
  }

  label() {
    if (this.drawn === null) return;
    const delta = deltaText(this.drawn.delta);
    const other = this.drawn.delta !== this.target.delta;
    const known = this.best ? `the best for it has ε = ${epsilonText(this.best.epsilon)} and utility ${numberText(this.best.expected_utility)}` : "nothing fits it";
    const best = other ? `what fits it is for δ = ${deltaText(this.target.delta)}` : known;
    byId("frontier").setAttribute("aria-label", `Utility against ε at δ = ${delta}, for every rule; the target ε = ${this.target.epsilon} is marked by a line, and ${best}. The numbers follow below.`);
  }

  async repaint() {
    if (this.drawn === null) return;
    const { data, layout } = this.drawn.figure;
    const narrow = this.narrow.matches;
    const style = getComputedStyle(document.documentElement);
    this.ink = style.getPropertyValue("--text").trim();
    const { shapes, best } = this.marks();
    const star = { type: "scatter", mode: "markers", name: "best known for the target", x: best.x[0], y: best.y[0], marker: { symbol: "diamond-open", size: 16, color: this.ink, line: { width: 3 } }, hovertemplate: "best known for the target<extra></extra>" };
    const traces = data.filter((trace) => !narrow || !/\bRDP\b/.test(trace.name || "")).map((trace) => this.trace(trace, narrow));
    byId("frontier").classList.add("drawn");
    await Plotly.react(byId("frontier"), [...traces, star], this.layout(layout, narrow, shapes, style), { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false });
    this.painted = true;
    this.label();
  }

  /** A narrow screen has no room for both accountants (PLD is drawn, RDP stands in the table), nor for long names.
   * @param {any} trace @param {boolean} narrow */
  trace(trace, narrow) {
    const name = narrow && trace.name ? { name: trace.name.replace(" (", "<br>(") } : {};
    const marker = trace.marker?.line?.color ? { marker: { ...trace.marker, line: { ...trace.marker.line, color: this.ink } } } : {};
    return { ...trace, ...name, ...marker };
  }

  /** The picture's layout in the page's own colours. @param {any} layout @param {boolean} narrow @param {object[]} shapes @param {CSSStyleDeclaration} style */
  layout(layout, narrow, shapes, style) {
    const line = style.getPropertyValue("--line").trim();
    const legible = (/** @type {any} */ font) => ({ ...font, color: this.ink, size: Math.max(12, font?.size || 12) });
    const axis = (/** @type {any} */ given) => ({ ...given, tickfont: legible(given.tickfont), title: { ...given.title, font: legible(given.title?.font), standoff: 6 }, gridcolor: line, linecolor: line, zerolinecolor: line, fixedrange: true, automargin: true });
    // Bold text would be an inline style, which the content policy refuses.
    const plain = (/** @type {any} */ note) => ({ ...note, text: note.text.replace(/<\/?b>/g, ""), bgcolor: CLEAR, font: legible(note.font) });
    return {
      ...layout,
      paper_bgcolor: CLEAR,
      plot_bgcolor: CLEAR,
      width: undefined,
      height: undefined, // the page's style says how large it is, also after the window has changed
      autosize: true,
      margin: { l: narrow ? 8 : 56, r: 12, t: 12, b: 20 },
      font: { ...legible(layout.font), family: "system-ui, sans-serif" },
      hoverlabel: { ...layout.hoverlabel, bgcolor: style.getPropertyValue("--back").trim(), font: { color: this.ink } },
      annotations: (layout.annotations || []).map(plain),
      legend: { ...layout.legend, font: legible(layout.legend?.font), orientation: "h", xref: "paper", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      dragmode: false,
      shapes,
    };
  }

  /** @param {Drawn} drawn */
  table({ delta, document: { curves } }) {
    const shown = (/** @type {any} */ point) => point.utility !== null && point.epsilon !== null && point.on_frontier !== false;
    const rows = curves.flatMap((/** @type {any} */ curve) => curve.points.filter(shown).map((/** @type {any} */ point) => {
      const weights = Object.entries(point.weights).filter(([, weight]) => weight > 0).map(([name, weight]) => `${name} ${numberText(weight)}`).join(", ");
      const noise = point.noise ? `, noise ${numberText(point.noise)}` : "";
      return row([curve.title, curve.by.toUpperCase(), curve.standing, epsilonText(point.epsilon), numberText(point.utility), weights + noise]);
    }));
    fill(byId("frontier-table"), table(`Utility against ε at δ = ${deltaText(delta)}`, ["rule", "by", "standing", "ε", "utility", "weights"], rows));
    byId("frontier-numbers").hidden = false;
  }
}

/** @type {Promise<unknown> | null} */
let loading = null;

function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/plotly.min.js" });
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("plotly.js is missing; install dpmerge[explorer]")));
    document.head.append(script);
  });
  return loading;
}
