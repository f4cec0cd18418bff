// What the ledger allows, what was released, and releasing.

import { get, messageOf, post } from "./api.js";
import { badge, byId, declared, deltaText, epsilonText, exactWeights, fill, folded, h, list, numberText, quiet, row, ruleText, table, used, weightBars } from "./dom.js";
import { runJob } from "./jobs.js";

const VERDICTS = { 0: ["✓", "holds"], 1: ["✗", "broken"], 2: ["?", "unchecked"] };
const COLUMNS = ["entry", "name", "for", "rule", "models", "noise", "its own guarantee", "together", "state", "recheck"];
const PAUSE_MS = 250;

/** @param {string} text */
const notice = (text) => h("p", { class: "notice" }, text);

const newName = () => `release-${new Date().toISOString().slice(0, 19).replace(/[T:]/g, "-")}`;

/** @param {{epsilon: number | null, delta: number}} one */
const pair = (one) => `(${epsilonText(one.epsilon)}, ${deltaText(one.delta)})`;

export class Releases {
  /** @type {Map<string, VerdictAnswer>} */
  verdicts = new Map();
  /** @type {Set<string>} */
  checking = new Set();
  releasing = false;
  /** @type {Omit<ReleaseRequest, "name"> | null} */
  asked = null;
  /** @type {ReleasesAnswer} */
  history = { entries: [], folders: [], may_release: false };
  /** @type {() => HTMLElement | SVGElement | null} what had the focus; it may be drawn anew */
  opener = () => null;
  /** @type {number | undefined} */
  timer;

  /** @param {PortfolioAnswer} portfolio */
  constructor(portfolio) {
    this.portfolio = portfolio;
    this.dialog = byId("release-dialog");
    byId("release-name").addEventListener("input", () => this.previewSoon());
    byId("release-recipient").addEventListener("input", () => this.previewSoon());
    byId("release-depends").addEventListener("change", () => this.previewSoon());
    byId("release-cancel").addEventListener("click", () => this.dialog.close());
    byId("release-confirm").addEventListener("click", () => this.confirm());
    byId("release-form").addEventListener("submit", (event) => event.preventDefault());
    this.dialog.addEventListener("close", () => this.opener()?.focus({ preventScroll: true }));
  }

  async refresh() {
    const [history, budget] = await Promise.all([get("/v1/releases"), this.portfolio.has_ledger ? get("/v1/budget") : null]);
    this.showBudget(budget);
    this.history = history;
    this.showHistory();
  }

  /** @param {BudgetAnswer | null} answer */
  showBudget(answer) {
    if (answer === null) {
      fill(byId("budget"), quiet("No ledger: releases from this data are not being added up. Start with --ledger."));
      return;
    }
    const { spent, budget, releases, fits } = answer;
    const by = `${releases} ${releases === 1 ? "release" : "releases"} of ${answer.dataset}`;
    fill(byId("budget"),
      h("p", {}, h("strong", { class: "big" }, `ε = ${epsilonText(spent.epsilon)} of ${budget.epsilon}`), ` spent at δ = ${declared(budget.delta)} by ${by} `, badge(spent.standing), ", under what their certificates assume"),
      h("meter", { min: 0, max: budget.epsilon, value: spent.epsilon ?? budget.epsilon, "aria-label": "ε spent of the budget" }),
      answer.warnings.map((text) => quiet(text)),
      list(answer.counted),
      fits && list(fits.text.map((text) => text.trim())));
  }

