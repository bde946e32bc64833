// Asks the model for something, with all that can be set, and shows what it took.

import { card, el, empty, percent, seconds, whole } from "./dom.js";
import { asCurl, asPython, generate, tidy } from "./generate.js";
import { heatMap } from "./logprobs.js";
import { sharing } from "./model.js";
import { explain, segments } from "./timeline.js";
import { timelineBar } from "./requests.js";
import { Twin } from "./twin.js";

const NUMBERS = [
  ["max_tokens", "max tokens", { min: 0, value: 64 }], ["temperature", "temperature", { min: 0, max: 2, step: 0.1, value: 0.8 }],
  ["n", "n (choices)", { min: 1, max: 16, value: 1 }], ["best_of", "best of", { min: 1, max: 20 }],
  ["top_p", "top p", { min: 0, max: 1, step: 0.05 }], ["top_k", "top k", { min: 0 }], ["min_p", "min p", { min: 0, max: 1, step: 0.05 }],
  ["seed", "seed", {}], ["presence_penalty", "presence penalty", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "frequency penalty", { min: -2, max: 2, step: 0.1 }], ["repetition_penalty", "repetition penalty", { min: 0.1, step: 0.1 }],
  ["min_tokens", "min tokens", { min: 0 }], ["length_penalty", "length penalty", { step: 0.1 }],
];
const FIRST = 3;
const FLAGS = [["logprobs", "probabilities"], ["stream", "stream"], ["use_beam_search", "beam search"], ["deterministic", "deterministic"], ["ignore_eos", "ignore the end"]];

