/**
 * The model of docs/stream-order-protocol.md: streams with work in order, blocks of memory, and the rules by which
 * free memory changes its stream. `explore` visits every state that can be reached with a few operations, and
 * reports the first in which memory is given to a stream before work that uses it.
 *
 * Work has a number on its stream, from 1. A vector has a number for each stream: work up to there. `after[s]` is
 * what work queued on `s` next is ordered after. An event is the vector of its recording. Work runs as late as it can:
 * `done` is only what must have run because a stream was seen idle, since work that runs earlier hides a fault.
 */

import { clone, search } from './search.mjs';

/** What each broken variant does, and bounds within which that gives a fault; `explore` must find it. */
export const brokenVariants = {
  'another stream takes memory without a wait': { streams: 2, blocks: 1, work: 1, policies: ['eager'] },
  'a late event is not recorded before it is waited for': { streams: 2, blocks: 1, work: 1, policies: ['deferred'] },
  'memory that is taken over counts as covered': { streams: 3, blocks: 2, work: 1, policies: ['eager'] },
  'a lane stays idle when memory is freed into it': { streams: 2, blocks: 1, work: 1, policies: ['deferred'] },
  'an event of the caller counts although memory came to its stream since': { streams: 2, blocks: 1, work: 1, policies: ['off', 'fence'] },
  'memory that is held for its stream is given to others while it is busy': { streams: 2, blocks: 1, work: 1, policies: ['off'] },
  'memory that was held outdates no event of the caller': { streams: 2, blocks: 1, work: 1, policies: ['off', 'fence'] },
  'a stream ends without a last event': { streams: 2, blocks: 1, work: 1, policies: ['deferred'], mayEnd: true },
  'memory of ended streams waits for the latest event only': { streams: 3, blocks: 2, work: 1, policies: ['eager'], mayEnd: true },
};

const [noWait, noLateEvent, coveredAnyhow, staysIdle, oldFence, heldGiven, heldOutdatesNone, noLastEvent, latestOnly] =
  Object.keys(brokenVariants);

/**
 * @param {{ streams: number, blocks: number, work: number, policies: readonly string[], mayEnd?: boolean }} bounds `work`
 * is the most operations that use memory on each stream; a policy is that of a free: eager, deferred, off or fence
 * @param {string} [broken] the variant
 * @returns {{ states: number, steps: number, fault: readonly string[] | undefined }}
 */
export function explore(bounds, broken) {
  return search(initial(bounds), function* (state) {
    for (const [name, next] of stepsFrom(state, bounds, broken))
      yield [name, next === undefined ? undefined : withoutPast(next, bounds.policies.includes('fence'))];
  });
}

/** Without what can make no difference any more, so that fewer states are told apart. */
function withoutPast(state, hasFences) {
  state.common = state.blocks.some((block) => block.lane === -1) ? state.common.filter((event) => !isWithin(event, state.done)) : [];
  state.lanes.forEach((lane, number) => {
    // Without memory, a lane still has its event: the caller's for a later free may be older, since it need only follow
    // the last use, and memory that is freed unused may have been used, and freed, before.
    const isForgotten = !hasFences && !state.blocks.some((block) => block.place === null && block.lane === number);
    if (isForgotten || lane.idle) Object.assign(lane, { unrecorded: false, event: null, caller: null, idle: true });
  });
  state.blocks.sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
  return state;
}

function initial({ streams, blocks }) {
  const zero = () => Array(streams).fill(0);
  return {
    streams: Array.from({ length: streams }, () => ({ queued: 0, after: zero(), fence: null, hasEnded: false })),
    done: zero(),
    // Two for each stream: for memory that others may take after a wait, and for memory that is held.
    lanes: Array.from({ length: 2 * streams }, () => ({ unrecorded: false, event: null, caller: null, idle: true })),
    common: [],
    // Of no stream at first: `place` is the stream that uses a block, or null; `lane` that of a free one, -1 for the common one.
    blocks: Array.from({ length: blocks }, () => ({ place: null, lane: -1, uses: zero(), since: zero() })),
  };
}

const max = (a, b) => a.map((value, i) => Math.max(value, b[i]));
const isWithin = (a, b) => a.every((value, i) => value <= b[i]);

/** The vector of an event recorded now on a stream. */
function recording(state, s) {
  const vector = [...state.streams[s].after];
  vector[s] = state.streams[s].queued;
  return vector;
}

/** Each step that is possible, with the state after it; no state if memory is given away too early. */
function* stepsFrom(state, bounds, broken) {
  for (let s = 0; s < bounds.streams; s++) {
    if (state.streams[s].hasEnded) continue;
    yield* using(state, s, bounds);
    yield* freeing(state, s, bounds, broken);
    yield* allocating(state, s, broken);
    yield* asking(state, s);
    if (bounds.policies.includes('fence')) yield* recordingFence(state, s);
    if (bounds.mayEnd === true) yield* ending(state, s, broken);
  }
}

