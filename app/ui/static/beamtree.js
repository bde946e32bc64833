// The tree that a beam search grows, from its best hypotheses at each moment.

// of what was given up, the newest
const MAX_PRUNED = 12;

/** Grows a tree of texts from the best hypotheses of each moment. */
export class BeamTree {
  constructor() {
    this.root = { text: "", full: "", children: [], alive: true, score: 0, rank: -1, done: false, born: 0 };
    this.turn = 0;
  }

  grow(beams) {
    this.turn++;
    this.each((node) => { node.alive = false; node.rank = -1; });
    this.root.alive = true;
    beams.forEach((beam, rank) => {
      const leaf = this.place(this.root, beam.text);
      Object.assign(leaf, { rank, score: beam.cumulative_logprob, done: Boolean(beam.finish_reason) });
      for (let node = leaf; node; node = node.parent) node.alive = true;
    });
    this.thin();
  }

  /** The node whose text a hypothesis is, below a node whose text it begins with. */
  place(node, text) {
    const rest = text.slice(node.full.length);
    if (!rest) return node;
    for (const child of node.children) {
      const common = commonLength(child.text, rest);
      // hypotheses that have but a space in common part at the root
      if (!rest.slice(0, common).trim()) continue;
      if (common < child.text.length) this.split(child, common);
      return this.place(child, text);
    }
    if (node !== this.root && !node.children.length && node.born < this.turn && node.rank < 0) {
      // what goes on is the same run of text
      node.text += rest;
      node.full = text;
      return node;
    }
    const child = { text: rest, full: text, children: [], parent: node, alive: true, score: 0, rank: -1, done: false, born: this.turn };
    node.children.push(child);
    return child;
  }

  split(node, at) {
    const lower = { ...node, text: node.text.slice(at), parent: node };
    for (const child of lower.children) child.parent = lower;
    Object.assign(node, { text: node.text.slice(0, at), full: node.full.slice(0, node.full.length - lower.text.length), children: [lower], rank: -1, done: false });
  }

  /** Forgets the oldest of what was given up, when there is too much of it. */
  thin() {
    const dead = [];
    this.each((node) => { if (!node.alive && node.parent?.alive) dead.push(node); });
    dead.sort((a, b) => a.born - b.born).slice(0, Math.max(0, dead.length - MAX_PRUNED)).forEach((node) => node.parent.children.splice(node.parent.children.indexOf(node), 1));
  }

  each(visit, node = this.root) {
    visit(node);
    node.children.forEach((child) => this.each(visit, child));
  }

  get counts() {
    const found = { alive: 0, pruned: 0 };
    this.each((node) => { if (!node.children.length && node !== this.root) found[node.alive ? "alive" : "pruned"]++; });
    return found;
  }
}

function commonLength(one, other) {
  let length = 0;
  while (length < one.length && length < other.length && one[length] === other[length]) length++;
  return length;
}
