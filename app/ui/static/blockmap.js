// The pool, a square for each block: hue = request, dot = shared, hatch = pinned, outline = cached.

import { FREE, KEPT, MAX_REFERENCES, OTHER, PINNED, SHARED, blockOwners, countBlocks } from "./model.js";
import { el, legend, whole } from "./dom.js";

const MAX_HEIGHT = 430, MIN_CELL = 2, MAX_CELL = 32, SMALL_CELL = 6;
const hues = new Map();

/** A colour for a request that stays the same; neighbours in time differ most. */
export function hueOf(id) {
  if (!hues.has(id)) {
    if (hues.size > 5000) hues.clear();
    // not those of shared blocks
    const turn = (hues.size * 137.508 + 190) % 310;
    hues.set(id, turn < 50 ? turn : turn + 50);
  }
  return hues.get(id);
}
const isDark = matchMedia("(prefers-color-scheme: dark)");
export function colourOf(id) {
  return isDark.matches ? `oklch(0.72 0.14 ${hueOf(id)})` : `oklch(0.62 0.15 ${hueOf(id)})`;
}
const pixels = new Map();
const probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

/** A colour of CSS as the canvas keeps it. */
function pixelOf(colour) {
  if (!pixels.has(colour)) {
    if (pixels.size > 5000) pixels.clear();
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    pixels.set(colour, new Uint32Array(probe.getImageData(0, 0, 1, 1).data.buffer)[0]);
  }
  return pixels.get(colour);
}

export const shortId = (id) => `#${id.slice(-5)}`;

