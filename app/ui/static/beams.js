// A beam search as it grows: hypotheses that part, go on, or are given up.

import { card, el, empty, whole } from "./dom.js";
import { generate, tidy } from "./generate.js";
import { BeamTree } from "./beamtree.js";
import { blockTables } from "./tables.js";

/** A node with those below it; runs of text that do not part are one. */
function branch(node) {
  while (node.children.length === 1 && node.rank < 0) node = { ...node.children[0], text: node.text + node.children[0].text };
  const label = el("div", { class: `run${node.alive ? "" : " pruned"}${node.rank === 0 ? " best" : ""}` }, el("span", { text: node.text.replaceAll("\n", "↵ ") || "∅" }),
    node.rank >= 0 && el("span", { class: "score num", text: `${node.score.toFixed(2)}${node.done ? " · done" : ""}` }));
  const children = [...node.children].sort((a, b) => Number(b.alive) - Number(a.alive));
  return el("li", {}, label, children.length > 0 && el("ul", {}, children.map(branch)));
}

export class BeamsView {
  constructor(feed) {
    this.feed = feed;
    this.tree = null;
    this.request = null;
    this.held = null;
    this.prompt = el("textarea", { rows: 2, "aria-label": "Prompt" });
    this.prompt.value = "The three best places in Kyoto are";
    this.width = el("input", { type: "number", min: 2, max: 8, value: 4 });
    this.length = el("input", { type: "number", min: 4, max: 256, value: 40 });
    this.penalty = el("input", { type: "number", min: -2, max: 4, step: 0.1, value: 1 });
    this.go = el("button", { type: "button", class: "main", text: "Grow", onclick: () => this.start() });
    this.halt = el("button", { type: "button", text: "Stop", disabled: true, onclick: () => this.request?.abort() });
    this.said = el("p", { class: "soft small", role: "status" });
    this.drawn = el("div", { class: "scroll treebox", tabindex: "0", role: "group", "aria-label": "Hypotheses" }, empty("No search yet", "Press Grow: hypotheses branch from left to right, the best is marked, and what is given up fades."));
    this.blocks = el("div");
    this.element = el("div", { class: "grid" },
      card("Beam tree", "the hypotheses of one search, live", "", this.prompt, el("div", { class: "actions params" }, el("label", {}, "width", this.width), el("label", {}, "tokens", this.length), el("label", {}, "length penalty", this.penalty), this.go, this.halt), this.said, this.drawn),
      card("Its block tables", "beams share what they have in common, and copy a block only before they write into it", "", this.blocks));
    this.update();
  }

  async start() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.tree = new BeamTree();
    this.held = null;
    this.halt.disabled = false;
    this.said.className = "soft small";
    this.said.textContent = "Sent: it waits for its place in the batch.";
    this.drawn.replaceChildren();
    const body = tidy({ model: this.feed.hello.model, prompt: this.prompt.value, n: Number(this.width.value), max_tokens: Number(this.length.value), length_penalty: Number(this.penalty.value), use_beam_search: true });
    const before = new Set(this.feed.replica?.requests.map((each) => each.id) ?? []);
    this.isOurs = (each) => each.beamWidth === body.n && !before.has(each.id);
    await generate(body, (answer) => {
      if (this.request !== request) return;
      if (answer.beams) this.tree.grow(answer.beams);
      this.draw(answer);
    }, request.signal);
    if (this.request === request) this.halt.disabled = true;
  }

  draw(answer) {
    const { alive, pruned } = this.tree.counts;
    if (this.tree.root.children.length) {
      this.drawn.replaceChildren(el("ul", { class: "tree" }, [...this.tree.root.children].sort((a, b) => Number(b.alive) - Number(a.alive)).map(branch)));
      this.drawn.scrollLeft = this.drawn.scrollWidth;
    }
    this.said.className = answer.error ? "error" : "soft small";
    this.said.textContent = answer.error || `${answer.endedMs ? "Done" : "Growing"}: ${whole(alive)} hypotheses, ${whole(pruned)} given up, ${((performance.now() - answer.startedMs) / 1000).toFixed(1)} s`;
  }

  update() {
    const request = this.isOurs && this.feed.replica?.requests.find(this.isOurs);
    // what it held last stays to be looked at
    if (request) this.held = [this.feed.replica, { ...request, state: "ended" }];
    if (request) this.blocks.replaceChildren(blockTables(this.feed.replica, request));
    else if (this.held) this.blocks.replaceChildren(blockTables(...this.held));
    else this.blocks.replaceChildren(empty("No search runs", "Its tables are here while it does."));
  }
}
