// From what is known to what is seen. Texts go in as texts: names of policies and subjects
// are never taken for markup.

import { drawSmall, smallChart } from "./chart.js";
import { recent } from "./replica.js";

const format = new Intl.NumberFormat("en");
export const number = (value) => format.format(value);
export const rate = (value) => (value > 0 && value < 9.95 ? value.toFixed(1) : number(Math.round(value)));

/** Changes a text only if it differs: what is read out is then read out once. */
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

/** Which policy the rates are of; the first until somebody chooses. */
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
    if (!groups.has(key)) groups.set(key, { key, policy: status, quotas: [], allowed: 0, denied: 0 });
    const group = groups.get(key);
    const did = status.decisions;
    group.allowed += did.allow + did.shadow_deny + did.failed_open + did.local;
    group.denied += did.deny + did.failed_closed;
    if (!status.global) continue;
    // What is in memory, each process has for itself. Of what they share, whoever can tell
    // says the same, and the latest to do so is the first of them that is live.
    const shared = status.store !== "memory";
    const known = group.quotas.find((quota) => quota.shared);
    if (shared && known) {
      if (known.remaining === null) Object.assign(known, { remaining: status.remaining, after: status.reset_after });
      continue;
    }
    const name = shared ? "" : replica.name;
    group.quotas.push({ shared, name, remaining: status.remaining, after: status.reset_after, capacity });
  }
  keyed(document.getElementById("policies"), [...groups.values()], (group) => group.key, policyCard, updatePolicy);
}

function policyCard() {
  const quotas = element("div", { class: "quotas" });
  const parts = [element("h3", {}), element("p", { class: "quiet rule" }), quotas, element("p", { class: "quiet sums" })];
  return element("li", { class: "card policy" }, ...parts);
}

function updatePolicy(card, { policy, quotas, allowed, denied }) {
  const [title, rule, bars, sums] = card.children;
  write(title, policy.policy);
  const burst = policy.capacity === policy.limit ? "" : `, ${number(policy.capacity)} at once`;
  const shadow = policy.enforced ? "" : ", only observed";
  const words = policy.algorithm.replaceAll("_", " ");
  const per = policy.calendar ? `calendar ${policy.calendar.name}` : span(policy.window);
  write(rule, `${number(policy.limit)} per ${per}${burst}, ${words}${shadow}`);
  keyed(bars, quotas, (quota) => quota.name, bar, (node, quota) => updateBar(node, quota, policy.policy, quotas.length));
  write(sums, `${number(allowed)} allowed, ${number(denied)} denied`);
}

function bar() {
  const meter = element("div", { class: "bar", role: "meter", "aria-valuemin": "0" }, element("div", { class: "fill" }));
  const left = element("p", { class: "left" }, element("b", {}), element("span", {}));
  return element("div", { class: "quota" }, meter, left);
}

function updateBar(node, { name, remaining, after, capacity }, policy, several) {
  const [meter, left] = node.children;
  const share = remaining === null ? 0 : Math.min(1, remaining / capacity);
  meter.firstChild.style.transform = `scaleX(${share})`;
  meter.classList.toggle("low", remaining !== null && share < 0.1);
  meter.classList.toggle("unknown", remaining === null);
  const words = remaining === null ? "unknown, the store cannot tell" : `of ${number(capacity)} left`;
  const value = remaining === null ? words : `${number(remaining)} ${words}`;
  meter.setAttribute("aria-label", several > 1 ? `${policy}, ${name}` : policy);
  meter.setAttribute("aria-valuemax", capacity);
  meter.setAttribute("aria-valuenow", remaining ?? 0);
  meter.setAttribute("aria-valuetext", value);
  const again = remaining !== null && after > 0 ? `, all in ${span(Math.ceil(after))}` : "";
  write(left.firstChild, remaining === null ? "" : number(remaining));
  write(left.lastChild, ` ${words}${again}${several > 1 ? ` (${name})` : ""}`);
}

