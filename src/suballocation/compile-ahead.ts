/**
 * V8 compiles a function of the module when it is first called, which takes longer than the call itself: 190 us for those of
 * a first allocation. They are called here, for an index that serves nothing, when the first resource that needs an index is
 * constructed, so that no allocation of a program waits for it.
 */
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { indexModule } from './index-module.js';

let isDone = false;

/** The first call does it. */
export function compileAhead(): void {
  if (isDone) return;
  isDone = true;
  const index = indexModule.createIndex();
  if (index === 0) return;
  const from = indexModule.addLane(index);
  const to = indexModule.addLane(index);
  indexModule.useQuickLists(index, false);
  if (from !== 0 && to !== 0 && indexModule.addSegment(index, 0, 2, from) !== 0) {
    indexModule.openLane(index, from);
    const address = indexModule.allocate(index, 1, 0, to, 0);
    indexModule.freeAt(index, address, ALLOCATION_ALIGNMENT, to);
    indexModule.transfer(index, from, to);
  }
  indexModule.destroyIndex(index);
}
