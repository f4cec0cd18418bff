// Elements, and numbers for people. Text from the server is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** @template {string} Id @param {Id} id */
export const byId = (id) => /** @type {ElementOf<Id>} */ (document.getElementById(id));

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name @param {Record<string, Attribute>} [attributes] @param {Child[]} children
 */
export const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

/**
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name @param {Record<string, Attribute>} [attributes] @param {Child[]} children
 */
export const svg = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

/** @template {Element} E @param {E} element @param {Record<string, Attribute>} attributes @param {Child[]} children */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...there(children));
  return element;
}

/** @param {Child[]} children @returns {(Node | string)[]} */
const there = (children) => children.flatMap((child) => (Array.isArray(child) ? there(child) : child ?? []));

/** The element with these children alone; what is null is left out, where replaceChildren would write "null".
 * @param {Element} element @param {Child[]} children */
export const fill = (element, ...children) => element.replaceChildren(...there(children));

/** @param {string} text @param {Record<string, Attribute>} [more] */
export const quiet = (text, more = {}) => h("p", { class: "quiet", ...more }, text);

/** @param {string} text */
export const fault = (text) => h("p", { class: "fault", role: "alert" }, text);

/** @param {Child[]} items @param {Record<string, Attribute>} [attributes] */
export const list = (items, attributes = {}) => h("ul", attributes, items.map((item) => h("li", {}, item)));

/** @param {string} text @param {Child[]} children @param {string | null} [key] */
export const folded = (text, children, key = null) => h("details", { "data-key": key }, h("summary", {}, text), children);

/** @param {string} caption @param {string[]} columns @param {Node[]} rows */
export function table(caption, columns, rows) {
  const head = h("thead", {}, h("tr", {}, columns.map((text) => h("th", { scope: "col" }, text))));
  return h("table", {}, h("caption", {}, caption), head, h("tbody", {}, rows));
}

/** The first cell is what the row is about. @param {Child[]} cells */
export const row = ([first, ...others]) => h("tr", {}, h("th", { scope: "row" }, first), others.map((cell) => h("td", {}, cell)));

/** Privacy parameters are rounded up, never in the reader's favour; null is no finite number.
 * @param {number | null | undefined} value */
export function epsilonText(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "∞";
  const unit = 10 ** digits;
  const scaled = Math.ceil(value * unit);
  return ((scaled / unit < value ? scaled + 1 : scaled) / unit).toFixed(digits); // the product may have been rounded down
}

/** @param {number} value */
export function deltaText(value) {
  if (value === 0) return "0";
  const text = value.toPrecision(3);
  const up = Number(text) >= value ? Number(text) : value + 10 ** (Math.floor(Math.log10(value)) - 2);
  return Number(up.toPrecision(3)).toExponential();
}

/** A budget is printed as it was declared. @param {number} value */
export const declared = (value) => value.toExponential();

/** A weight as it is, or with four digits and a sign that says so. @param {number} value */
export function weightText(value) {
  const short = String(Number(value.toPrecision(4)));
  return Number(short) === value ? short : `≈ ${short}`;
}

/** @param {number | null | undefined} value */
export const numberText = (value) => (value === null || value === undefined ? "not known" : String(Number(value.toPrecision(4))));

/** @type {Record<string, string>} */
const RULES = { single: "One model alone", selection: "Random selection", combination: "Linear combination", joint: "Joint release" };
/** @param {string} rule */
export const ruleText = (rule) => RULES[rule] || rule;

/** @param {string} kind @param {string} sign @param {string} word so that meaning never depends on colour alone */
const signed = (kind, sign, word) => h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, `${sign} `), word);

/** @type {Record<string, [string, string]>} */
const STANDINGS = { proved: ["✓", "proved"], conditional: ["◇", "conditional"], refused: ["✗", "refused"], none: ["✗", "no guarantee"] };
/** @param {string} standing */
export const badge = (standing) => signed(standing, ...STANDINGS[standing]);

/** It names the target, so that it is understood anywhere on the page. @param {boolean} fits @param {number} epsilon */
export const fitBadge = (fits, epsilon) => (fits ? signed("fits", "●", `fits ε ≤ ${epsilon}`) : signed("misses", "○", `does not fit ε ≤ ${epsilon}`));

export const uncoveredBadge = () => signed("misses", "○", "not covered after looking");

/** @param {Weighted} weights */
export function weightBars(weights) {
  const rows = Object.entries(weights).map(([name, weight]) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", String(weight));
    return [h("span", { class: "name" }, name), bar, h("span", { class: "number" }, weightText(weight))];
  });
  return list(rows, { class: "weights" });
}

/** @param {Weighted} weights @returns {Weighted} */
export const used = (weights) => Object.fromEntries(Object.entries(weights).filter(([, weight]) => weight > 0));

/** @param {Weighted} weights */
export const exactWeights = (weights) => Object.entries(used(weights)).map(([name, weight]) => `${name}=${weight}`).join(",");
