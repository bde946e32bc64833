// Reads the server's frames, and keeps those of the last 60 seconds.

import { decodeReplica } from "./model.js";
import { Timelines } from "./timeline.js";

export const KEPT_S = 60;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const API_KEY = "pagoda.api_key", OPERATOR_KEY = "pagoda.operator_key";

/** Keys stay in this tab: never in an address, gone when it is closed. */
export const keys = {
  get api() { return sessionStorage.getItem(API_KEY) ?? ""; },
  get operator() { return sessionStorage.getItem(OPERATOR_KEY) ?? ""; },
  set(api, operator) {
    sessionStorage.setItem(API_KEY, api);
    sessionStorage.setItem(OPERATOR_KEY, operator);
  },
  headers(kind) {
    const key = kind === "page" ? this.operator || this.api : this.api;
    return key ? { authorization: `Bearer ${key}` } : {};
  },
};

/** Yields [event, data] of a stream of server-sent events. */
export async function* serverEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const lines = buffer.slice(0, end).split("\n");
        buffer = buffer.slice(end + 2);
        const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join("\n");
        const data = field("data");
        if (data) yield [field("event") || "message", data];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** What the page knows; views are called when it changes. */
export class Feed {
  constructor() {
    this.hello = {};
    this.frames = [];
    this.timelines = new Timelines();
    this.state = { kind: "wait", text: "connecting" };
    this.replicaId = "";
    this.offset = 0;
    this.listeners = new Set();
    this.request = null;
    this.attempt = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop("paused") : this.start()));
  }

  /** The newest frame, or that of the moment that was chosen. */
  get frame() {
    if (!this.offset) return this.frames[this.frames.length - 1] ?? null;
    const wanted = this.frames[this.frames.length - 1].at - 1000 * this.offset;
    return this.frames.reduce((best, frame) => (Math.abs(frame.at - wanted) < Math.abs(best.at - wanted) ? frame : best));
  }

  get replica() {
    const replicas = this.frame?.replicas ?? [];
    return replicas.find((each) => each.id === this.replicaId) ?? replicas[0] ?? null;
  }

  /** The same replica in all kept frames, oldest first. */
  get history() {
    const id = this.replica?.id;
    return this.frames.map((frame) => ({ at: frame.at, replica: frame.replicas.find((each) => each.id === id) ?? null }));
  }

  listen(listener) { this.listeners.add(listener); }

  start() {
    if (this.request !== null || document.hidden) return;
    this.request = new AbortController();
    this.run(this.request);
  }

  stop(text) {
    this.request?.abort();
    this.request = null;
    this.tell("wait", text);
  }

  restart() {
    this.stop("connecting");
    this.frames = [];
    this.timelines = new Timelines();
    this.attempt = 0;
    this.start();
  }

  async run(request) {
    while (this.request === request) {
      try {
        const response = await fetch("ui/api/stream?hz=2", { headers: keys.headers("page"), signal: request.signal, cache: "no-store" });
        if (response.ok) {
          for await (const [event, data] of serverEvents(response)) this.take(event, JSON.parse(data));
        } else if (!(await this.refused(response))) {
          return;
        }
      } catch (error) {
        if (request.signal.aborted) return;
        this.tell("bad", "no answer", "The server cannot be reached: it may be starting, or have ended. This page tries again by itself.");
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(this.attempt++, RETRY_MS.length - 1)]));
    }
  }

  /** Says why there is no stream; returns whether to try again. */
  async refused(response) {
    const text = await errorText(response);
    if (response.status === 401) this.tell("bad", "key needed", "This server has keys. Give your API key to see your own requests, or an operator's key to see all.", "keys");
    else if (response.status === 403) this.tell("bad", "not allowed", `${text}.`, "keys");
    else if (response.status === 404) this.tell("bad", "no page data", "The server does not serve numbers to this page: is `ui.enabled` off, or a proxy in between that does not pass them on?");
    else this.tell("wait", "waiting", `${text}. This page tries again by itself.`);
    return response.status >= 500;
  }

  take(event, content) {
    this.attempt = 0;
    if (event === "hello") {
      this.hello = content;
    } else if (event === "events") {
      this.timelines.take(content);
    } else if (event === "frame") {
      const frame = { at: Date.now(), replicas: content.replicas.map(decodeReplica) };
      this.frames.push(frame);
      while (this.frames[0].at < frame.at - 1000 * KEPT_S) this.frames.shift();
      for (const replica of frame.replicas) this.timelines.see(replica.requests.map((request) => request.id), replica.time_us ?? 0);
      const isReady = frame.replicas.some((replica) => replica.ready);
      if (isReady) this.tell("live", this.hello.is_operator ? "live · operator" : "live");
      else this.tell("wait", "starting", "No engine is ready yet: it loads its weights and warms up. This page shows it as soon as it is.");
    }
  }

  /** Microseconds since the epoch on the engine's clock. */
  get now() { return this.replica?.time_us ?? Date.now() * 1000; }

  tell(kind, text, notice = "", action = "") {
    this.state = { kind, text, notice, action };
    for (const listener of this.listeners) listener();
  }
}
