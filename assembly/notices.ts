import {
  divisionBits,
  divisions,
  groupShift,
  headsField,
  laneNoticesField,
  nextNoticeField,
  noticeBitsField,
  noticeLaneField,
} from '../src/suballocation/index-layout';
import { setBit } from './class-lists';
import { hasRecords, takeRecord } from './records';

/** Makes a notice of a list of a shared lane that is not empty any more, unless there is one. See `shared-lanes.ts`. */
export function noteList(lane: u32, list: u32): void {
  const word = lane + ((list >>> divisionBits) << groupShift);
  const bit: u32 = 1 << (list & (divisions - 1));
  const bits = load<u32>(word, noticeBitsField);
  if ((bits & bit) !== 0 || !hasRecords(1)) return;
  store<u32>(word, bits | bit, noticeBitsField);
  const notices = load<u32>(lane, laneNoticesField);
  const notice = takeRecord();
  const head = notices + (list << 2);
  store<u32>(notice, lane, noticeLaneField);
  store<u32>(notice, load<u32>(head, headsField), nextNoticeField);
  store<u32>(head, notice, headsField);
  setBit(notices, list);
}
