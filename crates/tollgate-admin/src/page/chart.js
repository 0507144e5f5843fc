// Charts of requests per second, with a summary in words.

import { SECONDS, recent, sum } from "./replica.js";
import { number, rate, say, span } from "./view.js";

/** The shortest chart, in seconds. */
const SHORTEST = 30;
const SVG = "http://www.w3.org/2000/svg";

export function drawRates(replicas, policy, now) {
  const series = sum(replicas, policy, now, SECONDS);
  // The chart covers the time since the page was opened, within bounds.
  const length = Math.max(SHORTEST, SECONDS - series.first);
  const [allowed, denied] = [series.allowed, series.denied].map((values) => values.slice(-length));
  say("allowed", rate(recent(allowed)));
  say("denied", rate(recent(denied)));
  const svg = document.getElementById("chart");
  const [width, height] = [svg.clientWidth, svg.clientHeight];
  const top = ceiling(Math.max(...allowed.map((value, index) => value + denied[index])));
  const box = { left: 0, right: width - 44, top: 8, bottom: height - 22 };
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  for (const value of [0, top / 2, top]) {
    parts.push(line(box.left, y(value), box.right, y(value), "grid"));
    parts.push(text(box.right + 8, y(value) + 4, number(value), "start"));
  }
  parts.push(text(box.left, height - 4, `${span(length)} ago`, "start"), text(box.right, height - 4, "now", "end"));
  svg.replaceChildren(...areas(allowed, denied, series.first - SECONDS + length, box, y), ...parts);
  const all = (values) => number(Math.round(values.reduce((a, b) => a + b, 0)));
  svg.setAttribute("aria-label", `Requests per second${policy ? ` at ${policy}` : ""}`);
  say(
    "rates-words",
    `Since this page was opened, for up to five minutes: ${all(allowed)} allowed, ` +
      `${all(denied)} denied; at most ${rate(Math.max(...allowed))} and ${rate(Math.max(...denied))} per second.`,
  );
}

/** Draws a replica's last minute. */
export function drawSmall(svg, { allowed, denied, first }) {
  const [width, height] = [120, 28];
  const top = Math.max(1, ...allowed.map((value, index) => value + denied[index]));
  const box = { left: 0, right: width, top: 2, bottom: height - 2 };
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  svg.replaceChildren(...areas(allowed, denied, first, box, y), line(0, box.bottom, width, box.bottom, "grid"));
}

export function smallChart() {
  const svg = make("svg", { viewBox: "0 0 120 28", preserveAspectRatio: "none", class: "small" });
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

/** The next round number. */
function ceiling(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 2)));
  return [1, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((value) => value >= most);
}

/** Stacks denied requests on allowed requests, from the first known second. */
function areas(allowed, denied, first, box, y) {
  const step = (box.right - box.left) / (allowed.length - 1);
  const points = (values) => values.map((value, i) => `${(box.left + i * step).toFixed(1)},${y(value).toFixed(1)}`).slice(first);
  const lines = [allowed.map(() => 0), allowed, allowed.map((value, i) => value + denied[i])].map(points);
  return ["allowed", "denied"].map((kind, index) =>
    make("polygon", { points: [...lines[index + 1], ...lines[index].reverse()].join(" "), class: kind }),
  );
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
