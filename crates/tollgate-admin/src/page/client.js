// One client's quotas under all policies of this replica, and the buttons that change them.

import { element, number, say, span } from "./view.js";

const HOUR = 3600;

export function prepareClient(token) {
  const [form, subject] = ["one-form", "subject"].map((id) => document.getElementById(id));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(new Client(subject.value.trim(), token));
  });
}

class Client {
  constructor(subject, token) {
    this.subject = subject;
    this.token = token;
  }

  /** Returns the response's JSON, or throws the reason why there is none. */
  async ask(method, path, body) {
    const headers = { authorization: `Bearer ${this.token()}`, "content-type": "application/json" };
    const response = await fetch(path, { method, headers, cache: "no-store", body: body && JSON.stringify(body) });
    const json = response.status === 204 ? null : await response.json().catch(() => null);
    if (!response.ok) throw new Error(json?.detail ?? `The server responded ${response.status}.`);
    return json;
  }

  of(path, policy) {
    return `/${path}/${encodeURIComponent(policy)}/${encodeURIComponent(this.subject)}`;
  }
}

async function show(client) {
  const table = document.getElementById("limits");
  try {
    const { policies } = await client.ask("GET", `/subjects/${encodeURIComponent(client.subject)}`);
    table.lastElementChild.replaceChildren(...tree(policies).map((it) => row(client, it)));
    table.hidden = false;
    say("one-words", client.subject);
  } catch (error) {
    table.hidden = true;
    say("one-words", error.message);
  }
}

/** The policies in their order, each before its levels, with its depth. */
function tree(policies, base = null, depth = 0) {
  const here = policies.filter((it) => it.level_of === base);
  return here.flatMap((it) => [{ ...it, depth }, ...tree(policies, it.policy, depth + 1)]);
}

function row(client, it) {
  const name = element("td", {}, it.policy);
  name.style.paddingLeft = `${it.depth}rem`;
  const words = [it.limit === null ? "unlimited" : `${number(it.remaining)} of ${number(it.limit)}`, state(it)];
  const cells = words.map((cell) => element("td", {}, cell));
  const buttons = element("td", {});
  const button = (label, method, path, body) => {
    const node = element("button", { type: "button", "aria-label": `${label}: ${it.policy}` }, label);
    node.addEventListener("click", () => change(client, node, method, client.of(path, it.policy), body));
    buttons.append(node, " ");
  };
  button("Reset", "DELETE", "status");
  if (it.override_ends_after === null) button("Block 1 h", "PUT", "overrides", { block: true, for: HOUR });
  else button(it.blocked ? "Unblock" : "Remove override", "DELETE", "overrides");
  return element("tr", {}, name, ...cells, buttons);
}

function state({ blocked, override_ends_after: left, reset_after: after }) {
  const words = [];
  if (left !== null) words.push(`${blocked ? "blocked" : "override"} for ${span(Math.ceil(left))}`);
  if (!blocked && after > 0) words.push(`all available in ${span(Math.ceil(after))}`);
  return words.join(", ") || "–";
}

/** Keyboard users stay where they were. */
async function change(client, button, method, path, body) {
  button.disabled = true;
  const label = button.getAttribute("aria-label");
  const rows = () => [...document.getElementById("limits").querySelectorAll("tbody tr")];
  const index = rows().findIndex((it) => it.contains(button));
  try {
    await client.ask(method, path, body);
    await show(client);
  } catch (error) {
    say("one-words", error.message);
    button.disabled = false;
  }
  const buttons = [...(rows()[index]?.querySelectorAll("button") ?? [])];
  (buttons.find((it) => it.getAttribute("aria-label") === label) ?? buttons.at(-1))?.focus();
}
