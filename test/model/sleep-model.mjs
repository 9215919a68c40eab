/**
 * The model of docs/sleep-protocol.md: a stack of leaves with pages, work that is queued on them, and the calls that let them sleep and wake, step by
 * step, with the program and the driver's refusals in between. `explore` visits every state that a few operations can reach, and reports the first in
 * which work meets a page that is not there, or contents are lost.
 *
 * A page that is live has a value, the one written last, and is mapped or not. `kept` is the copy of a leaf's pages on the host.
 */
import { clone, search } from './search.mjs';

const usual = { leaves: 1, pages: 1, writes: 2, refusals: 1, calls: 3 };
const two = { leaves: 2, pages: 1, writes: 2, refusals: 1, calls: 2 };

/** What each broken variant does, and bounds within which that gives a fault; `explore` must find it. */
export const brokenVariants = {
  'uses are refused only once contents were read': usual,
  'queued work is not waited for': usual,
  'contents are freed before everything is awake': { ...two, calls: 3 },
  'a wake that fails leaves awake what it has woken': two,
  'a wake that fails leaves mapped what it has mapped': { ...usual, pages: 2 },
  'what is asleep is read again by a second sleep': usual,
  'a free does not wait for the copies': usual,
  'contents of a freed page come back': { ...usual, pages: 2 },
  'a sleep that fails before a page was unmapped leaves the memory asleep': usual,
};

const [lateRefusal, noWait, freedEarly, halfAwake, staysMapped, readsAgain, freesAtOnce, freedComesBack, staysAsleep] =
  Object.keys(brokenVariants);

/**
 * @param {{ leaves: number, pages: number, writes: number, refusals: number, calls: number }} bounds how often the program writes, the driver refuses,
 * and the program lets memory sleep or wake
 * @param {string} [broken] the variant
 */
export function explore({ leaves, pages, ...budget }, broken) {
  const page = () => ({ isLive: true, isMapped: true, value: 0, pending: false });
  const leaf = () => ({ phase: 'awake', pages: Array.from({ length: pages }, page), kept: null });
  return search({ leaves: Array.from({ length: leaves }, leaf), call: null, budget }, (state) => stepsFrom(state, broken));
}

function* stepsFrom(state, broken) {
  for (const [l, leaf] of state.leaves.entries()) {
    for (const [p, page] of leaf.pages.entries()) {
      if (!page.isLive) continue;
      yield* writing(state, l, p, broken);
      if (page.pending)
        yield changed(`page ${l}.${p}: its work runs`, state, (next) => void Object.assign(next.leaves[l].pages[p], { pending: false }));
      yield* freeing(state, l, p, broken);
    }
  }
  if (state.call === null) yield* calling(state);
  else if (state.call.kind === 'sleep') yield* sleeping(state, broken);
  else yield* waking(state, broken);
}

/** The state after a change, or no state if it breaks a rule. */
function changed(name, state, change) {
  const next = clone(state);
  return [name, change(next) !== false && isRight(next) ? next : undefined];
}

/**
 * Queued work and copies never meet a page that is not there; what is free is not there. At rest, all leaves are awake or asleep, and so are their
 * pages, but for those that the driver did not unmap.
 */
function isRight({ leaves, call }) {
  const isAtRest = (phase, { isMapped, stays }) => phase === 'awake' || (phase === 'asleep' && (!isMapped || stays));
  const isPageRight = (leaf, l) => (page, p) => {
    const { isLive, isMapped, pending } = page;
    const isCopied = call?.copying?.[0] === l && call.copying[1] === p;
    if (!isLive) return !isMapped && !isCopied;
    if ((pending || isCopied) && !isMapped) return false;
    return call !== null || (isAtRest(leaf.phase, page) && (leaf.phase !== 'awake' || isMapped));
  };
  return (
    leaves.every((leaf, l) => leaf.pages.every(isPageRight(leaf, l))) &&
    (call !== null || new Set(leaves.map(({ phase }) => phase)).size === 1)
  );
}

/** cistern refuses uses unless the memory is awake. */
function* writing(state, l, p, broken) {
  const { phase } = state.leaves[l];
  const isOpen = phase === 'awake' || (broken === lateRefusal && phase === 'falling asleep' && state.call?.step !== 'unmap');
  if (!isOpen || state.budget.writes === 0 || state.leaves[l].pages[p].pending) return;
  yield changed(`the program writes page ${l}.${p}`, state, (next) => {
    const page = next.leaves[l].pages[p];
    page.value = next.budget.writes--;
    page.pending = true;
  });
}

/** Frees are served in every state, and wait for copies. */
function* freeing(state, l, p, broken) {
  const { call } = state;
  const isCopied = call?.copying?.[0] === l && call.copying[1] === p;
  if (state.leaves[l].pages[p].pending) return;
  yield changed(`the program frees page ${l}.${p}`, state, (next) => {
    Object.assign(next.leaves[l].pages[p], { isLive: false, isMapped: false, value: null });
    if (isCopied && broken !== freesAtOnce) next.call.copying = null;
  });
}

function* calling(state) {
  if (state.budget.calls === 0) return;
  const begin = (kind, keeps) => (next) => {
    next.budget.calls--;
    next.call = { kind, keeps, step: 'begin', at: 0, copying: null };
  };
  yield changed('a sleep that keeps contents begins', state, begin('sleep', true));
  yield changed('a wake begins', state, begin('wake', false));
}

