import {
  divisionBits,
  divisions,
  groupShift,
  headsField,
  laneNoticesField,
  nextNoticeField,
  noticeBitsField,
  noticeLaneField,
  searchedField,
  searcherField,
} from '../src/suballocation/index-layout';
import { setBit } from './class-lists';
import { takeNotice } from './records';

/** Makes a notice of a list of a shared lane that is not empty any more, unless there is one. See `shared-lanes.ts`. */
export function noteList(lane: u32, list: u32): void {
  if (((load<u32>(wordOf(lane, list), noticeBitsField) >>> (list & (divisions - 1))) & 1) === 0) addNotice(lane, list);
}

function addNotice(lane: u32, list: u32): void {
  const notice = takeNotice();
  if (notice === 0) return;
  const word = wordOf(lane, list);
  store<u32>(word, load<u32>(word, noticeBitsField) | (1 << (list & (divisions - 1))), noticeBitsField);
  const notices = load<u32>(lane, laneNoticesField);
  const head = notices + (list << 2);
  store<u32>(notice, lane, noticeLaneField);
  store<u32>(notice, load<u32>(head, headsField), nextNoticeField);
  store<u32>(head, notice, headsField);
  setBit(notices, list);
  if (load<u32>(notices, searchedField) < list && load<u32>(notices, searcherField) !== lane) store<u32>(notices, list, searchedField);
}

/** The pointer to the bits of a list's group. */
function wordOf(lane: u32, list: u32): u32 {
  return lane + ((list >>> divisionBits) << groupShift);
}
