// Faults, each put in by one changed line. `text` stands once in `file`; it has more lines than the changed one only where that alone is found
// more than once.
const streamOrder = 'test/adaptors/stream-order.test.ts';
const monotonicOrder = 'test/adaptors/monotonic-stream-order.test.ts';
const arena = 'test/adaptors/arena-memory-resource.test.ts';
const fixedSize = 'test/adaptors/fixed-size-memory-resource.test.ts';
const caching = 'test/adaptors/caching-memory-resource.test.ts';
const pool = 'test/adaptors/pool-memory-resource.test.ts';
const monotonic = 'test/adaptors/monotonic-memory-resource.test.ts';
const reclaiming = 'test/adaptors/reclaiming-resource-adaptor.test.ts';
const tracking = 'test/adaptors/tracking-resource-adaptor.test.ts';
const underStress = 'test/adaptors/keepers-under-stress.test.ts';
const timeline = 'test/driver/stream-timeline.test.ts';

/** The mutants of one file: name, fault, text, replacement, and the tests that must notice it where those are not `tests`. */
const groups = [
  {
    file: 'src/stream-ordering/lane.ts',
    tests: [streamOrder],
    mutants: [
      [
        'lane-keeps-its-recording',
        'rmm#2489: a lane that takes over memory of another keeps the event it has recorded before',
        'received(): void {\n    this.freeUnrecorded();',
        'received(): void {\n    if (!this.#isRecorded) this.freeUnrecorded();',
      ],
      [
        'idle-lane-receives-unmarked',
        'rmm#2489: a lane whose stream is idle takes over memory of another and stays idle',
        'received(): void {\n    this.freeUnrecorded();',
        'received(): void {\n    if (!this.isIdle) this.freeUnrecorded();',
      ],
      [
        'unannounced-end-not-recorded',
        'rmm#649: on a stream whose end nobody announces, recording is put off',
        'this.mustRecord = !isHeld && !timeline.announcesEnd;',
        'this.mustRecord = false;',
      ],
      [
        'event-of-first-device',
        'rmm#1333: the event of a lane belongs to the first device',
        'this.#event ??= new Event({ device: this.#device });',
        'this.#event ??= new Event();',
      ],
      [
        'free-during-synchronization',
        'a free while a synchronization goes on counts as covered by it',
        'freeUnrecorded(): void {\n    this.#isUnrecorded = true;\n    this.#freedAt = this.timeline.synchronizing;',
        'freeUnrecorded(): void {\n    this.#isUnrecorded = true;\n    this.#freedAt = this.timeline.synchronized;',
      ],
      [
        'fence-replaces-another',
        "of two callers' events the one handed in last stands for both",
        'else if (known.event !== event || known.version !== event.version) this.#isUnrecorded = true;',
        'else this.#recording = { event, version: event.version };',
      ],
      [
        'fence-recorded-again',
        "a caller's event that was recorded again, elsewhere, is relied on",
        'return event.version !== version || event.handle < 0;',
        'return event.handle < 0;',
      ],
      [
        'fence-not-waited-for',
        "a caller's event is not waited for",
        'if (this.#recording !== undefined) timeline.wait(this.#recording.event);',
        '',
      ],
      [
        'fence-not-settled',
        "rmm#510: a caller's event needs no settlement when the stream ends",
        'return !this.isIdle && (this.#isUnrecorded || this.#recording !== undefined);',
        'return !this.isIdle && this.#isUnrecorded;',
      ],
      [
        'unrecorded-passes-for-ordered',
        'rmm#649: memory that no event could be recorded for goes to other streams though its own may be gone',
        'return (this.isHeld || (this.mustRecord && this.#isUnrecorded)) && !this.isIdle;',
        'return this.isHeld && !this.isIdle;',
      ],
      [
        'refused-recording-stands',
        'an event whose recording was refused is relied on',
        '      if (this.#isRecorded) this.#isUnrecorded = true;\n',
        '',
        [underStress],
      ],
      [
        'left-event-recorded-again',
        'a lane records the event again that memory has left with',
        '    this.#event = undefined;\n',
        '',
        ['test/stream-ordering/lane.test.ts'],
      ],
    ],
  },
  {
    file: 'src/stream-ordering/stream-ordering.ts',
    tests: [streamOrder],
    mutants: [
      [
        'ended-stream-not-waited-for',
        'rmm#510: memory of an ended stream waits for nothing',
        'if (settlement !== undefined) dependOn(this.#ended, [settlement]);',
        '',
      ],
      [
        'first-ended-stream-only',
        'rmm#510: of several ended streams only the last is waited for',
        'for (const event of common.events) if',
        'for (const event of common.events.slice(-1)) if',
      ],
      [
        'older-event-stands',
        'of two events of one stream the older one stands for both',
        'known.version < event.version',
        'known.version > event.version',
        [arena],
      ],
      [
        'united-events-forgotten',
        'once a stream has waited for many events, others wait for none',
        '    common.events = [event];\n',
        '    common.events = [];\n',
      ],
      [
        'slot-keeps-shared-lane',
        'rmm#2251: a new stream gets the lane of an ended one with its slot (with events)',
        '    this.#shared[timeline.slot] = undefined;\n',
        '',
      ],
      [
        'slot-keeps-held-lane',
        "rmm#2251: a new stream gets the lane of an ended one with its slot ('off')",
        '    this.#held[timeline.slot] = undefined;\n',
        '',
      ],
      [
        'lane-number-keeps-memory',
        "rmm#2251: an ended stream's memory stays under its lane number, which the next stream gets",
        'this.#memory.transfer(lane.number, this.#ended.number);',
        '',
      ],
      [
        'fence-where-end-unannounced',
        "rmm#649: a caller's event is relied on where the end of the stream is not announced",
        'if (lane.mustRecord) lane.freeRecorded();\n      else lane.freeWithRecording(fence);',
        'lane.freeWithRecording(fence);',
      ],
      ['held-memory-shared', "'off': memory of a busy stream is given to another", '      if (lane.isHeldBack) continue;\n', ''],
      [
        'gathered-memory-unmarked',
        'rmm#2489: what a trim gathers on a stream is not marked',
        'this.#memory.transfer(number, into.number);\n      into.received();',
        'this.#memory.transfer(number, into.number);',
      ],
      [
        'collected-lane-not-waited-for',
        'memory that streams return to a lane of all waits for nothing',
        'if (event !== undefined) dependOn(common, [event]);',
        '',
        [arena],
      ],
      [
        'collected-common-not-waited-for',
        'memory of ended streams that is moved to a lane of all waits for nothing',
        '      dependOn(common, other.events);\n',
        '',
        [arena],
      ],
      [
        'busy-lane-collected',
        "'off': a lane that is held for a busy stream is collected for all",
        ' || (lane.isHeldBack && lane.timeline !== stream?.timeline)) continue;',
        ') continue;',
        [arena],
      ],
      [
        'ended-awaits-nothing',
        'memory in use whose stream ended is not ordered after a free on another stream',
        'dependOn(this.#ended, event === undefined ? (this.#commonLane(number)?.events ?? []) : [event]);',
        '',
        [monotonicOrder],
      ],
      [
        'awaited-end-not-settled',
        'the end of a stream is not settled for its memory in use',
        'this.#memory.isAwaited?.(lane.number) || ',
        '',
        [monotonicOrder],
      ],
      [
        'host-wait-fails-allocation',
        'an allocation in a host function fails with an error of the driver',
        'if (error instanceof DriverError && error.driverStatus === notPermittedStatus) break;',
        '',
      ],
    ],
  },
  {
    file: 'src/driver/stream-timeline.ts',
    tests: [timeline],
    mutants: [
      [
        'busy-stream-counts-as-run',
        'a query that says no counts as a synchronization',
        'if (mailbox[1] !== 1) return false;',
        'if (mailbox[1] !== 1) return complete() ?? false;',
      ],
      [
        'synchronization-covers-later-work',
        'the end of a synchronization counts for what was queued since it began',
        'if (this.synchronized < number) this.synchronized = number;',
        'this.synchronized = this.synchronizing;',
      ],
      [
        'ending-timeline-joined',
        'a stream that is ending is taken for one that lives',
        'if (known !== undefined && !known.#isEnding) {',
        'if (known !== undefined) {',
      ],
      [
        'end-never-recorded',
        'rmm#510: the end of a stream is never preceded by an event',
        'if (observers.some((observer) => observer.needsSettlement(this))) event = record();',
        '',
        [timeline, streamOrder],
      ],
      ['failed-end-is-final', 'a stream whose end failed cannot be used any more', '      this.#isEnding = false;\n      for', '      for'],
    ],
  },
  {
    file: 'src/suballocation/free-space-index.ts',
    tests: ['test/suballocation/free-space-index.test.ts'],
    mutants: [
      [
        'joins-next-of-other-lane',
        "a freed block is joined with a neighbour of another stream's",
        'if (next !== none && blocks[next + stateField] === lane) {',
        'if (next !== none && (blocks[next + stateField] as number) >= 0) {',
      ],
      [
        'joins-previous-of-other-lane',
        "a freed block is joined with the one before it, of another stream's",
        'const joinsPrevious = previous >= 0 && blocks[previous + stateField] === lane;',
        'const joinsPrevious = previous >= 0 && (blocks[previous + stateField] as number) >= 0;',
      ],
      [
        'never-joins-previous',
        'a freed block is never joined with the one before it',
        'const joinsPrevious = previous >= 0 && blocks[previous + stateField] === lane;',
        'const joinsPrevious = false;',
      ],
      [
        'gives-used-segment-back',
        'a segment whose first block alone is free is given back',
        ' || this.#blocks[block + nextField] !== none) continue;',
        ') continue;',
      ],
      [
        'serves-too-small-block',
        'a block that is a unit too small serves a request',
        'if (size >= units && size <= bestSize',
        'if (size >= units - 1 && size <= bestSize',
      ],
      [
        'shift-by-32',
        'where the class is the last of its group, smaller ones are searched',
        '(-1 << (list & (divisions - 1))) << 1',
        '-1 << ((list & (divisions - 1)) + 1)',
      ],
      [
        'first-mixed-class-exact',
        'the first class of two sizes counts as exact',
        'if (list < exactClasses) return',
        'if (list <= exactClasses) return',
      ],
      [
        'rest-in-old-list',
        'what is left of a cut block stays in the list of its old size',
        'else this.#relist(free, size - units, lane);',
        'else blocks[free + sizeField] = size - units;',
      ],
      [
        'loses-alignment-gap',
        'what lies before an aligned address is lost',
        'this.#insertFree(this.#cutFront(block, (alignment - misaligned) / unitBytes, lane), lane);',
        'this.#cutFront(block, (alignment - misaligned) / unitBytes, lane);',
      ],
      [
        'alignment-off-by-one',
        'a block counts as sufficient for an alignment that is a unit too small',
        'const sufficient = units + alignment / unitBytes - 1;',
        'const sufficient = units + alignment / unitBytes - 2;',
      ],
      ['carve-off-by-one', 'the least rest of a block is not left', '- units >= leastRest)', '- units > leastRest)'],
      ['double-free-unnoticed', 'a freed block stays known as a used one', '    this.#used.remove(this.#address(block));\n', ''],
    ],
  },
  {
    file: 'src/suballocation/address-map.ts',
    tests: ['test/suballocation/address-map.test.ts'],
    mutants: [
      [
        'map-loses-entry',
        'an entry whose home was emptied is not found any more',
        '& mask) >= ((next - hole) & mask)',
        '& mask) > ((next - hole) & mask)',
      ],
      [
        'map-too-full',
        'the map grows when it is full, not when it is half full',
        'if (this.#count * 2 > this.#mask)',
        'if (this.#count > this.#mask - 1)',
      ],
    ],
  },
  {
    file: 'src/suballocation/block-lists.ts',
    tests: ['test/suballocation/block-lists.test.ts'],
    mutants: [
      ['list-not-smallest', 'a larger block than needed is taken', ' || size >= bestBytes || ', ' || '],
      [
        'list-gives-back-too-much',
        'a larger block than asked for is given back',
        ' && (this.#classBytes[number] as number) <= maximumBytes) {',
        ') {',
      ],
      [
        'list-head-stays',
        'the first block of a list stays its head when it is taken',
        'else (this.#heads[lane] as Int32Array)[blocks[block + classField] as number] = next;',
        '',
      ],
    ],
  },
  {
    file: 'src/suballocation/block-groups.ts',
    tests: ['test/suballocation/block-groups.test.ts'],
    mutants: [
      [
        'group-link-stays',
        'a block behind a removed one points back to that',
        'if (next !== none) records[next + previousField] = previous;',
        '',
      ],
    ],
  },
  {
    file: 'src/suballocation/bump-cursor.ts',
    tests: ['test/suballocation/bump-cursor.test.ts'],
    mutants: [
      [
        'cursor-beyond-end',
        'the cursor hands out 256 bytes beyond a block',
        'const address = this.#top;\n    const top = address + bytes;\n    if (top > this.#end) return none;',
        'const address = this.#top;\n    const top = address + bytes;\n    if (top > this.#end + ALLOCATION_ALIGNMENT) return none;',
      ],
      ['cursor-free-beyond-top', 'a free beyond what was handed out is accepted', ' && address + bytes <= this.#top && ', ' && '],
      [
        'cursor-not-rewound',
        'a rewind within a block leaves the cursor where it is',
        'if (blockCount === this.#starts.length) {\n      this.#top = top;',
        'if (blockCount === this.#starts.length) {',
      ],
    ],
  },
  {
    file: 'src/suballocation/bump-chains.ts',
    tests: [monotonicOrder],
    mutants: [
      [
        'foreign-free-lost-at-end',
        'a free on another stream is forgotten when that stream ends',
        'if (chain.awaited.delete(from)) chain.awaited.add(to);',
        'chain.awaited.delete(from);',
      ],
      [
        'foreign-free-not-settled',
        'the end of a stream is not settled for what it freed of others',
        ' && (own === lane || awaited.has(lane)));',
        ' && own === lane);',
      ],
      ['chain-goes-to-new-stream', "rmm#2251: a new stream goes on in an ended one's blocks", '    this.#current[from] = undefined;\n', ''],
      [
        'rewind-within-block-skipped',
        'a rewind skips streams whose cursor stays in its block',
        'if (step.blockCount < blockCount || step.top < top) steps.push(step);',
        'if (step.blockCount < blockCount) steps.push(step);',
        [monotonic],
      ],
    ],
  },
  {
    file: 'src/adaptors/stream-ordered-memory-resource.ts',
    tests: [streamOrder],
    mutants: [
      [
        'fresh-memory-unordered',
        'rmm#2507: memory fresh from the upstream is not ordered on its stream',
        'this.#memory.addSegment(segment.address, segment.bytes, lane.number);\n    lane.received();',
        'this.#memory.addSegment(segment.address, segment.bytes, lane.number);',
      ],
      [
        'reuse-without-wait',
        "another stream's block is reused without a wait",
        '    try {\n      this.ordering.order(stream, other);',
        '    try {',
      ],
      [
        'block-lost-where-wait-fails',
        'a block is lost where the wait for it fails',
        '      this.#memory.free(this.#memory.usedBlock(address), other);\n',
        '',
        [pool],
      ],
      [
        'ended-stream-not-awaited',
        'memory that came for a stream which ended meanwhile is not waited for',
        '    try {\n      this.device.synchronizeSync();\n    } catch (error) {\n      if (error instanceof DriverError',
        '    try {\n    } catch (error) {\n      if (error instanceof DriverError',
      ],
      [
        'refused-block-not-counted',
        'a block that the upstream does not take back is not counted any more',
        '        this.#reservedBytes += segment.bytes;\n',
        '',
        [pool],
      ],
      [
        'arriving-bytes-not-counted',
        're-entrancy: bytes that the upstream is being asked for do not count',
        'return this.#reservedBytes + this.#arrivingBytes;',
        'return this.#reservedBytes;',
        [pool, arena],
      ],
      [
        'disposed-twice',
        're-entrancy: blocks are given back twice where this is disposed while it gives them back',
        '    const segments = this.#leftSegments;\n    this.#leftSegments = [];',
        '    const segments = this.#leftSegments;',
      ],
      [
        'lane-of-other-stream-after-growth',
        're-entrancy: after a call of the upstream the lane of another stream is used',
        'this.keepSegment({ address, bytes }, stream);\n    }\n    this.enter',
        'this.keepSegment({ address, bytes }, stream);\n    }\n    if (this.isDisposed) this.enter',
      ],
      [
        'lane-of-other-stream-after-release',
        're-entrancy: after giving a block back the lane of another stream is used',
        "      this.enter(stream, 'release memory');\n",
        '',
      ],
      [
        'disposed-in-no-order',
        'dispose gives memory back without waiting for the streams that freed it',
        '      this.ordering.gather(stream, this.lane as Lane);\n',
        '',
      ],
      ...['eager', 'deferred', 'off'].map((policy) => [
        `join-unmarked-${policy}`,
        `rmm#2489, '${policy}': the lane of a stream that took all memory of another over is not marked`,
        'this.#memory.transfer(other, lane.number);\n      lane.received();',
        `this.#memory.transfer(other, lane.number);\n      if (this.deallocationEvents !== '${policy}') lane.received();`,
      ]),
      [
        'join-unmarked-monotonic',
        "rmm#2489: a stream that took another's blocks to bump in is not marked",
        'this.#memory.transfer(other, lane.number);\n      lane.received();',
        'this.#memory.transfer(other, lane.number);',
        [monotonicOrder],
      ],
      [
        'join-unmarked-cache',
        'rmm#2489: a stream that took free blocks of a cache over from another is not marked',
        'this.#memory.transfer(other, lane.number);\n      lane.received();',
        'this.#memory.transfer(other, lane.number);',
        [caching],
      ],
      [
        'join-without-wait',
        "another stream's memory is joined without a wait",
        '      this.ordering.order(stream, other);\n      this.#memory.transfer',
        '      this.#memory.transfer',
      ],
      [
        'second-lane-unmarked',
        "rmm#2489: what is moved between a stream's two lanes is not marked",
        'this.#memory.transfer(second.number, lane.number);\n      lane.received();',
        'this.#memory.transfer(second.number, lane.number);',
      ],
      [
        'maximum-off-by-one',
        'a keeper exceeds its maximum by 256 bytes',
        'return least <= left && ',
        'return least <= left + ALLOCATION_ALIGNMENT && ',
        [pool, monotonic],
      ],
      [
        'trim-keeps-nothing',
        'trim gives back what is to be kept',
        '() => this.#reservedBytes - bytesToKeep',
        '() => this.#reservedBytes',
        [pool],
      ],
      [
        'kept-memory-is-cached',
        'a cache below takes back what a keeper of memory holds when its run ends',
        'withoutCaching(() => this.upstream.allocate(bytes, stream))',
        'this.upstream.allocate(bytes, stream)',
        [caching],
      ],
    ],
  },
  {
    file: 'src/adaptors/suballocating-memory-resource.ts',
    tests: [streamOrder],
    mutants: [
      [
        'wrong-size-freed',
        'a free with a wrong size is taken',
        'if (block === none || this.index.askedBytes(block) !== bytes) {',
        'if (block === none) {',
        [pool],
      ],
      [
        'free-unordered',
        'a free without a fence is not ordered',
        'if (fence === undefined) this.ordering.freed(lane);\n    else lane',
        'if (fence !== undefined) lane',
      ],
      [
        'fence-in-wrong-lane',
        "a block goes to the stream's own lane, whatever its fence says",
        'this.index.free(block, lane.number);',
        'this.index.free(block, (this.lane as Lane).number);',
      ],
      [
        'last-stream-by-slot',
        'rmm#2251: the lane of the last call serves a new stream with the same slot',
        "if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');",
        "if (stream.timeline?.slot !== this.lastStream.timeline?.slot || stream.handle < 0) this.enter(stream, 'allocate');",
      ],
    ],
  },
  {
    file: 'src/adaptors/pool-memory-resource.ts',
    tests: [streamOrder],
    mutants: [
      [
        'no-last-search',
        'a pool is out of memory though it has a block that fits',
        'return this.searchLane((this.lane as Lane).number, bytes, alignment);',
        'return none;',
        [pool, underStress],
      ],
      [
        'initial-block-without-wait',
        'rmm#2507: the first stream takes the initial block without a wait',
        'const hasWaited = this.ordering.order(stream, initial.number);',
        'const hasWaited = false;',
      ],
      [
        'initial-block-unmarked',
        'rmm#2489, rmm#2507: the stream that took the initial block over is not marked',
        '    if (hasWaited) lane.received();\n',
        '',
      ],
    ],
  },
  {
    file: 'src/adaptors/arena-memory-resource.ts',
    tests: [arena],
    mutants: [
      [
        'superblock-without-wait',
        'a superblock of the global arena is taken without a wait',
        'const hasWaited = this.ordering.order(stream, this.#global);',
        'const hasWaited = false;',
      ],
      ['superblock-unmarked', 'rmm#2489: a stream that took a superblock is not marked', '    if (hasWaited) lane.received();\n', ''],
      [
        'last-search-without-wait',
        'what the last search finds in the global arena is not waited for',
        'if (this.ordering.order(stream, this.#global)) (this.lane as Lane).received();',
        '',
        [underStress],
      ],
      [
        'fresh-arena-unordered',
        'rmm#2507: the block of the upstream comes into the global arena without an order',
        '      this.ordering.receivedInCommon(this.#global, stream);\n',
        '',
      ],
      [
        'arena-grows-beyond-size',
        're-entrancy: an arena takes its block twice',
        'Math.min(this.arenaBytes - this.claimedBytes, maximumBlockBytes)',
        'Math.min(this.arenaBytes - this.reservedBytes, maximumBlockBytes)',
      ],
      [
        'superblock-split-to-nothing',
        'a rest of less than a superblock stays in the global arena',
        'carve(units, superblockUnits,',
        'carve(units, 1,',
      ],
      [
        'superblock-without-alignment',
        'a superblock has no room for the alignment',
        'const units = alignUp(leastBytes(bytes, alignment), superblockBytes) / unitBytes;',
        'const units = alignUp(leastBytes(bytes, ALLOCATION_ALIGNMENT), superblockBytes) / unitBytes;',
      ],
    ],
  },
  {
    file: 'src/adaptors/monotonic-memory-resource.ts',
    tests: [monotonicOrder],
    mutants: [
      [
        'rewind-unordered',
        'a rewind takes memory back without any order',
        'for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);',
        '',
      ],
      [
        'rewind-frees-unordered',
        'blocks beyond a rewind go to other streams without a wait',
        'for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);',
        'for (const { chain } of steps) this.#order(chain, false);',
      ],
      [
        'rewind-orders-too-late',
        'a rewind orders blocks once they are in their lane',
        'for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);\n    for (const step of steps) this.#memory.stepBack(step);',
        'for (const step of steps) this.#memory.stepBack(step);\n    for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);',
      ],
      [
        'foreign-free-not-noted',
        'a free on another stream is not waited for by a rewind',
        "chain.awaited.add(this.ordering.freedWith(asked === 'off' ? 'deferred' : asked, stream).number);",
        "this.ordering.freedWith(asked === 'off' ? 'deferred' : asked, stream);",
      ],
      [
        'owner-does-not-wait',
        'the stream that owns memory does not wait for the free of another',
        'else if (owner.timeline.announcesEnd) this.ordering.order(owner, number);',
        '',
      ],
      [
        'host-does-not-wait',
        'a rewind does not wait where the owner may be gone',
        'if (awaited.size === 0) return false;',
        'if (awaited.size >= 0) return false;',
      ],
      [
        'monotonic-lane-unannounced',
        'rmm#649: blocks of a stream whose end nobody announces are shared at a rewind',
        'const lane = stream.timeline.announcesEnd ? (this.lane as Lane) : this.ordering.heldLaneOf(stream);',
        'const lane = this.lane as Lane;',
      ],
      [
        'mark-never-falls',
        'a mark stands after a rewind to an earlier one',
        'this.#marks.pop()?.fall();',
        'this.#marks.pop();',
        [monotonic],
      ],
      [
        'fallback-off-by-one',
        'a rewind frees what the fallback gave before the mark',
        'serial > fallbackAllocations',
        'serial >= fallbackAllocations',
        [monotonic],
      ],
      [
        'fallback-freed-twice',
        'what was freed to the fallback is freed again by a rewind',
        '    this.#fallbackBlocks.delete(pointer);\n    try',
        '    try',
        [monotonic],
      ],
    ],
  },
  {
    file: 'src/adaptors/fixed-size-memory-resource.ts',
    tests: [fixedSize],
    mutants: [
      [
        'fixed-size-exceeds-maximum',
        'a part of a block that the maximum leaves counts as a block',
        'return Math.floor((this.#maximumBytes - this.claimedBytes) / this.blockBytes);',
        'return Math.ceil((this.#maximumBytes - this.claimedBytes) / this.blockBytes);',
      ],
      ['last-block-not-tried', 'the upstream is not asked for a single block', 'blocks >= 1; blocks', 'blocks > 1; blocks'],
      [
        'fixed-size-wrong-size',
        'what was asked for is not remembered',
        'const address = this.index.allocate(this.#blockUnits, this.blockBytes - bytes, (this.lane as Lane).number);',
        'const address = this.index.allocate(this.#blockUnits, 0, (this.lane as Lane).number);',
      ],
    ],
  },
  {
    file: 'src/adaptors/binning-memory-resource.ts',
    tests: ['test/adaptors/binning-memory-resource.test.ts'],
    mutants: [
      [
        'bin-skipped',
        'the smallest bin that fits is skipped',
        '(bytes) => bytes > 2 ** (exponent - 1)',
        '(bytes) => bytes > 2 ** exponent',
      ],
      [
        'full-bin-off-by-one',
        'a request of exactly the size of a bin goes to the next',
        'while (bytes > (this.#sizes[bin] as number)) bin++;',
        'while (bytes >= (this.#sizes[bin] as number)) bin++;',
      ],
      ['bin-policy-lost', 'the policy is not asked of resources given as bins', 'fence ?? this.#policies[bin]', 'fence'],
    ],
  },
  {
    file: 'src/adaptors/caching-memory-resource.ts',
    tests: [caching],
    mutants: [
      [
        'run-end-unordered',
        'what the end of a run takes back goes to other streams without a wait',
        '      this.ordering.freed(lane);\n    } catch',
        '    } catch',
      ],
      [
        'run-end-ended-stream',
        'the end of a run does not wait for a stream that was disposed',
        '      if (stream.isDisposed) this.synchronizeDevice();\n',
        '',
      ],
      [
        'run-end-takes-freed',
        'the end of a run takes back what was freed in it, a second time',
        '    this.#forget(block);\n    this.#blocks.free(block, lane.number);',
        '    this.#blocks.free(block, lane.number);',
      ],
      ['run-end-takes-kept', 'the end of a run takes back what was kept', '      this.#forget(block);\n    } else if', '    } else if'],
      [
        'run-end-takes-owned',
        "the end of a run frees a buffer's memory under it",
        'if (block === none || this.#owners[block / blockFields] !== undefined) return;',
        'if (block === none) return;',
      ],
      ['run-never-ends', 'what goes on after a run is still in it', '    run.hasEnded = true;\n', ''],
      ['run-counted-on', 'a run that has ended counts as active', '    this.#activeRuns--;\n', ''],
      [
        'cache-gives-back-too-much',
        'one block more than needed goes back to the upstream',
        'before - this.reservedBytes < rounded',
        'before - this.reservedBytes <= rounded',
      ],
    ],
  },
  {
    file: 'src/adaptors/limiting-resource-adaptor.ts',
    tests: ['test/adaptors/limiting-resource-adaptor.test.ts'],
    mutants: [
      ['limit-excluded', 'exactly the limit is refused', 'if (accountedBytes > this.limitBytes', 'if (accountedBytes >= this.limitBytes'],
      [
        'limit-unrounded',
        'the limit is held against the size before it is rounded',
        'if (accountedBytes > this.limitBytes',
        'if (bytes > this.limitBytes',
      ],
      [
        'limit-counts-after-call',
        're-entrancy: an allocation counts only after the upstream was called',
        'return this.upstream.allocate(bytes, stream, alignment);',
        countedAfter('this.#allocatedBytes', 'accountedBytes', 'return this.upstream.allocate(bytes, stream, alignment);'),
      ],
      ['limit-keeps-failed', 'an allocation that fails goes on counting', 'this.#allocatedBytes -= accountedBytes;', ''],
    ],
  },
  {
    file: 'src/adaptors/statistics-resource-adaptor.ts',
    tests: ['test/adaptors/statistics-resource-adaptor.test.ts'],
    mutants: [
      [
        'inner-peak-from-zero',
        'an inner peak is not added to what was live',
        'Math.max(this.peak, this.current + inner.peak)',
        'Math.max(this.peak, inner.peak)',
      ],
      ['inner-failures-lost', 'inner failures are lost at a pop', '    this.failedAllocations += inner.failedAllocations;\n', ''],
      ['peak-is-current', 'the peak falls', 'if (this.current > this.peak) this.peak', 'this.peak'],
      ['mistakes-count-as-failures', 'mistakes in an argument count as failed allocations', 'if (isAllocationFailure(error)) this', 'this'],
    ],
  },
  {
    file: 'src/adaptors/logging-resource-adaptor.ts',
    tests: ['test/adaptors/logging-resource-adaptor.test.ts'],
    mutants: [
      [
        'row-of-other-stream',
        're-entrancy: a row names the stream of a call that came meanwhile',
        'LogAction.allocateNothing : LogAction.allocate, pointer, bytes, suffix);',
        'LogAction.allocateNothing : LogAction.allocate, pointer, bytes, this.#suffix as RowText);',
      ],
      ['full-log-unnoticed', 'allocations go on though the log cannot be written', '    if (writer.isFull) writer.flush();\n', ''],
      [
        'row-before-free',
        'a free that fails leaves a row',
        'this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);',
        'try { this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents); } catch (error) { this.#writer.append(LogAction.free, pointer, bytes, suffix); throw error; }',
      ],
    ],
  },
  {
    file: 'src/adaptors/log-writer.ts',
    tests: ['test/adaptors/logging-resource-adaptor.test.ts'],
    mutants: [
      [
        'partial-write-repeated',
        'after a partial write rows are written again',
        '      this.#bytes.copyWithin(0, written, this.#length);\n',
        '',
      ],
    ],
  },
  {
    file: 'src/adaptors/tracking-resource-adaptor.ts',
    tests: [tracking],
    mutants: [
      [
        'refused-free-forgotten',
        'what the upstream refused to free is forgotten',
        '      if (record !== none) allocations.undoFree(pointer, record);\n',
        '',
      ],
      [
        'tracked-size-unchecked',
        'a free with another size is passed on',
        'if (record === none || allocations.bytesOf(record) !== bytes) {',
        'if (record === none) {',
      ],
    ],
  },
  {
    file: 'src/adaptors/outstanding-allocations.ts',
    tests: [tracking],
    mutants: [
      [
        'tracked-through-free',
        're-entrancy: a pointer stays in the books while the upstream frees it',
        '    this.#records.remove(pointer);\n',
        '',
      ],
      [
        'freed-bytes-outstanding',
        'what is freed goes on counting',
        'finishFree(record: number): void {\n    this.#allocatedBytes -= this.#bytes[record] as number;',
        'finishFree(record: number): void {',
      ],
      [
        'freed-past-tracking-counts',
        'memory that was freed past this and allocated again counts twice',
        '    } else {\n      this.#allocatedBytes -= this.#bytes[record] as number;\n',
        '    } else {\n',
      ],
    ],
  },
  {
    file: 'src/adaptors/aligned-resource-adaptor.ts',
    tests: ['test/adaptors/aligned-resource-adaptor.test.ts'],
    mutants: [
      ['aligned-frees-inner', 'the upstream is given an inner pointer to free', 'pointer - offsetOf(placement)', 'pointer'],
      [
        'aligned-refused-free-lost',
        'what the upstream refused to free cannot be freed any more',
        '      this.#placements.insert(pointer, placement);\n',
        '',
      ],
      [
        'aligned-free-remembered',
        're-entrancy: a placement stays while the upstream frees',
        'this.#placements.take(pointer)',
        'this.#placements.get(pointer)',
      ],
      [
        'misaligned-leaks',
        'memory of an upstream that ignores the alignment is lost',
        '      this.upstream.deallocate(pointer, bytes, stream, this.deallocationEvents);\n',
        '',
      ],
      [
        'padding-too-small',
        'the upstream is asked for 256 bytes too few',
        'bytes + (alignment - ALLOCATION_ALIGNMENT)',
        'bytes + (alignment - 2 * ALLOCATION_ALIGNMENT)',
      ],
    ],
  },
  {
    file: 'src/adaptors/rounding-resource-adaptor.ts',
    tests: ['test/adaptors/rounding-resource-adaptor.test.ts'],
    mutants: [
      [
        'free-not-rounded',
        'a free passes the size on as it was asked for',
        'this.upstream.deallocate(pointer, rounded, stream',
        'this.upstream.deallocate(pointer, bytes, stream',
      ],
      ['rounded-bytes-drift', 'a free counts its size before rounding', 'this.#roundedBytes -= rounded;', 'this.#roundedBytes -= bytes;'],
    ],
  },
  {
    file: 'src/adaptors/fallback-resource-adaptor.ts',
    tests: ['test/adaptors/fallback-resource-adaptor.test.ts'],
    mutants: [
      [
        'fallback-remembers-freed',
        "a freed pointer stays known as the fallback's",
        'this.#pointers.take(pointer) !== none',
        'this.#pointers.get(pointer) !== none',
      ],
      [
        'fallback-refused-free-lost',
        'what the fallback refused to free is freed to the upstream',
        '      this.#pointers.insert(pointer, 0);\n      throw error;',
        '      throw error;',
      ],
      [
        'fallback-hides-errors',
        'any error of the upstream leads to the fallback',
        '      if (!(error instanceof OutOfMemoryError)) throw error;\n',
        '',
      ],
      ['fallback-bytes-drift', 'what is freed goes on counting', '    this.#fallbackBytes -= bytes;\n', ''],
    ],
  },
  {
    file: 'src/adaptors/layers.ts',
    tests: [reclaiming],
    mutants: [['layers-inside-out', 'the inner resources are trimmed before the outer ones', 'return layers.reverse();', 'return layers;']],
  },
  {
    file: 'src/adaptors/reclaiming-resource-adaptor.ts',
    tests: [reclaiming],
    mutants: [
      [
        'live-bytes-after-call',
        're-entrancy: an allocation counts only after the upstream was called',
        'const pointer = this.upstream.allocate(bytes, stream, alignment);',
        `let pointer = 0; ${countedAfter('this.#liveBytes', 'bytes', 'pointer = this.upstream.allocate(bytes, stream, alignment);')}`,
      ],
      ['live-bytes-keep-failed', 'an allocation that fails goes on counting', '      this.#liveBytes -= bytes;\n', ''],
      [
        'stages-in-callback',
        're-entrancy: an allocation in the callback starts the stages again',
        'if (this.#isReclaiming || this.#sums.length === 0) throw',
        'if (this.#sums.length === 0) throw',
      ],
      [
        'no-second-settle',
        'after a collection that freed something nothing is settled and trimmed',
        'if (recoveredBytes === 0 || isEarly(stage)) continue;',
        'continue;',
      ],
      [
        'stages-as-given',
        'the stages come in the order in which they were given',
        'const active = reclaimStages.filter((stage) => stages.includes(stage) && (stage',
        'const active = stages.filter((stage) => (stage',
      ],
      [
        'soft-limit-excluded',
        'exactly the soft limit starts a collection',
        'allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {\n    assertBytes(bytes);\n    if (bytes > this.#collectAtBytes',
        'allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {\n    assertBytes(bytes);\n    if (bytes >= this.#collectAtBytes',
      ],
    ],
  },
  {
    file: 'src/reclaim/stage-timings.ts',
    tests: [reclaiming],
    mutants: [
      ['trim-before-settle', 'resources are trimmed before the device has settled', "= ['settle', 'trim', ", "= ['trim', 'settle', "],
      [
        'major-before-minor',
        'everything is collected before what was made lately',
        "'trim', 'minor-collection', 'major-collection', 'callback'];",
        "'trim', 'major-collection', 'minor-collection', 'callback'];",
      ],
    ],
  },
  {
    file: 'src/reclaim/unreachable-buffers.ts',
    tests: ['test/gc/dropped-buffers.test.ts'],
    mutants: [
      ['refused-buffer-lost', 'memory of a collected buffer that was refused is not freed any more', '      keepRefused(memory);\n', ''],
      ['collected-buffer-freed-twice', 'memory of a collected buffer is freed by two sweeps', '    disown(slot);\n', ''],
    ],
  },
];

/** A call for which bytes are counted after it instead of before, as one line. */
function countedAfter(counter, bytes, call) {
  return `${counter} -= ${bytes}; try { ${call} } finally { ${counter} += ${bytes}; }`;
}

export const mutants = groups.flatMap(({ file, tests, mutants }) =>
  mutants.map(([name, fault, text, replacement, own = tests]) => ({ name, fault, file, text, replacement, tests: own })),
);