  showHistory() {
    const { entries, folders } = this.history;
    if (entries.length === 0 && folders.length === 0) {
      fill(byId("releases"), quiet("Nothing was released yet."));
      return;
    }
    const places = new Map(folders.map((folder) => [folder.entry, folder.name]));
    const entered = entries.filter((entry) => entry.kind === "release").map((entry) => {
      const state = entries.find((other) => other.of === entry.number)?.kind ?? "not completed";
      const own = entry.own.map(pair).join(", ");
      return row([String(entry.number), entry.name, entry.recipient ?? "—", ruleText(entry.rule ?? "").toLowerCase(), entry.models.join(", "), numberText(entry.noise), own, entry.total && pair(entry.total), state, this.verifying(places.get(entry.number))]);
    });
    const others = folders.filter((folder) => folder.entry === null).map(({ name }) => row(["—", name, "", "", "", "", "", "", "not in this ledger", this.verifying(name)]));
    fill(byId("releases"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "History of releases" },
      table("Every release, and what all together guarantee after it", COLUMNS, [...entered, ...others])));
  }

  /** @param {string | undefined} name @returns {Child} */
  verifying(name) {
    if (name === undefined) return "its files are not on this server";
    const result = h("div", { role: "status", "aria-live": "polite", "data-verdict": name });
    const button = h("button", { type: "button", "aria-label": `Verify ${name}`, disabled: this.checking.has(name) }, "Verify");
    const show = (/** @type {VerdictAnswer} */ found) => {
      const [sign, kind] = VERDICTS[found.code];
      const others = found.uncovered.map((file) => `not certified: ${file}`);
      const wrong = [...found.broken, ...found.unchecked, ...found.warnings, ...others];
      fill(result, h("strong", { class: `verdict-${kind}` }, h("span", { "aria-hidden": "true" }, `${sign} `), found.sentence),
        wrong.length ? list(wrong) : null, folded(`${found.holds.length} checks hold`, [list(found.holds)]),
        found.certified && !found.broken.length ? folded("What is certified, and what it assumes", [h("p", {}, found.certified), list([...found.assumptions, ...found.granted.map((text) => `granted by whoever made it: ${text}`)])]) : null,
        folded("What was not checked", [list(found.left_out)]));
    };
    button.addEventListener("click", async () => {
      button.disabled = true;
      this.checking.add(name);
      this.verdicts.delete(name);
      const job = await runJob(result, `Rechecking ${name}`, "/v1/verify", { name });
      this.checking.delete(name);
      if (job !== null) this.verdicts.set(name, job.result);
      if (!result.isConnected) this.showHistory(); // drawn anew meanwhile
      else if (job !== null) show(job.result);
      button.disabled = false;
    });
    const before = this.verdicts.get(name);
    if (before !== undefined) show(before);
    return [button, result];
  }

  // --- the dialogue ---------------------------------------------------------------------------------------------------------

  /** What the budget allows after a release. @param {ReleaseRequest["rule"]} rule @param {Weighted} given @param {Target} target @param {number} noise
   * @returns {Promise<string[]>} */
  async after(rule, given, target, noise) {
    if (!this.portfolio.has_ledger) return ["No ledger: releases from this data are not being added up. Start with --ledger."];
    try {
      /** @type {ReleasePreview} */
      const found = await post("/v1/releases/preview", { rule, weights: used(given), delta: target.delta, noise, name: newName() });
      return found.after;
    } catch (error) {
      return [messageOf(error)];
    }
  }

  /** @param {ReleaseRequest["rule"]} rule @param {Weighted} given @param {Target} target @param {boolean} bound whether it must meet the target
   * @param {number} [noise] */
  open(rule, given, target, bound, noise = 0) {
    if (this.releasing) { // it is brought to its end before another begins
      this.dialog.showModal();
      return;
    }
    const from = /** @type {HTMLElement} */ (document.activeElement);
    const { key } = from.dataset;
    this.opener = () => (key === undefined ? from : document.querySelector(`button[data-key="${key}"]`) || byId("search"));
    const weights = used(given);
    this.asked = { rule, weights, delta: target.delta, ...(noise > 0 ? { noise } : {}), ...(bound ? { epsilon: target.epsilon } : {}) };
    const names = Object.keys(weights);
    const how = rule === "joint" ? "Release the models jointly" : `Release by ${ruleText(rule).toLowerCase()}`;
    byId("release-title").textContent = rule !== "joint" && names.length === 1 ? `Release ${names[0]} alone` : how;
    byId("release-name").value = newName();
    byId("release-recipient").value = "";
    byId("release-depends").checked = false;
    byId("release-cancel").textContent = "Cancel";
    byId("release-confirm").hidden = false;
    byId("release-job").replaceChildren();
    this.dialog.showModal();
    this.preview();
  }

  request() {
    const recipient = byId("release-recipient").value.trim();
    return { ...this.asked, name: byId("release-name").value, ...(recipient ? { recipient } : {}), depends_on_releases: byId("release-depends").checked };
  }

  /** @param {object} asked whether the dialogue still asks for this */
  isAsked(asked) {
    return JSON.stringify(asked) === JSON.stringify(this.request());
  }

  previewSoon() {
    byId("release-confirm").disabled = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.preview(), PAUSE_MS);
  }

  async preview() {
    const asked = this.request();
    byId("release-confirm").disabled = true;
    byId("release-error").textContent = "";
    fill(byId("release-preview"), quiet("working out what it would write and spend …"));
    try {
      /** @type {ReleasePreview} */
      const found = await post("/v1/releases/preview", asked);
      if (!this.isAsked(asked)) return;
      fill(byId("release-preview"), this.previewed(found));
      byId("release-confirm").disabled = !this.portfolio.may_release || found.fits === false;
    } catch (error) {
      if (!this.isAsked(asked)) return;
      byId("release-preview").replaceChildren();
      byId("release-error").textContent = messageOf(error);
    }
  }

  /** @param {ReleasePreview} found @returns {Child} */
  previewed({ name, weights, provenance, guarantee, files, files_if_drawn, keeps_openings, noise, notes, ...spending }) {
    const drawn = Object.entries(files_if_drawn).map(([model, theirs]) => `${model} (${theirs.join(", ")})`);
    const written = files.map((file) => h("code", {}, file));
    return [
      h("h3", {}, "What it guarantees"),
      h("p", {}, badge(guarantee.standing), " ", h("strong", {}, `ε = ${epsilonText(guarantee.epsilon)} at δ = ${deltaText(guarantee.delta)}`)),
      h("p", { class: "sentence" }, guarantee.sentence),
      weightBars(weights),
      noise > 0 ? h("p", {}, `Noise of standard deviation ${numberText(noise)} is added to every trained number.`) : null,
      quiet(`Exact weights: ${exactWeights(weights)}; chosen ${provenance === "a-priori" ? "without" : "after"} looking at the models.`),
      h("h3", {}, "What it will write"),
      h("p", {}, "A new folder ", h("code", {}, name), " among the releases, with:"),
      list([...written, ...(drawn.length ? [`and the files of the one model that is drawn: ${drawn.join(" or ")}`] : [])], { class: "files" }),
      keeps_openings ? h("p", {}, "Beside the private models, for you alone: what opens the certificate's commitments to its inputs.") : null,
      h("h3", {}, "What it will spend"),
      this.spending(spending),
      notes.map(notice),
      this.portfolio.may_release ? null : notice("Releasing is off: start the explorer with --allow-release."),
    ];
  }

  /** @param {Pick<ReleasePreview, "total" | "budget" | "fits" | "after">} found */
  spending({ total, budget, fits, after }) {
    if (total === null || budget === null) return h("p", {}, "No ledger: nothing is added up.");
    const verdict = fits ? "That fits." : "That exceeds the budget, so it will be refused.";
    return [h("p", {}, `With it, all releases together are ${pair(total)}-DP, of a budget of (${budget.epsilon}, ${declared(budget.delta)}). `, h("strong", {}, verdict)), after.map((text) => h("p", {}, text))];
  }

  async confirm() {
    const asked = this.request();
    const fields = [byId("release-name"), byId("release-recipient"), byId("release-depends")];
    byId("release-confirm").disabled = true;
    byId("release-error").textContent = "";
    for (const field of fields) field.disabled = true;
    this.releasing = true;
    const job = await runJob(byId("release-job"), "Releasing", "/v1/releases", asked, false);
    this.releasing = false;
    for (const field of fields) field.disabled = false;
    if (this.isAsked(asked)) {
      if (job === null) byId("release-confirm").disabled = false;
      else this.released(job.result);
    }
    await this.refresh();
  }

  /** @param {ReleasedAnswer} made */
  released({ name, certificate, notes }) {
    const done = h("strong", {}, h("span", { "aria-hidden": "true" }, "✓ "), `Released as ${name}.`);
    fill(byId("release-preview"), h("p", {}, done), quiet(`Certificate ${certificate.sha256}`), notes.map(notice));
    byId("release-cancel").textContent = "Close";
    byId("release-confirm").hidden = true;
    byId("release-cancel").focus();
  }
}
