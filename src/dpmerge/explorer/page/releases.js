// What the ledger allows, what was released, and releasing.

import { get, post } from "./api.js";
import { badge, byId, declared, deltaText, epsilonText, exactWeights, fill, h, ruleText, weightBars } from "./dom.js";
import { runJob } from "./jobs.js";

const VERDICTS = { 0: ["✓", "holds"], 1: ["✗", "broken"], 2: ["?", "unchecked"] };
const PAUSE_MS = 250;

export class Releases {
  constructor(portfolio) {
    this.portfolio = portfolio;
    this.verdicts = new Map();
    this.checking = new Set();
    this.releasing = false;
    this.dialog = byId("release-dialog");
    byId("release-name").addEventListener("input", () => this.previewSoon());
    byId("release-depends").addEventListener("change", () => this.previewSoon());
    byId("release-cancel").addEventListener("click", () => this.dialog.close());
    byId("release-confirm").addEventListener("click", () => this.confirm());
    byId("release-form").addEventListener("submit", (event) => event.preventDefault());
    this.dialog.addEventListener("close", () => this.opener().focus({ preventScroll: true }));
  }

  async refresh() {
    const [history, budget] = await Promise.all([get("/v1/releases"), this.portfolio.has_ledger ? get("/v1/budget") : null]);
    this.showBudget(budget);
    this.history = history;
    this.showHistory(history);
  }

  showBudget(budget) {
    if (budget === null) {
      byId("budget").replaceChildren(h("p", { class: "quiet" }, "No ledger: releases from this data are not being added up. Start with --ledger."));
      return;
    }
    const { spent } = budget;
    const meter = h("meter", { min: "0", max: String(budget.budget.epsilon), value: String(spent.epsilon ?? budget.budget.epsilon), "aria-label": "ε spent of the budget" });
    const fits = budget.fits;
    fill(byId("budget"),
      h("p", {}, h("strong", { class: "big" }, `ε = ${epsilonText(spent.epsilon)} of ${budget.budget.epsilon}`), ` spent at δ = ${declared(budget.budget.delta)} by ${budget.releases} ${budget.releases === 1 ? "release" : "releases"} of ${budget.dataset} `, badge(spent.standing), ", under what their certificates assume"),
      meter,
      ...budget.warnings.map((text) => h("p", { class: "quiet" }, text)),
      h("ul", {}, budget.counted.map((text) => h("li", {}, text))),
      fits === null ? null : h("ul", {}, fits.text.map((text) => h("li", {}, text.trim()))));
  }

  showHistory(history) {
    const place = byId("releases");
    if (history.entries.length === 0 && history.folders.length === 0) {
      place.replaceChildren(h("p", { class: "quiet" }, "Nothing was released yet."));
      return;
    }
    const folders = new Map(history.folders.map((folder) => [folder.entry, folder.name]));
    const rows = history.entries.filter((entry) => entry.kind === "release").map((entry) => {
      const ended = history.entries.find((other) => other.of === entry.number);
      return this.row(`${entry.number}`, entry.name, entry, ended ? ended.kind : "not completed", folders.get(entry.number) ?? null);
    });
    for (const folder of history.folders.filter((one) => one.entry === null)) rows.push(this.row("—", folder.name, null, "not in this ledger", folder.name));
    place.replaceChildren(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "History of releases" }, h("table", {},
      h("caption", {}, "Every release, and what all together guarantee after it"),
      h("thead", {}, h("tr", {}, ["entry", "name", "rule", "models", "its own guarantee", "together", "state", "recheck"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows))));
  }

  row(number, name, entry, state, folder) {
    const pair = (one) => `(${epsilonText(one.epsilon)}, ${deltaText(one.delta)})`;
    const cell = h("td", {});
    if (folder === null) cell.append("its files are elsewhere");
    else this.verifyCell(cell, folder);
    return h("tr", {}, h("th", { scope: "row" }, number), h("td", {}, name), h("td", {}, entry ? ruleText(entry.rule).toLowerCase() : ""), h("td", {}, entry ? entry.models.join(", ") : ""),
      h("td", {}, entry ? entry.own.map(pair).join(", ") : ""), h("td", {}, entry && entry.total ? pair(entry.total) : ""), h("td", {}, state), cell);
  }

  verifyCell(cell, name) {
    const button = h("button", { type: "button", "aria-label": `Verify ${name}` }, "Verify");
    const result = h("div", { role: "status", "aria-live": "polite", "data-verdict": name });
    const show = (found) => {
      const [sign, kind] = VERDICTS[found.code];
      const list = [...found.broken, ...found.unchecked, ...found.warnings];
      fill(result, h("strong", { class: `verdict-${kind}` }, h("span", { "aria-hidden": "true" }, `${sign} `), found.sentence),
        list.length ? h("ul", {}, list.map((text) => h("li", {}, text))) : null,
        h("details", {}, h("summary", {}, `${found.holds.length} checks hold`), h("ul", {}, found.holds.map((text) => h("li", {}, text)))));
    };
    button.addEventListener("click", async () => {
      button.disabled = true;
      this.checking.add(name);
      this.verdicts.delete(name);
      const job = await runJob(result, `Rechecking ${name}`, "/v1/verify", { name });
      this.checking.delete(name);
      if (job !== null) this.verdicts.set(name, job.result);
      if (!result.isConnected) this.showHistory(this.history); // drawn anew meanwhile
      else if (job !== null) show(job.result);
      button.disabled = false;
    });
    button.disabled = this.checking.has(name);
    cell.append(button, result);
    if (this.verdicts.has(name)) show(this.verdicts.get(name));
  }

