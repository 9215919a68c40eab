/**
 * The model of docs/admission-protocol.md: tasks that ask queues for bytes, wait, hold what they got, ask for more, and end. `explore` visits
 * every state that a few tasks can reach, and reports the first in which a rule of the page does not hold.
 *
 * A task holds what it was promised until it ends, and does nothing while it waits. A task that waits in one queue may hold bytes of others.
 */
import { clone, search } from './search.mjs';

/** What each broken variant does, and bounds within which that gives a fault; `explore` must find it. */
export const brokenVariants = {
  'more is promised than there is': { tasks: 2, limits: [2], overtakes: 1 },
  'nobody is admitted when bytes come back': { tasks: 2, limits: [2], overtakes: 1 },
  'only the first request is looked at': { tasks: 3, limits: [3], overtakes: 1 },
  'requests are passed without a bound': { tasks: 4, limits: [2], overtakes: 0 },
  'who holds bytes waits behind new requests': { tasks: 3, limits: [2], overtakes: 0 },
  'nobody looks for waits that never end': { tasks: 2, limits: [2], overtakes: 1 },
  'waits that never end are looked for in each queue alone': { tasks: 2, limits: [1, 1], overtakes: 1 },
  'the oldest is refused': { tasks: 2, limits: [2], overtakes: 1 },
  'who could still go on is refused': { tasks: 3, limits: [3], overtakes: 1 },
  'a withdrawn request keeps its place': { tasks: 3, limits: [2], overtakes: 0 },
};

const [overLimit, noAdvance, firstOnly, noBound, growsBehind, noSearch, alone, oldest, needless, staysInLine] = Object.keys(brokenVariants);

/**
 * @param {{ tasks: number, limits: readonly number[], overtakes: number }} bounds a limit for each queue
 * @param {string} [broken] the variant
 * @param {(path: readonly string[], state: object) => void} [visit] called for each state, with the steps that lead there
 */
export function explore(bounds, broken, visit) {
  const queues = bounds.limits.map((limit) => ({ limit, line: [] }));
  const tasks = Array.from({ length: bounds.tasks }, () => ({ held: bounds.limits.map(() => 0), age: 0, asked: 0 }));
  return search({ queues, tasks, admitted: 0 }, (state) => stepsFrom(state, bounds, broken), visit);
}

const mostRequests = 2;

function* stepsFrom(state, bounds, broken) {
  for (const [t, task] of state.tasks.entries()) {
    const waits = state.queues.findIndex(({ line }) => line.some((request) => request.task === t && request.isOver !== true));
    if (waits >= 0) {
      yield settled(`task ${t} withdraws`, state, bounds, broken, (next) => leave(next, waits, t, broken));
      continue;
    }
    if (task.held.some((bytes) => bytes > 0)) {
      yield settled(`task ${t} ends`, state, bounds, broken, (next) => end(next, t), broken !== noAdvance);
    }
    if (task.asked === mostRequests) continue;
    for (const [q, { limit }] of state.queues.entries()) {
      for (let bytes = 1; bytes <= limit - task.held[q]; bytes++)
        yield settled(`task ${t} asks queue ${q} for ${bytes}`, state, bounds, broken, (next) => ask(next, q, t, bytes, broken));
    }
  }
}

function leave(state, q, t, broken) {
  const { line } = state.queues[q];
  const at = line.findIndex(({ task }) => task === t);
  if (broken === staysInLine) line[at].isOver = true;
  else line.splice(at, 1);
}

function end(state, t) {
  const task = state.tasks[t];
  task.held.fill(0);
  task.age = 0;
}

function ask(state, q, task, bytes, broken) {
  const { line } = state.queues[q];
  state.tasks[task].asked++;
  const holds = state.tasks[task].held[q] > 0;
  let place = line.length;
  // Who holds bytes of the queue comes first.
  if (holds && broken !== growsBehind) {
    place = 0;
    while (place < line.length && line[place].holds) place++;
  }
  line.splice(place, 0, { task, bytes, holds, passed: 0 });
}

/** The state after a change and all that follows from it; `undefined` if a rule does not hold. */
function settled(name, state, bounds, broken, change, advances = true) {
  const next = clone(state);
  change(next);
  const passedMost = advances ? advance(next, bounds, broken) : 0;
  return [name, passedMost <= bounds.overtakes && isRight(next, bounds) ? next : undefined];
}

