// What the server is set to, and the keys of this page.

import { card, el, empty } from "./dom.js";
import { errorText, keys } from "./feed.js";

const FACTS = [["model", "model"], ["version", "Pagoda"], ["device", "device"], ["dtype", "type of weights"], ["tensor_parallel_size", "ranks"], ["block_size", "tokens per block"], ["max_model_len", "longest prompt plus output"], ["max_num_seqs", "sequences in the batch"], ["memory_policy", "memory policy"]];

export class SettingsView {
  constructor(feed) {
    this.feed = feed;
    this.facts = el("div", {}, empty("Not known yet", "It comes with the first numbers."));
    this.options = el("div");
    this.filter = el("input", { type: "search", placeholder: "filter", "aria-label": "Filter options", oninput: () => this.draw() });
    this.changed = el("input", { type: "checkbox", onchange: () => this.draw() });
    this.rows = null;
    this.element = el("div", { class: "grid" }, card("This server", "", "third", this.facts), card("Options", "every option with its value", "wide8", el("div", { class: "actions" }, this.filter, el("label", { class: "row" }, this.changed, "only what differs from the default")), this.options));
  }

  async shown() {
    if (!this.feed.hello.is_operator) {
      this.options.replaceChildren(empty("For operators", "Enter an operator's key under Keys to see every option; `pagoda serve` keeps one in the server's folder."));
      return;
    }
    try {
      const response = await fetch("ui/api/settings", { headers: keys.headers("page") });
      if (!response.ok) throw new Error(await errorText(response));
      this.rows = (await response.json()).settings;
      this.draw();
    } catch (error) {
      this.options.replaceChildren(el("p", { class: "error", text: error.message }));
    }
  }

  update() {
    const { hello } = this.feed;
    const key = JSON.stringify(hello) + this.feed.replica?.num_blocks;
    if (!hello.model || key === this.drawn) return;
    this.drawn = key;
    const pool = this.feed.replica?.num_blocks ? [["KV cache", `${this.feed.replica.num_blocks.toLocaleString("en-US")} blocks, ${(this.feed.replica.num_blocks * this.feed.replica.block_size).toLocaleString("en-US")} tokens`]] : [];
    this.facts.replaceChildren(el("table", {}, el("tbody", {}, [...FACTS.map(([name, text]) => [text, String(hello[name])]), ...pool].map(([name, value]) => el("tr", {}, el("th", { text: name, scope: "row" }), el("td", { text: value }))))));
    if (this.isShown) this.shown();
  }

  draw() {
    if (!this.rows) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const rows = this.rows.filter((row) => row.name.includes(wanted) && !(this.changed.checked && row.is_default));
    if (!rows.length) this.options.replaceChildren(empty("No such option", "Clear the filter to see all."));
    else this.options.replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Options and their values" }, el("table", {}, el("thead", {}, el("tr", {}, ["option", "value", ""].map((text) => el("th", { text, scope: "col" })))), el("tbody", {}, rows.map((row) => el("tr", {}, el("td", { class: "mono", text: row.name }), el("td", { class: "mono wrap", text: row.value }), el("td", { class: "soft small", text: row.is_default ? "default" : "set" })))))));
  }
}

export function keyDialog(feed) {
  const api = el("input", { type: "password", autocomplete: "off", value: keys.api }), operator = el("input", { type: "password", autocomplete: "off", value: keys.operator });
  const close = () => { dialog.close(); dialog.remove(); };
  const save = () => { keys.set(api.value.trim(), operator.value.trim()); close(); feed.restart(); };
  const form = el("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); save(); } },
    el("label", {}, "API key: for the Playground, and to see your own requests", api),
    el("label", {}, "Operator's key: to see all requests, metrics and settings", operator),
    el("p", { class: "small soft", text: "Keys stay in this tab and are sent to this server only. A server without keys needs none." }),
    el("div", { class: "actions" }, el("button", { type: "submit", class: "main", text: "Use them" }), el("button", { type: "button", text: "Cancel", onclick: close })));
  const dialog = el("dialog", { "aria-label": "Keys" }, el("h2", { text: "Keys" }), form);
  document.body.append(dialog);
  dialog.showModal();
}
