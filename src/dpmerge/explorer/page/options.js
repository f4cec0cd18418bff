// What may be released for the target: the best option of every rule, as the server ranks them.

import { badge, byId, deltaText, epsilonText, exactWeights, fill, fitBadge, folded, h, list, numberText, quiet, ruleText, weightBars } from "./dom.js";

const ORDER = ["combination", "selection", "single", "joint"];
let shown = "";

/** @typedef {{show: (option: OptionAnswer) => void, release: (option: OptionAnswer) => void}} Actions */

/** @param {PlanAnswer} plan */
export const bestOf = (plan) => (plan.best === null ? null : plan.options[plan.best]);

/** What it is worth. Far below every model nothing is known of a utility; one that is only predicted is told by its noise.
 * @param {OptionAnswer} option @param {PlanAnswer} plan */
function worthOf({ expected_utility, utility_kind, predicted_deviation }, plan) {
  if (expected_utility === null) return "";
  if (utility_kind === "predicted" && predicted_deviation !== null) return `Predicted noise ${numberText(predicted_deviation)} in a parameter`;
  const least = Math.min(...plan.options.filter((one) => one.rule === "single" && one.expected_utility !== null).map((one) => Number(one.expected_utility)));
  return expected_utility < least ? `Utility below ${numberText(least)}, that of the least useful model` : `Utility ${numberText(expected_utility)} (${utility_kind})`;
}

/** @param {OptionAnswer} option */
const noiseOf = (option) => (option.noise > 0 ? `Noise of standard deviation ${numberText(option.noise)} is added to every trained parameter at release` : "");

/** @param {PlanAnswer} plan */
export function showVerdict(plan) {
  const place = byId("verdict");
  const best = bestOf(plan);
  byId("why-no-noise").textContent = plan.why_no_noise && `No noise at release is offered: ${plan.why_no_noise}.`;
  fill(byId("warnings"), [...new Set(plan.options.flatMap((option) => option.warnings))].map((text) => h("p", { class: "notice" }, text)));
  const target = `(${plan.target.epsilon}, ${deltaText(plan.target.delta)})`;
  if (best !== null) {
    const worth = worthOf(best, plan);
    fill(place, h("strong", {}, `${ruleText(best.rule)}: ε = ${epsilonText(best.epsilon)}`), ` fits ${target} `, badge(best.standing), worth && ` ${worth}.`);
    return;
  }
  const [closest] = plan.options.filter((option) => option.epsilon !== null).sort((a, b) => Number(a.epsilon) - Number(b.epsilon));
  const near = closest ? ` The closest is ${ruleText(closest.rule).toLowerCase()} with ε = ${epsilonText(closest.epsilon)}.` : "";
  fill(place, h("strong", {}, `Nothing known fits ${target}.`), near);
}

/** Nothing is known for the target: what was known is for another. */
export function forgetPlan() {
  shown = "";
  for (const id of ["verdict", "options", "assumed", "warnings", "why-no-noise"]) byId(id).replaceChildren();
  delete byId("verdict").dataset.target;
}

/** @param {PlanAnswer} plan @param {Actions} actions */
export function showOptions(plan, actions) {
  const text = JSON.stringify([plan.options, plan.target]);
  if (text === shown) return;
  shown = text;
  const place = byId("options");
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.key : undefined;
  const before = new Map([...place.querySelectorAll("details")].map((one) => [one.dataset.key, one.open]));
  const common = shared(plan.options);
  byId("assumed").textContent = common.length ? `Every guarantee here assumes that ${common.join("; that ")}.` : "";
  const alone = shared(plan.options.filter((option) => option.rule === "single"));
  byId("models-assumed").textContent = alone.length ? `Each guarantee assumes that ${alone.join("; that ")}; and the warnings on its card.` : "";
  fill(place, ORDER.map((rule) => {
    const [first, ...others] = plan.options.filter((option) => option.rule === rule);
    return first && card(first, others, common, plan, actions);
  }));
  for (const details of place.querySelectorAll("details")) details.open = before.get(details.dataset.key) ?? false;
  if (focused) /** @type {HTMLElement | null} */ (place.querySelector(`button[data-key="${focused}"]`))?.focus({ preventScroll: true });
}