const pagesOf = ({ leaves }) => leaves.flatMap((leaf, l) => leaf.pages.map((page, p) => ({ l, p, leaf, page })));

/** begin, for all leaves; wait for queued work; read contents; unmap. */
function* sleeping(state, broken) {
  const { step, at } = state.call;
  if (step === 'begin') {
    yield changed('uses are refused', state, (next) => {
      for (const leaf of next.leaves) {
        leaf.wasAsleep = leaf.phase === 'asleep';
        leaf.phase = 'falling asleep';
      }
      next.call.step = broken === noWait ? 'read' : 'wait';
    });
  } else if (step === 'wait') {
    if (state.leaves.some((leaf) => leaf.pages.some(({ pending }) => pending))) return;
    yield changed('queued work has run', state, (next) => void Object.assign(next.call, { step: 'read' }));
  } else if (step === 'read') yield* reading(state, at, broken);
  else yield* unmapping(state, at, broken);
}

function* reading(state, at, broken) {
  const found = pagesOf(state)[at];
  if (found === undefined) {
    yield changed('contents are read', state, (next) => Object.assign(next.call, { step: 'unmap', at: 0 }));
    return;
  }
  const { l, p, leaf, page } = found;
  const onward = (next) => Object.assign(next.call, { at: at + 1, copying: null });
  if (!page.isLive || (leaf.wasAsleep && broken !== readsAgain)) {
    yield changed(`page ${l}.${p} is not read`, state, (next) => void onward(next));
    return;
  }
  if (state.call.copying === null) {
    yield changed(`a copy of page ${l}.${p} begins`, state, (next) => {
      next.call.copying = [l, p];
    });
    yield* refused(state, `the host has no memory for page ${l}.${p}`, (next) => cancel(next, broken));
    return;
  }
  yield changed(`page ${l}.${p} is read`, state, (next) => {
    next.leaves[l].kept ??= leaf.pages.map(() => null);
    // What is queued has not been written yet.
    next.leaves[l].kept[p] = page.pending ? 'stale' : page.value;
    onward(next);
  });
}

/** Nothing was unmapped: the memory is as it was before. */
function cancel(next, broken) {
  for (const leaf of next.leaves) {
    leaf.phase = leaf.wasAsleep || broken === staysAsleep ? 'asleep' : 'awake';
    if (!leaf.wasAsleep) leaf.kept = null;
    delete leaf.wasAsleep;
  }
  next.call = null;
}

function* unmapping(state, at, broken) {
  const found = pagesOf(state)[at];
  if (found === undefined) {
    yield changed('everything is asleep', state, (next) => {
      for (const leaf of next.leaves) {
        leaf.phase = 'asleep';
        delete leaf.wasAsleep;
      }
      next.call = null;
    });
    return;
  }
  const { l, p } = found;
  const onward = (next) => void next.call.at++;
  yield changed(`page ${l}.${p} is unmapped`, state, (next) => {
    next.leaves[l].pages[p].isMapped = false;
    onward(next);
  });
  // It stays mapped until the next call; if it was the first of all, the memory is awake again.
  const isFirst = pagesOf(state).every(({ page }) => page.isMapped || !page.isLive);
  yield* refused(state, `the driver does not unmap page ${l}.${p}`, (next) => {
    if (isFirst) return cancel(next, broken);
    next.leaves[l].pages[p].stays = true;
    return onward(next);
  });
}

/** New memory for all pages, then contents; then the host's memory is freed. If it fails, all is unmapped again. */
function* waking(state, broken) {
  const { step, at } = state.call;
  const found = pagesOf(state)[at];
  if (step === 'begin') {
    yield changed('a wake has begun', state, (next) => {
      for (const leaf of next.leaves) if (leaf.phase === 'asleep') leaf.phase = 'waking';
      next.call.step = 'map';
    });
  } else if (found !== undefined) yield* mapping(state, found, broken);
  else {
    yield changed('everything is awake', state, (next) => finish(next));
  }
}

function* mapping(state, { l, p, leaf, page }, broken) {
  const onward = (next) => void next.call.at++;
  if (leaf.phase !== 'waking' || (!page.isLive && broken !== freedComesBack)) {
    yield changed(`page ${l}.${p} needs nothing`, state, onward);
    return;
  }
  yield changed(`page ${l}.${p} is mapped, and filled`, state, (next) => {
    const now = next.leaves[l].pages[p];
    const { kept } = next.leaves[l];
    // It may have stayed mapped when the rest was unmapped.
    const isSame = kept !== null && kept[p] === page.value;
    now.isMapped = true;
    delete now.stays;
    if (broken === freedEarly) next.leaves[l].kept = null;
    onward(next);
    return isSame || !page.isLive;
  });
  yield* refused(state, `the device has no memory for page ${l}.${p}`, (next) => {
    for (const [number, each] of next.leaves.entries()) {
      if (each.phase !== 'waking') continue;
      const isKept = broken === halfAwake && number < l;
      each.phase = isKept ? 'awake' : 'asleep';
      for (const every of each.pages) if (every.isLive && !isKept && broken !== staysMapped) every.isMapped = false;
    }
    next.call = null;
  });
}

/** Awake memory has what was written last, and the host keeps nothing. */
function finish(next) {
  for (const leaf of next.leaves) {
    leaf.phase = 'awake';
    leaf.kept = null;
  }
  next.call = null;
}

function* refused(state, name, change) {
  if (state.budget.refusals === 0) return;
  yield changed(name, state, (next) => {
    next.budget.refusals--;
    return change(next);
  });
}
