// The pool and the block tables behind it.

import { card, el } from "./dom.js";
import { BlockMap, colourOf, shortId } from "./blockmap.js";
import { blockTables, holders } from "./tables.js";
import { sharing } from "./model.js";

export class MemoryView {
  constructor(feed) {
    this.feed = feed;
    this.picked = "";
    this.map = new BlockMap((id) => this.pick(id));
    this.table = el("div");
    this.holders = el("div");
    this.chooser = el("div", { class: "chooser" });
    this.summary = el("p", { class: "hidden-text", role: "status" });
    this.told = 0;
    this.element = el("div", { class: "grid" },
      card("Block map", "a square for each physical block of the KV cache; hover or use the arrow keys", "", this.map.element, this.summary),
      card("Block table", "logical block above, physical block below, and how far it is filled; ×n: shared", "", this.chooser, this.table),
      card("Who holds what", "the map as a table", "", this.holders));
  }

  pick(id) {
    this.picked = id;
    this.update();
    this.table.scrollIntoView({ block: "nearest" });
  }

  /** The request that was picked, or the one that shares most. */
  get request() {
    const requests = this.feed.replica?.requests ?? [];
    return requests.find((request) => request.id === this.picked) ?? requests.reduce((best, request) => (weight(request) > weight(best) ? request : best), requests[0]);
  }

  update() {
    const { replica } = this.feed;
    if (!replica?.num_blocks) return;
    this.map.update(replica);
    const { request } = this;
    this.table.replaceChildren(blockTables(replica, request));
    this.holders.replaceChildren(holders(replica, (id) => this.pick(id)));
    const focused = this.chooser.contains(document.activeElement) ? document.activeElement.dataset.id : "";
    this.chooser.replaceChildren(...replica.requests.slice(0, 24).map((each) => el("button", { type: "button", class: "quiet mono", "data-id": each.id, "aria-pressed": String(each.id === request?.id), onclick: () => this.pick(each.id) }, el("i", { class: "swatch", style: { background: colourOf(each.id) }, "aria-hidden": "true" }), shortId(each.id))));
    if (focused) this.chooser.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    if (Date.now() - this.told > 10000) {
      this.told = Date.now();
      this.summary.textContent = this.map.caption.textContent;
    }
  }
}

function weight(request) {
  const { logical, physical } = sharing(request);
  return (logical - physical) * 1000 + physical;
}
