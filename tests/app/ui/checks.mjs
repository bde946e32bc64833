// Checks what the page's scripts make of frames and events; run by test_files.py.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const folder = new URL("../../../app/ui/static/", import.meta.url);
// as modules whatever their suffix, and without a document
const load = (name) => import(`data:text/javascript,${encodeURIComponent(readFileSync(new URL(name, folder), "utf8"))}`);
const { FREE, OTHER, SHARED, blockOwners, countBlocks, decodeReplica, figure2, sharing } = await load("model.js");
const { Timelines, explain, isOver, lastOf, preemptions, segments, totals } = await load("timeline.js");
const { BeamTree } = await load("beamtree.js");

const base64 = (bytes) => Buffer.from(bytes).toString("base64");
// blocks: shared by both, by two choices of one, own, of somebody else, cached, pinned, free
const raw = {
  id: "a", ready: true, time_us: 1e6, block_size: 4, num_blocks: 7,
  blocks: base64([3, 2, 1, 1, 64, 192, 0]),
  requests: ["b", "c"], states: [2, 2], prompt_lens: [6, 4], max_tokens: [10, 4], num_cached: [-1, 4], widths: [2, 1], beam_widths: [0, 0],
  owners: [0, 0, 1], choices: [0, 1, 0], num_known: [7, 8, 5], num_scheduled: [7, 8, 5],
  table_lens: [2, 2, 2], tables: base64(new Uint8Array(Int32Array.from([0, 1, 0, 1, 0, 2]).buffer)),
};
const replica = decodeReplica(raw);
assert.deepEqual(replica.requests.map((each) => [each.id, each.state, each.numCached, each.sequences.length]), [["b", "running", 0, 2], ["c", "running", 4, 1]]);
assert.deepEqual([...blockOwners(replica)], [SHARED, 0, 1, OTHER, FREE, FREE, FREE]);
assert.deepEqual(countBlocks(replica), { used: 4, shared: 2, cached: 1, pinned: 1, free: 1 });
assert.deepEqual(sharing(replica.requests[0]), { logical: 4, physical: 2, saved: 0.5 });
assert.equal(decodeReplica({ id: "a", ready: false }).requests.length, 0);

// three sequences hold blocks 0, 1 and 2: 4, 4 and 1 tokens of 4
const [paged, oracle, pow2, max] = figure2(replica, 64);
assert.deepEqual([paged.filled, paged.internal], [9, 3]);
assert.deepEqual([oracle.filled, oracle.reserved, oracle.internal], [20, 9 + 8 + 3, 0]);
assert.deepEqual([pow2.filled, pow2.reserved, pow2.internal], [20, 20, 6 + 6]);
assert.equal(max.filled + max.reserved + max.internal, 3 * 64);

const events = [[1, 0], [2, 10], [3, 30], [5, 50], [6, 70], [3, 80], [4, 90], [6, 95], [7, 100]];
assert.deepEqual(segments(events, 500), [["queue", 0, 10], ["prefill", 10, 30], ["decode", 30, 50], ["away", 50, 70], ["again", 70, 80], ["decode", 80, 90], ["away", 90, 95], ["decode", 95, 100]]);
assert.equal(totals(segments(events, 500)).all, 100);
assert.ok(isOver(events));
assert.equal(preemptions(events), 2);
assert.match(explain(events, 500, (us) => `${us} us`), /^It took 100 us, of which 35 us \(35 %\) decoding\. It was preempted 2 times, 25 us in all\./);
assert.deepEqual(segments([[1, 5]], 25), [["queue", 5, 25]]);

const timelines = new Timelines();
timelines.take([["a", "b", 1, 5]]);
timelines.take([["a", "b", 1, 5], ["a", "b", 7, 9]]);
assert.deepEqual(timelines.requests.get("b").events, [[1, 5], [7, 9]]);
timelines.take([["a", "c", 1, 5]]);
timelines.see(["c"], 100e6);
assert.equal(lastOf(timelines.requests.get("c")), 100e6);
timelines.see([], 9 + 130e6);
assert.deepEqual([...timelines.requests.keys()], ["c"]);
assert.match(explain([[1, 0], [7, 30]], 500, (us) => `${us} us`), /^It never ran: after 30 us in the queue/);

const tree = new BeamTree();
const beam = (text, logprob = -1) => ({ text, cumulative_logprob: logprob, finish_reason: null });
tree.grow([beam(" the cat"), beam(" the dog"), beam(" a cow")]);
tree.grow([beam(" the dog ran"), beam(" the dog sat"), beam(" the cat sat")]);
const texts = (node) => node.children.map((child) => [child.text, child.alive, texts(child)]);
assert.deepEqual(texts(tree.root), [[" the ", true, [["cat sat", true, []], ["dog ", true, [["ran", true, []], ["sat", true, []]]]]], [" a cow", false, []]]);
assert.deepEqual(tree.counts, { alive: 3, pruned: 1 });
// one that has ended is a beginning of another
tree.grow([beam(" the dog ran"), beam(" the dog ran away")]);
assert.equal(tree.counts.alive, 1);
tree.each((node) => assert.ok(!node.parent || node.full === node.parent.full + node.text));
console.log("checked");