export class BlockMap {
  constructor(onPick) {
    this.onPick = onPick;
    this.canvas = el("canvas", { role: "img", class: "blockmap", tabindex: "0" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.caption = el("p", { class: "soft small", "aria-live": "off" });
    this.element = el("div", { class: "mapbox" }, this.canvas, this.tip,
      legend([["k-own", "a request's (one hue each)"], ["k-fork", "shared inside a request"], ["k-shared", "shared by requests"], ["k-other", "others'"], ["k-cached", "cached"], ["k-pinned", "pinned"], ["k-free", "free"]]),
      this.caption);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.point(-1));
    this.canvas.addEventListener("click", (event) => this.pick(this.blockAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.replica = null;
    this.pointed = -1;
    this.before = null;
    this.lit = null;
  }

  update(replica) {
    this.before = this.owners && this.replica?.id === replica.id ? { owners: this.owners, requests: this.replica.requests } : null;
    this.replica = replica;
    this.owners = blockOwners(replica);
    const counts = countBlocks(replica);
    this.caption.textContent = `${whole(replica.num_blocks)} blocks of ${replica.block_size} tokens: ${whole(counts.used)} in use (${whole(counts.shared)} shared), ${whole(counts.cached)} cached, ${whole(counts.pinned)} pinned, ${whole(counts.free)} free`;
    this.canvas.setAttribute("aria-label", `Block map. ${this.caption.textContent}. Arrow keys move, Enter shows the request.`);
    const { pointed } = this;
    this.pointed = -1;
    if (pointed >= 0 && pointed < replica.num_blocks && this.grid) this.point(pointed);
    else this.draw();
  }

  layout() {
    const width = this.element.clientWidth;
    const count = this.replica.num_blocks;
    let cell = MAX_CELL;
    while (cell > MIN_CELL && Math.ceil(count / Math.floor(width / cell)) * cell > MAX_HEIGHT) cell -= cell > 8 ? 1 : 0.5;
    const columns = Math.max(1, Math.floor(width / cell));
    return { cell, columns, width, height: Math.ceil(count / columns) * cell };
  }

  draw() {
    if (!this.replica || !this.element.clientWidth) return;
    const { cell, columns, width, height } = (this.grid = this.layout());
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const paint = { free: colour("--free"), other: colour("--other"), cached: colour("--cached"), shared: colour("--shared"), ink: colour("--ink"), card: colour("--card") };
    const owned = this.replica.requests.map((request) => colourOf(request.id));
    if (cell < SMALL_CELL) {
      this.drawSmall(context, paint, owned);
      return;
    }
    const gap = cell >= 6 ? 1 : 0;
    for (let block = 0; block < this.replica.num_blocks; block++) {
      const x = (block % columns) * cell, y = Math.floor(block / columns) * cell;
      this.square(context, block, x, y, cell - gap, paint, owned);
    }
    if (this.pointed >= 0) {
      context.strokeStyle = paint.ink;
      context.lineWidth = 2;
      context.strokeRect((this.pointed % columns) * cell, Math.floor(this.pointed / columns) * cell, cell - gap, cell - gap);
    }
  }

  /** A pixel for each block, enlarged: tens of thousands in a few milliseconds. */
  drawSmall(context, paint, owned) {
    const { cell, columns } = this.grid, rows = Math.ceil(this.replica.num_blocks / columns);
    const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
    const colours = owned.map(pixelOf), [free, other, cached, shared] = [paint.free, paint.other, paint.cached, paint.shared].map(pixelOf);
    const { blocks } = this.replica, lit = this.lit === null ? null : this.litBlocks;
    for (let block = 0; block < blocks.length; block++) {
      const owner = this.owners[block];
      const pixel = owner >= 0 ? colours[owner] : owner === SHARED ? shared : owner === OTHER ? other : blocks[block] & (KEPT | PINNED) ? cached : free;
      pixels[block] = lit === null || lit.has(block) ? pixel : (pixel & 0xffffff) | 0x38000000;
    }
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, columns * cell, rows * cell);
    if (this.pointed >= 0) {
      context.strokeStyle = paint.ink;
      context.strokeRect((this.pointed % columns) * cell - 1, Math.floor(this.pointed / columns) * cell - 1, cell + 2, cell + 2);
    }
  }

  square(context, block, x, y, size, paint, owned) {
    const state = this.replica.blocks[block], references = state & MAX_REFERENCES, owner = this.owners[block];
    const isLit = this.lit === null || (owner >= 0 && this.replica.requests[owner].id === this.lit) || (owner === SHARED && this.litBlocks?.has(block));
    context.globalAlpha = isLit ? 1 : 0.22;
    if (references) {
      context.fillStyle = owner >= 0 ? owned[owner] : owner === SHARED ? paint.shared : paint.other;
      context.fillRect(x, y, size, size);
      if (references > 1 && size >= 5) this.dot(context, x, y, size, references, paint);
      if (this.isNew(block, owner) && size >= 6) {
        context.strokeStyle = paint.ink;
        context.lineWidth = 1.5;
        context.strokeRect(x + 0.75, y + 0.75, size - 1.5, size - 1.5);
      }
    } else if (state & (KEPT | PINNED) && !(state & PINNED)) {
      context.fillStyle = paint.free;
      context.fillRect(x, y, size, size);
      if (size >= 5) {
        context.strokeStyle = paint.cached;
        context.lineWidth = 1.4;
        context.strokeRect(x + 0.7, y + 0.7, size - 1.4, size - 1.4);
      } else {
        context.globalAlpha *= 0.6;
        context.fillStyle = paint.cached;
        context.fillRect(x, y, size, size);
      }
    } else {
      context.fillStyle = paint.free;
      context.fillRect(x, y, size, size);
    }
    if (state & PINNED) this.hatch(context, x, y, size, references ? paint.card : paint.cached, references > 0 && size >= 15);
    context.globalAlpha = 1;
  }

  dot(context, x, y, size, references, paint) {
    context.fillStyle = paint.card;
    if (size >= 15) {
      context.font = `600 ${Math.round(size * 0.48)}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(references === MAX_REFERENCES ? "63+" : String(references), x + size / 2, y + size * 0.46);
      return;
    }
    const side = size * Math.min(0.62, 0.24 + 0.08 * references);
    context.fillRect(x + (size - side) / 2, y + (size - side) / 2, side, side);
  }

  /** Lines across a square, or along its lower edge where a number stands in it. */
  hatch(context, x, y, size, ink, hasNumber) {
    context.save();
    context.beginPath();
    context.rect(x, hasNumber ? y + size * 0.76 : y, size, hasNumber ? size * 0.24 : size);
    context.clip();
    context.strokeStyle = ink;
    context.lineWidth = 1;
    context.beginPath();
    for (let at = -size; at < size; at += 4) {
      context.moveTo(x + at, y + size);
      context.lineTo(x + at + size, y);
    }
    context.stroke();
    context.restore();
  }

  /** Whether a block has another owner than in the frame before: allocated, copied or swapped in. */
  isNew(block, owner) {
    if (!this.before || owner < 0) return false;
    const was = this.before.owners[block];
    return was < 0 ? was !== SHARED : this.before.requests[was].id !== this.replica.requests[owner].id;
  }

  light(id) {
    this.lit = id;
    const request = this.replica?.requests.find((each) => each.id === id);
    this.litBlocks = new Set(request?.sequences.flatMap((sequence) => [...sequence.table]) ?? []);
    this.draw();
  }

  blockAt(event) {
    const { cell, columns } = this.grid ?? {};
    if (!cell) return -1;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell);
    const block = Math.floor((event.clientY - box.top) / cell) * columns + column;
    return column < columns && block >= 0 && block < this.replica.num_blocks ? block : -1;
  }

  hover(event) { this.point(this.blockAt(event)); }

  press(event) {
    const columns = this.grid?.columns ?? 1;
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (move) {
      event.preventDefault();
      this.point(Math.max(0, Math.min(this.replica.num_blocks - 1, Math.max(0, this.pointed) + move)));
    } else if (event.key === "Enter") this.pick(this.pointed);
    else if (event.key === "Escape") this.point(-1);
  }

  pick(block) {
    const owner = block >= 0 ? this.owners[block] : FREE;
    if (owner >= 0) this.onPick(this.replica.requests[owner].id);
    else if (owner === SHARED) this.onPick(this.users(block)[0].request.id);
  }

  users(block) {
    return this.replica.requests.flatMap((request) =>
      request.sequences.flatMap((sequence) => {
        const logical = sequence.table.indexOf(block);
        return logical < 0 ? [] : [{ request, sequence, logical }];
      }));
  }

  point(block) {
    if (block === this.pointed) return;
    this.pointed = block;
    this.tip.hidden = block < 0;
    if (block >= 0) {
      const { cell, columns, width } = this.grid;
      this.tip.replaceChildren(...this.words(block).map((line, i) => el(i ? "div" : "strong", { text: line })));
      this.tip.style.left = `${Math.min(width - 230, (block % columns) * cell)}px`;
      this.tip.style.top = `${(Math.floor(block / columns) + 1) * cell + 5}px`;
    }
    const owner = block >= 0 ? this.owners[block] : FREE;
    this.light(owner >= 0 ? this.replica.requests[owner].id : null);
  }

  words(block) {
    const state = this.replica.blocks[block], references = state & MAX_REFERENCES, owner = this.owners[block];
    const lines = [`Block ${block}`];
    if (!references) lines.push(state & PINNED ? "pinned, unused: kept for prompts that begin with it" : state & KEPT ? "cached: kept until its space is needed" : "free");
    else if (owner === OTHER) lines.push("used by others");
    else lines.push(references === 1 ? "1 reference" : `${references} references`);
    const users = this.users(block);
    for (const { request, sequence, logical } of users.slice(0, 5)) {
      const tokens = Math.max(0, Math.min(this.replica.block_size, sequence.known - logical * this.replica.block_size));
      lines.push(`${shortId(request.id)} ${request.width > 1 ? `choice ${sequence.choice}, ` : ""}logical block ${logical}, ${tokens} of ${this.replica.block_size} tokens`);
    }
    if (users.length > 5) lines.push(`and ${users.length - 5} more`);
    return lines;
  }
}
