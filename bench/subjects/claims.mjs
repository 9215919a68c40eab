/**
 * A model of what admission could do that waits at each allocation. Each request says at its beginning how much it will have at the most, its claim. It is
 * admitted as long as the claims are within the device times a factor, and each of its allocations waits until, with it, all who have been admitted
 * could still end one after the other (the banker's algorithm). So no request fails. Only numbers: no resource does this.
 */
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';
import { aligned, requestsOf } from '../support/requests.mjs';

/**
 * @typedef {object} Lane
 * @property {number} claim
 * @property {number[]} changes of what it has, by call
 * @property {number} at the next call
 * @property {number} held
 * @property {number} arrived
 * @property {number} waited
 * @property {boolean} isAdmitted
 */

const {
  trace,
  requests: count,
  atOnce,
  bytes,
  factor,
} = /** @type {{ trace: string, requests: number, atOnce: number, bytes: number, factor: number }} */ (parameters());
const cistern = await loadCistern();
const requests = requestsOf(await cistern.readAllocationLog(trace), count, 1);
/** @type {Lane[]} in the order of arrival */
let lanes = [];
let next = 0;
let turn = 0;
let used = 0;
let claimed = 0;
let waitingTurns = 0;
let usedShares = 0;
let claimedShares = 0;
/** @type {number[]} */
const waits = [];
while (next < requests.length || lanes.length > 0) {
  turn++;
  while (lanes.length < atOnce && next < requests.length) {
    const { calls, need } = /** @type {import('../support/requests.mjs').Request} */ (requests[next++]);
    const changes = calls.map((call) => (call.allocates ? aligned(call.bytes) : -aligned(call.bytes)));
    lanes.push({ claim: need, changes, at: 0, held: 0, arrived: turn, waited: 0, isAdmitted: false });
  }
  let waiting = 0;
  for (const lane of lanes) {
    if (!goesOn(lane)) {
      lane.waited++;
      waiting++;
    }
  }
  lanes = lanes.filter((lane) => !isOver(lane));
  if (waiting === 0) continue;
  waitingTurns++;
  usedShares += used / bytes;
  claimedShares += claimed / bytes;
}
waits.sort((a, b) => a - b);
report({
  failed: 0,
  repeated: 0,
  turns: turn,
  waitingTurns,
  used: waitingTurns === 0 ? 0 : usedShares / waitingTurns,
  committed: waitingTurns === 0 ? 0 : claimedShares / waitingTurns,
  waitMedian: waits[Math.floor(waits.length / 2)] ?? 0,
  wait99: waits[Math.floor(waits.length * 0.99)] ?? 0,
  waitWorst: waits.at(-1) ?? 0,
  spilledBytes: 0,
});

/** Makes the next call of a request, if it need not wait. @param {Lane} lane */
function goesOn(lane) {
  if (!lane.isAdmitted) {
    if (claimed + lane.claim > bytes * factor || lane.claim > bytes) return false;
    lane.isAdmitted = true;
    claimed += lane.claim;
  }
  const change = /** @type {number} */ (lane.changes[lane.at]);
  lane.held += change;
  used += change;
  if (change > 0 && !allCanEnd()) {
    lane.held -= change;
    used -= change;
    return false;
  }
  lane.at++;
  return true;
}

/** Whether there is an order in which everybody could have its claim, and end: the least missing first. */
function allCanEnd() {
  let free = bytes - used;
  if (free < 0) return false;
  const byMissing = lanes.filter(({ isAdmitted }) => isAdmitted).sort((a, b) => a.claim - a.held - (b.claim - b.held));
  for (const { claim, held } of byMissing) {
    if (claim - held > free) return false;
    free += held;
  }
  return true;
}

/** @param {Lane} lane */
function isOver(lane) {
  if (lane.at < lane.changes.length) return false;
  used -= lane.held;
  claimed -= lane.claim;
  waits.push(lane.waited);
  return true;
}
