// What may be released, to be read aloud, with what every term means; and what it rests on, in plain words first.

import { byId, fill, folded, h, list, quiet } from "./dom.js";

/** @type {Record<string, string>} */
let glossary = {};
/** @type {string | null} the term whose meaning is shown */
let open = null;

/** @param {Record<string, string>} known */
export function setGlossary(known) {
  glossary = known;
  fill(byId("glossary"), h("dl", { class: "words" }, Object.entries(known).map(([term, meaning]) => h("div", {}, h("dt", {}, term), h("dd", {}, meaning)))));
}

/** @param {string[]} sentences */
export function showAloud(sentences) {
  const text = sentences.join(" ");
  const place = byId("aloud");
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  const focused = document.activeElement instanceof HTMLElement && place.contains(document.activeElement) ? document.activeElement.dataset.term : undefined;
  const seen = new Set();
  const terms = Object.keys(glossary).sort((a, b) => b.length - a.length);
  const pieces = terms.length ? text.split(new RegExp(`(?<![\\p{L}\\p{N}_-])(${terms.join("|")})(?![\\p{L}\\p{N}_-])`, "u")) : [text];
  fill(place, pieces.map((piece) => {
    if (!Object.hasOwn(glossary, piece) || seen.has(piece)) return piece;
    seen.add(piece);
    return h("button", { type: "button", class: "term", "data-term": piece, "aria-controls": "term", "aria-expanded": "false", title: glossary[piece], onclick: () => explain(open === piece ? null : piece) }, piece);
  }));
  explain(open !== null && seen.has(open) ? open : null);
  if (focused !== undefined) /** @type {HTMLElement | null} */ (place.querySelector(`[data-term="${focused}"]`))?.focus({ preventScroll: true });
}

/** @param {string | null} term */
function explain(term) {
  open = term;
  byId("term").hidden = term === null;
  byId("term").textContent = term === null ? "" : `${term}: ${glossary[term]}`;
  for (const button of byId("aloud").querySelectorAll("button")) button.setAttribute("aria-expanded", String(button.dataset.term === term));
}

/** @param {OptionAnswer | null} best */
export function showAssumptions(best) {
  if (best === null) {
    byId("rests").replaceChildren();
    return;
  }
  const key = JSON.stringify([best.assumptions, best.theorem, best.weights, best.noise]);
  if (byId("rests").dataset.key === key && byId("rests").childElementCount > 0) return;
  const shown = byId("rests").querySelector("details")?.open ?? false;
  byId("rests").dataset.key = key;
  const exactly = folded("The theorem, and exactly what it assumes", [h("p", {}, `${best.theorem_title} (${best.theorem_source})`), list(best.assumptions, { class: "assumed" })]);
  exactly.open = shown;
  fill(byId("rests"), list([...new Set(best.plain_assumptions)]), exactly);
}

/** @param {string[]} texts what the budget allows after a release; none is not known yet */
export function showAfter(texts) {
  fill(byId("after"), texts.length ? texts.map((text) => h("p", {}, text)) : quiet("It is worked out where the slider stands still."));
}
