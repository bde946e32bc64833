// A text as a map of probabilities: how sure the model was of each token, and what else it weighed.

import { el, percent } from "./dom.js";

/** From 0 (surprising) to 1 (certain). */
export function sureness(logprob) {
  return logprob === null || logprob === undefined ? null : Math.exp(logprob);
}

function shade(share) {
  if (share === null) return "transparent";
  const hue = 25 + 120 * Math.sqrt(share);
  return `oklch(var(--map-l) ${(0.03 + 0.13 * (1 - share)).toFixed(3)} ${hue.toFixed(0)})`;
}

const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥");

/** Arrow keys go from token to token, so that the map is one stop of the Tab key. */
function move(event) {
  const next = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.target.click(); }
  if (!next) return;
  let element = event.target[next];
  while (element && !element.classList.contains("tok")) element = element[next];
  if (!element) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  element.tabIndex = 0;
  element.focus();
}

/** The tokens as buttons; `onChoose(index, text)` goes on from another token. */
export function heatMap(tokens, onChoose) {
  const detail = el("div", { class: "alternatives", role: "status" }, el("p", { class: "soft small", text: onChoose ? "Press a token to see what else the model weighed, and go on from there." : "Press a token to see what else the model weighed." }));
  const show = (index) => {
    const token = tokens[index];
    const known = token.others.some(([text]) => text === token.text) ? token.others : [[token.text, token.logprob], ...token.others];
    detail.replaceChildren(el("p", { class: "small" }, "Instead of ", el("code", { text: visible(token.text) }), token.logprob === null ? " (the first token has no probability)" : ` (${percent(sureness(token.logprob))}):`),
      el("div", { class: "options" }, known.filter(([, logprob]) => logprob !== null).slice(0, 8).map(([text, logprob]) => el("button", { type: "button", class: text === token.text ? "quiet chosen" : "quiet", disabled: !onChoose || text === token.text, onclick: () => onChoose(index, text), title: "Go on from here with this token" },
        el("code", { text: visible(text) }), el("span", { class: "meter", "aria-hidden": "true" }, el("i", { style: { width: `${100 * sureness(logprob)}%` } })), el("span", { class: "num small", text: percent(sureness(logprob)) })))));
  };
  const text = el("div", { class: "heat", role: "group", "aria-label": "Tokens by probability", onkeydown: move }, tokens.flatMap((token, index) => [
    el("span", { class: "tok", role: "button", tabindex: index ? "-1" : "0", style: { background: shade(sureness(token.logprob)) }, text: visible(token.text), title: token.logprob === null ? "no probability" : percent(sureness(token.logprob)), onclick: () => show(index) }),
    ...Array.from(token.text.matchAll("\n"), () => el("br"))]));
  const scored = tokens.filter((token) => token.logprob !== null);
  const mean = scored.reduce((sum, token) => sum + token.logprob, 0) / Math.max(1, scored.length);
  return el("div", {}, el("div", { class: "heatscale soft small" }, "surprising", el("span", { class: "scale", "aria-hidden": "true" }), "certain", scored.length > 0 && el("span", { class: "num", text: `perplexity ${Math.exp(-mean).toFixed(2)} over ${scored.length} tokens` })), text, detail);
}
