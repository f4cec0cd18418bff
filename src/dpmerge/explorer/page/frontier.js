// The frontier: a job on the server, drawn by plotly.js, with the target marked.

import { get } from "./api.js";
import { byId, deltaText, epsilonText, h, numberText } from "./dom.js";
import { runJob } from "./jobs.js";

const TARGETS = 40;
const POINTS = 12;

export class Frontier {
  constructor(range) {
    this.range = range;
    this.drawn = false;
    this.delta = null;
    this.waiting = false;
    this.tried = false;
    this.narrow = matchMedia("(max-width: 40rem)");
    for (const query of [this.narrow, matchMedia("(prefers-color-scheme: dark)")]) query.addEventListener("change", () => this.repaint());
  }

  async make(delta) {
    if (this.making) return;
    this.making = this.tried = true;
    this.note();
    try {
      const [low, high] = this.range;
      const epsilons = Array.from({ length: TARGETS }, (_, index) => Number((low * (high / low) ** (index / (TARGETS - 1))).toPrecision(4)));
      const job = await runJob(byId("frontier-job"), `The frontier at δ = ${deltaText(delta)}`, "/v1/frontier", { delta, epsilons, points: POINTS });
      if (job === null) return;
      const figure = await get(`/v1/jobs/${job.id}/figure`);
      await loadPlotly();
      Object.assign(this, { delta, document: job.result, figure }); // all at once: no picture is called another's
      await this.repaint();
      this.table();
      byId("frontier-warning").textContent = job.result.warning || "";
      byId("frontier-warning").hidden = !job.result.warning;
    } catch (error) {
      byId("frontier-job").replaceChildren(h("p", { class: "fault", role: "alert" }, `The frontier cannot be drawn: ${error.message}`));
    } finally {
      this.making = false;
      this.note();
    }
  }

  setTarget(target, plan) {
    this.target = target;
    this.best = plan === null || plan.best === null ? null : plan.options[plan.best];
    this.note();
    if (!this.drawn || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const { shapes, best } = this.marks();
      globalThis.Plotly.update(byId("frontier"), best, { shapes }, [byId("frontier").data.length - 1]);
      this.label();
    });
  }

  // What hangs on δ is drawn for one; another is drawn when it is asked for.
  note() {
    const place = byId("frontier-note");
    if (!this.tried || this.making || !this.target || this.delta === this.target.delta) {
      place.replaceChildren();
      return;
    }
    const text = this.delta === null ? "" : `The picture is for δ = ${deltaText(this.delta)}. `;
    place.replaceChildren(text, h("button", { type: "button", onclick: () => this.make(this.target.delta) }, `Draw it for δ = ${deltaText(this.target.delta)}`));
  }

  marks() {
    const shapes = this.target ? [{ type: "line", x0: this.target.epsilon, x1: this.target.epsilon, y0: 0, y1: 1, yref: "paper", line: { color: this.ink, width: 2, dash: "dash" } }] : [];
    const fits = this.best && this.best.expected_utility !== null && this.delta === this.target.delta;
    return { shapes, best: { x: [fits ? [this.best.epsilon] : []], y: [fits ? [this.best.expected_utility] : []] } };
  }

  label() {
    const other = this.delta !== this.target.delta;
    const best = other ? `what fits it is for δ = ${deltaText(this.target.delta)}` : this.best ? `the best for it has ε = ${epsilonText(this.best.epsilon)} and utility ${numberText(this.best.expected_utility)}` : "nothing fits it";
    byId("frontier").setAttribute("aria-label", `Utility against ε at δ = ${deltaText(this.delta)}, for every rule; the target ε = ${this.target.epsilon} is marked by a line, and ${best}. The numbers follow below.`);
  }

  async repaint() {
    if (!this.figure) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.ink = colour("--text");
    const narrow = this.narrow.matches;
    const legible = (font) => ({ ...font, color: this.ink, size: Math.max(12, font?.size || 12) });
    const axis = (given) => ({ ...given, tickfont: legible(given.tickfont), title: { ...given.title, font: legible(given.title?.font), standoff: 6 }, gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), fixedrange: true, automargin: true });
    const { shapes, best } = this.marks();
    const layout = {
      ...this.figure.layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      width: undefined,
      height: undefined, // the page's style says how large it is, also after the window has changed
      autosize: true,
      margin: { l: narrow ? 8 : 56, r: 12, t: 12, b: 20 },
      font: { ...legible(this.figure.layout.font), family: "system-ui, sans-serif" },
      hoverlabel: { ...this.figure.layout.hoverlabel, bgcolor: colour("--back"), font: { color: this.ink } },
      // Bold text would be an inline style, which the content policy refuses.
      annotations: (this.figure.layout.annotations || []).map((note) => ({ ...note, text: note.text.replace(/<\/?b>/g, ""), bgcolor: "rgba(0,0,0,0)", font: legible(note.font) })),
      legend: { ...this.figure.layout.legend, font: legible(this.figure.layout.legend?.font), orientation: "h", xref: "paper", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" },
      xaxis: axis(this.figure.layout.xaxis),
      yaxis: axis(this.figure.layout.yaxis),
      dragmode: false,
      shapes,
    };
    const star = { type: "scatter", mode: "markers", name: "best known for the target", x: best.x[0], y: best.y[0], marker: { symbol: "diamond-open", size: 16, color: this.ink, line: { width: 3 } }, hovertemplate: "best known for the target<extra></extra>" };
    // A narrow screen has no room for both accountants: PLD is drawn, RDP stands in the table.
    const room = this.figure.data.filter((trace) => !narrow || !/\bRDP\b/.test(trace.name || ""));
    const short = (trace) => (narrow && trace.name ? { ...trace, name: trace.name.replace(" (", "<br>(") } : trace);
    const data = room.map(short).map((trace) => (trace.marker?.line?.color ? { ...trace, marker: { ...trace.marker, line: { ...trace.marker.line, color: this.ink } } } : trace));
    byId("frontier").classList.add("drawn");
    await globalThis.Plotly.react(byId("frontier"), [...data, star], layout, { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false });
    this.drawn = true;
    if (this.target) this.label();
  }

  table() {
    const rows = this.document.curves.flatMap((curve) => curve.points.filter((point) => point.utility !== null && point.epsilon !== null && point.on_frontier !== false).map((point) => h("tr", {},
      h("th", { scope: "row" }, curve.title), h("td", {}, curve.by.toUpperCase()), h("td", {}, curve.standing), h("td", {}, epsilonText(point.epsilon)), h("td", {}, numberText(point.utility)),
      h("td", {}, Object.entries(point.weights).filter(([, weight]) => weight > 0).map(([name, weight]) => `${name} ${numberText(weight)}`).join(", ")))));
    byId("frontier-table").replaceChildren(h("table", {},
      h("caption", {}, `Utility against ε at δ = ${deltaText(this.delta)}`),
      h("thead", {}, h("tr", {}, ["rule", "by", "standing", "ε", "utility", "weights"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows)));
    byId("frontier-numbers").hidden = false;
  }
}

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
