// The same request twice: by itself and in a crowd. In the deterministic mode not a bit may differ.

import { card, el } from "./dom.js";
import { generate, tidy } from "./generate.js";
import { startStress, stopStress } from "./stress.js";

const CROWD = 6;

export class Twin {
  constructor(feed, body) {
    this.feed = feed;
    this.describe = body;
    this.strict = el("input", { type: "checkbox", checked: true });
    this.run = el("button", { type: "button", text: "Compare", onclick: () => this.compare() });
    this.said = el("p", { class: "small soft", role: "status", text: "Asks what the form asks, at first by itself, then while others keep the batch busy, and compares tokens and log-probabilities." });
    this.shown = el("div", { class: "choices" });
    this.element = card("Deterministic twin", "the same request twice, shown equal", "", el("div", { class: "actions" }, this.run, el("label", { class: "row" }, this.strict, "deterministic")), this.said, this.shown);
  }

  async compare() {
    this.run.disabled = true;
    try {
      await this.ask();
    } catch (error) {
      this.said.className = "error";
      this.said.textContent = `The form cannot be asked: ${error.message}`;
    }
    this.run.disabled = false;
  }

  async ask() {
    const { n, best_of, use_beam_search, length_penalty, echo, ...form } = this.describe();
    const isChat = Boolean(form.messages);
    const body = { ...form, max_tokens: Math.max(16, Math.min(form.max_tokens ?? 48, 64)), seed: form.seed ?? 7, logprobs: isChat ? true : 1, ignore_eos: true, ...(isChat ? { top_logprobs: 1 } : {}), ...tidy({ deterministic: this.strict.checked }) };
    const watch = (words) => (answer) => { this.say(`${words}: ${answer.sorted[0]?.tokens.length ?? 0} tokens`); };
    this.shown.replaceChildren();
    const first = await generate({ ...body, stream: true }, watch("By itself"));
    if (first.error) throw new Error(first.error);
    const stop = await this.crowd(form);
    const second = await generate({ ...body, stream: true }, watch("In a crowd"));
    stop();
    if (second.error) throw new Error(second.error);
    this.show(first.sorted[0].tokens, second.sorted[0].tokens);
  }

  /** Keeps the server busy: by its stress, or for others by requests of their own. */
  async crowd(form) {
    if (this.feed.hello.is_operator) {
      await startStress(16, 20);
      return stopStress;
    }
    const end = new AbortController();
    for (let i = 0; i < CROWD; i++) generate({ ...form, max_tokens: 96, seed: 1000 + i, temperature: 1, ignore_eos: true, stream: true }, () => {}, end.signal);
    await new Promise((resolve) => setTimeout(resolve, 300));
    return () => end.abort();
  }

  say(text) {
    this.said.className = "small soft";
    this.said.textContent = text;
  }

  show(first, second) {
    const same = (i) => first[i]?.text === second[i]?.text && first[i]?.logprob === second[i]?.logprob;
    const count = Math.max(first.length, second.length);
    let differs = -1;
    for (let i = 0; i < count && differs < 0; i++) if (!same(i)) differs = i;
    const words = differs < 0
      ? `Equal: ${count} tokens and ${count} log-probabilities, to the last bit.`
      : this.strict.checked ? `They part at token ${differs + 1}: that must not happen, please report it.` : `They part at token ${differs + 1}: other requests in the batch change the order of sums. Switch the deterministic mode on.`;
    this.said.className = differs < 0 ? "verdict good" : "verdict";
    this.said.textContent = words;
    const column = (title, tokens) => el("article", { class: "choice" }, el("h3", { text: title }), el("p", { class: "said" }, tokens.map((token, i) => el("span", { class: same(i) ? "same" : "other", title: String(token.logprob), text: token.text }))));
    this.shown.replaceChildren(column("by itself", first), column("in a crowd", second));
  }
}
