// The models as cards.

import { badge, byId, deltaText, epsilonText, h, numberText } from "./dom.js";

export function showModels(portfolio) {
  byId("models").replaceChildren(...portfolio.models.map((model) => card(model, portfolio.delta)));
}

function card(model, delta) {
  const sampling = model.sampling === null ? null : `${model.sampling.scheme}${model.sampling.rate === null ? "" : `, rate ${numberText(model.sampling.rate)}`}`;
  const rows = [
    ...["pld", "rdp"].map((by) => [`ε at δ = ${deltaText(delta)} by ${by.toUpperCase()}`, by in model.epsilon ? epsilonText(model.epsilon[by]) : "does not apply"]),
    ["utility", model.utility === null ? "not stated" : numberText(model.utility)],
    ["mechanism", model.kind],
    ["sampling", sampling],
    ["steps", model.steps],
    ["noise multiplier", model.noise_multiplier === null ? null : numberText(model.noise_multiplier)],
  ];
  return h("li", { class: "card" },
    h("h3", {}, model.name, " ", badge(model.standing)),
    h("dl", {}, rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    model.warnings.length ? h("ul", { class: "warnings", "aria-label": `warnings for ${model.name}` }, model.warnings.map((text) => h("li", {}, h("span", { "aria-hidden": "true" }, "⚠ "), text))) : null);
}
