// Mutants without an effect that a caller could notice, by file and by their name in
// `npm run mutants -- --list`, each with the reason.
const notBelowZero = 'the number of synchronizations that it is compared with is never below 0';
const handles = "a live event's handle is at least 2 ** 20, a disposed one's is -1";
const onlyDriverErrors = 'recording a live lane fails with a DriverError only';
const cost = 'it decides only when events that are over are looked for: whoever takes memory looks for them anyway';

const emptyList = 'list 0 is always empty: no block has 0 units';
const choice = 'how many are examined is a choice between time and fit';
const chunks = 'it decides only how much memory is obtained at once';
const earlier = 'it asks for memory one record earlier than it must';
const costsOnly = 'the call does nothing then: it only costs';
const oneNotice = 'whoever finds a notice that is not true removes it';
const pointers = 'no pointer is 1';
const firstWords = 'the first words of the memory are always 0';
const padding = 'the words around the lists of a table are always 0';
const otherLists = 'a size is in no other list, and the words after the last list are 0';
const longRest = 'an index that was not told to use its lists rests for 2 ** 31 frees';
const emptied = 'the lists are empty then';
const alignment = 'WebAssembly reads words at any address';

export const equivalent = {
  'assembly/areas.ts': {
    'end: 0x7fff0000 -> 2147418113': 'every area ends at a multiple of 64',
    'returned: 32 -> 33': 'every order is below 32',
    'returned: 32 -> 31': 'every order is below 31',
    'returned: 4 -> 5': alignment,
    'returned: 4 -> 3': alignment,
    'returned: without 4': alignment,
    'takeArea: 63 -> 62': 'the first free address is a multiple of 16',
    'takeArea: 63 -> 64': 'at most 64 bytes are left out before the first area',
    'hasGrown: 0xffff -> 65534': 'what is missing is a multiple of 64 bytes',
    'hasGrown: 0xffff -> 65536': 'at most one page more is obtained',
    'hasGrown: >= -> >': 'the memory had a page before',
    'hasGrown: 0 -> 1': 'the memory had a page before',
    'hasGrown: >= -> > (2)': 'the memory had a page before',
    'hasGrown: 0 -> 1 (2)': 'the memory had a page before',
  },
  'assembly/class-lists.ts': {
    'largestList: 1 -> 0': emptyList,
    'largestList: -1 -> (-1) + 1': emptyList,
    'largestList: -1 -> 1': 'no list has a block then',
    'largestList: 1 -> 2': 'callers only ask whether it is negative',
    'largestList: groupBits === 0 -> false': 'of what is before a table it makes a negative number as well',
    'nextList: 1 -> 2 (4)': 'callers only ask whether it is negative',
  },
  'assembly/free-space-index.ts': { 'freeTail: > -> >=': 'no two blocks have one address' },
  'assembly/quick-lists.ts': {
    'restQuick: isUsed -> true': longRest,
    'restQuick: isUsed -> true (2)': 'an index that was not told to use its lists finds that out at the next free',
    'takeQuick: entry < list + listBytes -> true': otherLists,
    'takeQuick: < -> <=': otherLists,
    'takeQuick: block === 0 -> false': firstWords,
    'takeQuick: 0 -> 1': pointers,
    'anyQuick: < -> <=': otherLists,
    'watchFree: load<u32>(index, quickModeField) === never -> false': longRest,
    'watchFree: without quickModeField': longRest,
    'watchRequest: removed return;': emptied,
    'watchRequest: < -> <=': otherLists,
    'watchRequest: removed return; (2)': emptied,
    'watchLarge: < -> <=': otherLists,
    'watchLarge: removed return;': emptied,
    'isInQuickList: >= -> >': 'no lane is at address 0',
    'isInQuickList: 0 -> 1': 'no lane is at address 0',
    'removeEntry: < -> <=': 'the last entry becomes 0 next',
    'removeEntry: 4 -> 3 (2)': 'some bytes are copied twice',
    'listOf: 0x9e3779b1 -> 2654435762': 'which sizes share a list is a choice',
    'listOf: 0x9e3779b1 -> 2654435760': 'which sizes share a list is a choice',
  },
  'assembly/tables.ts': {
    'firstOrder: 13 -> 14': chunks,
    'firstOrder: 13 -> 12': chunks,
    'addChunk: <= -> <': 'no chunk is a multiple of a table: the last one ends before its end',
  },
  'assembly/notices.ts': {
    'noteList: 1 -> 2': earlier,
    'noteList: 1 -> 0': earlier,
  },
  'assembly/records.ts': {
    'firstOrder: 12 -> 13': chunks,
    'firstOrder: 12 -> 11': chunks,
    'lastOrder: 20 -> 19': chunks,
    'spare: 4 -> 5': alignment,
    'spare: without 4': alignment,
    'addChunk: < -> <=': 'what it writes to the last record is written again next',
    'addChunk: nextOrder < lastOrder -> false': chunks,
    'addChunk: < -> >= (2)': chunks,
  },
  'assembly/used-blocks.ts': {
    'firstOrder: 8 -> 9': chunks,
    'firstOrder: 8 -> 7': chunks,
    'setBuckets: 2 -> 3': 'the table is then twice as large for the same blocks, which only costs memory',
  },
  'assembly/shared-lanes.ts': {
    'scanLimit: 8 -> 9': choice,
    'scanLimit: 8 -> 7': choice,
    'setShared: removed if ((load<u32>(lane, isSharedField) !== 0) === isShared) return;': costsOnly,
    'setShared: (load<u32>(lane, isSharedField) !== 0) === isShared -> false': costsOnly,
    'setShared: !isShared -> false': oneNotice,
    'setShared: >= -> >': emptyList,
    'setShared: 0 -> 1 (3)': emptyList,
    'findShared: firstOf(notices, ownClass) !== 0 -> true': costsOnly,
    'findShared: 0 -> 1': costsOnly,
    'findShared: >= -> >': emptyList,
    'findShared: 0 -> 1 (3)': emptyList,
    'largestShared: >= -> >': emptyList,
    'largestShared: 0 -> 1': emptyList,
    'largestShared: removed if (firstOf(notices, list) === 0) continue;': costsOnly,
    'largestShared: firstOf(notices, list) === 0 -> false': costsOnly,
    'largestShared: 0 -> 1 (2)': costsOnly,
    'largestShared: 1 -> 0': 'every block has 1 unit at least',
    'clearNotices: 0 -> 1': emptyList,
    'clearNotices: < -> <=': padding,
    'clearNotices: + -> -': 'the field is the first',
  },
  'assembly/lanes.ts': {
    'findLow: < -> <=': choice,
    'findLow: - -> +': 'no list is beyond the last one',
    'findLow: 1 -> 0': 'no list is beyond the last one',
    'findLow: 0 -> 1 (2)': emptyList,
    'findLow: >= -> >': emptyList,
    'findLow: 0 -> 1 (4)': choice,
    'findLow: > -> >=': choice,
    'findLow: > -> >= (2)': 'a block of the very size has been returned by then',
    'findLow: 0 -> 1 (7)': pointers,
    'findLow: 0 -> 1 (8)': choice,
    'findLow: <= -> < (2)': choice,
    'findLow: best !== 0 -> true': 'only the first list has blocks that are too small, and it has half of those that are examined',
    'findAligned: < -> <=': padding,
    'hasFewer: 0 -> 1 (3)': firstWords,
    'hasFewer: 0 -> 1 (4)': firstWords,
    'hasFewer: 0 -> 1 (5)': pointers,
    'hasFewer: 0 -> 1 (7)': emptyList,
    'hasFewer: 0 -> 1 (8)': pointers,
    'hasFewer: 0 -> 1 (10)': emptyList,
    'hasFewer: < -> <=': emptyList,
    'hasFewer: < -> <= (2)': emptyList,
    'hasFewer: otherBlock !== 0 -> true': firstWords,
    'hasFewer: block !== 0 -> true': firstWords,
    'resizeFree: list === newList -> false': 'where in its list a block stands is a choice',
    'smallestFit: 0 -> 1 (2)': pointers,
    'smallestFit: 0 -> 1 (3)': choice,
    'smallestFit: block !== 0 -> true': firstWords,
    'hasFit: block !== 0 -> true': firstWords,
    'hasFit: 0 -> 1 (2)': pointers,
    'isBelow: < -> <=': 'no two blocks have one address',
    'addToList: removed return;': 'the bit is set already, and there is a notice',
    'removeFromList: next !== 0 -> true': 'nobody reads what it writes near address 0',
    'removeFromList: 0 -> 1': 'nobody reads what it writes near address 0',
    'misalignment: 1 -> 2': 'addresses are multiples of 256',
  },
  'src/buffers/buffer-transfer.ts': {
    'changeStream: stream.identity !== before.identity -> true': 'a stream that waits for itself waits for nothing',
    'move: capacityBytes === 0 -> false': 'the addon makes no driver call for advice or a prefetch of 0 bytes',
  },
  'src/collector/returned-memory.ts': { 'takeHome: away.size === 0 -> false': 'nothing comes home if nothing is away' },
  'src/stream-ordering/stream-lane.ts': {
    'StreamLane.#freedAt: 1 -> 2': notBelowZero,
    'StreamLane.release: 1 -> 2': notBelowZero,
    'isLost: < -> <=': handles,
    'isLost: 0 -> 1': handles,
    'noLane: without number: none': 'nobody reads it: a call that uses the lane sets it first',
    'noLane: without owner: none': 'nobody reads it: a call that uses the lane sets it first',
  },
  'src/stream-ordering/common-lane.ts': {
    'CommonLane.#unite: !(error instanceof DriverError) -> false': onlyDriverErrors,
    'CommonLane.dependOn: events.length === 0 -> false': 'nothing comes then, and the events stay',
    'CommonLane.forgetPastEvents: this.#events.length === 0 -> false': cost,
    'CommonLane.forgetPastEvents: 2 -> 3': cost,
    'CommonLane.forgetPastEventsIfMany: >= -> >': cost,
  },
  'src/stream-ordering/stream-ordering.ts': {
    'StreamOrdering.freedLater: !(error instanceof DriverError) -> false': onlyDriverErrors,
    'StreamOrdering.#lane: isHeld -> true (2)': 'a shared lane that is looked at stays shared, and is not looked at again',
    'StreamOrdering.streamEnded: isAwaited -> true': 'it adds an event that is over, which is forgotten before it is waited for',
    'assertRecordedOn: < -> <=': handles,
    'assertRecordedOn: 0 -> 1': handles,
    'StreamOrdering.freedWith: errors swallowed of lane.freeWithEvent(fence);': 'it calls nothing that could fail',
  },
};
