// Makes elements; texts are only ever set as text.

/** An element with properties; `class`, `text`, `on*` and attributes are told apart by their names. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function card(title, note, size = "", ...children) {
  const head = el("header", {}, el("h2", { text: title }), note && (typeof note === "string" ? el("span", { class: "soft", text: note }) : note));
  return el("section", { class: `card ${size}`, "aria-label": title }, head, ...children);
}

export function empty(what, hint) {
  return el("div", { class: "empty" }, el("strong", { text: what }), hint);
}

export function legend(items) {
  return el("div", { class: "legend" }, items.map(([css, text]) => el("span", {}, el("i", { class: `key ${css}`, "aria-hidden": "true" }), text)));
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A line over time; values may have gaps. */
export function sparkline(values, max) {
  const known = values.filter((value) => value !== null);
  const top = max ?? Math.max(1e-9, ...known);
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, i) => (value === null ? null : `${(i * step).toFixed(1)},${(31 - (28 * Math.min(value, top)) / top).toFixed(1)}`)).filter(Boolean);
  const chart = svg("svg", { viewBox: "0 0 100 34", preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" });
  if (points.length > 1) {
    const first = points[0].split(",")[0];
    const last = points[points.length - 1].split(",")[0];
    chart.append(svg("polygon", { points: `${first},34 ${points.join(" ")} ${last},34`, class: "area" }), svg("polyline", { points: points.join(" "), class: "line" }));
  }
  return chart;
}

export const whole = (value) => Math.round(value).toLocaleString("en-US");
export function seconds(us) {
  const s = us / 1e6;
  return s < 1 ? `${Math.round(s * 1000)} ms` : s < 10 ? `${s.toFixed(2)} s` : `${s.toFixed(1)} s`;
}
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 || share > 0.9 ? 1 : 0)} %`;

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
