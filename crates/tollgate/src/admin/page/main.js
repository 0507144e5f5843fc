// Where the page begins: a stream for each replica, and a look at all of them every second.

import { drawRates } from "./chart.js";
import { Replica } from "./replica.js";
import { prepareSending } from "./send.js";
import { watch } from "./stream.js";
import { showChoice, showConnection, showPolicies, showReplicas, showTop } from "./view.js";

const TOKEN = "tollgate-admin-token";
const at = (id) => document.getElementById(id);

const own = new Replica(location.origin);
const replicas = [own];
/** What ends each stream. */
let stops = [];

async function begin() {
  const settings = await ask("/page/settings.json");
  for (const origin of settings.peers) {
    if (origin !== location.origin) replicas.push(new Replica(origin));
  }
  if (settings.target) prepareSending(settings.target);
  prepareToken();
  at("policy").addEventListener("change", show);
  new ResizeObserver(soon).observe(at("chart"));
  watchAll();
  show();
  setInterval(show, 1000);
}

/** The page may have been loaded from what the browser kept, while the server is down. */
async function ask(path) {
  for (;;) {
    try {
      const response = await fetch(path, { cache: "no-store" });
      if (response.ok) return await response.json();
    } catch {
      // Below.
    }
    at("connection").textContent = "The server does not answer; asking again";
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

/** Several replicas say something at the same moment: one look is enough for all. */
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
  // By another name of this machine a peer may be this very process.
  const others = replicas.filter((it) => it === own || it.instance === undefined || it.instance !== own.instance);
  const now = performance.now() / 1000;
  const policy = showChoice(others);
  showConnection(others);
  showPolicies(others);
  drawRates(others, policy, now);
  showReplicas(others, policy, now);
  showTop(others);
  showToken(others);
}

/** The token stays in this tab, and goes with it. */
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
  let words = "Who is denied is shown to those who know the token of the admin address.";
  if (given) words = refused.length > 0 ? `The token is refused by ${refused.join(", ")}.` : "";
  if (at("token-words").textContent !== words) at("token-words").textContent = words;
}

begin();
