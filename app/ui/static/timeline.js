// Where the time of a request went, from its events.

const QUEUED = 1, ADMITTED = 2, PREFILLED = 3, SWAPPED = 4, RECOMPUTED = 5, RESUMED = 6, ENDED = 7;
const KEEP_US = 120e6;
const NAMES = { queue: "in the queue", prefill: "in prefill", decode: "decoding", away: "preempted", again: "being prefilled again" };
const ADVICE = {
  queue: "The batch or the KV cache was full: see the KV cache, or raise max_num_seqs or the pool.",
  prefill: "Its prompt is long, or steps were shared with many others: see max_num_batched_tokens.",
  decode: "That is one step for each token; n, max_tokens and the batch decide how long.",
  away: "The KV cache ran out, and later requests give way first: more blocks, or fewer sequences at once.",
  again: "After a recomputation all its tokens are prefilled once more; swap space avoids that.",
};

/** Requests by id with what has happened to them, the last two minutes. */
export class Timelines {
  constructor() { this.requests = new Map(); }

  take(events) {
    for (const [replica, id, kind, time] of events) {
      if (!this.requests.has(id)) this.requests.set(id, { id, replica, events: [], seen: 0 });
      const known = this.requests.get(id);
      if (known.events.some((event) => event[0] === kind && event[1] === time)) continue;
      known.events.push([kind, time]);
    }
  }

  /** Notes which requests are there at a moment, and forgets those that have long been over. */
  see(ids, now) {
    for (const id of ids) {
      const known = this.requests.get(id);
      if (known) known.seen = now;
    }
    for (const [id, known] of this.requests) if (now - lastOf(known) > KEEP_US) this.requests.delete(id);
  }
}

/** When something was last known of a request, in microseconds. */
export const lastOf = (known) => Math.max(known.seen, known.events[known.events.length - 1][1]);

/** Segments [phase, start, end] of a request; the last is open until `now`. */
export function segments(events, now) {
  const found = [];
  let phase = null, since = 0, wasPrefilled = false;
  const turn = (next, time) => {
    if (phase !== null && time > since) found.push([phase, since, time]);
    [phase, since] = [next, time];
  };
  for (const [kind, time] of events) {
    if (kind === QUEUED) turn("queue", time);
    else if (kind === ADMITTED) turn("prefill", time);
    else if (kind === PREFILLED) { wasPrefilled = true; if (phase !== "away") turn("decode", time); }
    else if (kind === SWAPPED || kind === RECOMPUTED) { if (phase !== "away") turn("away", time); }
    else if (kind === RESUMED) turn(cameBySwap(events, time) && wasPrefilled ? "decode" : wasPrefilled ? "again" : "prefill", time);
    else if (kind === ENDED) turn(null, time);
  }
  if (phase !== null && now > since) found.push([phase, since, now]);
  return found;
}

function cameBySwap(events, time) {
  let last = 0;
  for (const [kind, at] of events) if (at <= time && (kind === SWAPPED || kind === RECOMPUTED)) last = kind;
  return last === SWAPPED;
}

export const isOver = (events) => events.length > 0 && events[events.length - 1][0] === ENDED;
export const preemptions = (events) => events.filter(([kind]) => kind === SWAPPED || kind === RECOMPUTED).length;

/** Microseconds by phase, and of all. */
export function totals(parts) {
  const found = { all: 0 };
  for (const [phase, start, end] of parts) {
    found[phase] = (found[phase] ?? 0) + end - start;
    found.all += end - start;
  }
  return found;
}

/** Why a request took so long, in a sentence or two. */
export function explain(events, now, format) {
  const parts = segments(events, now), sums = totals(parts);
  if (!sums.all) return "It has only just come.";
  const [phase] = Object.entries(sums).filter(([name]) => name !== "all").sort((a, b) => b[1] - a[1])[0];
  if (isOver(events) && !events.some(([kind]) => kind === ADMITTED)) return `It never ran: after ${format(sums.all)} in the queue it was given up, by its client or because it may not wait for longer. ${ADVICE.queue}`;
  const count = preemptions(events);
  const share = Math.round((100 * sums[phase]) / sums.all);
  const times = count === 0 ? "" : ` It was preempted ${count === 1 ? "once" : `${count} times`}${sums.away ? `, ${format(sums.away)} in all` : ""}.`;
  return `${isOver(events) ? "It took" : "So far"} ${format(sums.all)}, of which ${format(sums[phase])} (${share} %) ${NAMES[phase]}.${times} ${ADVICE[phase]}`;
}