  // --- the dialogue ---------------------------------------------------------------------------------------------------------

  open(rule, weights, target, bound) {
    if (this.releasing) { // it is brought to its end before another begins
      this.dialog.showModal();
      return;
    }
    const from = document.activeElement;
    const { key } = from.dataset;
    this.opener = () => (key === undefined ? from : document.querySelector(`button[data-key="${key}"]`) || byId("search")); // it may be drawn anew
    const used = Object.fromEntries(Object.entries(weights).filter(([, weight]) => weight > 0));
    this.asked = { rule, weights: used, delta: target.delta, ...(bound ? { epsilon: target.epsilon } : {}) };
    const names = Object.keys(used);
    const how = rule === "joint" ? "Release the models jointly" : `Release by ${ruleText(rule).toLowerCase()}`;
    byId("release-title").textContent = rule !== "joint" && names.length === 1 ? `Release ${names[0]} alone` : how;
    byId("release-name").value = `release-${new Date().toISOString().slice(0, 19).replace(/[T:]/g, "-")}`;
    byId("release-depends").checked = false;
    byId("release-cancel").textContent = "Leave everything as it is";
    byId("release-confirm").hidden = false;
    byId("release-job").replaceChildren();
    this.dialog.showModal();
    this.preview();
  }

  request() {
    return { ...this.asked, name: byId("release-name").value, depends_on_releases: byId("release-depends").checked };
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
    byId("release-preview").replaceChildren(h("p", { class: "quiet" }, "working out what it would write and spend …"));
    try {
      const found = await post("/v1/releases/preview", asked);
      if (JSON.stringify(asked) !== JSON.stringify(this.request())) return;
      byId("release-preview").replaceChildren(...this.previewed(found));
      byId("release-confirm").disabled = !this.portfolio.may_release || found.fits === false;
    } catch (error) {
      if (JSON.stringify(asked) !== JSON.stringify(this.request())) return;
      byId("release-preview").replaceChildren();
      byId("release-error").textContent = error.message;
    }
  }

  previewed(found) {
    const drawn = Object.entries(found.files_if_drawn);
    const spent = found.total === null
      ? [h("p", {}, "Nothing is entered anywhere.")]
      : [h("p", {}, `After it, all releases together are (${epsilonText(found.total.epsilon)}, ${deltaText(found.total.delta)})-DP, of a budget of (${found.budget.epsilon}, ${declared(found.budget.delta)}). `, h("strong", {}, found.fits ? "That fits." : "That is more than the budget allows, so it will be refused."))];
    return [
      h("h3", {}, "What it guarantees"),
      h("p", {}, badge(found.guarantee.standing), " ", h("strong", {}, `ε = ${epsilonText(found.guarantee.epsilon)} at δ = ${deltaText(found.guarantee.delta)}`)),
      h("p", { class: "sentence" }, found.guarantee.sentence),
      weightBars(found.weights),
      h("p", { class: "quiet" }, `Exact weights: ${exactWeights(found.weights)}; chosen ${found.provenance === "a-priori" ? "without looking at the models" : "after looking at the models"}.`),
      h("h3", {}, "What it will write"),
      h("p", {}, "A new folder ", h("code", {}, found.name), " among the releases, with:"),
      h("ul", { class: "files" }, found.files.map((name) => h("li", {}, h("code", {}, name))), drawn.length ? h("li", {}, "and the files of the one model that is drawn: ", drawn.map(([name, files]) => `${name} (${files.join(", ")})`).join(" or ")) : null),
      found.keeps_openings ? h("p", {}, "Beside the private models, for you alone: what opens the certificate's commitments to its inputs.") : null,
      h("h3", {}, "What it will spend"),
      ...spent,
      ...found.notes.map((note) => h("p", { class: "notice" }, note)),
      this.portfolio.may_release ? null : h("p", { class: "notice" }, "Releasing is off: start the explorer with --allow-release."),
    ].filter((one) => one !== null);
  }

  async confirm() {
    const asked = this.request();
    const same = () => JSON.stringify(asked) === JSON.stringify(this.request());
    byId("release-confirm").disabled = true;
    byId("release-error").textContent = "";
    for (const field of [byId("release-name"), byId("release-depends")]) field.disabled = true;
    this.releasing = true;
    const job = await runJob(byId("release-job"), "Releasing", "/v1/releases", asked, false);
    this.releasing = false;
    for (const field of [byId("release-name"), byId("release-depends")]) field.disabled = false;
    if (job !== null && same()) {
      const made = job.result;
      byId("release-preview").replaceChildren(h("p", {}, h("strong", {}, h("span", { "aria-hidden": "true" }, "✓ "), `Released as ${made.name}.`)), h("p", { class: "quiet" }, `Certificate ${made.certificate.sha256}`), ...made.notes.map((note) => h("p", { class: "notice" }, note)));
      byId("release-cancel").textContent = "Close";
      byId("release-confirm").hidden = true;
      byId("release-cancel").focus();
    } else if (same()) byId("release-confirm").disabled = false;
    await this.refresh();
  }
}