/** The program queues work that uses a block of the stream. */
function* using(state, s, { work }) {
  if (state.streams[s].queued === work) return;
  for (const [b, block] of state.blocks.entries()) {
    if (block.place !== s) continue;
    const next = clone(state);
    const stream = next.streams[s];
    stream.queued++;
    next.blocks[b].uses[s] = stream.queued;
    next.blocks[b].since[s] = stream.queued;
    yield [`stream ${s} uses block ${b} in its work ${stream.queued}`, next];
  }
}

function* recordingFence(state, s) {
  if (state.streams[s].fence !== null) return;
  const next = clone(state);
  next.streams[s].fence = { vector: recording(state, s), isOutdated: false };
  yield [`the program records an event on stream ${s}`, next];
}

function* freeing(state, s, { policies }, broken) {
  for (const [b, block] of state.blocks.entries()) {
    if (block.place !== s) continue;
    for (const policy of policies) {
      const { fence } = state.streams[s];
      // The program's duty: the event was recorded after the last use.
      if (policy === 'fence' && (fence === null || !isWithin(block.since, fence.vector))) continue;
      const next = clone(state);
      const number = 2 * s + (policy === 'off' ? 1 : 0);
      const lane = next.lanes[number];
      if (broken !== staysIdle) lane.idle = false;
      if (policy === 'eager') record(next, number);
      else if (policy !== 'fence') lane.unrecorded = true;
      else if (fence.isOutdated && broken !== oldFence) lane.unrecorded = true;
      else if (lane.caller === null) lane.caller = fence.vector;
      else if (!isSame(lane.caller, fence.vector)) lane.unrecorded = true;
      if (policy === 'off' && broken !== heldOutdatesNone) outdate(next, s);
      next.blocks[b] = { ...next.blocks[b], place: null, lane: number };
      yield [`stream ${s} frees block ${b}: ${policy}`, next];
    }
  }
}

function isSame(a, b) {
  return a.every((value, i) => value === b[i]);
}

function outdate(state, s) {
  const { fence } = state.streams[s];
  if (fence !== null) fence.isOutdated = true;
}

function record(state, number) {
  const lane = state.lanes[number];
  lane.event = recording(state, number >> 1);
  lane.caller = null;
  lane.unrecorded = false;
}

/** A stream takes a block: from its own lanes as they are, from others in their order. */
function* allocating(state, s, broken) {
  for (const [b, block] of state.blocks.entries()) {
    if (block.place !== null) continue;
    const next = clone(state);
    const isOwn = block.lane >> 1 === s && block.lane >= 0;
    if (!isOwn && !takeOver(next, block.lane, s, broken)) continue;
    const taken = next.blocks[b];
    const isSafe = taken.uses.every((work, t) => work <= (t === s ? work : Math.max(next.streams[s].after[t], next.done[t])));
    taken.place = s;
    taken.lane = 0;
    taken.since = taken.since.fill(0);
    yield [`stream ${s} takes block ${b}`, isSafe ? next : undefined];
  }
}

/** Orders a stream after a lane, and moves the lane's memory to its own. Returns false if the memory is held. */
function takeOver(state, number, s, broken) {
  const stream = state.streams[s];
  const wait = (vector) => {
    if (broken !== noWait) stream.after = max(stream.after, vector);
  };
  if (number === -1) {
    for (const event of broken === latestOnly ? state.common.slice(-1) : state.common) wait(event);
  } else {
    const lane = state.lanes[number];
    const isHeld = number % 2 === 1;
    if (isHeld && !lane.idle && broken !== heldGiven) return false;
    if (!isHeld && !lane.idle) {
      if (lane.unrecorded && broken !== noLateEvent) record(state, number);
      if (lane.event !== null) wait(lane.event);
      if (lane.caller !== null) wait(lane.caller);
    }
  }
  const own = 2 * s;
  for (const block of state.blocks) if (block.place === null && block.lane === number) block.lane = own;
  if (broken !== coveredAnyhow) state.lanes[own].unrecorded = true;
  state.lanes[own].idle = false;
  if (broken !== oldFence) outdate(state, s);
  return true;
}

/** The driver is asked whether a stream has run everything; then its lanes are idle until the next free. */
function* asking(state, s) {
  if (state.lanes[2 * s].idle && state.lanes[2 * s + 1].idle) return;
  const next = clone(state);
  next.done = max(next.done, recording(state, s));
  next.lanes[2 * s].idle = true;
  next.lanes[2 * s + 1].idle = true;
  yield [`stream ${s} is seen idle`, next];
}

/** Before a stream ends, an event is recorded for its free memory, which then belongs to no stream. */
function* ending(state, s, broken) {
  if (state.blocks.some((block) => block.place === s)) return;
  const next = clone(state);
  for (const number of [2 * s, 2 * s + 1]) {
    const lane = next.lanes[number];
    if (!lane.idle) {
      if ((lane.unrecorded || lane.caller !== null) && broken !== noLastEvent) record(next, number);
      if (lane.event !== null) next.common.push(lane.event);
    }
    for (const block of next.blocks) if (block.place === null && block.lane === number) block.lane = -1;
  }
  next.streams[s].hasEnded = true;
  yield [`stream ${s} ends`, next];
}
