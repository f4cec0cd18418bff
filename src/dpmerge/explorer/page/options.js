// What may be released for the target: the best option of every rule, as the server ranks them.

import { badge, byId, deltaText, epsilonText, exactWeights, fitBadge, h, numberText, ruleText, weightBars } from "./dom.js";

const ORDER = ["combination", "selection", "single", "joint"];
let shown = "";

export function showVerdict(plan) {
  const place = byId("verdict");
  const best = plan.best === null ? null : plan.options[plan.best];
  const target = `(${plan.target.epsilon}, ${deltaText(plan.target.delta)})`;
  if (best === null) {
    const closest = plan.options.filter((option) => option.epsilon !== null).sort((a, b) => a.epsilon - b.epsilon)[0];
    place.replaceChildren(h("strong", {}, `Nothing known fits ${target}.`), closest ? ` The closest is ${ruleText(closest.rule).toLowerCase()} with ε = ${epsilonText(closest.epsilon)}.` : "");
    return;
  }
  const worth = best.expected_utility === null ? "" : ` Utility ${numberText(best.expected_utility)} (${best.utility_kind}).`;
  place.replaceChildren(h("strong", {}, `${ruleText(best.rule)}: ε = ${epsilonText(best.epsilon)}`), ` fits ${target} `, badge(best.standing), worth);
}

// Nothing is known for the target: what was known is for another.
export function forgetPlan() {
  shown = "";
  for (const id of ["verdict", "options", "assumed"]) byId(id).replaceChildren();
  delete byId("verdict").dataset.target;
}

export function showOptions(plan, actions) {
  const text = JSON.stringify([plan.options, plan.target]);
  if (text === shown) return;
  shown = text;
  const place = byId("options");
  const focused = document.activeElement?.dataset?.key;
  const before = new Map([...place.querySelectorAll("details")].map((one) => [one.dataset.key, one.open]));
  const common = shared(plan.options);
  byId("assumed").textContent = common.length ? `Every guarantee here assumes that ${common.join("; that ")}.` : "";
  const alone = shared(plan.options.filter((option) => option.rule === "single"));
  byId("models-assumed").textContent = alone.length ? `Each guarantee assumes that ${alone.join("; that ")}; and what a card warns of.` : "";
  const cards = [];
  for (const rule of ORDER) {
    const [first, ...others] = plan.options.filter((option) => option.rule === rule);
    if (first !== undefined) cards.push(card(first, others, common, plan, actions));
  }
  place.replaceChildren(...cards);
  for (const details of place.querySelectorAll("details")) details.open = before.get(details.dataset.key) ?? false;
  if (focused) place.querySelector(`button[data-key="${focused}"]`)?.focus({ preventScroll: true });
}

function card(option, others, common, plan, actions) {
  const best = plan.best !== null && plan.options[plan.best] === option;
  const title = h("h3", {}, ruleText(option.rule), best ? h("span", { class: "best" }, h("span", { "aria-hidden": "true" }, " ★"), " best") : null);
  if (option.standing === "refused" || option.standing === "none") {
    return h("article", { class: "option refused", "data-rule": option.rule }, title, h("p", {}, badge(option.standing)), h("p", { class: "sentence" }, option.why));
  }
  const worth = option.expected_utility === null ? null : h("p", {}, `Utility ${numberText(option.expected_utility)} (${option.utility_kind})`);
  return h("article", { class: `option${best ? " first" : ""}`, "data-rule": option.rule },
    title,
    h("p", {}, badge(option.standing), " ", fitBadge(option.feasible, plan.target.epsilon)),
    h("p", {}, h("strong", { class: "big" }, `ε = ${epsilonText(option.epsilon)}`), ` at δ = ${deltaText(option.delta)}`),
    h("p", { class: "quiet" }, option.why),
    option.rule === "joint" ? h("p", { class: "quiet" }, "Anything made of all the models, even after looking at them.") : weightBars(option.weights),
    worth,
    ...guarantee(option, common),
    others.length ? h("details", { "data-key": `others-${option.rule}` }, h("summary", {}, "The other models"), h("ul", {}, others.map((other) => line(other, common)))) : null,
    h("p", { class: "row" },
      option.rule === "joint" ? null : h("button", { type: "button", "data-key": `show-${option.rule}`, onclick: () => actions.show(option) }, "In the picture"),
      h("button", { type: "button", "data-key": `release-${option.rule}`, onclick: () => actions.release(option) }, "Release …")));
}

// The guarantee as a sentence, with what it assumes beside it; what all of them assume stands above them, once.
function guarantee(option, common) {
  const own = assumed(option, common);
  return [
    h("p", { class: "sentence" }, option.claim, own.length ? `, assuming${common.length ? " besides" : ""}:` : ""),
    ...own,
    h("details", { "data-key": `theorem-${option.rule}` }, h("summary", {}, option.rule === "joint" ? "Theorem" : "Theorem and exact weights"),
      h("p", {}, option.theorem_title), option.rule === "joint" ? null : h("p", { class: "quiet" }, exactWeights(option.weights))),
  ];
}

function assumed(option, common) {
  const own = option.assumptions.filter((text) => !common.includes(text));
  return own.length ? [h("ul", { class: "assumed" }, own.map((text) => h("li", {}, text)))] : [];
}

function shared(options) {
  const guaranteed = options.filter((option) => option.standing === "proved" || option.standing === "conditional");
  const [first, ...others] = guaranteed.map((option) => option.assumptions);
  return first === undefined ? [] : first.filter((text) => others.every((texts) => texts.includes(text)));
}

function line(option, common) {
  const name = Object.keys(option.weights).find((one) => option.weights[one] === 1);
  return h("li", {}, `${name}: `, option.standing === "refused" ? option.why : `ε = ${epsilonText(option.epsilon)}, `, badge(option.standing), option.feasible ? ", fits" : ", does not fit",
    ...assumed(option, common));
}
