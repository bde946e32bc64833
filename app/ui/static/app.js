// The page: its views, and what is around them.

import { download, el } from "./dom.js";
import { Feed, KEPT_S } from "./feed.js";
import { Overview } from "./overview.js";
import { MemoryView } from "./memory.js";
import { RequestsView } from "./requests.js";
import { BeamsView } from "./beams.js";
import { Playground } from "./playground.js";
import { SettingsView, keyDialog } from "./settings.js";

const feed = new Feed();
const memory = new MemoryView(feed);
const pick = (id) => { memory.picked = id; show("kv"); };
const views = {
  overview: ["Overview", new Overview(feed, pick)],
  kv: ["KV cache", memory],
  requests: ["Requests", new RequestsView(feed, pick)],
  beams: ["Beams", new BeamsView(feed)],
  playground: ["Playground", new Playground(feed)],
  settings: ["Settings", new SettingsView(feed)],
};
const at = (id) => document.getElementById(id);
const main = at("main"), tabs = at("tabs");
let current = "";

for (const [name, [text, view]] of Object.entries(views)) {
  tabs.append(el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "main", text, onclick: () => show(name) }));
  view.name = name;
}
tabs.addEventListener("keydown", (event) => {
  const names = Object.keys(views), move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!move) return;
  show(names[(names.indexOf(current) + move + names.length) % names.length]);
  at(`tab-${current}`).focus();
});

function show(name) {
  if (!views[name]) name = "overview";
  if (name !== current) {
    if (current) views[current][1].isShown = false;
    current = name;
    main.replaceChildren(views[name][1].element);
    main.setAttribute("aria-labelledby", `tab-${name}`);
    for (const tab of tabs.children) {
      const isChosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
    }
    if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
    views[name][1].isShown = true;
    views[name][1].shown?.();
    document.title = `${views[name][0]} · Pagoda`;
  }
  views[name][1].update();
}

const slider = el("input", { type: "range", min: -KEPT_S, max: 0, step: 0.5, value: 0, "aria-label": "Moment to show, in seconds before now" });
const moment = el("output", { text: "live" });
const live = el("button", { type: "button", class: "quiet", text: "Live", onclick: () => { slider.value = 0; scrub(); } });
function scrub() {
  feed.offset = -Number(slider.value);
  moment.textContent = feed.offset ? `${feed.offset.toFixed(1)} s ago` : "live";
  live.disabled = !feed.offset;
  show(current);
}
slider.addEventListener("input", scrub);
at("scrub").append(el("span", { class: "soft optional", text: "Last 60 s" }), slider, moment, live,
  el("button", { type: "button", class: "quiet optional", text: "Export", onclick: () => download("pagoda-60s.json", JSON.stringify({ hello: feed.hello, frames: feed.frames.map((frame) => ({ ...frame, replicas: frame.replicas.map(({ blocks, requests, ...raw }) => raw) })), requests: [...feed.timelines.requests.values()] })) }));

function chooseReplica() {
  const chooser = at("replica"), replicas = feed.frame?.replicas ?? [];
  chooser.hidden = replicas.length < 2;
  if (chooser.childElementCount !== replicas.length) chooser.replaceChildren(...replicas.map((replica, i) => el("option", { value: replica.id, text: `replica ${i + 1}` })));
}
at("replica").addEventListener("change", (event) => { feed.replicaId = event.target.value; show(current); });
at("keys").addEventListener("click", () => keyDialog(feed));

// what is pressed must still be there when it is let go of
let isPressed = false;
addEventListener("pointerdown", () => { isPressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { isPressed = false; }, true);

feed.listen(() => {
  const { kind, text, notice, action } = feed.state;
  const pill = at("status"), box = at("notice");
  pill.className = `pill ${kind}`;
  if (pill.textContent !== text) pill.textContent = text;
  box.hidden = !notice;
  if (notice && box.dataset.text !== notice) {
    box.dataset.text = notice;
    box.replaceChildren(notice, action === "keys" ? el("button", { type: "button", text: "Enter keys", onclick: () => keyDialog(feed) }) : "");
  }
  at("model").textContent = feed.hello.model ?? "";
  chooseReplica();
  if (current && !isPressed) show(current);
});

addEventListener("hashchange", () => show(location.hash.slice(1)));
show(location.hash.slice(1) || "overview");
live.disabled = true;
feed.start();
