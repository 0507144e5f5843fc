// One stream of one replica, begun anew whenever it breaks. Read by fetch and not by
// EventSource, which cannot carry a token.

/** Tells of each line and of each change of state, until the function it returns is called. */
export function watch(origin, token, { onEvent, onState }) {
  const stopped = new AbortController();
  keepReading(origin, token, onEvent, onState, stopped.signal);
  return () => stopped.abort();
}

async function keepReading(origin, token, onEvent, onState, stopped) {
  let refused = false;
  let wait = SHORTEST;
  while (!stopped.aborted) {
    const tell = (state) => stopped.aborted || onState({ refused, ...state });
    let read = 0;
    let why = "";
    try {
      why = await readOnce(origin, refused ? null : token, stopped, (event) => {
        read += 1;
        if (read === 1) tell({ live: true });
        if (!stopped.aborted) onEvent(event);
      });
    } catch {
      why = read > 0 ? "the connection broke" : "no answer";
    }
    if (why === REFUSED) {
      // What needs no token is shown all the same.
      refused = true;
      continue;
    }
    if (read >= STEADY) wait = SHORTEST;
    // No stream goes on for ever. If it was more than that, the next try will tell.
    if (why === ENDED && read >= STEADY) continue;
    // Some sooner and some later, so that pages that lost the same replica do not all come
    // back at one moment.
    const pause = wait * (0.5 + Math.random() / 2);
    tell({ live: false, why, again: performance.now() + pause });
    await sleep(pause, stopped);
    wait = Math.min(wait * 2, LONGEST);
  }
}

/** Returns why it ended. */
async function readOnce(origin, token, stopped, onEvent) {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE);
  try {
    const response = await fetch(`${origin}/events`, {
      headers: token ? { authorization: `Bearer ${token}` } : {},
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.any([stopped, silent.signal]),
    });
    if (response.status === 401) return token ? REFUSED : NEEDED;
    if (!response.ok) return `answered ${response.status}`;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return ENDED;
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE);
      const lines = (text + value).split("\n");
      text = lines.pop();
      for (const line of lines) onEvent(JSON.parse(line));
    }
  } finally {
    clearTimeout(timer);
  }
}

function sleep(milliseconds, stopped) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    stopped.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

const ENDED = "it stopped";
const REFUSED = "the token is refused";
const NEEDED = "it asks for the token";

/** In milliseconds: how long nothing may come, when a line comes every second. */
const SILENCE = 6000;
const SHORTEST = 500;
const LONGEST = 10000;

/** After so many lines, what breaks is another trouble than before. */
const STEADY = 3;
