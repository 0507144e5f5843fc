// Reads a replica's stream and reconnects when it breaks. EventSource cannot send a token, so this
// uses fetch.

/** Reports events and state changes to the callbacks. Returns a function that stops the stream. */
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
      why = read > 0 ? "the connection broke" : "no response";
    }
    if (why === REFUSED) {
      // Continue with the numbers, which need no token.
      refused = true;
      continue;
    }
    if (read >= STEADY) wait = SHORTEST;
    // The server closes streams after ten minutes, so reconnect immediately.
    if (why === ENDED && read >= STEADY) continue;
    // The wait is random so that pages do not all reconnect to a replica at the same time.
    const pause = wait * (0.5 + Math.random() / 2);
    tell({ live: false, why, again: performance.now() + pause });
    await sleep(pause, stopped);
    wait = Math.min(wait * 2, LONGEST);
  }
}

/** Returns why the stream ended. */
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
    if (!response.ok) return `status ${response.status}`;
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

const ENDED = "the stream ended";
const REFUSED = "token rejected";
const NEEDED = "token required";

/** Milliseconds without an event after which a stream counts as broken. Events arrive every second. */
const SILENCE = 6000;
/** The first and the longest wait between attempts, in milliseconds. */
const SHORTEST = 500;
const LONGEST = 10000;

/** A stream with this many events resets the wait between attempts. */
const STEADY = 3;
