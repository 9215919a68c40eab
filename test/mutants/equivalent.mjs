// Mutants without an effect that a caller could notice, by file and by their name in
// `npm run mutants -- --list`, each with the reason.
const notBelowZero = 'the number of synchronizations that it is compared with is never below 0';
const handles = "a live event's handle is at least 2 ** 20, a disposed one's is -1";
const onlyDriverErrors = 'recording a live lane fails with a DriverError only';
const cost = 'it decides only when events that are over are looked for: whoever takes memory looks for them anyway';

export const equivalent = {
  'assembly/areas.ts': {
    'end: 0x7fff0000 -> 2147418113': 'every area ends at a multiple of 64',
    'returned: 32 -> 33': 'every order is below 32',
    'takeArea: 63 -> 62': 'the first free address is a multiple of 16',
  },
  'assembly/class-lists.ts': { 'largestList: 1 -> 0': 'list 0 is always empty: no block has 0 units' },
  'assembly/free-space-index.ts': { 'freeTail: > -> >=': 'no two blocks have one address' },
  'assembly/lanes.ts': {
    'misalignment: 1 -> 2': 'addresses are multiples of 256',
    'addToList: without isSharedField': 'a notice of a lane that is not shared is removed by whoever finds it: it only costs',
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
  },
  'src/stream-ordering/common-lane.ts': {
    'CommonLane.#unite: !(error instanceof DriverError) -> false': onlyDriverErrors,
    'CommonLane.dependOn: < -> <=': 'no two recordings have one number',
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
