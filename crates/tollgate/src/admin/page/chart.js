// Lines over the last minutes, and the words that say the same.

import { SECONDS, recent, sum } from "./replica.js";
import { number, rate, say } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";

export function drawRates(replicas, policy, now) {
  const { allowed, denied, first } = sum(replicas, policy, now, SECONDS);
  say("allowed", rate(recent(allowed)));
  say("denied", rate(recent(denied)));
  const most = Math.max(...allowed, ...denied);
  const svg = document.getElementById("chart");
  const [width, height] = [svg.clientWidth, svg.clientHeight];
  const top = ceiling(most);
  const box = { left: 0, right: width - 44, top: 8, bottom: height - 22 };
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  for (const value of [0, top / 2, top]) {
    parts.push(line(box.left, y(value), box.right, y(value), "grid"));
    parts.push(text(box.right + 8, y(value) + 4, number(value), "start"));
  }
  const ago = ["5 min ago", "", "3 min", "", "1 min", "now"];
  ago.forEach((words, index) => {
    const x = box.left + (index / 5) * (box.right - box.left);
    const anchor = index === 0 ? "start" : index === 5 ? "end" : "middle";
    if (words) parts.push(text(x, height - 4, words, anchor));
  });
  parts.push(path(allowed, first, box, y, "allowed"), path(denied, first, box, y, "denied"));
  svg.replaceChildren(...parts);
  const all = (values) => number(Math.round(values.reduce((a, b) => a + b, 0)));
  svg.setAttribute("aria-label", `Requests a second${policy ? ` at ${policy}` : ""}, five minutes`);
  say(
    "rates-words",
    `In the last five minutes, or since this page was opened: ${all(allowed)} allowed, ` +
      `${all(denied)} denied; at most ${rate(Math.max(...allowed))} and ${rate(Math.max(...denied))} a second.`,
  );
}

/** The last minute of one replica. What it shows stands in numbers beside it. */
export function drawSmall(svg, series) {
  const [width, height] = [120, 28];
  const top = Math.max(1, ...series.allowed, ...series.denied);
  const box = { left: 0, right: width, top: 2, bottom: height - 2 };
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  const { allowed, denied, first } = series;
  svg.replaceChildren(
    line(0, box.bottom, width, box.bottom, "grid"),
    path(allowed, first, box, y, "allowed"),
    path(denied, first, box, y, "denied"),
  );
}

export function smallChart() {
  const svg = make("svg", { viewBox: "0 0 120 28", preserveAspectRatio: "none", class: "small" });
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

/** The next number above that divides well. */
function ceiling(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 2)));
  return [1, 2, 4, 6, 10].map((step) => step * power).find((value) => value >= most);
}

/** What was before the first is not known, and no zero. */
function path(values, first, box, y, kind) {
  const step = (box.right - box.left) / (values.length - 1);
  const x = (index) => box.left + index * step;
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).slice(first);
  return make("polyline", { points: points.join(" "), class: kind });
}

function line(x1, y1, x2, y2, kind) {
  return make("line", { x1, y1, x2, y2, class: kind });
}

function text(x, y, words, anchor) {
  const text = make("text", { x, y, "text-anchor": anchor });
  text.textContent = words;
  return text;
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
