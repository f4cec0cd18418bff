// Elements and numbers for people. Text from the server only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}

const there = (children) => children.flat().filter((child) => child !== null && child !== undefined);

// The element with these children alone; what is null is left out, where replaceChildren would write "null".
export const fill = (element, ...children) => element.replaceChildren(...there(children));

// Privacy parameters are rounded up, never in the reader's favour; null is no finite number.
export function epsilonText(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "∞";
  const unit = 10 ** digits;
  const scaled = Math.ceil(value * unit);
  return ((scaled / unit < value ? scaled + 1 : scaled) / unit).toFixed(digits); // the product may have been rounded down
}

export function deltaText(value) {
  if (value === 0) return "0";
  const text = value.toPrecision(3);
  const up = Number(text) >= value ? Number(text) : value + 10 ** (Math.floor(Math.log10(value)) - 2);
  return Number(up.toPrecision(3)).toExponential();
}

// What was declared is printed as it is.
export const declared = (value) => value.toExponential();

// A weight as it is, or with four digits and a sign that says so.
export function weightText(value) {
  const short = String(Number(value.toPrecision(4)));
  return Number(short) === value ? short : `≈ ${short}`;
}

export const numberText = (value) => (value === null || value === undefined ? "not known" : String(Number(value.toPrecision(4))));

const RULES = { single: "One model alone", selection: "Random selection", combination: "Linear combination", joint: "Joint release" };
export const ruleText = (rule) => RULES[rule] || rule;

// Word and sign, so that nothing hangs on a colour.
const STANDINGS = { proved: ["✓", "proved"], conditional: ["◇", "conditional"], refused: ["✗", "refused"], none: ["✗", "no guarantee"] };

export function badge(standing) {
  const [sign, word] = STANDINGS[standing];
  return h("span", { class: `badge ${standing}` }, h("span", { "aria-hidden": "true" }, `${sign} `), word);
}

// It says what it fits, so that it is true wherever it stands.
export function fitBadge(fits, epsilon) {
  return h("span", { class: `badge ${fits ? "fits" : "misses"}` }, h("span", { "aria-hidden": "true" }, fits ? "● " : "○ "), `${fits ? "fits" : "does not fit"} ε ≤ ${epsilon}`);
}

export function uncoveredBadge() {
  return h("span", { class: "badge misses" }, h("span", { "aria-hidden": "true" }, "○ "), "not covered after looking");
}

export function weightBars(weights) {
  const rows = Object.entries(weights).map(([name, weight]) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", String(weight));
    return h("li", {}, h("span", { class: "name" }, name), bar, h("span", { class: "number" }, weightText(weight)));
  });
  return h("ul", { class: "weights" }, rows);
}

export const exactWeights = (weights) => Object.entries(weights).filter(([, weight]) => weight > 0).map(([name, weight]) => `${name}=${weight}`).join(",");