/** @param {OptionAnswer} option @param {OptionAnswer[]} others @param {string[]} common @param {PlanAnswer} plan @param {Actions} actions */
function card(option, others, common, plan, actions) {
  const { rule } = option;
  const best = bestOf(plan) === option;
  const title = h("h3", {}, ruleText(rule), best ? h("span", { class: "best" }, h("span", { "aria-hidden": "true" }, " ★"), " best") : null);
  if (!isGuaranteed(option)) {
    return h("article", { class: "option refused", "data-rule": rule }, title, h("p", {}, badge(option.standing)), h("p", { class: "sentence" }, option.why));
  }
  const joint = rule === "joint";
  const worth = worthOf(option, plan);
  return h("article", { class: `option${best ? " first" : ""}`, "data-rule": rule },
    title,
    h("p", {}, badge(option.standing), " ", fitBadge(option.feasible, plan.target.epsilon)),
    h("p", {}, h("strong", { class: "big" }, `ε = ${epsilonText(option.epsilon)}`), ` at δ = ${deltaText(option.delta)}`),
    quiet(option.why),
    joint ? quiet("Covers anything made from all models, even after looking at them.") : weightBars(option.weights),
    noiseOf(option) ? h("p", {}, noiseOf(option)) : null,
    worth ? h("p", {}, worth) : null,
    guarantee(option, common),
    others.length ? folded(rule === "single" ? "The other models" : "Others", [list(others.map((other) => line(other, common)))], `others-${rule}`) : null,
    h("p", { class: "row" },
      joint ? null : h("button", { type: "button", "data-key": `show-${rule}`, onclick: () => actions.show(option) }, "In the picture"),
      h("button", { type: "button", "data-key": `release-${rule}`, onclick: () => actions.release(option) }, "Release …")));
}

/** The claim, with its own assumptions under it; those of all options stand above them, once.
 * @param {OptionAnswer} option @param {string[]} common */
function guarantee(option, common) {
  const own = assumed(option, common);
  const joint = option.rule === "joint";
  return [
    h("p", { class: "sentence" }, option.claim, own === null ? "" : `, assuming${common.length ? " besides" : ""}:`),
    own,
    folded(joint ? "Theorem" : "Theorem and exact weights", [h("p", {}, option.theorem_title), joint ? null : quiet(exactWeights(option.weights))], `theorem-${option.rule}`),
  ];
}

/** @param {OptionAnswer} option @param {string[]} common */
function assumed(option, common) {
  const own = option.assumptions.filter((text) => !common.includes(text));
  return own.length ? list(own, { class: "assumed" }) : null;
}

/** @param {OptionAnswer} option */
const isGuaranteed = (option) => option.standing === "proved" || option.standing === "conditional";

/** @param {OptionAnswer[]} options */
function shared(options) {
  const [first = [], ...others] = options.filter(isGuaranteed).map((option) => option.assumptions);
  return first.filter((text) => others.every((texts) => texts.includes(text)));
}

/** @param {OptionAnswer} option @param {string[]} common */
function line(option, common) {
  const used = Object.entries(option.weights).filter(([, weight]) => weight > 0);
  const names = used.map(([one, weight]) => (weight === 1 ? one : `${one} ${numberText(weight)}`)).join(", ");
  const name = option.noise > 0 ? `${names}, noise ${numberText(option.noise)}` : names;
  const told = option.standing === "refused" ? option.why : `ε = ${epsilonText(option.epsilon)}, `;
  return [`${name}: `, told, badge(option.standing), option.feasible ? ", fits" : ", does not fit", assumed(option, common)];
}
