// The paper's figure 2, live: what the sequences that run hold, and what Orca would reserve for them.

import { figure2 } from "./model.js";
import { el, empty, legend, percent, whole } from "./dom.js";

const PARTS = [["filled", "tokens"], ["reserved", "reserved for tokens to come"], ["internal", "never used"]];

export function waste(replica, maxModelLen) {
  const rows = figure2(replica, maxModelLen);
  if (!rows.length) return empty("Nothing runs", "Send a request to see how much of the memory that it holds has tokens in it.");
  const pool = replica.num_blocks * replica.block_size;
  return el("div", { class: "figure2" },
    rows.map((row) => bar(row, pool)),
    legend(PARTS.map(([name, text]) => [`k-${name}`, text])),
    el("p", { class: "soft small", text: "Share of the slots held that have tokens in them. Orca's rows are computed for the same sequences from what they ask for (max_tokens): exactly that, the next power of two, or the whole context, and nothing is shared." }));
}

function bar(row, pool) {
  const held = row.filled + row.reserved + row.internal;
  const label = PARTS.map(([name, text]) => `${text} ${percent(row[name] / held)}`).join(", ");
  return el("div", { class: "wasterow" },
    el("span", { class: "wastename", text: row.name }),
    el("div", { class: "bar", role: "img", "aria-label": `${row.name}: ${label}` }, PARTS.map(([name]) => el("span", { class: `k-${name}`, style: { width: `${(100 * row[name]) / held}%` } }))),
    el("strong", { class: "num wastevalue", text: percent(row.filled / held) }),
    el("span", { class: "soft small num wasteheld", text: held > pool ? `${(held / pool).toFixed(1)} × the pool` : `${whole(held)} slots` }));
}
