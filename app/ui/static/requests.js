// Requests that are open or have lately ended: where their time went, and why.

import { el, empty, legend, seconds, whole } from "./dom.js";
import { explain, lastOf, preemptions, segments, totals } from "./timeline.js";
import { colourOf, shortId } from "./blockmap.js";

const MAX_ROWS = 60;
const PHASES = [["queue", "queue"], ["prefill", "prefill"], ["decode", "decode"], ["away", "preempted"], ["again", "prefilled again"]];

export class RequestsView {
  constructor(feed, onPick) {
    this.feed = feed;
    this.onPick = onPick;
    this.open = new Set();
    this.body = el("div", { class: "requests" });
    this.element = el("div", { class: "grid" }, el("section", { class: "card", "aria-label": "Requests" },
      el("header", {}, el("h2", { text: "Why so long?" }), el("span", { class: "soft", text: "open requests and those that ended in the last two minutes, newest first; press one for the reason" })),
      legend(PHASES.map(([name, text]) => [`k-${name}`, text])), this.body));
  }

  update() {
    const shown = recent(this.feed).slice(0, MAX_ROWS);
    if (!shown.length) {
      this.body.replaceChildren(empty("No requests yet", "They show up here as they come: from the Playground, or from any client of the API."));
      return;
    }
    const scale = Math.max(1e5, ...shown.map(({ parts }) => totals(parts).all));
    const focused = document.activeElement?.dataset?.id;
    this.body.replaceChildren(...shown.map((each) => this.row(each, scale, this.feed.now)));
    if (focused) this.body.querySelector(`button[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  row(each, scale, now) {
    const { known, parts, request } = each, isOpen = this.open.has(known.id);
    const output = request ? request.sequences.reduce((sum, one) => sum + Math.max(0, one.known - request.promptLen), 0) : null;
    const times = preemptions(known.events);
    const head = el("button", { type: "button", class: "reqhead", "data-id": known.id, "aria-expanded": String(isOpen), onclick: () => { isOpen ? this.open.delete(known.id) : this.open.add(known.id); this.update(); } }, columns(each, scale));
    if (!isOpen) return el("div", { class: "req" }, head);
    const facts = [request && `prompt ${whole(request.promptLen)} tokens${request.numCached ? `, ${whole(request.numCached)} of them cached` : ""}`, output !== null && `${whole(output)} tokens of output`, request?.width > 1 && `${request.width} ${request.beamWidth ? "beams" : "choices"}`, times > 0 && `preempted ${times} ×`].filter(Boolean).join(" · ");
    return el("div", { class: "req open" }, head, el("div", { class: "why" },
      el("p", { text: explain(known.events, now, seconds) }),
      facts && el("p", { class: "soft small", text: facts }),
      el("table", { class: "phases" }, el("tbody", {}, parts.map(([phase, start, end]) => el("tr", {}, el("td", {}, el("i", { class: `key k-${phase}`, "aria-hidden": "true" }), ` ${PHASES.find(([name]) => name === phase)[1]}`), el("td", { class: "num", text: `+${seconds(start - parts[0][1])}` }), el("td", { class: "num", text: seconds(end - start) }))))),
      request && el("button", { type: "button", class: "quiet", onclick: () => this.onPick(known.id), text: "Show its block tables" })));
  }
}

/** Requests of the chosen replica, newest first, with the parts of their time. */
export function recent(feed) {
  const live = new Map((feed.replica?.requests ?? []).map((request) => [request.id, request]));
  return [...feed.timelines.requests.values()]
    .filter((known) => !feed.replica || known.replica === feed.replica.id)
    .sort((a, b) => b.events[0][1] - a.events[0][1])
    .map((known) => {
      const request = live.get(known.id);
      return { known, request, parts: segments(known.events, lastOf(known)), state: request?.state ?? "ended" };
    });
}

function columns({ known, parts, state }, scale) {
  return [el("span", { class: "reqid mono" }, el("i", { class: "swatch", style: { background: colourOf(known.id) }, "aria-hidden": "true" }), shortId(known.id)),
    el("span", { class: `chip s-${state}`, text: state }),
    timelineBar(parts, scale),
    el("span", { class: "reqtime num", text: seconds(totals(parts).all) })];
}

export function requestLine(each, scale) {
  return el("div", { class: "req reqhead" }, columns(each, scale));
}

export function timelineBar(parts, scale) {
  const words = parts.map(([phase, start, end]) => `${phase} ${seconds(end - start)}`).join(", ");
  return el("span", { class: "bar timeline", role: "img", "aria-label": words, title: words }, parts.map(([phase, start, end]) => el("span", { class: `k-${phase}`, style: { width: `${Math.max(0.25, (100 * (end - start)) / scale)}%` } })));
}