export function showReplicas(replicas, policy, now) {
  const update = (card, replica) => updateReplica(card, replica, policy, now);
  keyed(document.getElementById("replicas"), replicas, (replica) => replica.origin, replicaCard, update);
}

function replicaCard(replica) {
  const head = element("div", { class: "title" }, element("h3", {}), element("span", { class: "state" }));
  const address = element("p", { class: "quiet address" }, replica.origin.replace("http://", ""));
  const facts = element("dl", {});
  for (const word of ["allowed a second", "denied a second", "store", "breaker"]) {
    facts.append(element("div", {}, element("dt", {}, word), element("dd", {}, "–")));
  }
  return element("li", { class: "card replica" }, head, address, smallChart(), facts);
}

function updateReplica(card, replica, policy, now) {
  const [head, , chart, facts] = card.children;
  const { live, why, again } = replica.state;
  write(head.firstChild, replica.name);
  const wait = Math.max(0, Math.ceil((again - performance.now()) / 1000));
  write(head.lastChild, live ? "live" : why ? `lost: ${why}, again in ${wait} s` : "connecting");
  card.classList.toggle("lost", !live);
  const series = replica.series(policy, now, 60);
  drawSmall(chart, series);
  const [store] = storesOf(replica);
  const values = [
    rate(recent(series.allowed)),
    rate(recent(series.denied)),
    store && live ? `${store.store}${store.available ? "" : ", away"}` : "–",
    store && live ? (store.breaker ?? "none") : "–",
  ];
  [...facts.children].forEach((fact, index) => {
    write(fact.lastChild, values[index]);
    fact.classList.toggle("trouble", index > 1 && live && store !== undefined && isTroubled(store));
  });
}

export function showTop(replicas) {
  const told = replicas.filter((replica) => replica.state.live && replica.last?.top);
  const policies = new Map();
  for (const { policy, denied } of told.flatMap((replica) => replica.last.top)) {
    if (!policies.has(policy)) policies.set(policy, new Map());
    const subjects = policies.get(policy);
    for (const { subject, client, count } of denied) {
      const known = subjects.get(subject) ?? { subject, client, count: 0 };
      subjects.set(subject, { ...known, count: known.count + count });
    }
  }
  const lists = [...policies].map(([policy, subjects]) => {
    const most = [...subjects.values()].sort((a, b) => b.count - a.count).slice(0, 10);
    return { policy, most };
  });
  keyed(document.getElementById("top"), lists, (list) => list.policy, topTable, updateTop);
}

function topTable({ policy }) {
  const title = element("caption", {}, policy);
  const head = ["subject", "client", "denied"].map((word) => element("th", { scope: "col" }, word));
  const rows = element("tbody", {});
  return element("table", {}, title, element("thead", {}, element("tr", {}, ...head)), rows);
}

function updateTop(table, { most }) {
  const rows = most.map(({ subject, client, count }) => {
    const cells = [subject, client.replace("_", " "), number(count)];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  });
  const nobody = element("tr", {}, element("td", { colspan: "3" }, "Nobody in the last minutes."));
  table.lastChild.replaceChildren(...(rows.length > 0 ? rows : [nobody]));
}

/** Gives `parent` a child per item, and keeps those that it has: focus stays where it is. */
function keyed(parent, items, keyOf, make, update) {
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

/** Of those that are live, or of all that have ever been if nobody is. */
function policiesOf(replicas) {
  const live = replicas.filter((replica) => replica.state.live && replica.last);
  const known = live.length > 0 ? live : replicas.filter((replica) => replica.last);
  return known.flatMap((replica) => replica.last.policies.map((status) => ({ replica, status })));
}

const storesOf = (replica) => replica.last?.stores ?? [];
const isTroubled = (store) => !store.available || (store.breaker ?? "closed") !== "closed";
const names = (replicas) => replicas.map((replica) => replica.name).join(", ");

function span(seconds) {
  if (seconds >= 7200) return `${number(Math.round(seconds / 3600))} h`;
  if (seconds > 120) return `${number(Math.round(seconds / 60))} min`;
  return `${Number(seconds.toPrecision(3))} s`;
}
