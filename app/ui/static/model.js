// What a frame of the server means; nothing here touches the document.

export const MAX_REFERENCES = 63, KEPT = 64, PINNED = 128;
export const STATES = ["waiting", "prefilling", "running", "swapped"];
export const FREE = -1, OTHER = -2, SHARED = -3;

function bytes(text) {
  const binary = atob(text);
  const found = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) found[i] = binary.charCodeAt(i);
  return found;
}

/** A replica of a frame with its columns taken apart. */
export function decodeReplica(raw) {
  const replica = { ...raw, requests: [], blocks: new Uint8Array(0) };
  if (raw.blocks === undefined) return replica;
  replica.blocks = bytes(raw.blocks);
  const tables = new Int32Array(bytes(raw.tables).buffer);
  replica.requests = raw.requests.map((id, i) => ({
    id,
    state: STATES[raw.states[i]],
    promptLen: raw.prompt_lens[i],
    maxTokens: raw.max_tokens[i],
    numCached: Math.max(0, raw.num_cached[i]),
    width: raw.widths[i],
    beamWidth: raw.beam_widths[i],
    sequences: [],
  }));
  let start = 0;
  raw.owners.forEach((owner, i) => {
    const table = tables.subarray(start, (start += raw.table_lens[i]));
    replica.requests[owner].sequences.push({ choice: raw.choices[i], known: raw.num_known[i], scheduled: raw.num_scheduled[i], table });
  });
  return replica;
}

/** For each block the place of the request that has it, or FREE, OTHER, or SHARED by several. */
export function blockOwners(replica) {
  const owners = new Int32Array(replica.blocks.length).fill(FREE);
  replica.requests.forEach((request, place) => {
    for (const sequence of request.sequences) {
      for (const block of sequence.table) {
        if (owners[block] === FREE) owners[block] = place;
        else if (owners[block] !== place) owners[block] = SHARED;
      }
    }
  });
  for (let block = 0; block < owners.length; block++) {
    if (owners[block] === FREE && (replica.blocks[block] & MAX_REFERENCES) > 0) owners[block] = OTHER;
  }
  return owners;
}

/** How many blocks are used, cached, pinned and free. */
export function countBlocks(replica) {
  const counts = { used: 0, shared: 0, cached: 0, pinned: 0, free: 0 };
  for (const state of replica.blocks) {
    const references = state & MAX_REFERENCES;
    if (references) counts.used++;
    if (references > 1) counts.shared++;
    if (references) continue;
    if (state & PINNED) counts.pinned++;
    else if (state & KEPT) counts.cached++;
    else counts.free++;
  }
  return counts;
}

/** What a request's sequences hold: logical blocks, physical ones, and the share that is saved. */
export function sharing(request) {
  if (!known.has(request)) known.set(request, countSharing(request));
  return known.get(request);
}
const known = new WeakMap();

function countSharing(request) {
  const physical = new Set();
  let logical = 0;
  for (const sequence of request.sequences) {
    logical += sequence.table.length;
    for (const block of sequence.table) physical.add(block);
  }
  return { logical, physical: physical.size, saved: logical ? 1 - physical.size / logical : 0 };
}

function powerOfTwo(value) {
  let power = 1;
  while (power < value) power *= 2;
  return power;
}

/**
 * The paper's figure 2 for the sequences that run now: slots by use, paged and as Orca reserves.
 * What a sequence will need is what its request asks for; Orca knows no sharing.
 */
export function figure2(replica, maxModelLen) {
  const running = replica.requests.filter((request) => request.state === "running" || request.state === "prefilling");
  const sequences = running.flatMap((request) => request.sequences.filter((each) => each.table.length).map((each) => [request, each]));
  if (!sequences.length) return [];
  const rows = [paged(replica, sequences)];
  const outputs = {
    "Orca (Oracle)": (request) => request.maxTokens,
    "Orca (Pow2)": (request) => Math.min(powerOfTwo(request.maxTokens), Math.max(0, maxModelLen - request.promptLen)),
    "Orca (Max)": (request) => maxModelLen - request.promptLen,
  };
  for (const [name, reservedOutput] of Object.entries(outputs)) {
    const row = { name, filled: 0, reserved: 0, internal: 0 };
    for (const [request, sequence] of sequences) {
      const needed = Math.min(request.promptLen + request.maxTokens, maxModelLen);
      const held = Math.max(needed, request.promptLen + reservedOutput(request));
      row.filled += sequence.known;
      row.reserved += Math.max(0, needed - sequence.known);
      row.internal += Math.max(0, held - Math.max(needed, sequence.known));
    }
    rows.push(row);
  }
  return rows;
}

function paged(replica, sequences) {
  const size = replica.block_size;
  const fill = new Map();
  for (const [, sequence] of sequences) {
    sequence.table.forEach((block, index) => {
      const tokens = Math.max(0, Math.min(size, sequence.known - index * size));
      fill.set(block, Math.max(fill.get(block) ?? 0, tokens));
    });
  }
  const filled = [...fill.values()].reduce((sum, tokens) => sum + tokens, 0);
  return { name: "Paged, now", filled, reserved: 0, internal: fill.size * size - filled };
}

/** Tokens of output that the visible requests have, for a rate. */
export function knownOutput(replica) {
  const found = new Map();
  for (const request of replica.requests) {
    for (const sequence of request.sequences) found.set(`${request.id}:${sequence.choice}`, Math.max(0, sequence.known - request.promptLen));
  }
  return found;
}
