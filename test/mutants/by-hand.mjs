// Faults that no change of a single syntax node makes: one call for another, one variable for
// another, two lines swapped. Each text occurs once in its file.
const faults = {
  'src/stream-ordering/stream-lane.ts': [
    {
      name: 'two-recordings-one-wait',
      fault: 'a lane with a recording of its own and one of a caller waits for its own only',
      from: '    if (this.#callerEvent !== undefined) identity.wait(this.#callerEvent.event);\n',
      to: '    if (this.#callerEvent !== undefined && !this.#isRecorded) identity.wait(this.#callerEvent.event);\n',
    },
    {
      name: 'two-recordings-other-wait',
      fault: "a lane with a recording of its own and one of a caller waits for the caller's only",
      from: 'if (this.#isRecorded) identity.wait(this.#event as Event);',
      to: 'if (this.#isRecorded && this.#callerEvent === undefined) identity.wait(this.#event as Event);',
    },
    {
      name: 'lane-keeps-its-recording',
      fault: 'rmm#2489: a lane that takes over memory of another keeps the event it has recorded before',
      from: 'received(): void {\n    this.freeUnrecorded();',
      to: 'received(): void {\n    if (!this.#isRecorded) this.freeUnrecorded();',
    },
    {
      name: 'idle-lane-receives-unmarked',
      fault: 'rmm#2489: a lane whose stream is idle takes over memory of another and stays idle',
      from: 'received(): void {\n    this.freeUnrecorded();',
      to: 'received(): void {\n    if (!this.isIdle) this.freeUnrecorded();',
    },
    {
      name: 'free-during-synchronization',
      fault: 'a free during a synchronization counts as covered by it',
      from: 'freeUnrecorded(): void {\n    this.#isUnrecorded = true;\n    this.#freedAt = this.identity.synchronizing;',
      to: 'freeUnrecorded(): void {\n    this.#isUnrecorded = true;\n    this.#freedAt = this.identity.synchronized;',
    },
    {
      name: 'fence-replaces-another',
      fault: "of two callers' events, the one passed last stands for both",
      from: 'else if (known.version !== event.version) this.#isUnrecorded = true;',
      to: 'else this.#callerEvent = { event, version: event.version };',
    },
    {
      name: 'fence-older-than-memory',
      fault: "a caller's event is relied on although it is older than the wait for the memory's last stream",
      from: 'if (event.version <= this.identity.receivedAt) this.#isUnrecorded = true;\n    else if',
      to: 'if',
    },
  ],
  'src/stream-ordering/stream-ordering.ts': [
    {
      name: 'join-unmarked-eager',
      fault: "rmm#2489, 'eager': the lane of a stream that took all memory of another over is not marked",
      from: 'if (!isIdle) lane.received();',
      to: "if (!isIdle && this.policy !== 'eager') lane.received();",
    },
    {
      name: 'join-unmarked-deferred',
      fault: "rmm#2489, 'deferred': the lane of a stream that took all memory of another over is not marked",
      from: 'if (!isIdle) lane.received();',
      to: "if (!isIdle && this.policy !== 'deferred') lane.received();",
    },
    {
      name: 'join-unmarked-off',
      fault: "rmm#2489, 'off': the lane of a stream that took all memory of another over is not marked",
      from: 'if (!isIdle) lane.received();',
      to: "if (!isIdle && this.policy !== 'off') lane.received();",
    },
    {
      name: 'known-649-held-for-nobody',
      fault: "rmm#649, 'off': memory held for a stream that may be gone is given to another",
      from: '!lane.isHeldBack) yield lane.number;',
      to: '!(lane.isHeldBack && lane.identity?.announcesEnd)) yield lane.number;',
    },
    {
      name: 'held-lane-taken-from',
      fault: "'off': memory held for a busy stream is found by its size, and given to another",
      from: '    if (!lane.isHeldBack) return false;\n    this.#memory',
      to: '    if (!lane.isHeldBack || (lane as StreamLane).isHeld) return false;\n    this.#memory',
    },
    {
      name: 'uncovered-lane-taken-from',
      fault: 'rmm#649: memory is found by its size although no event could be recorded for it, and given to another stream',
      from: '    if (!lane.isHeldBack) return false;\n    this.#memory',
      to: '    if (!lane.isHeldBack || !(lane as StreamLane).isHeld) return false;\n    this.#memory',
    },
    {
      name: 'fence-where-end-unannounced',
      fault: "rmm#649: a caller's event is relied on although the end of the stream is not announced",
      from: 'if (lane.mustRecord) lane.freeRecorded();\n      else if',
      to: 'if',
    },
  ],
  'src/stream-ordering/common-lane.ts': [
    {
      name: 'first-ended-stream-only',
      fault: 'rmm#510: of several ended streams only the last is waited for',
      from: 'for (const event of this.#events) if',
      to: 'for (const event of this.#events.slice(-1)) if',
    },
    {
      name: 'older-event-stands',
      fault: 'of two events of one stream the older one stands for both',
      from: 'known.version >= event.version',
      to: 'known.version <= event.version',
    },
  ],
  'src/workers/take-returned-memory.ts': [
    {
      name: 'returned-without-wait',
      fault: "memory that has come home is freed although another worker's work has not run",
      from: '    if (!isComplete && !followReturned(handOver, orderedOn)) break;\n',
      to: '',
    },
    {
      name: 'returned-on-the-giving-stream',
      fault: "the giver's stream waits for another worker's work",
      from: 'const isUsable = isComplete && ',
      to: 'const isUsable = ',
    },
  ],
  'src/driver/streams/event.ts': [
    {
      name: 'refused-event-disposed',
      fault: 'an event that the driver refuses to destroy is disposed anyway',
      from: '    destroy(this.handle);\n    this.handle = -1;',
      to: '    const { handle } = this;\n    this.handle = -1;\n    destroy(handle);',
    },
  ],
  'src/driver/streams/stream.ts': [
    {
      name: 'graph-ended-in-its-function',
      fault: 'the function that is captured can end the capture',
      from: '    if (this.identity.isRecorded) {',
      to: '    if (this.identity.isRecorded && this.isDisposed) {',
    },
  ],
  'src/driver/streams/stream-identity.ts': [
    {
      name: 'busy-stream-counts-as-run',
      fault: 'a query that returns false counts as a synchronization',
      from: 'if (mailbox[1] !== 1) return false;',
      to: 'if (mailbox[1] !== 1) return complete() ?? false;',
    },
    {
      name: 'synchronization-covers-later-work',
      fault: 'the end of a synchronization covers work queued after it began',
      from: 'this.synchronized = number;',
      to: 'this.synchronized = this.synchronizing;',
    },
    {
      name: 'fence-older-than-identity',
      fault: "a caller's event is relied on although it was recorded when the driver's stream had another identity",
      from: '  receivedAt = StreamIdentity.records;',
      to: '  receivedAt = 0;',
    },
  ],
  'assembly/free-space-index.ts': [
    {
      name: 'joins-next-of-other-lane',
      fault: 'a freed block coalesces with a neighbour of another stream',
      from: 'const nextLane = next > 0 ? load<u32>(next, stateField) : 0;',
      to: 'const nextLane = next > 0 && load<i32>(next, stateField) >= 0 ? lane : 0;',
    },
    {
      name: 'joins-previous-of-other-lane',
      fault: 'a freed block coalesces with the one before it, of another stream',
      from: 'const previousLane = previous > 0 ? load<u32>(previous, stateField) : 0;',
      to: 'const previousLane = previous > 0 && load<i32>(previous, stateField) >= 0 ? lane : 0;',
    },
    {
      name: 'loses-alignment-gap',
      fault: 'the memory before an aligned address is lost',
      from: 'addFree(cutFront(block, load<i32>(block, sizeField), skipped, lane), skipped, lane);',
      to: 'cutFront(block, load<i32>(block, sizeField), skipped, lane);',
    },
    {
      name: 'frees-another-size',
      fault: 'a block is freed although fewer bytes than it has are named',
      from: 'askedBytes(block) === bytes ? block',
      to: 'askedBytes(block) >= bytes ? block',
    },
  ],
  'assembly/lanes.ts': [
    {
      name: 'serves-too-small-block',
      fault: 'a block that is one unit too small serves a request',
      from: 'const excess: u32 = load<i32>(block, sizeField) - units;',
      to: 'const excess: u32 = load<i32>(block, sizeField) + 1 - units;',
    },
  ],
  'assembly/class-lists.ts': [
    {
      name: 'shift-by-32',
      fault: 'if the class is the last of its group, smaller ones are searched',
      from: '(-1 << (list & (divisions - 1))) << 1',
      to: '-1 << ((list & (divisions - 1)) + 1)',
    },
  ],
  'assembly/shared-lanes.ts': [
    {
      name: 'own-lane-ends-search',
      fault: "nothing is found behind a notice of the caller's own lane",
      from: 'if (lane !== own && lane !== second) {',
      to: 'if (lane === own || lane === second) return 0;\n      {',
    },
    {
      name: 'own-notice-withdrawn',
      fault: "the notice of the caller's own lane is removed, and others do not find the lane",
      from: 'if (first === 0 || load<u32>(lane, isSharedField) === 0) {',
      to: 'if (first === 0 || load<u32>(lane, isSharedField) === 0 || lane === own) {',
    },
  ],
  'assembly/used-blocks.ts': [
    {
      name: 'chain-cut-by-growth',
      fault: 'when the table grows, the rest of a chain is lost',
      from: '      block = next;\n    }\n  }\n  returnArea',
      to: '      block = load<u32>(block, nextUsedField);\n    }\n  }\n  returnArea',
    },
    {
      name: 'chain-cut-by-removal',
      fault: 'the blocks after one that is removed are lost',
      from: 'store<u32>(link, load<u32>(block, nextUsedField));',
      to: 'store<u32>(link, 0);',
    },
  ],
  'src/suballocation/address-map.ts': [
    {
      name: 'map-too-full',
      fault: 'the map grows when it is full, not when it is a quarter full',
      from: 'if (this.#count * 4 > this.#mask)',
      to: 'if (this.#count > this.#mask - 1)',
    },
  ],
  'src/suballocation/bump-cursor.ts': [
    {
      name: 'cursor-beyond-end',
      fault: 'the cursor hands out 256 bytes beyond a block',
      from: 'const address = this.#top;\n    const top = address + bytes;\n    if (top > this.#end) return none;',
      to: 'const address = this.#top;\n    const top = address + bytes;\n    if (top > this.#end + ALLOCATION_ALIGNMENT) return none;',
    },
  ],
  'src/suballocation/bump-chains.ts': [
    {
      name: 'foreign-free-lost-at-end',
      fault: 'a free on another stream is forgotten when that stream ends',
      from: 'if (chain.awaited.delete(from)) chain.awaited.add(to);',
      to: 'chain.awaited.delete(from);',
    },
  ],
  'src/adaptors/pooling/upstream-blocks.ts': [
    {
      name: 'arriving-bytes-not-counted',
      fault: 're-entrancy: bytes being requested from the upstream do not count',
      from: 'return this.#reservedBytes + this.#arrivingBytes;',
      to: 'return this.#reservedBytes;',
    },
    {
      name: 'kept-memory-is-cached',
      fault: 'a cache below takes back what a pooling resource holds when its run ends',
      from: 'withoutCaching(() => this.#upstream.allocate(bytes, stream))',
      to: 'this.#upstream.allocate(bytes, stream)',
    },
  ],
  'src/adaptors/pooling/keeper.ts': [
    {
      name: 'lane-of-other-stream-after-growth',
      fault: 're-entrancy: after a call of the upstream, the lane of another stream is used',
      from: 'this.#keep({ address, bytes }, stream);\n    }\n    this.enter',
      to: 'this.#keep({ address, bytes }, stream);\n    }\n    if (this.isDisposed) this.enter',
    },
    {
      name: 'trim-keeps-nothing',
      fault: 'trim gives back what it is to keep',
      from: 'this.held.reservedBytes - bytesToKeep',
      to: 'this.held.reservedBytes',
    },
    {
      name: 'neighbour-returns-unordered',
      fault: 'a block that a busy stream freed goes to another resource without a wait',
      from: 'this.ordering.order(stream, number);\n    } catch (error) {\n      this.#index.addSegment',
      to: '} catch (error) {\n      this.#index.addSegment',
    },
  ],
  'src/adaptors/pooling/order-of-tries.ts': [
    {
      name: 'known-2489-off',
      fault: "rmm#2489, 'off': another stream's block is reused after its own stream was asked, idle or not",
      from: 'if (address === none && ordering.queryHeld(stream)) address = this.#ready(',
      to: 'if (address === none) { ordering.queryHeld(stream); for (const other of ordering.laneNumbers()) if (address === none) address = this.#cut(other, bytes, stream, alignment); } if (address === none) address = this.#ready(',
    },
    {
      name: 'join-goes-on',
      fault: 'a stream takes over the memory of all others, although that of the first was enough',
      from: '      if (address !== none) return address;\n    }\n    return none;\n  }\n\n  #othersOrMerge',
      to: "      if (address !== none && from === 'others') { while (ordering.joinNext(stream) !== undefined); return address; }\n      if (address !== none) return address;\n    }\n    return none;\n  }\n\n  #othersOrMerge",
    },
    {
      name: 'join-goes-on-after-own',
      fault: "a stream takes over others' memory, although its own other lane was enough",
      from: '      if (address !== none) return address;\n    }\n    return none;\n  }\n\n  #othersOrMerge',
      to: "      if (address !== none && from === 'own') { while (ordering.joinNext(stream) !== undefined); return address; }\n      if (address !== none) return address;\n    }\n    return none;\n  }\n\n  #othersOrMerge",
    },
    {
      name: 'merges-first-lane-only',
      fault: 'a large request merges the memory of one stream, and not that of all',
      from: 'while (this.#mergeNext(stream, isReady) !== undefined) {}',
      to: 'this.#mergeNext(stream, isReady);',
    },
    {
      name: 'merge-refused-is-fatal',
      fault: 'a large request fails if the driver refuses to order its stream after another one, although other memory serves it',
      from: 'if (!(error instanceof DriverError || isCapturing(error))) throw error;\n    }\n    return this.#cut(this.#keeper.ordering.mergingLaneOf',
      to: 'throw error;\n    }\n    return this.#cut(this.#keeper.ordering.mergingLaneOf',
    },
    {
      name: 'search-result-lost',
      fault: 'the result of the last search is not returned',
      from: 'return this.#strategy.search?.(bytes, stream, alignment) ?? none;',
      to: 'this.#strategy.search?.(bytes, stream, alignment);\n    return none;',
    },
  ],
  'src/adaptors/pooling/stream-ordered-memory-resource.ts': [
    {
      name: 'free-unordered',
      fault: 'a free without a fence is not ordered',
      from: 'else lane.freeUnrecorded();',
      to: 'else return;',
    },
    {
      name: 'free-covered-unnoticed',
      fault: 'a free that an event covers leaves its lane idle',
      from: 'else if (isRecorded) lane.freeCovered();',
      to: 'else if (isRecorded) return;',
    },
    {
      name: 'free-before-its-event',
      fault: 'memory is freed although its event is refused',
      from: 'if (isRecorded) lane.record();\n    if (!(this.index as CutFromLarger<Index>).freeAt(pointer, small, lane.number)) ',
      to: 'const isFree = (this.index as CutFromLarger<Index>).freeAt(pointer, small, lane.number);\n    if (isRecorded) lane.record();\n    if (!isFree) ',
    },
    {
      name: 'fence-in-wrong-lane',
      fault: "a block goes to the stream's own lane, whatever its fence says",
      from: 'this.index.free(block, lane.number);',
      to: 'this.index.free(block, this.lane.number);',
    },
    {
      name: 'no-event-though-eager',
      fault: "under 'eager', a free records no event if the end of its stream is announced",
      from: 'const isRecorded = lane.recordsFrees === true;',
      to: 'const isRecorded = lane.mustRecord;',
    },
    {
      name: 'no-event-though-unannounced',
      fault: "rmm#649, 'deferred': a free records no event although the end of its stream is not announced",
      from: 'const isRecorded = lane.recordsFrees === true;',
      to: "const isRecorded = this.deallocationEvents === 'eager';",
    },
    {
      name: 'last-stream-by-slot',
      fault: 'rmm#2251: the lane of the last call serves a new stream with the same slot',
      from: "if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');",
      to: "if (stream.identity?.slot !== this.lastStream.identity?.slot || stream.handle < 0) this.enter(stream, 'allocate');",
    },
  ],
  'src/adaptors/pooling/pool-memory-resource.ts': [
    {
      name: 'maximum-off-by-one',
      fault: 'a pool exceeds its maximum by 256 bytes',
      from: 'if (least > left) return false;',
      to: 'if (least > left + ALLOCATION_ALIGNMENT) return false;',
    },
    {
      name: 'merges-for-small-requests',
      fault: 'a small request merges the memory of all streams while memory is scarce',
      from: 'if (units * unitBytes < this.#maximumBytes / largeShare || this.index',
      to: 'if (this.#maximumBytes === Number.POSITIVE_INFINITY || this.index',
    },
    {
      name: 'merges-while-memory-is-plentiful',
      fault: 'a large request merges the memory of all streams although little is used',
      from: ' || this.index.usedBytes <= this.#maximumBytes / plentyShare) return false;',
      to: ') return false;',
    },
    {
      name: 'merges-into-held-memory',
      fault: "a request whose stream's memory is held for it merges that of all others, which are then without",
      from: 'return !this.ordering.mergingLaneOf(stream).isHeld && !this.index',
      to: 'return !this.index',
    },
    {
      name: 'merges-despite-close-fit',
      fault: 'a large request merges the memory of all streams although one has a block of nearly its size',
      from: ' && !this.index.hasClose(units, other);',
      to: ';',
    },
    {
      name: 'no-last-search',
      fault: 'a pool is out of memory although it has a block that fits',
      from: 'this.index.search(bytes, alignment, this.ordering.mergingLaneOf(stream).number, stream.identity.serial)',
      to: '-1',
    },
  ],
  'src/adaptors/pooling/arena-memory-resource.ts': [
    {
      name: 'arena-grows-beyond-size',
      fault: 're-entrancy: an arena takes its block twice',
      from: 'Math.min(this.arenaBytes - this.keeper.held.claimedBytes, maximumBlockBytes)',
      to: 'Math.min(this.arenaBytes - this.keeper.held.reservedBytes, maximumBlockBytes)',
    },
    {
      name: 'large-request-moves-superblock',
      fault: "a large request comes into the stream's arena, where it joins a neighbour and splits that",
      from: 'if (units >= superblockUnits || !',
      to: 'if (!',
    },
    {
      name: 'superblock-without-alignment',
      fault: 'a superblock has no room for the alignment',
      from: 'const units = leastBlockBytes(bytes, alignment) / unitBytes;',
      to: 'const units = leastBlockBytes(bytes, ALLOCATION_ALIGNMENT) / unitBytes;',
    },
  ],
  'src/adaptors/pooling/monotonic-memory-resource.ts': [
    {
      name: 'rewind-frees-unordered',
      fault: 'blocks beyond a rewind go to other streams without a wait',
      from: 'for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);',
      to: 'for (const { chain } of steps) this.#order(chain, false);',
    },
    {
      name: 'rewind-orders-too-late',
      fault: 'a rewind orders blocks after they are in their lane',
      from: 'for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);\n    for (const step of steps) this.index.stepBack(step);',
      to: 'for (const step of steps) this.index.stepBack(step);\n    for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);',
    },
    {
      name: 'foreign-free-not-noted',
      fault: 'a free on another stream is not waited for by a rewind',
      from: "chain.awaited.add(this.ordering.freedWith(asked === 'off' ? 'deferred' : asked, stream, owner).number);",
      to: "this.ordering.freedWith(asked === 'off' ? 'deferred' : asked, stream, owner);",
    },
    {
      name: 'host-does-not-wait',
      fault: 'a rewind does not wait if the owner may be gone',
      from: 'if (awaited.size === 0 || this.ordering.lane(lane)',
      to: 'if (awaited.size >= 0 || this.ordering.lane(lane)',
    },
    {
      name: 'monotonic-lane-unannounced',
      fault: 'rmm#649: blocks of a stream whose end is not announced are shared at a rewind',
      from: 'const lane = stream.identity.announcesEnd ? this.lane : this.ordering.heldLaneOf(stream);',
      to: 'const { lane } = this;',
    },
    {
      name: 'mark-never-falls',
      fault: 'a mark stands after a rewind to an earlier one',
      from: 'this.#marks.pop()?.fall();',
      to: 'this.#marks.pop();',
    },
  ],
  'src/adaptors/pooling/fixed-size-memory-resource.ts': [
    {
      name: 'fixed-size-wrong-size',
      fault: 'the requested size is not remembered',
      from: 'this.#blockUnits, this.blockBytes - bytes, number',
      to: 'this.#blockUnits, 0, number',
    },
    {
      name: 'fixed-size-exceeds-maximum',
      fault: 'a part of a block below the maximum counts as a block',
      from: 'return Math.floor((this.#maximumBytes - this.keeper.held.claimedBytes) / this.blockBytes);',
      to: 'return Math.ceil((this.#maximumBytes - this.keeper.held.claimedBytes) / this.blockBytes);',
    },
  ],
  'src/adaptors/pooling/binning-memory-resource.ts': [
    {
      name: 'bin-skipped',
      fault: 'the smallest bin that fits is skipped',
      from: '(size) => size > 2 ** (exponent - 1)',
      to: '(size) => size > 2 ** exponent',
    },
  ],
  'src/plans/planned-memory-resource.ts': [
    {
      name: 'block-of-another-plan',
      fault: 'the block of the plan before, with what is live in it, serves the next plan',
      from: '    if (this.#learner.isLearning && !this.#isPinned) this.#block.retire();\n',
      to: '',
    },
    {
      name: 'block-is-kept-for-ever',
      fault: 'the block of an earlier plan does not go back to the upstream when nothing is live in it',
      from: 'if (spareBytes > 0) {',
      to: 'if (spareBytes > 0 && this.#learner.isLearning) {',
    },
    {
      name: 'earlier-plan-frees-a-place',
      fault: 'a free of memory of an earlier plan counts as one of this plan',
      from: '    if (place >= this.#owners.length) return;\n',
      to: '',
    },
    {
      name: 'failed-pass-is-learnt',
      fault: 'a plan is made of a pass that failed',
      from: '    if (!isWhole) return;\n',
      to: '',
    },
    {
      name: 'no-pointer-is-freed',
      fault: 'a free of what is no pointer counts as the next request of the plan',
      from: 'this.#freed = new Float64Array(length).fill(Number.NaN);',
      to: 'this.#freed = new Float64Array(length).fill(none);',
    },
  ],
  'src/plans/late-memory.ts': [
    {
      name: 'overdue-memory-is-free',
      fault: 'a place is handed out while memory that was kept longer than planned is in it',
      from: '      if (from < end && start < from + (block.asked[place] as number)) return true;\n',
      to: '      if (from < end && start < from) return true;\n',
    },
    {
      name: 'unordered-memory-is-free',
      fault: 'memory that another stream has freed than planned goes to any stream without a wait',
      from: 'start < range.end && range.identity !== identity)',
      to: 'start < range.end && range.identity === undefined)',
    },
  ],
  'src/plans/pass-order.ts': [
    {
      name: 'no-wait-within-a-plan',
      fault: 'a stream takes memory of another within the plan without a wait',
      from: '      this.#waitFor(lane.number, stream);\n',
      to: '',
    },
    {
      name: 'no-wait-before-a-pass',
      fault: 'a stream does not wait for the others that used the block in the last pass',
      from: 'if (this.isIrregular || !this.#hasWaited.has(lane)) {',
      to: 'if (this.isIrregular) {',
    },
    {
      name: 'irregular-pass-goes-on',
      fault: 'an irregular pass goes on as if each stream had waited',
      from: 'if (this.isIrregular || !this.#hasWaited.has(lane)) {',
      to: 'if (!this.#hasWaited.has(lane)) {',
    },
  ],
  'src/plans/plan-learner.ts': [
    {
      name: 'different-passes-are-planned',
      fault: 'a pass with other operations than those before is planned with them',
      from: 'if (difference !== undefined) this.#alike = [];',
      to: 'if (difference === undefined && before === undefined) this.#alike = [];',
    },
    {
      name: 'vain-plans-are-not-counted',
      fault: 'a program that never follows its plan is planned again and again',
      from: '    this.#vainPlans++;\n',
      to: '',
    },
  ],
  'src/plans/planned-block.ts': [
    {
      name: 'block-in-use-is-spare',
      fault: 'the block of an earlier plan goes back to the upstream while something in it is live',
      from: 'find((each) => each.bytes <= maximumBytes && each.live === 0)',
      to: 'find((each) => each.bytes <= maximumBytes)',
    },
  ],
  'src/plans/pass-recorder.ts': [
    {
      name: 'waits-of-the-fallback-are-recorded',
      fault: 'the order that the fallback makes between streams counts as one of the program',
      from: 'this.#inFallback++;',
      to: 'this.#inFallback += 0;',
    },
  ],
  'src/tools/planning/plan-allocations.ts': [
    {
      name: 'order-of-one-pass',
      fault: 'an order between streams that only the first of several passes has is relied on',
      from: '(isSameOrder ? { waits } : {})',
      to: '(isSameOrder || waits.length > 0 ? { waits } : {})',
    },
  ],
  'src/tools/planning/lifetimes.ts': [
    {
      name: 'record-before-the-free',
      fault: 'a wait for an event that was recorded before a free orders the stream after the free',
      from: '(seen[by] as number) > freed)',
      to: '(seen[by] as number) >= freed)',
    },
    {
      name: 'wait-orders-after-now',
      fault: 'a wait orders the stream after everything up to the wait, not up to the record',
      from: 'seen[recordedOn] = Math.max(seen[recordedOn] as number, recordedAt);',
      to: 'seen[recordedOn] = Math.max(seen[recordedOn] as number, at + 1);',
    },
    {
      name: 'free-elsewhere-is-free-at-home',
      fault: 'memory that another stream freed serves the stream that allocated it',
      from: 'if (by === stream || by < 0) return freed;',
      to: 'if (by === stream || by < 0 || this.streams[a] === stream) return freed;',
    },
    {
      name: 'order-is-not-handed-on',
      fault: 'a stream is not ordered after what the recording stream had waited for',
      from: 'Math.max(own?.[each] ?? 0, other?.[each] ?? 0)',
      to: 'own?.[each] ?? 0',
    },
  ],
  'src/adaptors/pooling/caching-memory-resource.ts': [
    {
      name: 'ended-run-goes-on',
      fault: 'a run that has ended is remembered as the current one',
      from: 'return run?.hasEnded ? undefined : run;',
      to: 'return run;',
    },
    {
      name: 'uncached-not-served-by-trim',
      fault: 'outside a run, memory runs out although the cache has free blocks',
      from: 'if (this.reservedBytes > 0 && this.trim(stream) > 0)',
      to: 'if (this.reservedBytes < 0)',
    },
    {
      name: 'run-end-event-at-any-cost',
      fault: 'the end of a run keeps memory for which no event could be recorded',
      from: 'this.ordering.freedLater(lane);',
      to: 'this.ordering.freed(lane);',
    },
    {
      name: 'cache-takes-last-stream',
      fault: 'a run puts a block into the group of the stream before',
      from: 'if (stream !== run.stream) {',
      to: 'if (run.stream === noStream) {',
    },
  ],
  'src/adaptors/pass-through/limiting-resource-adaptor.ts': [
    {
      name: 'limit-unrounded',
      fault: 'the limit is checked against the size before rounding',
      from: 'if (!this.#count(accountedBytes))',
      to: 'if (!this.#count(bytes))',
    },
    {
      name: 'limit-counts-after-call',
      fault: 're-entrancy: an allocation counts only after the upstream was called',
      from: 'return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);',
      to: 'this.#allocatedBytes -= accountedBytes; try { return this.upstream.allocate(bytes, stream, alignment); } finally { this.#allocatedBytes += accountedBytes; }',
    },
  ],
  'src/adaptors/pass-through/statistics-resource-adaptor.ts': [
    {
      name: 'inner-peak-from-zero',
      fault: 'an inner peak is not added to the live amount',
      from: 'Math.max(this.peak, this.current + inner.peak)',
      to: 'Math.max(this.peak, inner.peak)',
    },
  ],
  'src/adaptors/pass-through/logging-resource-adaptor.ts': [
    {
      name: 'row-of-other-stream',
      fault: 're-entrancy: a row names the stream of a nested call',
      from: 'LogAction.allocateNothing : LogAction.allocate, pointer, bytes, suffix);',
      to: 'LogAction.allocateNothing : LogAction.allocate, pointer, bytes, this.#suffix as RowText);',
    },
    {
      name: 'row-before-free',
      fault: 'a free that fails leaves a row',
      from: 'const suffix = this.#suffix as RowText;\n    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));',
      to: 'const suffix = this.#suffix as RowText;\n    try { this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents); } catch (error) { this.#writer.append(LogAction.free, pointer, bytes, suffix); throw error; }',
    },
  ],
  'src/adaptors/pass-through/aligned-resource-adaptor.ts': [
    {
      name: 'aligned-frees-inner',
      fault: 'the upstream is given an inner pointer to free',
      from: 'pointer - offsetOf(placement)',
      to: 'pointer',
    },
    {
      name: 'aligned-free-remembered',
      fault: 're-entrancy: a placement stays while the upstream frees',
      from: 'this.#placements.take(pointer)',
      to: 'this.#placements.get(pointer)',
    },
    {
      name: 'padding-too-small',
      fault: 'the upstream is asked for 256 bytes too few',
      from: 'bytes + (alignment - ALLOCATION_ALIGNMENT)',
      to: 'bytes + (alignment - 2 * ALLOCATION_ALIGNMENT)',
    },
  ],
  'src/adaptors/pass-through/rounding-resource-adaptor.ts': [
    {
      name: 'free-not-rounded',
      fault: 'a free passes on the size before rounding',
      from: 'this.upstream.deallocate(pointer, rounded, stream',
      to: 'this.upstream.deallocate(pointer, bytes, stream',
    },
    {
      name: 'rounded-bytes-drift',
      fault: 'a free counts its size before rounding',
      from: 'this.#roundedBytes -= rounded;',
      to: 'this.#roundedBytes -= bytes;',
    },
  ],
  'src/adaptors/pass-through/fallback-resource-adaptor.ts': [
    {
      name: 'fallback-remembers-freed',
      fault: "a freed pointer is still known as the fallback's",
      from: 'this.#pointers.take(pointer) !== none',
      to: 'this.#pointers.get(pointer) !== none',
    },
  ],
  'src/adaptors/pass-through/reclaiming-resource-adaptor.ts': [
    {
      name: 'live-bytes-after-call',
      fault: 're-entrancy: an allocation counts only after the upstream was called',
      from: 'const pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);',
      to: 'let pointer = 0; this.#liveBytes -= bytes; try { pointer = this.upstream.allocate(bytes, stream, alignment); } finally { this.#liveBytes += bytes; }',
    },
    {
      name: 'stages-as-given',
      fault: 'the stages run in the order in which they were given',
      from: 'const active = reclaimStages.filter((stage) => stages.includes(stage) && (stage',
      to: 'const active = stages.filter((stage) => (stage',
    },
    {
      name: 'refused-free-not-live',
      fault: 'memory that the upstream refused to free is no longer live',
      from: '    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));\n    if (pointer !== 0) this.#liveBytes -= bytes;',
      to: '    if (pointer !== 0) this.#liveBytes -= bytes;\n    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));',
    },
    {
      name: 'soft-limit-collects-each-time',
      fault: 'above the soft limit every allocation collects',
      from: 'this.#collectAtBytes = Math.max(this.softLimitBytes, liveBytes + Math.max(this.softLimitBytes, liveBytes) / 8);',
      to: 'this.#collectAtBytes = this.softLimitBytes;',
    },
  ],
  'src/graphs/capture-order.ts': [
    {
      name: 'graph-event-covers-later-epoch',
      fault: 'an event covers what is freed after its record',
      from: '    clock[stream] = epoch + 1;\n',
      to: '    clock[stream] = epoch + 2;\n',
    },
    {
      name: 'graph-epoch-goes-on',
      fault: 'a record does not end the epoch',
      from: '    this.#epochs[stream] = epoch + 1;\n',
      to: '',
    },
    {
      name: 'graph-open-epoch-counts',
      fault: 'a stream comes after an epoch that is not over for it',
      from: '?? 0) > epoch;',
      to: '?? 0) >= epoch;',
    },
    {
      name: 'graph-wait-forgets',
      fault: 'a wait replaces what came before the stream',
      from: 'seen[other] = Math.max(seen[other] ?? 0, clock[other] ?? 0);',
      to: 'seen[other] = clock[other] as number;',
    },
    {
      name: 'graph-clock-follows-stream',
      fault: 'an event covers what its stream waits for later',
      from: 'const clock = [...(this.#seen[stream] as number[])];',
      to: 'const clock = this.#seen[stream] as number[];',
    },
    {
      name: 'graph-join-changes-event',
      fault: 'what a joined stream waits for later counts for everybody who waits for the event by which it joined',
      from: 'this.#seen.push([...clock]);',
      to: 'this.#seen.push(clock as number[]);',
    },
    {
      name: 'graph-unseen-join-comes-after-all',
      fault: 'a stream that another library made join counts as coming after everything',
      from: '    this.#add(identity, []);\n    return',
      to: '    this.#add(identity, [...this.#epochs]);\n    return',
    },
  ],
  'src/graphs/capture-allocator.ts': [
    {
      name: 'graph-free-before-request',
      fault: 'memory freed on a stream that does not come after its request is used again',
      from: '      this.order.isAfter(stream, requests.streamOf(request), requests.epochOf(request));',
      to: '      requests.epochOf(request) >= 0;',
    },
    {
      name: 'graph-place-of-unordered-free',
      fault: 'the place of an allocation that was freed on a stream which does not come after it is used again',
      from: 'isOrdered ? this.order.epochOf(stream) : none)',
      to: 'this.order.epochOf(stream))',
    },
    {
      name: 'graph-place-in-use',
      fault: 'a request gets its place although whoever had it last is not freed before',
      from: 'if (!this.#isFreed(predecessors[i] as number, stream)) return false;',
      to: 'if (!this.#isFreed(predecessors[i] as number, stream) && this.#requests.count < 0) return false;',
    },
    {
      name: 'graph-place-freed-unordered',
      fault: 'a request gets its place although its stream does not come after the free',
      from: '&& epoch !== none && this.order.isAfter(stream, freedOn, epoch)',
      to: '&& epoch !== none',
    },
    {
      name: 'graph-place-left-unchecked',
      fault: 'a request gets a place that was left to those before, who still have it',
      from: 'if (!this.#isFreed(owner, stream)) return false;',
      to: 'if (!this.#isFreed(owner, stream) && this.#requests.count < 0) return false;',
    },
    {
      name: 'graph-place-too-small',
      fault: 'a request gets a place with fewer bytes',
      from: "    if (bytes > (sizes[request] as number)) return 'larger';\n",
      to: '',
    },
    {
      name: 'graph-place-unaligned',
      fault: 'a request gets a place with a smaller alignment',
      from: "    if (alignment > alignmentBytes) return 'alignment';\n",
      to: '',
    },
    {
      name: 'graph-plan-is-free',
      fault: 'the memory of a plan counts as free, too',
      from: 'isPlanned ? this.#base + totalBytes : address;',
      to: 'address;',
    },
    {
      name: 'graph-lane-of-anybody',
      fault: 'a stream takes what another one has freed, without coming after that',
      from: '      if (!this.order.isAfter(stream, earlier.stream, earlier.epoch)) continue;\n',
      to: '',
    },
    {
      name: 'graph-merge-of-anybody',
      fault: 'what other streams have freed is merged for a stream that does not come after it',
      from: '      if (!this.order.isAfter(stream, earlier.stream, earlier.epoch)) return true;\n',
      to: '',
    },
    {
      name: 'graph-two-epochs-as-the-first',
      fault: 'two merged epochs are open to whoever comes after the first of them',
      from: '      this.#earlier = this.#earlier.filter((earlier) => earlier !== first);',
      to: '      this.#earlier = this.#earlier.filter((earlier) => earlier !== first);\n      this.#earlier[this.#earlier.indexOf(second)] = { ...second, epoch: first.epoch };',
    },
    {
      name: 'graph-lane-still-open',
      fault: 'what is freed after a record is open to those who wait for it',
      from: '    this.#current[stream] = this.#vacant.pop() ?? this.#index.addLane();\n  }\n}',
      to: '  }\n}',
    },
    {
      name: 'graph-lane-vacant-with-memory',
      fault: 'a lane that has memory is given to another stream',
      from: '      if (!this.#index.isEmpty(earlier.lane)) return true;\n',
      to: '',
    },
    {
      name: 'graph-doubtful-free',
      fault: 'of two frees at one address the second counts as that of the capture',
      from: '      (this.#doubtful.count === 0 || this.#doubtful.take(pointer) === none) &&\n',
      to: '',
    },
    {
      name: 'graph-served-after-its-capture',
      fault: 'streams that had joined are served after the capture was abandoned',
      from: '    if (!this.origin.isCaptured) return none;\n',
      to: '',
    },
  ],
  'src/graphs/launch-order.ts': [
    {
      name: 'graph-launch-unordered',
      fault: 'a launch on another stream does not wait for the last one',
      from: '      last.order(stream);\n',
      to: '',
    },
    {
      name: 'graph-launch-off-unordered',
      fault: "'off': a launch does not wait for the last one, which still runs",
      from: "      if (this.#policy === 'off' && !last.identity.isIdle()) last.identity.synchronizeSync();\n",
      to: '',
    },
    {
      name: 'graph-launch-after-ended-stream',
      fault: 'a launch does not wait for the last one, whose stream has ended',
      from: '    if (this.#ended !== undefined) stream.identity.wait(this.#ended);\n',
      to: '',
    },
    {
      name: 'graph-ended-stream-unheard',
      fault: 'the end of the stream of the last launch is not heard',
      from: '    identity.observe(this);\n',
      to: '',
    },
    {
      name: 'graph-ended-stream-forgotten',
      fault: 'the event of the last launch, whose stream has ended, is dropped',
      from: '    this.#ended = this.#last.afterEnd(event);\n',
      to: '',
    },
    {
      name: 'graph-launch-of-former-stream',
      fault: 'the stream of the first launch counts as that of the last',
      from: '    if (this.#last?.identity !== identity) this.#follow(identity);',
      to: '    if (this.#last === undefined) this.#follow(identity);',
    },
    {
      name: 'graph-launch-of-former-event',
      fault: 'the event of an earlier launch on the stream stands for the last one',
      from: '    last.freeUnrecorded();\n',
      to: '',
    },
    {
      name: 'graph-event-of-another-device',
      fault: 'the event of a launch is of the first device, whatever the stream',
      from: 'Device.get(identity.device)',
      to: 'Device.get(0)',
    },
  ],
  'src/graphs/captured-memory.ts': [
    {
      name: 'graph-launch-comes-first',
      fault: 'a launch does not come after the one before',
      from: '    this.#order.order(stream);\n',
      to: '',
    },
    {
      name: 'graph-launch-before-its-memory',
      fault: "a launch does not come after the upstream's work on the memory, nor after outputs that were given up",
      from: '    this.#region.orderLaunch(stream);\n',
      to: '',
    },
    {
      name: 'graph-launch-unnoticed',
      fault: 'a launch is not noticed',
      from: '    this.#order.used(stream);\n',
      to: '',
    },
    {
      name: 'graph-memory-ends-with-first',
      fault: 'the memory of a graph ends although an executable graph is left',
      from: '    if (--this.#users === 0) this.end();',
      to: '    this.#users--;\n    this.end();',
    },
    {
      name: 'graph-launched-after-its-memory',
      fault: 'a graph is launched although its memory has ended',
      from: "    if (this.#hasEnded) throw alreadyDisposed('launch a graph', 'the GraphMemoryResource that has its memory');\n",
      to: '',
    },
    {
      name: 'graph-launched-in-sleeping-memory',
      fault: 'a graph is launched although its memory is asleep',
      from: "    for (const [address, bytes] of this.usedBytes) assertAwake(address, bytes, 'launch a graph');\n",
      to: '',
    },
    {
      name: 'graph-launched-in-sleeping-kept-memory',
      fault: 'a graph is launched although memory that it keeps is asleep',
      from: "    for (const { address, bytes } of this.kept) assertAwake(address, bytes, 'launch a graph');\n",
      to: '',
    },
  ],
  'src/graphs/graph-region.ts': [
    {
      name: 'graph-memory-returned-unordered',
      fault: 'memory goes back before the last launch',
      from: '      this.#order.order(stream);\n',
      to: '',
    },
    {
      name: 'graph-fresh-memory-unordered',
      fault: 'a launch does not come after what the upstream had queued on new memory',
      from: '    this.#isFresh = true;\n    this.reservedBytes += bytes;',
      to: '    this.reservedBytes += bytes;',
    },
    {
      name: 'graph-output-given-up-unordered',
      fault: 'memory goes back, and a launch comes, before what was queued where an output was given up',
      from: '    this.#orderAfter(stream, this.#ownStream());\n    this.#isFresh = true;',
      to: '    this.#isFresh = true;',
    },
    {
      name: 'graph-output-given-up-before-launch',
      fault: 'a launch comes before what was queued where an output was given up',
      from: '    this.#orderAfter(stream, this.#ownStream());\n    this.#isFresh = true;',
      to: '    this.#orderAfter(stream, this.#ownStream());',
    },
    {
      name: 'graph-extent-cut-in-pieces',
      fault: 'an adaptor that remembers what came gets a part of it back',
      from: '    if (this.#takesPieces) return Math.min',
      to: '    if (this.growsInPlace) return Math.min',
    },
  ],
  'src/graphs/graph-memory-resource.ts': [
    {
      name: 'graph-output-given-up-anywhere',
      fault: 'nothing comes after what was queued where an output was given up',
      from: '    if (this.#streamInCapture(stream) === none) this.#region.follow(stream);\n',
      to: '',
    },
    {
      name: 'graph-trim-of-used-memory',
      fault: 'memory goes back that a graph uses',
      from: '      for (const [address, bytes] of usedBytes) needed.set(address, Math.max(needed.get(address) ?? 0, bytes));\n',
      to: '      for (const [address] of usedBytes) needed.set(address, needed.get(address) ?? 0);\n',
    },
    {
      name: 'graph-output-freed-as-captured',
      fault: "an output of another graph counts as the capture's allocation at its address",
      from: '    if (this.#ending !== undefined) return true;\n    return ',
      to: '    return bytes < 0 && ',
    },
    {
      name: 'graph-no-doubt',
      fault: 'after a free that may be of an output, the next one there counts as that of the capture',
      from: '      if (request !== none && this.#ending === undefined) capture.doubt(pointer);\n',
      to: '',
    },
    {
      name: 'graph-kept-memory-returned-late',
      fault: 'memory that a graph keeps stays when the graph ends',
      from: '      this.#kept.cut(segment);\n      this.#region.giveBack(segment);\n',
      to: '',
    },
    {
      name: 'graph-capture-sees-no-edges',
      fault: 'a capture hears of no event',
      from: '    observeEvents(capture);\n',
      to: '',
    },
    {
      name: 'graph-memory-goes-under-a-buffer',
      fault: 'memory of a graph goes back although a buffer in it cannot be freed',
      from: '    if (refused.length > 0) {\n      this.#unended.set(memory, reason);\n      return refused;\n    }\n',
      to: '',
    },
  ],
  'src/driver/graphs/graph-exec.ts': [
    {
      name: 'graph-update-keeps-memory',
      fault: 'an executable graph that was updated uses memory that it does not have',
      from: '    this.useMemory(graph.memory);\n',
      to: '',
    },
    {
      name: 'graph-launch-noted-before',
      fault: 'a launch is noted before it is queued',
      from: "    memory?.beforeLaunch(stream);\n    native().launchGraph(this.handle, stream.handle, warnOfLostFunctions);\n    check('launch a graph');\n    memory?.launched(stream);\n",
      to: "    memory?.beforeLaunch(stream);\n    memory?.launched(stream);\n    native().launchGraph(this.handle, stream.handle, warnOfLostFunctions);\n    check('launch a graph');\n",
    },
  ],
  'src/collector/stage-timings.ts': [
    {
      name: 'trim-before-settle',
      fault: 'resources are trimmed before the device is idle',
      from: "= ['settle', 'trim', ",
      to: "= ['trim', 'settle', ",
    },
    {
      name: 'major-before-minor',
      fault: 'all garbage is collected before young garbage',
      from: "'trim', 'minor-collection', 'major-collection', 'callback'];",
      to: "'trim', 'major-collection', 'minor-collection', 'callback'];",
    },
  ],
  'src/collector/free-unreachable-buffers.ts': [
    {
      name: 'sweep-in-sweep',
      fault: 'a nested sweep retries what was refused',
      from: 'if (isSweeping) return freeTaken(takeUnreachable());',
      to: 'if (isSweeping) return freeRefused() + freeTaken(takeUnreachable());',
    },
  ],
  'src/interchange/foreign-memory-resource.ts': [
    {
      name: 'foreign-released-while-busy',
      fault: 'memory of another library is released although the stream still works',
      from: '} else if (stream.query()) {',
      to: '} else if (stream.query() || !stream.isDisposed) {',
    },
    {
      name: 'foreign-released-at-failed-wait',
      fault: 'memory of another library is released when the wait for its event fails once',
      from: '      try {\n        await event.synchronize();\n      } catch {} // The device',
      to: '      try {\n        event.query();\n      } catch {} // The device',
    },
    {
      name: 'foreign-released-at-exit-while-busy',
      fault: 'memory of another library is released at the exit although a device still works',
      from: 'if (attemptEach(usedDevices(), (device) => device.synchronizeSync()).length > 0) return;',
      to: 'if (attemptEach(usedDevices(), (device) => device.index).length > 0) return;',
    },
  ],
  'src/buffers/device-buffer.ts': [],
  'src/interchange/cuda-array-interface.ts': [
    {
      name: 'array-not-awaited',
      fault: 'the stream of a buffer does not wait for that of the array',
      from: 'if (producer !== undefined && producer.identity !== stream.identity) follow(stream, producer);',
      to: 'if (producer !== undefined && producer.identity !== stream.identity) follow(producer, stream);',
    },
  ],
  'src/lasting/region-table.ts': [
    {
      name: 'region-half-written',
      fault: 'a region whose writer has ended stays, without contents',
      from: '    if (region.contents === undefined) this.#forget(name, region);\n',
      to: '',
    },
    {
      name: 'region-lost-with-reader',
      fault: 'a region is lost once the last process that reads it has ended',
      from: 'if (region.contents === undefined) this.#forget(name, region);',
      to: 'if (region.users.size === 0) this.#forget(name, region);',
    },
    {
      name: 'region-two-writers',
      fault: 'a second process may write a region that is being written',
      from: '      const [writer] = known.users;\n',
      to: "      const [writer] = known.users;\n      if (writer !== undefined) return { reply: { is: 'writing' } };\n",
    },
    {
      name: 'region-descriptor-stays',
      fault: 'the descriptor of a region that is removed stays open',
      from: '    if (contents !== undefined) this.#close(contents.descriptor);\n',
      to: '',
    },
    {
      name: 'region-removed-in-use',
      fault: 'a region is removed while processes read it',
      from: 'if (region.users.size > 0) {',
      to: 'if (region.users.size > 0 && region.contents === undefined) {',
    },
    {
      name: 'region-beyond-limit',
      fault: 'a region that is written does not count against the limit',
      from: 'if (region.bytes > this.limitBytes - this.#bytes) {',
      to: 'if (region.bytes > this.limitBytes) {',
    },
  ],
  'src/lasting/keep-state.ts': [
    {
      name: 'region-unwanted-descriptor-stays',
      fault: 'a descriptor that came with a message that needs none stays open',
      from: '      if (descriptor !== undefined && !isNeeded) this.#close(descriptor);\n',
      to: '',
    },
  ],
  'src/lasting/share-table.ts': [
    {
      name: 'share-not-told',
      fault: 'members are not told of a share that was lowered',
      from: "return { reply: { is: 'share set' }, told: [...share.members] };",
      to: "return { reply: { is: 'share set' }, told: [] };",
    },
    {
      name: 'share-not-divided',
      fault: 'every member has the whole share',
      from: 'Math.floor(share.bytes / share.members.size)',
      to: 'Math.floor(share.bytes)',
    },
  ],
  'src/lasting/mapped-region.ts': [
    {
      name: 'region-committed-early',
      fault: 'a region is committed before the work that writes it has run',
      from: 'if (status === notReadyStatus || status === NativeStatus.inUse) {',
      to: 'if (status === NativeStatus.inUse) {',
    },
    {
      name: 'region-written-after-commit',
      fault: 'copies write a region that others read',
      from: "    check('make a region read-only');\n    guardWrites(this.#guard);\n",
      to: "    check('make a region read-only');\n",
    },
  ],
  'src/lasting/serve-regions.ts': [
    {
      name: 'keep-serves-deaf-peers',
      fault: 'the connection of a peer that does not read its answers goes on',
      from: 'const isUnderstood = isSent(connection, reply, descriptor) && isLast !== true;',
      to: 'isSent(connection, reply, descriptor);\n    const isUnderstood = isLast !== true;',
    },
    {
      name: 'keep-serves-many',
      fault: 'a process may have any number of connections',
      from: 'if (this.#connections.size < mostConnections && ofProcess < mostOfProcess) {',
      to: 'if (this.#connections.size < mostConnections && ofProcess >= 0) {',
    },
  ],
  'src/lasting/lasting-memory-resource.ts': [
    {
      name: 'region-other-allocations',
      fault: 'a process that reads may make other allocations than the one that wrote',
      from: 'if (expected[place] === bytes) return;',
      to: 'if (expected.length >= place) return;',
    },
    {
      name: 'region-kept-after-dispose',
      fault: 'a region stays mapped and locked after the last allocation in it was freed',
      from: '    if (this.isDisposed) this.#end();\n',
      to: '',
    },
  ],
  'src/processes/imported-memory.ts': [
    {
      name: 'importer-not-awaited',
      fault: 'memory of another process is unmapped although work that uses it has not run',
      from: 'const event = stream.query() ? undefined : recordedEvent(stream);',
      to: 'const event = stream.isDisposed ? recordedEvent(stream) : undefined;',
    },
  ],
  'src/processes/process-export.ts': [
    {
      name: 'exported-freed-while-used',
      fault: 'memory is freed although another process uses it',
      from: 'return closeExport(this.#number, false);',
      to: 'return closeExport(this.#number, false) || true;',
    },
    {
      name: 'exported-taken-while-used',
      fault: 'a resource takes memory back that another process uses',
      from: 'if (!closeExport(this.#number, true)) return false;',
      to: 'closeExport(this.#number, true);',
    },
    {
      name: 'later-work-not-awaited',
      fault: 'a second export is not ordered after what was queued since the first',
      from: 'refreshExport(this.#number, byteLength, stream);',
      to: 'if (stream.isDisposed) refreshExport(this.#number, byteLength, stream);',
    },
  ],
  'src/interchange/dlpack.ts': [
    {
      name: 'tensor-not-awaited',
      fault: 'the consumer of a tensor does not wait for its producer',
      from: 'if (consumer.identity !== producer.identity) follow(consumer, producer);',
      to: 'if (consumer.identity !== producer.identity) follow(producer, consumer);',
    },
    {
      name: 'host-tensor-not-awaited',
      fault: 'the host gets a tensor whose producer still works',
      from: '      producer.synchronizeSync();\n      return undefined;',
      to: '      return undefined;',
    },
  ],
  'src/interchange/consumers.ts': [
    {
      name: 'consumer-not-awaited',
      fault: 'memory is freed although the consumer of a tensor still works',
      from: 'if (leader === consumer && leader.identity !== stream.identity) follow(stream, leader);',
      to: 'if (leader !== consumer) follow(stream, leader);',
    },
    {
      name: 'ended-consumer-not-awaited',
      fault: 'memory is freed although the consumer of a tensor, whose stream has ended, still works',
      from: 'const leader = lastingStream(consumer);',
      to: 'const leader = consumer.isDisposed ? stream : consumer;',
    },
    {
      name: 'refused-order-not-repeated',
      fault: 'memory is freed although the driver refused to order it after the consumer',
      from: 'if (triesLeft > 1) {',
      to: 'if (triesLeft > maximumTries) {',
    },
  ],
};

export const byHand = Object.entries(faults).flatMap(([file, list]) => list.map((one) => ({ file, ...one })));
