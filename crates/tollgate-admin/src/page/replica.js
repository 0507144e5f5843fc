// A replica's state, and its requests per second.

/** The number of seconds that are stored and drawn. */
export const SECONDS = 300;

export class Replica {
  constructor(origin) {
    this.origin = origin;
    this.name = new URL(origin).host;
    this.state = { live: false, why: "", again: 0 };
    this.instance = undefined;
    this.last = undefined;
    /** The time of the first event. */
    this.since = Infinity;
    /** For each policy: second → allowed and denied requests. */
    this.seconds = new Map();
  }

  /** Adds an event that arrived at `now`. */
  take(event, now) {
    const counts = countsOf(event);
    const before = event.instance === this.instance ? this.counts : new Map();
    // A new process counts from its start.
    const passed = event.instance === this.instance ? event.uptime - this.last.uptime : event.uptime;
    // The first event has only totals, so the page cannot tell when they were counted.
    if (this.instance !== undefined && passed > 0) {
      for (const [policy, count] of counts) {
        const earlier = before.get(policy) ?? { allowed: 0, denied: 0 };
        const more = { allowed: count.allowed - earlier.allowed, denied: count.denied - earlier.denied };
        spread(this.secondsOf(policy), more, now - Math.min(passed, SECONDS), now);
      }
    }
    this.since = Math.min(this.since, now);
    this.name = event.server ?? this.name;
    this.instance = event.instance;
    this.last = event;
    this.counts = counts;
  }

  secondsOf(policy) {
    if (!this.seconds.has(policy)) this.seconds.set(policy, new Map());
    return this.seconds.get(policy);
  }

  /** Oldest first, up to the last complete second. Seconds before `first` are unknown. */
  series(policy, now, length) {
    const seconds = this.secondsOf(policy);
    const end = Math.floor(now) - HEARD;
    for (const second of seconds.keys()) if (second <= end - SECONDS) seconds.delete(second);
    const first = Math.max(0, Math.min(length, Math.floor(this.since) - end + length - 1));
    const series = { allowed: [], denied: [], first };
    for (let second = end - length + 1; second <= end; second += 1) {
      series.allowed.push(seconds.get(second)?.allowed ?? 0);
      series.denied.push(seconds.get(second)?.denied ?? 0);
    }
    return series;
  }

  forgetTop() {
    if (this.last) Object.assign(this.last, { top: null, overrides: null });
  }
}

/** Adds up the requests of several replicas. */
export function sum(replicas, policy, now, length) {
  const total = { allowed: Array(length).fill(0), denied: Array(length).fill(0), first: length };
  for (const replica of replicas) {
    const series = replica.series(policy, now, length);
    total.first = Math.min(total.first, series.first);
    for (const what of ["allowed", "denied"]) {
      series[what].forEach((value, index) => (total[what][index] += value));
    }
  }
  return total;
}

/** The mean of the last three seconds, because single seconds vary. */
export function recent(values) {
  return values.slice(-3).reduce((a, b) => a + b, 0) / 3;
}

/** Policies with the same name share their counts. Shadow policies deny no requests. */
function countsOf(event) {
  const counts = new Map();
  for (const { policy, decisions: did } of event.policies) {
    const allowed = did.allow + did.shadow_deny + did.failed_open + did.local;
    counts.set(policy, { allowed, denied: did.deny + did.failed_closed });
  }
  return counts;
}

/** Distributes requests evenly over the seconds from `start` to `end`. */
function spread(seconds, more, start, end) {
  for (let second = Math.floor(start); second < end; second += 1) {
    const share = (Math.min(second + 1, end) - Math.max(second, start)) / (end - start);
    const here = seconds.get(second) ?? { allowed: 0, denied: 0 };
    here.allowed += more.allowed * share;
    here.denied += more.denied * share;
    seconds.set(second, here);
  }
}

/** Events arrive every second, so the last two seconds are incomplete. */
const HEARD = 2;
