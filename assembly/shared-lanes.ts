/**
 * Finds another stream's lane that has a block of some size, without looking at every lane.
 *
 * Data structure. For each size class, a list of notices, each of which names a lane that had a block
 * of the class when the notice was made; two levels of bitmaps show which lists have any. A lane has
 * a bit for each class that says whether there is a notice, so there is at most one. Only shared
 * lanes, which other streams may take from, make notices.
 *
 *     class 5   lane 2 -> lane 7
 *     class 9   lane 2              no longer true: the block was allocated
 *
 * A notice is not withdrawn when it becomes untrue; whoever finds it so removes it. So a lane that
 * nobody else takes from pays for a notice once for each class.
 *
 * Whoever joins lanes asks for the largest block again and again, while its own lane comes to have the
 * largest of all. So a search goes on where the last one for the same lanes ended, or at the largest
 * class that another lane has had a notice of since.
 *
 * Invariant: every non-empty list of a shared lane has a notice, unless there was no memory for it.
 * Cost: constant, amortized: each notice that is removed was made once.
 */
import {
  classes,
  divisionBits,
  divisions,
  groupBitsField,
  groupShift,
  headsField,
  isSharedField,
  nextNoticeField,
  noticeBitsField,
  noticeLaneField,
  searchedField,
  searcherField,
  secondSearcherField,
} from '../src/suballocation/index-layout';
import { classOf, clearBit, firstOf, nextList, previousList, smallestList } from './class-lists';
import { hasFit } from './lanes';
import { noteList } from './notices';
import { returnNotice } from './records';

/** How many lanes are examined in the request's own class, whose blocks may be too small. */
const scanLimit = 8;
/** How many more fits the current search passes over. */
let fitsToPass = 0;

/** Says whether other streams may take from a lane. */
export function setShared(lane: u32, isShared: bool): void {
  if ((load<u32>(lane, isSharedField) !== 0) === isShared) return;
  store<u32>(lane, u32(isShared), isSharedField);
  if (!isShared) return;
  for (let list = smallestList(lane); list >= 0; list = nextList(lane, list)) noteList(lane, list);
}

/**
 * A shared lane other than two with a free block of at least `units` units, from the smallest class
 * that has one; or 0. Passes over the first `passed` fits; a lane is one in each class.
 */
export function findShared(notices: u32, units: i32, own: u32, second: u32, passed: i32): u32 {
  fitsToPass = passed;
  const ownClass = classOf(units);
  if (firstOf(notices, ownClass) !== 0) {
    const lane = findIn(notices, ownClass, units, own, second);
    if (lane !== 0) return lane;
  }
  for (let list = nextList(notices, ownClass); list >= 0; list = nextList(notices, list)) {
    const lane = findIn(notices, list, units, own, second);
    if (lane !== 0) return lane;
  }
  return 0;
}

/** The shared lane other than two that has the largest block, by class; or 0. Passes over the first `passed`, as `findShared`. */
export function largestShared(notices: u32, own: u32, second: u32, passed: i32): u32 {
  fitsToPass = passed;
  const goesOn = load<u32>(notices, searcherField) === own && load<u32>(notices, secondSearcherField) === second;
  let list = previousList(notices, goesOn ? load<u32>(notices, searchedField) : classes - 1);
  let lane: u32 = 0;
  while (list >= 0) {
    lane = findIn(notices, list, 1, own, second);
    if (lane !== 0) break;
    list = previousList(notices, list - 1);
  }
  if (passed > 0) return lane;
  store<u32>(notices, own, searcherField);
  store<u32>(notices, second, secondSearcherField);
  store<u32>(notices, max(list, 0), searchedField);
  return lane;
}

/** Returns the records of all notices. */
export function clearNotices(notices: u32): void {
  for (let list: u32 = 0; list < u32(classes); list++) {
    for (let notice = firstOf(notices, list); notice !== 0; ) {
      const next = load<u32>(notice, nextNoticeField);
      returnNotice(notice);
      notice = next;
    }
  }
  memory.fill(notices + groupBitsField, 0, headsField + (classes << 2));
}

/** As `findShared`, in one list; removes the notices that are not true any more. */
function findIn(notices: u32, list: u32, units: i32, own: u32, second: u32): u32 {
  const head = notices + (list << 2);
  let previous: u32 = 0;
  let notice = load<u32>(head, headsField);
  for (let left = scanLimit; left > 0 && notice !== 0; ) {
    const lane = load<u32>(notice, noticeLaneField);
    const next = load<u32>(notice, nextNoticeField);
    const first = firstOf(lane, list);
    if (first === 0 || load<u32>(lane, isSharedField) === 0) {
      const word = lane + ((list >>> divisionBits) << groupShift);
      store<u32>(word, load<u32>(word, noticeBitsField) & ~(1 << (list & (divisions - 1))), noticeBitsField);
      if (previous !== 0) store<u32>(previous, next, nextNoticeField);
      else store<u32>(head, next, headsField);
      returnNotice(notice);
    } else {
      if (lane !== own && lane !== second) {
        const fits = hasFit(first, units);
        if (fits && fitsToPass === 0) return lane;
        if (fits) fitsToPass--;
        else left--;
      }
      previous = notice;
    }
    notice = next;
  }
  if (load<u32>(head, headsField) === 0) clearBit(notices, list);
  return 0;
}
