// Block tables as the paper draws them: logical blocks of each sequence, and the physical ones behind.

import { MAX_REFERENCES, sharing } from "./model.js";
import { el, empty, percent, whole } from "./dom.js";
import { colourOf, hueOf, shortId } from "./blockmap.js";

const MAX_SHOWN = 48;

/** The block tables of a request: one row for each sequence. */
export function blockTables(replica, request) {
  if (!request) return empty("No request to show", "Send one in the Playground, or click a block of the map.");
  const head = el("p", { class: "tablehead" },
    el("span", { class: "swatch", style: { background: colourOf(request.id) }, "aria-hidden": "true" }),
    el("strong", { class: "mono", text: shortId(request.id) }), ` ${request.state}`, el("span", { class: "soft", text: ` · prompt ${whole(request.promptLen)}${request.numCached ? ` (${whole(request.numCached)} from the prefix cache)` : ""} · ${kind(request)}` }));
  const holding = request.sequences.filter((sequence) => sequence.table.length);
  if (!holding.length) {
    const where = request.state === "swapped" ? "It is swapped out: its blocks lie in CPU memory, and its table is written anew when it comes back." : "It waits, and holds no blocks yet.";
    return el("div", {}, head, empty("No blocks in the pool", where));
  }
  const { logical, physical, saved } = sharing(request);
  const note = logical > physical ? el("p", { class: "saving" }, el("strong", { text: percent(saved) }), ` saved by sharing: ${whole(logical)} logical blocks lie in ${whole(physical)} physical ones`) : el("p", { class: "soft small", text: `${whole(logical)} logical blocks in ${whole(physical)} physical ones` });
  return el("div", { class: "tables" }, head, note, holding.map((sequence) => row(replica, request, sequence)));
}

function kind(request) {
  if (request.beamWidth) return `beam search, width ${request.beamWidth}`;
  return request.width > 1 ? `${request.width} choices` : "1 choice";
}

function row(replica, request, sequence) {
  const size = replica.block_size, table = [...sequence.table];
  const skipped = Math.max(0, table.length - MAX_SHOWN);
  const first = skipped ? Math.ceil(skipped / 2) + Math.floor((MAX_SHOWN - 1) / 2) : 0;
  const cells = [];
  table.forEach((block, index) => {
    if (skipped && index >= first - skipped + 1 && index <= first) {
      if (index === first) cells.push(el("li", { class: "gap", text: `… ${skipped} more …` }));
      return;
    }
    cells.push(cell(replica, request, block, index, Math.max(0, Math.min(size, sequence.known - index * size))));
  });
  const label = request.beamWidth ? `beam ${sequence.choice}` : request.width > 1 ? `choice ${sequence.choice}` : "sequence";
  return el("div", { class: "sequence" }, el("div", { class: "seqname" }, el("strong", { text: label }), el("span", { class: "soft small num", text: `${whole(sequence.known)} tokens` })), el("ol", { class: "cells", "aria-label": `Block table of ${label}` }, cells));
}

function cell(replica, request, block, index, tokens) {
  const references = replica.blocks[block] & MAX_REFERENCES;
  const shade = references > 1 ? `color-mix(in oklab, ${colourOf(request.id)} 55%, var(--card))` : `color-mix(in oklab, ${colourOf(request.id)} 22%, var(--card))`;
  const words = `Logical block ${index} is physical block ${block}: ${tokens} of ${replica.block_size} tokens, ${references} reference${references === 1 ? "" : "s"}`;
  return el("li", { class: references > 1 ? "cell many" : "cell", title: words, style: { background: shade, "--h": hueOf(request.id) } },
    el("span", { class: "logical", text: index }),
    el("span", { class: "physical", text: block }),
    references > 1 && el("span", { class: "refs", text: `×${references}` }),
    el("span", { class: "fill" }, el("i", { style: { width: `${(100 * tokens) / replica.block_size}%`, background: colourOf(request.id) } })));
}

/** The same as the map, in words: who holds what. */
export function holders(replica, onPick) {
  const rows = replica.requests.map((request) => ({ request, ...sharing(request) })).filter((each) => each.physical).sort((a, b) => b.physical - a.physical);
  if (!rows.length) return empty("Nobody holds blocks", "Requests take blocks when they enter the batch.");
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["request", "state", "sequences", "logical", "physical", "saved"].map((text) => el("th", { text, scope: "col" })))),
    el("tbody", {}, rows.slice(0, 40).map(({ request, logical, physical, saved }) => el("tr", {},
      el("td", {}, el("button", { class: "link mono", type: "button", onclick: () => onPick(request.id) }, el("span", { class: "swatch", style: { background: colourOf(request.id) }, "aria-hidden": "true" }), shortId(request.id))),
      el("td", { text: request.state }), el("td", { class: "num", text: request.sequences.length }), el("td", { class: "num", text: whole(logical) }), el("td", { class: "num", text: whole(physical) }), el("td", { class: "num", text: logical > physical ? percent(saved) : "–" }))))));
}
