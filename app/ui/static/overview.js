// How the server is now, and the last 60 seconds.

import { card, el, empty, percent, sparkline, whole } from "./dom.js";
import { knownOutput } from "./model.js";
import { BlockMap } from "./blockmap.js";
import { waste } from "./waste.js";
import { stress } from "./stress.js";
import { recent, requestLine } from "./requests.js";
import { totals } from "./timeline.js";

const MAX_LATELY = 9;

/** Change of a counter in each second between two frames. */
function rates(history, name) {
  return history.map(({ replica }, i) => {
    const before = history[i - 1]?.replica;
    if (!replica?.metrics || !before?.metrics || !(name in before.metrics)) return null;
    const took = (replica.time_us - before.time_us) / 1e6;
    return took > 0 ? Math.max(0, replica.metrics[name] - before.metrics[name]) / took : null;
  });
}

function ownRates(history) {
  return history.map(({ replica }, i) => {
    const before = history[i - 1]?.replica;
    if (!replica?.time_us || !before?.time_us) return null;
    const was = knownOutput(before);
    let tokens = 0;
    for (const [key, count] of knownOutput(replica)) if (was.has(key)) tokens += Math.max(0, count - was.get(key));
    const took = (replica.time_us - before.time_us) / 1e6;
    return took > 0 ? tokens / took : null;
  });
}

const last = (values, count = 8) => {
  const known = values.filter((value) => value !== null).slice(-count);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

export class Overview {
  constructor(feed, onPick) {
    this.feed = feed;
    this.tiles = el("div", { class: "tiles" });
    this.map = new BlockMap(onPick);
    this.waste = el("div");
    this.mapCard = card("Block map", "the KV cache: a square for each physical block", "", this.map.element);
    this.stress = stress(feed);
    this.lately = el("div", { class: "requests" });
    this.latelyCard = card("Requests", "the newest: grey waits, blue is prefilled, green decodes, red is preempted", "", this.lately);
    this.element = el("div", { class: "grid" }, this.tiles, el("div", { class: "wide8 stack" }, this.mapCard, this.latelyCard),
      el("div", { class: "third stack" }, card("The paper's figure 2, live", "how much of what is held has tokens in it", "", this.waste), this.stress.element));
  }

  update() {
    const { feed } = this, { replica } = feed;
    this.stress.update();
    if (!replica?.num_blocks) {
      this.tiles.replaceChildren();
      this.mapCard.hidden = this.latelyCard.hidden = true;
      this.waste.replaceChildren(empty("No numbers yet", "They come as soon as an engine is ready."));
      return;
    }
    this.mapCard.hidden = this.latelyCard.hidden = false;
    this.tiles.replaceChildren(...(replica.metrics ? this.operatorTiles(replica) : this.ownTiles(replica)));
    this.map.update(replica);
    this.waste.replaceChildren(waste(replica, feed.hello.max_model_len));
    this.drawLately();
  }

  drawLately() {
    const rows = recent(this.feed).slice(0, MAX_LATELY);
    const scale = Math.max(1e5, ...rows.map(({ parts }) => totals(parts).all));
    this.lately.replaceChildren(...(rows.length ? rows.map((row) => requestLine(row, scale)) : [empty("No requests yet", `Ask something in the Playground${this.feed.hello?.is_operator ? ", or press Stress it" : ""}.`)]));
  }

  operatorTiles(replica) {
    const history = this.feed.history, { usage, queues } = replica;
    const tokens = rates(history, "generated_tokens_total");
    const held = history.map((each) => (each.replica?.usage ? 1 - (each.replica.usage.free + each.replica.usage.cached) / each.replica.usage.total : null));
    const prompt = rates(history, "prompt_tokens_total:computed");
    const preempted = sums(history, "preemptions_total:");
    return [
      tile("Output tokens", whole(last(tokens) ?? 0), "per second", sparkline(tokens)),
      tile("Prompt tokens", whole(last(prompt) ?? 0), "computed per second", sparkline(prompt)),
      tile("Requests running", whole(queues.running), `${whole(queues.waiting)} waiting, ${whole(queues.swapped)} swapped`, sparkline(history.map((each) => each.replica?.queues?.running ?? null))),
      tile("KV cache in use", percent(1 - (usage.free + usage.cached) / usage.total), `of ${whole(usage.total)} slots`, sparkline(held, 1)),
      tile("Saved by sharing", whole(usage.shared_saving), "slots", sparkline(history.map((each) => each.replica?.usage?.shared_saving ?? null))),
      tile("Preemptions", whole(preempted.now), `in all, ${whole(preempted.lately)} in 60 s`, sparkline(preempted.values)),
    ];
  }

  ownTiles(replica) {
    const history = this.feed.history, tokens = ownRates(history);
    const count = (...states) => replica.requests.filter((request) => states.includes(request.state)).length;
    const blocks = new Set(replica.requests.flatMap((request) => request.sequences.flatMap((sequence) => [...sequence.table])));
    return [
      tile("Your output tokens", whole(last(tokens) ?? 0), "per second", sparkline(tokens)),
      tile("Your requests running", whole(count("running", "prefilling")), `${count("waiting")} waiting, ${count("swapped")} swapped`, sparkline(history.map((each) => each.replica?.requests.filter((request) => request.state === "running").length ?? null))),
      tile("Blocks you hold", whole(blocks.size), `of ${whole(replica.num_blocks)}`, sparkline(history.map((each) => (each.replica ? new Set(each.replica.requests.flatMap((request) => request.sequences.flatMap((sequence) => [...sequence.table]))).size : null)), replica.num_blocks)),
    ];
  }
}

function sums(history, prefix) {
  const values = history.map(({ replica }) => (replica?.metrics ? Object.entries(replica.metrics).filter(([name]) => name.startsWith(prefix)).reduce((sum, [, value]) => sum + value, 0) : null));
  const known = values.filter((value) => value !== null);
  return { values, now: known[known.length - 1] ?? 0, lately: known.length ? known[known.length - 1] - known[0] : 0 };
}

function tile(label, value, unit, chart) {
  return el("div", { class: "tile" }, el("div", { class: "label", text: label }), el("div", { class: "value" }, value, el("small", { text: unit })), chart);
}
