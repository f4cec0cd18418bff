// The models as cards.

import { badge, byId, deltaText, epsilonText, fill, h, list, numberText } from "./dom.js";

/** @param {ModelsAnswer} answer */
export function showModels(answer) {
  fill(byId("models"), answer.models.map((model) => card(model, answer.delta)));
}

/** @param {ModelCard} model @param {number} delta */
function card({ name, epsilon, sampling, utility, kind, steps, noise_multiplier, standing, warnings }, delta) {
  const rate = sampling === null || sampling.rate === null ? "" : `, rate ${numberText(sampling.rate)}`;
  /** @param {"pld" | "rdp"} by */
  const alone = (by) => [`ε at δ = ${deltaText(delta)} by ${by.toUpperCase()}`, by in epsilon ? epsilonText(epsilon[by]) : "does not apply"];
  const rows = [
    alone("pld"),
    alone("rdp"),
    ["utility", utility === null ? "not stated" : numberText(utility)],
    ["mechanism", kind],
    ["sampling", sampling && `${sampling.scheme}${rate}`],
    ["steps", steps],
    ["noise multiplier", noise_multiplier && numberText(noise_multiplier)],
  ];
  const shown = rows.filter(([, value]) => value !== null).map(([label, value]) => h("div", {}, h("dt", {}, String(label)), h("dd", {}, String(value))));
  const signs = warnings.map((text) => [h("span", { "aria-hidden": "true" }, "⚠ "), text]);
  return h("li", { class: "card" },
    h("h3", {}, name, " ", badge(standing)),
    h("dl", {}, shown),
    signs.length ? list(signs, { class: "warnings", "aria-label": `warnings for ${name}` }) : null);
}
