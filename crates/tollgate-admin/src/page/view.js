// Updates the page. Policy and client names are inserted as text, not as markup.

import { drawSmall, smallChart } from "./chart.js";
import { recent } from "./replica.js";

const format = new Intl.NumberFormat("en");
export const number = (value) => format.format(value);
export const rate = (value) => (value > 0 && value < 9.95 ? value.toFixed(1) : number(Math.round(value)));

/** Changes a text only if it differs. Otherwise screen readers would announce it again. */
export function say(id, words) {
  write(document.getElementById(id), words);
}

function write(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

export function element(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function showConnection(replicas) {
  const lost = replicas.filter((replica) => !replica.state.live);
  const open = replicas.filter((replica) => replica.state.live && storesOf(replica).some(isTroubled));
  let words = `${replicas.length - lost.length} of ${replicas.length} live`;
  if (lost.length > 0) words += `; not ${names(lost)}`;
  if (open.length > 0) words += `; the store of ${names(open)} is down`;
  say("connection", words);
  document.getElementById("connection").classList.toggle("trouble", lost.length + open.length > 0);
}

/** Returns the chart's policy: the first, until the user selects another. */
export function showChoice(replicas) {
  const select = document.getElementById("policy");
  const policies = [...new Set(policiesOf(replicas).map(({ status }) => status.policy))];
  const shown = [...select.options].map((option) => option.value);
  if (policies.join("\n") !== shown.join("\n") && policies.length > 0) {
    const chosen = select.value;
    select.replaceChildren(...policies.map((name) => element("option", { value: name }, name)));
    if (policies.includes(chosen)) select.value = chosen;
  }
  document.getElementById("choice").hidden = policies.length < 2;
  return select.value;
}

export function showPolicies(replicas) {
  const groups = new Map();
  for (const { replica, status } of policiesOf(replicas)) {
    const { policy, limit, window, calendar, algorithm, enforced, capacity } = status;
    const key = JSON.stringify([policy, limit, calendar?.name ?? window, algorithm, enforced, capacity]);
    if (!groups.has(key)) groups.set(key, { key, policy: status, quotas: [], levels: [], allowed: 0, denied: 0, waiting: 0 });
    const group = groups.get(key);
    group.waiting += status.waiting;
    if ((status.pause?.left ?? 0) > (group.pause?.left ?? 0)) group.pause = status.pause;
    if (status.service && status.service.age < (group.service?.age ?? Infinity)) group.service = status.service;
    const did = status.decisions;
    group.allowed += did.allow + did.shadow_deny + did.failed_open + did.local;
    group.denied += did.deny + did.failed_closed;
    if (!status.global) continue;
    // With the memory store, each process has its own quota. For a quota in Redis all replicas report
    // the same state, so show the first that is known.
    const shared = status.store !== "memory";
    const known = group.quotas.find((quota) => quota.shared);
    if (shared && known) {
      if (known.remaining === null) Object.assign(known, { remaining: status.remaining, after: status.reset_after });
      continue;
    }
    const name = shared ? "" : replica.name;
    group.quotas.push({ shared, name, remaining: status.remaining, after: status.reset_after, capacity });
  }
  // A level is in the card of its base, whose levels may have levels, too.
  const all = [...groups.values()];
  const baseOf = ({ policy }) => all.find((group) => group.policy.policy === policy.level_of);
  for (const group of all) baseOf(group)?.levels.push(group);
  showCards(document.getElementById("policies"), all.filter((group) => !baseOf(group)), 3);
}

function showCards(list, groups, depth) {
  keyed(list, groups, (group) => group.key, () => policyCard(depth), (card, group) => updatePolicy(card, group, depth));
}

function policyCard(depth) {
  const quotas = element("div", { class: "quotas" });
  const quiet = () => element("p", { class: "quiet" });
  const parts = [element(`h${Math.min(depth, 6)}`, {}), quiet(), quotas, element("p", { class: "quiet sums" }), quiet()];
  return element("li", { class: "card policy" }, ...parts, element("ul", { class: "levels" }));
}

function updatePolicy(card, { policy, quotas, levels, allowed, denied, waiting, pause, service }, depth) {
  const [title, about, bars, sums, told, below] = card.children;
  below.hidden = levels.length === 0;
  showCards(below, levels, depth + 1);
  write(title, policy.policy);
  const shadow = policy.enforced ? "" : ", shadow";
  const key = policy.global ? "" : "per key: ";
  write(about, `${key}${rule(policy)}, ${policy.algorithm.replaceAll("_", " ")}${shadow}`);
  keyed(bars, quotas, (quota) => quota.name, bar, (node, quota) => updateBar(node, quota, policy.policy, quotas.length));
  const queue = waiting > 0 ? `, ${number(waiting)} waiting` : "";
  write(sums, `${number(allowed)} allowed, ${number(denied)} denied${queue}`);
  write(told, [pause && words(pause), service && left(service)].filter(Boolean).join("; "));
}

const words = ({ left, header }) => `paused for ${span(Math.ceil(left))}${header ? ` (${header})` : ""}`;

function left({ limit, remaining, age }) {
  const of = limit === null ? "" : ` of ${number(limit)}`;
  return `the service had ${number(remaining)}${of} left ${span(Math.round(age))} ago`;
}

function bar() {
  const meter = element("div", { class: "bar", role: "meter", "aria-valuemin": "0" }, element("div", { class: "fill" }));
  const left = element("p", { class: "left" }, element("b", {}), element("span", {}));
  return element("div", { class: "quota" }, meter, left);
}

function updateBar(node, { name, remaining, after, capacity }, policy, several) {
  const [meter, left] = node.children;
  const unknown = remaining === null;
  const used = unknown ? 0 : Math.max(0, capacity - remaining);
  meter.firstChild.style.transform = `scaleX(${used / capacity})`;
  meter.classList.toggle("full", used > 0.9 * capacity);
  meter.classList.toggle("unknown", unknown);
  const percent = unknown ? "" : `${Math.floor((100 * used) / capacity)} %`;
  const words = unknown ? "unknown, because the store does not respond" : ` used: ${number(remaining)} of ${number(capacity)} left`;
  meter.setAttribute("aria-label", several > 1 ? `${policy}, ${name}` : policy);
  meter.setAttribute("aria-valuemax", capacity);
  meter.setAttribute("aria-valuenow", used);
  meter.setAttribute("aria-valuetext", percent + words);
  const again = used > 0 && after > 0 ? `, all available in ${span(Math.ceil(after))}` : "";
  write(left.firstChild, percent);
  write(left.lastChild, `${words}${again}${several > 1 ? ` (${name})` : ""}`);
}

export function showReplicas(replicas, policy, now) {
  const update = (card, replica) => updateReplica(card, replica, policy, now);
  keyed(document.getElementById("replicas"), replicas, (replica) => replica.origin, replicaCard, update);
}

function replicaCard(replica) {
  const head = element("div", { class: "title" }, element("h3", {}), element("span", { class: "state" }));
  const address = element("p", { class: "quiet address" }, replica.origin.replace("http://", ""));
  const facts = element("dl", {});
  for (const word of ["allowed per second", "denied per second", "store", "breaker"]) {
    facts.append(element("div", {}, element("dt", {}, word), element("dd", {}, "–")));
  }
  return element("li", { class: "card replica" }, head, address, smallChart(), facts);
}

function updateReplica(card, replica, policy, now) {
  const [head, , chart, facts] = card.children;
  const { live, why, again } = replica.state;
  write(head.firstChild, replica.name);
  const wait = Math.max(0, Math.ceil((again - performance.now()) / 1000));
  write(head.lastChild, live ? "live" : why ? `lost: ${why}, retry in ${wait} s` : "connecting");
  card.classList.toggle("lost", !live);
  const series = replica.series(policy, now, 60);
  drawSmall(chart, series);
  const [store] = storesOf(replica);
  const values = [
    rate(recent(series.allowed)),
    rate(recent(series.denied)),
    store && live ? `${store.store}${store.available ? "" : ", down"}` : "–",
    store && live ? (store.breaker ?? "none") : "–",
  ];
  [...facts.children].forEach((fact, index) => {
    write(fact.lastChild, values[index]);
    fact.classList.toggle("trouble", index > 1 && live && store !== undefined && isTroubled(store));
  });
}

/** Adds up the denials that replicas report with the token. */
export function showDenials(replicas) {
  const told = replicas.filter((replica) => replica.state.live && replica.last?.top);
  const denials = new Map();
  for (const { last } of told) {
    for (const { policy, denied } of last.top) {
      const rules = last.policies.filter((status) => status.policy === policy).map(rule);
      for (const { subject, client, count } of denied) {
        const key = JSON.stringify([policy, subject]);
        const known = denials.get(key)?.count ?? 0;
        denials.set(key, { subject: client === "global" ? "all clients" : subject, policy: `${policy} (${rules.join("; ")})`, count: known + count });
      }
    }
  }
  const most = [...denials.values()].sort((a, b) => b.count - a.count).slice(0, 10);
  const rows = most.map(({ subject, policy, count }) => [subject, policy, number(count)].map((cell) => element("td", {}, cell)));
  if (rows.length === 0) rows.push([element("td", { colspan: "3" }, "No client was denied in the last minutes.")]);
  const table = document.getElementById("denials");
  table.hidden = told.length === 0;
  table.lastElementChild.replaceChildren(...rows.map((cells) => element("tr", {}, ...cells)));
}

/** Gives `parent` a child for each item. Existing children are reused, so focus is not lost. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = keyOf(item);
    const child = old.get(key) ?? make(item);
    old.delete(key);
    child.dataset.key = key;
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    update(child, item);
  });
  for (const child of old.values()) child.remove();
}

/** The policies of live replicas; without a live replica, the last known policies. */
function policiesOf(replicas) {
  const live = replicas.filter((replica) => replica.state.live && replica.last);
  const known = live.length > 0 ? live : replicas.filter((replica) => replica.last);
  return known.flatMap((replica) => replica.last.policies.map((status) => ({ replica, status })));
}

const storesOf = (replica) => replica.last?.stores ?? [];
const isTroubled = (store) => !store.available || (store.breaker ?? "closed") !== "closed";
const names = (replicas) => replicas.map((replica) => replica.name).join(", ");

/** For example `240 per 20 s`. */
function rule({ limit, capacity, window, calendar }) {
  const burst = capacity === limit ? "" : `, burst ${number(capacity)}`;
  return `${number(limit)} per ${calendar ? `calendar ${calendar.name}` : span(window)}${burst}`;
}

export function span(seconds) {
  if (seconds >= 7200) return `${number(Math.round(seconds / 3600))} h`;
  if (seconds > 120) return `${number(Math.round(seconds / 60))} min`;
  return `${Number(seconds.toPrecision(3))} s`;
}
