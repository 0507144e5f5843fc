// The entry point: reads a stream from each replica and updates the page every second.

import { drawRates } from "./chart.js";
import { prepareClient } from "./client.js";
import { showOverrides } from "./overrides.js";
import { Replica } from "./replica.js";
import { prepareSending } from "./send.js";
import { watch } from "./stream.js";
import { showChoice, showConnection, showDenials, showPolicies, showReplicas } from "./view.js";

const TOKEN = "tollgate-admin-token";
const at = (id) => document.getElementById(id);

const own = new Replica(location.origin);
const replicas = [own];
/** Functions that stop the streams. */
let stops = [];

async function begin() {
  const settings = await ask("/page/settings.json");
  for (const origin of settings.peers) {
    if (origin !== location.origin) replicas.push(new Replica(origin));
  }
  if (settings.target) prepareSending(settings.target);
  prepareToken();
  prepareClient(() => sessionStorage.getItem(TOKEN));
  at("policy").addEventListener("change", show);
  new ResizeObserver(soon).observe(at("chart"));
  watchAll();
  show();
  setInterval(show, 1000);
}

/** Retries until the server responds, because a cached page can open while the server is down. */
async function ask(path) {
  for (;;) {
    try {
      const response = await fetch(path, { cache: "no-store" });
      if (response.ok) return await response.json();
    } catch {
      // The server is down.
    }
    at("connection").textContent = "The server does not respond; trying again";
    await new Promise((done) => setTimeout(done, 2000));
  }
}

function watchAll() {
  for (const stop of stops) stop();
  const token = sessionStorage.getItem(TOKEN);
  stops = replicas.map((replica) =>
    watch(replica.origin, token, {
      onEvent(event) {
        replica.take(event, performance.now() / 1000);
        soon();
      },
      onState(state) {
        replica.state = state;
        soon();
      },
    }),
  );
}

/** Updates the page one time if several replicas send an event at the same time. */
let due = false;
function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    show();
  });
}

function show() {
  // A peer can be this process under another name.
  const others = replicas.filter((it) => it === own || it.instance === undefined || it.instance !== own.instance);
  const now = performance.now() / 1000;
  const policy = showChoice(others);
  showConnection(others);
  showDenials(others);
  showOverrides(others, own, () => sessionStorage.getItem(TOKEN));
  showPolicies(others);
  drawRates(others, policy, now);
  showReplicas(others, policy, now);
  showToken(others);
}

/** The token is in session storage, so the browser deletes it when the tab closes. */
function prepareToken() {
  at("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, at("token").value.trim());
    at("token").value = "";
    watchAll();
    at("forget").hidden = false;
    at("forget").focus();
    show();
  });
  at("forget").addEventListener("click", () => {
    sessionStorage.removeItem(TOKEN);
    for (const replica of replicas) replica.forgetTop();
    watchAll();
    show();
    at("token").focus();
  });
}

function showToken(all) {
  const given = sessionStorage.getItem(TOKEN) !== null;
  const refused = all.filter((replica) => replica.state.refused).map((replica) => replica.name);
  for (const id of ["token", "use"]) at(id).hidden = given;
  document.querySelector("label[for=token]").hidden = given;
  at("forget").hidden = !given;
  at("one").hidden = !given || own.state.refused;
  let words = "Enter the admin token to see which clients are denied or overridden.";
  if (given) words = refused.length > 0 ? `${refused.join(", ")} rejected the token.` : "";
  if (at("token-words").textContent !== words) at("token-words").textContent = words;
}

begin();
