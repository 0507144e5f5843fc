// The table of overrides. Only this replica's overrides have a button, because the page may only read
// its peers. With Redis, all replicas share them.

import { element, keyed, number, span } from "./view.js";

export function showOverrides(replicas, own, token) {
  const told = replicas.filter((replica) => replica.state.live && replica.last?.overrides);
  const all = new Map();
  for (const replica of [own, ...told]) {
    for (const it of told.includes(replica) ? replica.last.overrides : []) {
      const key = JSON.stringify([it.policy, it.id, it.until]);
      if (!all.has(key)) all.set(key, { ...it, removable: replica === own });
    }
  }
  const rows = [...all.values()].sort((one, other) => one.left - other.left);
  document.getElementById("overridden").hidden = rows.length === 0;
  const body = document.getElementById("overrides").lastElementChild;
  // A row gets its button when this replica, perhaps after a peer, tells of the override.
  const key = (it) => JSON.stringify([it.policy, it.id, it.until, it.removable]);
  keyed(body, rows, key, (it) => row(it, token), update);
}

function row(it, token) {
  const words = [it.subject, it.policy, it.blocked ? "blocked" : quota(it), ""];
  const cells = words.map((cell) => element("td", {}, cell));
  const last = element("td", {});
  if (it.removable) {
    const button = element("button", { type: "button", "aria-label": `Remove ${it.subject}, ${it.policy}` }, "Remove");
    button.addEventListener("click", () => remove(button, it, token));
    last.append(button);
  }
  return element("tr", {}, ...cells, last);
}

function update(row, { left, until }) {
  const end = row.children[3];
  const words = span(Math.ceil(left));
  if (end.textContent !== words) end.textContent = words;
  end.title = until;
}

function quota({ limit, window, burst }) {
  const per = window === null ? "" : ` per ${span(window)}`;
  return `${number(limit)}${per}${burst === null ? "" : `, burst ${number(burst)}`}`;
}

/** The next event no longer has the override. */
async function remove(button, { policy, id }, token) {
  button.disabled = true;
  try {
    const headers = { authorization: `Bearer ${token()}` };
    const response = await fetch(`/overrides/${encodeURIComponent(policy)}/id:${id}`, { method: "DELETE", headers });
    if (!response.ok && response.status !== 404) throw new Error(`${response.status}`);
  } catch (error) {
    button.disabled = false;
    button.textContent = `Try again (${error.message})`;
  }
}
