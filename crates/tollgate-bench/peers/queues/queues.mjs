// node queues.mjs LIMITER REDIS_PORT CALLS TASKS
//
// Lets CALLS calls through a limiter in Redis, TASKS at a time. None of them has to wait.

import Bottleneck from "bottleneck";
import { Effect, Layer } from "effect";
import * as RateLimiter from "effect/persistence/RateLimiter";
import * as Persistence from "effect/persistence/Redis";
import Redis from "ioredis";

const [limiter, port, calls, tasks] = process.argv.slice(2);
const clientOptions = { host: "127.0.0.1", port: Number(port) };
const LIMIT = 1_000_000;
const MINUTE = 60_000;

async function bottleneck() {
  const limiter = new Bottleneck({
    id: "bench",
    datastore: "ioredis",
    clientOptions,
    clearDatastore: true,
    reservoir: LIMIT,
    reservoirRefreshAmount: LIMIT,
    reservoirRefreshInterval: MINUTE,
  });
  await limiter.ready();
  const nothing = async () => {};
  return { call: () => limiter.schedule(nothing), end: () => limiter.disconnect() };
}

// A shared rate and what the service has taught: a call each.
async function effect() {
  const client = new Redis(clientOptions);
  const send = (command, ...args) => Effect.promise(() => client.call(command, ...args));
  const redis = Layer.effect(
    Persistence.Redis,
    Persistence.make({ send, subscribe: () => Effect.never, connect: Effect.never }),
  );
  const layer = RateLimiter.layer.pipe(Layer.provide(RateLimiter.layerStoreRedis()), Layer.provide(redis));
  const both = Effect.gen(function* () {
    const limiter = yield* RateLimiter.RateLimiter;
    const rate = { algorithm: "token-bucket", onExceeded: "delay", window: MINUTE, limit: LIMIT, key: "bench" };
    const learned = { key: "bench", tokens: 1, fallbackWindow: MINUTE };
    return Effect.andThen(limiter.adaptiveConsume(learned), limiter.consume(rate));
  });
  const call = await Effect.runPromise(Effect.provide(both, layer));
  return { call: () => Effect.runPromise(call), end: () => client.quit() };
}

const { call, end } = await { bottleneck, effect }[limiter]();
let left = Number(calls);
const task = async () => {
  while (left-- > 0) await call();
};
await Promise.all(Array.from({ length: Number(tasks) }, task));
await end();
