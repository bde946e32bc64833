// A burst of requests at the press of a button, for operators.

import { card, el } from "./dom.js";
import { errorText, keys } from "./feed.js";

async function send(method, body) {
  return fetch("ui/api/stress", { method, headers: { ...keys.headers("page"), ...(body ? { "content-type": "application/json" } : {}) }, body: body && JSON.stringify(body) });
}

export const startStress = (requests, seconds) => send("POST", { requests, seconds });
export const stopStress = () => send("DELETE");

export function stress(feed) {
  const requests = el("input", { type: "number", min: 1, max: 32, value: 24 });
  const seconds = el("input", { type: "number", min: 1, max: 20, value: 15 });
  const said = el("p", { class: "small soft", role: "status" });
  let until = 0;
  const act = async (work, text) => {
    try {
      const response = await work();
      said.textContent = response.ok ? text() : await errorText(response);
      return response.ok;
    } catch {
      said.textContent = "The server cannot be reached.";
      return false;
    }
  };
  const start = el("button", { type: "button", class: "main", text: "Stress it", onclick: async () => {
    const count = Number(requests.value), time = Number(seconds.value);
    if (await act(() => startStress(count, time), () => `${count} requests are on their way: samples, forks, beams and prompts that begin alike.`)) until = Date.now() + 1000 * time;
    update();
  } });
  const stop = el("button", { type: "button", text: "Stop", onclick: async () => { await act(stopStress, () => "Stopped: what was open is aborted."); until = 0; update(); } });
  const why = el("p", { class: "small soft", text: "For operators: enter an operator's key under Keys. `pagoda serve` keeps one in the server's folder, ~/.cache/pagoda/servers." });
  const form = el("div", { class: "actions" }, el("label", {}, "requests (≤ 32)", requests), el("label", {}, "seconds (≤ 20)", seconds), start, stop);
  const update = () => {
    const may = Boolean(feed.hello.is_operator);
    why.hidden = may || !feed.hello.model;
    form.hidden = !may;
    start.disabled = Date.now() < until;
    stop.disabled = Date.now() >= until;
  };
  update();
  return { element: card("Stress", "see it queue, fork and preempt", "", form, said, why), update };
}