/** Admits whom it can; then refuses one after the other, as long as some wait for each other. Returns how often a request was passed. */
function advance(state, bounds, broken) {
  for (;;) {
    if (!state.queues.every((queue) => admitFitting(state, queue, bounds, broken))) return Number.POSITIVE_INFINITY;
    const victim = broken === noSearch ? undefined : findVictim(state, broken);
    if (victim === undefined) break;
    // Whoever is refused waits in vain, and is the youngest of those who do.
    if (!isInVain(state, victim) || youngestOf(state) !== victim) return Number.POSITIVE_INFINITY;
    for (const { line } of state.queues) {
      const at = line.findIndex(({ task }) => task === victim);
      if (at >= 0) line.splice(at, 1);
    }
  }
  return Math.max(0, ...state.queues.flatMap(({ line }) => line.map(({ passed, holds }) => (holds ? 0 : passed))));
}

const committed = (state, queue) => state.tasks.reduce((sum, { held }) => sum + held[state.queues.indexOf(queue)], 0);

/** Returns false if a new request got bytes for which somebody waits who holds some. */
function admitFitting(state, queue, { overtakes }, broken) {
  for (let i = 0; i < queue.line.length; i++) {
    const request = queue.line[i];
    const fits = request.bytes <= queue.limit - committed(state, queue) + (broken === overLimit ? 1 : 0);
    if (!fits || request.isOver === true) {
      if (broken === firstOnly) return true;
      continue;
    }
    const before = queue.line.slice(0, i);
    if (broken !== noBound && !request.holds && before.some(({ passed }) => passed >= overtakes)) continue;
    const isLast = (other) => !other.holds || other.bytes > queue.limit - committed(state, queue);
    if (!request.holds && !queue.line.every(isLast)) return false;
    // A request of one who holds bytes passes others uncounted: they wait for it anyway.
    if (!request.holds) for (const each of before) each.passed++;
    queue.line.splice(i, 1);
    const task = state.tasks[request.task];
    task.held[state.queues.indexOf(queue)] += request.bytes;
    if (task.age === 0) task.age = ++state.admitted;
    i = -1;
  }
  return true;
}

/** The tasks that will never go on, if all who do not wait end. @param queues those that are looked at */
function inVain(state, queues = state.queues) {
  const waiting = new Map();
  for (const queue of queues) for (const { task, isOver } of queue.line) if (isOver !== true) waiting.set(task, queue);
  for (let isChanged = true; isChanged; ) {
    isChanged = false;
    for (const [task, queue] of waiting) {
      const q = state.queues.indexOf(queue);
      // Bytes come back in a queue if somebody who holds some goes on.
      if (!state.tasks.some((other, t) => other.held[q] > 0 && !waiting.has(t))) continue;
      waiting.delete(task);
      isChanged = true;
    }
  }
  // Who holds nothing keeps nobody from going on.
  return [...waiting.keys()].filter((t) => state.tasks[t].held.some((bytes) => bytes > 0));
}

const isInVain = (state, task) => inVain(state).includes(task);

function youngestOf(state) {
  return inVain(state).toSorted((a, b) => state.tasks[b].age - state.tasks[a].age)[0];
}

function findVictim(state, broken) {
  if (broken === needless) {
    const [waiting] = state.queues.flatMap(({ line }) => line.filter(({ holds }) => holds));
    if (waiting !== undefined) return waiting.task;
  }
  if (broken === alone) return state.queues.map((queue) => inVain(state, [queue])[0]).find((task) => task !== undefined);
  const tasks = inVain(state).toSorted((a, b) => state.tasks[b].age - state.tasks[a].age);
  return broken === oldest ? tasks.at(-1) : tasks[0];
}

/** Whether the rules of the page hold once everything is settled. */
function isRight(state, { overtakes }) {
  return (
    state.queues.every((queue) => {
      const free = queue.limit - committed(state, queue);
      const isBlocked = (i) => queue.line.slice(0, i).some(({ passed, isOver }) => passed >= overtakes && isOver !== true);
      const waitsForNothing = ({ bytes, holds, isOver }, i) => isOver !== true && bytes <= free && (holds || !isBlocked(i));
      return free >= 0 && !queue.line.some(waitsForNothing);
    }) && inVain(state).length === 0
  );
}
