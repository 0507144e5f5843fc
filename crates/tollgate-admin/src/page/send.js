// Buttons that send requests to the demo, and a list of the responses.

import { element, number, say } from "./view.js";

/** The requests and their costs in the demo. */
const REQUESTS = [
  { method: "GET", units: 1, path: "/items" },
  { method: "SEARCH", units: 3, path: "/items?q=tea" },
  { method: "POST", units: 5, path: "/items", body: JSON.stringify({ name: "tea" }) },
  { method: "DELETE", units: 10, path: "/items/1" },
];

/** The maximum number of responses in the list. */
const KEPT = 60;

export function prepareSending(target) {
  say("target", target);
  const rows = REQUESTS.map((request) => {
    const words = request.units === 1 ? "1 unit" : `${request.units} units`;
    const button = (times) => {
      const name = times === 1 ? request.method : `${request.method} × ${times}`;
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", () => send(target, request, times));
      return button;
    };
    return element("div", { class: "row" }, button(1), button(20), element("span", { class: "quiet" }, words));
  });
  document.getElementById("buttons").replaceChildren(...rows);
  document.getElementById("sending").hidden = false;
}

async function send(target, request, times) {
  const asked = Array.from({ length: times }, () => ask(target, request));
  const answers = await Promise.all(asked);
  const list = document.getElementById("answers");
  list.prepend(...answers.map(shown).reverse());
  while (list.children.length > KEPT) list.lastElementChild.remove();
  const statuses = count(answers.map((answer) => answer.status));
  const servers = count(answers.map((answer) => answer.server));
  say("summary", `${times} × ${request.method}: ${statuses}; by ${servers}.`);
}

async function ask(target, { method, path, body }) {
  const began = performance.now();
  try {
    const headers = body ? { "content-type": "application/json" } : {};
    const options = { method, body, headers, cache: "no-store", credentials: "omit" };
    const response = await fetch(target + path, options);
    await response.arrayBuffer();
    const server = response.headers.get("x-server-id") ?? "unknown server";
    const took = performance.now() - began;
    return { method, status: `${response.status}`, server, took, headers: [...response.headers] };
  } catch {
    return { method, status: "no response", server: "–", took: performance.now() - began, headers: [] };
  }
}

/** A row that expands to show the headers that the service exposes to the page. */
function shown({ method, status, server, took, headers }) {
  const field = (name) => headers.find(([key]) => key === name)?.[1];
  const left = field("x-ratelimit-remaining");
  const wait = field("retry-after");
  const units = wait ? `retry in ${wait} s` : left ? `${left} left` : "";
  const kind = status === "429" ? "status denied" : "status";
  const cells = [
    element("span", { class: "method" }, method),
    element("span", { class: kind }, status),
    element("span", {}, server),
    element("span", { class: "units" }, units),
    element("span", { class: "quiet took" }, `${number(Math.round(took))} ms`),
  ];
  const names = headers.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]);
  const summary = element("summary", {}, ...cells);
  return element("li", {}, element("details", {}, summary, element("dl", { class: "fields" }, ...names)));
}

/** `15 × 201, 5 × 429` */
function count(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort().map(([value, times]) => `${times} × ${value}`).join(", ");
}