export class Playground {
  constructor(feed) {
    this.feed = feed;
    this.mode = "chat";
    this.history = [];
    this.request = null;
    this.watched = new Map();
    this.system = el("input", { type: "text", placeholder: "optional", value: "" });
    this.prompt = el("textarea", { rows: 5, "aria-label": "Your message or prompt", onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.start(); } });
    this.prompt.value = "Why do pagodas survive earthquakes? Answer in two sentences.";
    this.numbers = Object.fromEntries(NUMBERS.map(([name, , range]) => [name, el("input", { type: "number", step: "any", ...range })]));
    this.stops = el("input", { type: "text", placeholder: "separated by |" });
    this.flags = Object.fromEntries(FLAGS.map(([name]) => [name, el("input", { type: "checkbox", checked: name === "stream" })]));
    this.extra = el("textarea", { rows: 2, class: "mono", placeholder: '{"top_logprobs": 5}', "aria-label": "Further fields as JSON" });
    this.modes = el("div", { class: "segmented", role: "radiogroup", "aria-label": "What is asked" }, [["chat", "Chat"], ["completion", "Completion"], ["score", "Score a text"]].map(([mode, text]) => el("button", { type: "button", role: "radio", "data-mode": mode, text, onclick: () => this.choose(mode) })));
    this.send = el("button", { type: "button", class: "main", text: "Send", onclick: () => this.start() });
    this.halt = el("button", { type: "button", text: "Stop", disabled: true, onclick: () => this.request?.abort() });
    this.clear = el("button", { type: "button", class: "quiet", text: "New chat", onclick: () => { this.history = []; this.drawHistory(); } });
    this.turns = el("div", { class: "turns" });
    this.result = el("div", { class: "result" }, empty("Nothing asked yet", "Press Send, or Ctrl+Enter in the text."));
    this.took = el("div");
    this.element = el("div", { class: "grid" }, this.form(), el("div", { class: "wide8 stack" }, card("Answer", "", "", this.result, this.took), new Twin(feed, (signal) => this.body(signal)).element));
    this.choose("chat");
  }

  form() {
    const field = ([name, text]) => el("label", {}, text, this.numbers[name]);
    this.systemLabel = el("label", {}, "system message", this.system);
    return card("Ask", "", "third", this.modes, this.turns, this.systemLabel, this.prompt,
      el("div", { class: "fields" }, NUMBERS.slice(0, FIRST).map(field)),
      el("div", { class: "flags" }, FLAGS.map(([name, text]) => el("label", { class: "row" }, this.flags[name], text))),
      el("details", {}, el("summary", { text: "All parameters" }), el("div", { class: "fields" }, NUMBERS.slice(FIRST).map(field), el("label", {}, "stop strings", this.stops)), el("label", {}, "further fields (JSON)", this.extra)),
      el("div", { class: "actions" }, this.send, this.halt, this.clear));
  }

  choose(mode) {
    this.mode = mode;
    for (const button of this.modes.children) button.setAttribute("aria-checked", String(button.dataset.mode === mode));
    this.systemLabel.hidden = this.clear.hidden = mode !== "chat";
    this.turns.hidden = mode !== "chat";
    this.send.textContent = mode === "score" ? "Score" : "Send";
  }

  /** The body of the request that the form describes; throws if its further fields are no JSON. */
  body() {
    const numbers = Object.fromEntries(Object.entries(this.numbers).filter(([, input]) => input.value !== "").map(([name, input]) => [name, Number(input.value)]));
    const { stream, logprobs, ...flags } = Object.fromEntries(Object.entries(this.flags).map(([name, input]) => [name, input.checked]));
    const extra = this.extra.value.trim() ? JSON.parse(this.extra.value) : {};
    const common = { model: this.feed.hello.model, ...tidy({ ...numbers, ...flags, stop: this.stops.value ? this.stops.value.split("|") : "" }) };
    if (!flags.use_beam_search) delete common.length_penalty;
    if (flags.use_beam_search) delete common.temperature;
    if (this.mode === "score") return { model: common.model, prompt: this.prompt.value, max_tokens: 0, echo: true, logprobs: 5, ...extra };
    if (this.mode === "completion") return { ...common, prompt: this.prompt.value, ...(logprobs ? { logprobs: 5 } : {}), stream, ...extra };
    const messages = [...(this.system.value ? [{ role: "system", content: this.system.value }] : []), ...this.history, { role: "user", content: this.prompt.value }];
    return { ...common, messages, ...(logprobs ? { logprobs: true, top_logprobs: 5 } : {}), stream, ...extra };
  }

  async start(body) {
    this.request?.abort();
    const request = (this.request = new AbortController());
    try {
      body ??= this.body();
    } catch (error) {
      this.result.replaceChildren(el("p", { class: "error", text: `The further fields are not JSON: ${error.message}` }));
      return;
    }
    this.before = new Set(this.feed.timelines.requests.keys());
    this.watched = new Map();
    this.asked = body;
    this.halt.disabled = false;
    const answer = await generate(body, (current) => { if (this.request === request) this.draw(current); }, request.signal);
    if (this.request !== request) return;
    this.halt.disabled = true;
    if (body.messages && !answer.error && answer.sorted.length === 1) {
      this.history = [...body.messages.filter((message) => message.role !== "system"), { role: "assistant", content: answer.sorted[0].text }];
      this.drawHistory();
      this.prompt.value = "";
    }
  }

  drawHistory() {
    this.turns.replaceChildren(...this.history.map((turn) => el("p", { class: `turn ${turn.role}` }, el("strong", { text: turn.role === "user" ? "You" : "Model" }), ` ${turn.content}`)));
    this.turns.scrollTop = this.turns.scrollHeight;
  }

  draw(answer) {
    this.answer = answer;
    const choices = answer.sorted;
    const mayGoOn = this.mode !== "chat" && answer.endedMs > 0;
    const beams = !choices.length && answer.beams ? answer.beams.map((beam, i) => el("article", { class: "choice" }, el("h3", { text: `beam ${i}` }), el("p", { class: "said", text: beam.text }))) : [];
    this.result.replaceChildren(
      answer.error ? el("p", { class: "error", text: answer.error }) : "",
      el("div", { class: choices.length > 1 || beams.length ? "choices" : "choices one" }, beams, choices.map((choice) => this.choice(choice, choices.length, mayGoOn))),
      choices.length || answer.error ? this.actions(answer) : el("p", { class: "soft", text: answer.endedMs ? "The answer is empty." : "waiting for the first token …" }));
    this.drawTook();
  }

  choice(choice, count, mayGoOn) {
    const goOn = mayGoOn ? (index, text) => this.goOn(choice, index, text) : null;
    return el("article", { class: "choice" }, count > 1 && el("h3", { text: `choice ${choice.index}` }),
      choice.tokens.length ? heatMap(choice.tokens, goOn) : el("p", { class: "said", text: choice.text }),
      choice.reason && el("p", { class: "soft small", text: `ended by ${choice.reason === "stop" ? "the model or a stop string" : choice.reason}` }));
  }

  /** Asks again from a token on, with another one in its place. */
  goOn(choice, index, text) {
    const kept = choice.tokens.slice(0, index).map((token) => token.text).join("");
    this.prompt.value = (this.asked.echo ? "" : this.asked.prompt) + kept + text;
    this.choose("completion");
    this.flags.logprobs.checked = true;
    this.start();
  }

  actions(answer) {
    const raw = el("pre", { class: "raw", hidden: true });
    const show = (text) => { raw.textContent = text; raw.hidden = false; };
    const copy = (text, button) => navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; }, () => show(text)) ?? show(text);
    const button = (label, act) => el("button", { type: "button", class: "quiet", text: label, onclick: (event) => act(event.currentTarget) });
    return el("div", {}, el("div", { class: "actions foot" }, button("Copy as curl", (self) => copy(asCurl(answer.body), self)), button("Copy as Python", (self) => copy(asPython(answer.body), self)), button("Raw JSON", () => { raw.hidden ? show(answer.chunks.map((chunk) => JSON.stringify(chunk)).join("\n")) : (raw.hidden = true); })), raw);
  }

  /** Finds the request among those of the server: a new one of the same width, and of the prompt that the answer names. */
  update() {
    if (!this.answer || !this.before) return;
    const width = Math.max(this.asked.n ?? 1, this.asked.best_of ?? 1);
    for (const request of this.feed.replica?.requests ?? []) {
      if (this.before.has(request.id) || request.width !== width) continue;
      const { saved, logical, physical } = sharing(request), known = this.watched.get(request.id);
      if (!known || saved >= known.saved) this.watched.set(request.id, { id: request.id, promptLen: request.promptLen, saved, logical, physical });
    }
    this.drawTook();
  }

  drawTook() {
    const { answer } = this, usage = answer.usage, took = ((answer.endedMs || performance.now()) - answer.startedMs) * 1000;
    const facts = [answer.firstMs && `first token after ${seconds((answer.firstMs - answer.startedMs) * 1000)}`, `${seconds(took)} in all`, usage && `${whole(usage.prompt_tokens)} prompt tokens`, usage?.prompt_tokens_details?.cached_tokens > 0 && `${whole(usage.prompt_tokens_details.cached_tokens)} of them cached`, usage && `${whole(usage.completion_tokens)} output tokens`, usage && answer.endedMs && usage.completion_tokens > 1 && `${(usage.completion_tokens / (took / 1e6)).toFixed(1)} tokens/s`].filter(Boolean);
    const candidates = [...this.watched.values()].filter((each) => !usage || each.promptLen === usage.prompt_tokens);
    const found = candidates.length === 1 ? candidates[0] : null;
    const events = found && this.feed.timelines.requests.get(found.id)?.events;
    const parts = events ? segments(events, this.feed.now) : [];
    this.took.replaceChildren(el("p", { class: "took num soft", text: facts.join(" · ") }),
      found && found.logical > found.physical ? el("p", { class: "saving" }, el("strong", { text: `KV saved ${percent(found.saved)}` }), ` ${whole(found.logical)} blocks of its sequences lay in ${whole(found.physical)}: they share what they have in common`) : "",
      parts.length ? el("div", { class: "whybox" }, timelineBar(parts, parts[parts.length - 1][2] - parts[0][1]), el("p", { class: "small soft", text: explain(events, this.feed.now, seconds) })) : "");
  }
}
