// Faults of native code, each with the test that must find it: `node test/mutants/run-native-mutants.mjs`. Each text occurs once in
// its file.

/** Faults of the software device, and of what else has no need of Node, each with a case of native/test. */
export const nativeFaults = {
  'native/addon/tally.h': [
    {
      fault: 'a peak is lost while another is noted',
      from: '    while (now > highest && !peak.compare_exchange_weak(highest, now)) {\n    }\n',
      to: '    if (now > highest) peak.compare_exchange_weak(highest, now);\n',
      test: 'a peak is noted although',
    },
    {
      fault: 'what another thread is quicker to add is counted for both',
      from: '    } while (!current.compare_exchange_weak(now, now + amount));\n',
      to: '    } while (false);\n    current.compare_exchange_weak(now, now + amount);\n',
      test: 'what fits within a limit',
    },
  ],
  'native/arenas/thread_safe_arena.cc': [
    {
      fault: 'a small request cuts a large block although memory has run out',
      from: '      is_short_ = true;\n',
      to: '',
      test: 'once memory has run out, a small request',
    },
    {
      fault: 'a request that no close fit serves is refused while its own thread has memory',
      from: '  any_fit.cuts_large_blocks = true;\n',
      to: '',
      test: 'a request that only a much larger block serves',
    },
    {
      fault: 'a block that a large request needs whole is given back before',
      from: '      if (HasWholeSuperblocks(arena, place)) {\n',
      to: '      {\n',
      test: 'a request that only a much larger block serves',
    },
    {
      fault: 'a free takes its number after the driver has recorded its event',
      from: '    const std::uint64_t number = ++owner->last_number;\n    if (event != nullptr) status = table->EventRecord(event->event, stream);\n',
      to: '    if (event != nullptr) status = table->EventRecord(event->event, stream);\n    const std::uint64_t number = ++owner->last_number;\n',
      test: 'of two frees on one stream',
    },
    {
      fault: 'a wait takes its number before the stream waits',
      from: '    const Status status = AwaitAll(stream, uses);\n    const std::uint64_t number = ++arena.last_number;\n',
      to: '    const std::uint64_t number = ++arena.last_number;\n    const Status status = AwaitAll(stream, uses);\n',
      test: 'what is joined from several lanes',
    },
    {
      fault: 'a late event takes its number after it is recorded',
      from: '  const std::uint64_t number = ++arena.last_number;\n  if (status == kSuccess) {\n    status = driver->EventRecord(event->event, LegacyStream());\n    if (status != kSuccess) ReleaseUse(event);\n  }\n',
      to: '  if (status == kSuccess) {\n    status = driver->EventRecord(event->event, LegacyStream());\n    if (status != kSuccess) ReleaseUse(event);\n  }\n  const std::uint64_t number = ++arena.last_number;\n',
      test: 'what is freed on the legacy default stream while',
    },
    {
      fault: "another stream's memory is handed out without a wait",
      from: '    status = AwaitAll(place.stream, uses);\n',
      to: '    status = kSuccess;\n',
      test: 'memory freed on a stream serves it at once',
    },
    {
      fault: 'memory that was freed without an event is handed to another stream',
      from: '    if (other.is_unrecorded) {\n',
      to: '    if (false) {\n',
      test: 'memory that was freed on the legacy default stream',
    },
    {
      fault: 'memory of joined lanes is handed out without a wait',
      from: '      for (const EventUse& use : lane->before) {\n        if (!AddBefore(own, {use.event, use.number, false})) ReleaseUse(use.event);\n      }\n      lane->before.clear();\n',
      to: '      for (const EventUse& use : lane->before) {\n        if (!AddBefore(own, {use.event, use.number, true})) ReleaseUse(use.event);\n      }\n      lane->before.clear();\n',
      test: 'what is joined from several lanes',
    },
    {
      fault: 'a joined lane keeps the events that it has passed on',
      from: '        if (!AddBefore(own, {use.event, use.number, false})) ReleaseUse(use.event);\n      }\n      lane->before.clear();\n',
      to: '        if (!AddBefore(own, {use.event, use.number, false})) ReleaseUse(use.event);\n      }\n',
      test: "once another lane has joined a lane's memory",
    },
    {
      fault: 'a give-back removes a lane whose memory a thread is about to put back',
      from: '    other.pins += 1;\n    other.promised += uses.size();\n    lock.unlock();\n    status = AwaitAll(place.stream, uses);\n    lock.lock();\n    other.pins -= 1;\n',
      to: '    other.promised += uses.size();\n    lock.unlock();\n    status = AwaitAll(place.stream, uses);\n    lock.lock();\n',
      test: 'a take that the driver refuses puts memory back into its lane',
    },
    {
      fault: 'memory that the driver refuses to let a stream wait for is put back without its order',
      from: '      for (const EventUse& use : uses) {\n        if (!AddBefore(other, use)) ReleaseUse(use.event);\n      }\n',
      to: '      for (const EventUse& use : uses) ReleaseUse(use.event);\n',
      test: 'a take that the driver refuses puts memory back with its order',
    },
    {
      fault: 'superblocks that the driver refuses to give back are put back without their order',
      from: '      if (AddBefore(lane, use)) use.event->users.fetch_add(1);\n',
      to: '',
      test: 'a give-back that the driver refuses',
    },
    {
      fault: 'what was freed without an event serves others after an older event',
      from: '    if (lane.last_free < number) Hold(arena, lane, false);\n',
      to: '    Hold(arena, lane, false);\n',
      test: 'what was freed without an event is held for its stream',
    },
    {
      fault: 'superblocks go back without an event',
      from: '  if (!before.empty()) {\n    const DriverTable* table = driver;\n',
      to: '  if (false) {\n    const DriverTable* table = driver;\n',
      test: 'what a stream takes from the global arena',
    },
    {
      fault: 'superblocks that others had are taken without a wait',
      from: '  Status status = WaitForFrees(taken, [&](Event event) { return table->StreamWaitEvent(place.stream, event, 0); });\n',
      to: '  Status status = kSuccess;\n',
      test: 'what a stream takes from the global arena',
    },
    {
      fault: 'what was waited for at growth holds for one stream only',
      from: '  if (status == kSuccess && has_waited && RecordsAtFree(place.stream)) {\n',
      to: '  if (false) {\n',
      test: 'what a stream takes from the global arena',
    },
    {
      fault: 'under off, another stream has memory that was freed at once',
      from: '  index_of::shareLane(&arena.module, lane.lane, is_held ? 0 : 1);\n',
      to: '  index_of::shareLane(&arena.module, lane.lane, 1);\n',
      test: 'without events, memory stays',
    },
    {
      fault: 'under off, memory goes back before the device has done its work',
      from: '    if (!lane->is_held || lane->last_free >= arena.idle_since) continue;\n',
      to: '    if (!lane->is_held) continue;\n',
      test: 'without events, memory stays',
    },
    {
      fault: 'another resource that has run out does not wait for the device',
      from: '    if (may_wait && HasHeld()) AwaitDevice();\n',
      to: '',
      test: 'what a resource without events has freed',
    },
    {
      fault: 'streams are known by what the driver calls them',
      from: '  const Status status = driver->StreamGetId(stream, &id);\n',
      to: '  const Status status = kSuccess;\n  id = reinterpret_cast<std::uintptr_t>(stream);\n',
      test: 'a stream is known by its id',
    },
    {
      fault: 'a captured stream is not refused',
      from: '  if (status == kErrorCaptureImplicit || (status == kSuccess && capture != kCaptureNone)) return kCapturing;\n',
      to: '  if (status == kErrorCaptureImplicit) return kCapturing;\n',
      test: 'a captured stream is refused',
    },
    {
      fault: 'an idle thread does not give back what it has free',
      from: '    if (step == kOwnThreads || step == kDevice) GiveBack(step == kDevice);\n',
      to: '',
      test: 'what an idle thread holds',
    },
    {
      fault: 'a thread that ends keeps its superblocks',
      from: '  Guarded([&] { return GiveBackFrom(*arena), kSuccess; });\n',
      to: '',
      test: 'a thread that ends gives its superblocks back',
    },
    {
      fault: 'of many frees, a lane has no event',
      from: '    NoteFrees(*owner, *part.lane, part.number, event);\n',
      to: '    NoteFrees(*owner, *part.lane, part.number, nullptr);\n',
      test: 'many frees in one call have one event',
    },
    {
      fault: 'of many frees, those of one thread are made before those of another are checked',
      from: '    const Status status = parts.size() == 1 ? Status{kSuccess} : UsePart(',
      to: '    const Status status = true ? Status{kSuccess} : UsePart(',
      test: 'many frees in one call free nothing',
    },
    {
      fault: 'what is freed without an event serves others',
      from: '  } else {\n    Hold(arena, lane, true);\n  }\n}\n',
      to: '  }\n}\n',
      test: 'serves others after a wait for the device',
    },
    {
      fault: 'what was freed without an event never serves others',
      from: '    if (lane.last_free < number) Hold(arena, lane, false);\n',
      to: '',
      test: 'what an allocation of many gives back',
    },
    {
      fault: 'an allocation of many that is refused keeps what it had',
      from: '    if (status != kSuccess) UndoMany(arena, *own, place, sizes, *addresses, *done);\n',
      to: '',
      test: 'what an allocation of many gives back',
    },
    {
      fault: 'the events of streams that have ended are kept as long as the arena',
      from: '    if (other.key == kCommonKey && other.before.size() > kUsualLanes) {\n',
      to: '    if (false) {\n',
      test: 'leave no more events',
    },
    {
      fault: 'one event in place of many does not come after them',
      from: '  if (status == kSuccess) status = AwaitAll(trimming_, uses);\n',
      to: '',
      test: 'leave no more events',
    },
    {
      fault: 'without host memory, an idle event is not used again',
      from: '      idle_events_.reserve(events_.size() + 1);\n',
      to: '',
      test: 'an event whose last user',
    },
    {
      fault: 'a thread without an arena asks for host memory when it is the last user of an event',
      from: 'ThreadState* const state = ThreadState::Known(*this);\n  if (state != nullptr && state->events.size()',
      to: 'ThreadState* const state = ThreadState::Find(*this);\n  if (state != nullptr && state->events.size()',
      test: 'an event whose last user',
    },
    {
      fault: 'without host memory for an event, superblocks that were taken are lost',
      from: '    status = Guarded([&] { return AcquireEvent(&event); });\n    if (status == kSuccess) status = table->EventRecord(event->event, place.stream);\n',
      to: '    status = AcquireEvent(&event);\n    if (status == kSuccess) status = table->EventRecord(event->event, place.stream);\n',
      test: 'superblocks that others had are not lost',
    },
    {
      fault: 'without host memory for a wait, joined memory never goes back',
      from: 'Guarded([&] { return AwaitOwn(arena, own, place.stream, lock); });',
      to: 'AwaitOwn(arena, own, place.stream, lock);',
      test: 'what changes lanes on a host',
    },
    {
      fault: 'without host memory, memory joins a lane without its order',
      from: '      MakeRoom(own, lane->before.size());\n',
      to: '',
      test: 'what changes lanes on a host',
    },
    {
      fault: 'without host memory, superblocks have no order for other streams',
      from: '      MakeRoom(own, 1);\n',
      to: '',
      test: 'what changes lanes on a host',
    },
  ],
  'native/arenas/resource_table.cc': [
    {
      fault: 'statistics are written beyond the structure of the caller',
      from: '((statistics)->size >= offsetof(cistern_resource_statistics, member) + sizeof((statistics)->member))',
      to: '((statistics)->size > 0)',
      test: 'statistics of a thread-safe arena',
    },
  ],
  'native/arenas/global_arena.cc': [
    {
      fault: 'superblocks that the driver refuses to let a stream wait for are put back without their events',
      from: '  arena.ranges.merge(*taken);\n  arena.tenants.at(tenant).bytes -= bytes;\n',
      to: '  for (auto& [begin, range] : *taken) ReleaseEvent(std::exchange(range.freed, nullptr));\n  arena.ranges.merge(*taken);\n  arena.tenants.at(tenant).bytes -= bytes;\n',
      test: 'superblocks go back to the global arena',
    },
    {
      fault: 'without host memory, an arena is forgotten before what is left of it is known',
      from: '  arenas.leave.load()(WhatIsLeft(*arenas.by_number.at(number)));\n  arenas.by_number.erase(number);\n',
      to: '  const EndedArena left = WhatIsLeft(*arenas.by_number.at(number));\n  arenas.by_number.erase(number);\n  arenas.leave.load()(left);\n',
      test: 'what is left of its block is known',
    },
    {
      fault: "without host memory, freed superblocks are nobody's",
      from: '  const auto range = arena.ranges.find(begin);\n  arena.ranges.erase(std::next(range), arena.ranges.lower_bound(end));\n  if (freed != nullptr) freed->users += 1;\n  range->second = {end, end, kNobody, freed};\n',
      to: '  arena.ranges.erase(arena.ranges.lower_bound(begin), arena.ranges.lower_bound(end));\n  if (freed != nullptr) freed->users += 1;\n  const auto range = arena.ranges.emplace(begin, Superblocks{end, end, kNobody, freed}).first;\n',
      test: 'if the host refuses memory for its books',
    },
  ],
  'native/software/managed_memory.cc': [
    {
      fault: 'rule 1: a write leaves copies at other places',
      from: '        mover.KeepOnly(page, processor);\n        mover.CountUnmoved(',
      to: '        mover.CountUnmoved(',
      test: 'read-mostly memory is copied',
    },
    {
      fault: 'rule 1: an access does not make its page the latest used',
      from: '      }\n      mover.Touch(page, processor);',
      to: '      }',
      test: 'a full device gives up',
    },
    {
      fault: 'rule 2: a new page ignores its preferred location',
      from: 'if (prefers_map && mover.Bring(page, advice.preferred, true, MoveReason::kFirstUse))',
      to: 'if (prefers_map && false)',
      test: 'memory at its preferred location',
    },
    {
      fault: 'rule 2: a new page without room begins nowhere',
      from: '      mover.Bring(page, kHostPlace, true, MoveReason::kFirstUse);\n',
      to: '',
      test: 'pages begin at the host',
    },
    {
      fault: 'rule 3: a read moves read-mostly memory',
      from: 'mover.Bring(page, processor, is_write || !advice.is_read_mostly, reason)',
      to: 'mover.Bring(page, processor, true, reason)',
      test: 'read-mostly memory is copied',
    },
    {
      fault: 'rule 3: a write from elsewhere leaves the copies',
      from: 'mover.Bring(page, processor, is_write || !advice.is_read_mostly, reason)',
      to: 'mover.Bring(page, processor, !advice.is_read_mostly, reason)',
      test: 'the preferred location and other advice',
    },
    {
      fault: 'rule 3: a prefetch moves read-mostly memory',
      from: 'mover.Bring(page, destination, !AdviceAt(*range, first).is_read_mostly, reason)',
      to: 'mover.Bring(page, destination, true, reason)',
      test: 'read-mostly memory is copied',
    },
    {
      fault: 'rule 3: read-mostly memory is mapped',
      from: 'if (!advice.is_read_mostly && CanMap(processor, source)) {',
      to: 'if (CanMap(processor, source)) {',
      test: 'the preferred location and other advice',
    },
    {
      fault: 'rule 4: memory away from its preferred location is mapped',
      from: '(prefers_map && IsAt(page, advice.preferred))',
      to: 'prefers_map',
      test: 'the preferred location and other advice',
    },
    {
      fault: 'rule 4: a processor maps memory that is preferred at itself',
      from: 'BitOf(processor)) != 0) && advice.preferred != processor;',
      to: 'BitOf(processor)) != 0);',
      test: 'the preferred location and other advice',
    },
    {
      fault: 'rule 4: the advice accessed-by maps nothing',
      from: '(maps_all || (advice.accessed_by & BitOf(processor)) != 0) &&',
      to: 'maps_all &&',
      test: 'memory advised as accessed',
    },
    {
      fault: 'rule 4: each use of mapped memory is a fault',
      from: 'if (!is_mapped && (page.mapped_by & BitOf(processor)) == 0) mover',
      to: 'if (!is_mapped) mover',
      test: 'memory at its preferred location',
    },
    {
      fault: 'rule 4: a page stays mapped when it moves',
      from: '    page.mapped_by = 0;\n',
      to: '',
      test: 'the preferred location and other advice',
    },
    {
      fault: 'rule 4: the use of a mapped page does not count as a use',
      from: '      mover.Touch(page, source);\n',
      to: '',
      test: 'pages begin at the host',
    },
    {
      fault: "the host maps a device's memory",
      from: 'return processor != kHostPlace || place == kHostPlace || IsCoherent();',
      to: 'return processor == processor || place == kHostPlace || IsCoherent();',
      test: 'memory at its preferred location',
    },
    {
      fault: 'rule 5: a fault that brings a page back is no thrash',
      from: 'const bool returns = page.last_left == processor;',
      to: 'const bool returns = false;',
      test: 'a page of managed memory is at the place',
    },
    {
      fault: 'rule 5: memory without room is not counted as used remotely',
      from: 'SourceOf(page), activity);\n    activity.remote_bytes += bytes;\n',
      to: 'SourceOf(page), activity);\n',
      test: 'a full device gives up',
    },
    {
      fault: 'the page used last is evicted',
      from: 'Page& page = *state_.uses[device].oldest;',
      to: 'Page& page = *state_.uses[device].newest;',
      test: 'a full device gives up',
    },
    {
      fault: 'an eviction copies a page that the host has',
      from: 'if (page.residents == BitOf(device)) {',
      to: 'if (page.residents != 0) {',
      test: 'pages begin at the host',
    },
    {
      fault: 'the end of read-mostly keeps a copy away from the preferred location',
      from: 'preferred != kNoPlace && IsAt(page, preferred) ? preferred : SourceOf(page)',
      to: 'SourceOf(page)',
      test: 'read-mostly memory is copied',
    },
    {
      fault: 'freed pages stay at their places',
      from: '      if (IsAt(page, place)) mover.Leave(page, place);\n',
      to: '',
      test: 'freed managed memory leaves',
    },
    {
      fault: 'a page that leaves is not noted',
      from: '    state_.notes.Add(page, place, MoveReason::kLeft, user_);\n',
      to: '',
      test: 'moves are noted for one taker',
    },
    {
      fault: 'a second taker gets the notes of the first',
      from: '  if (notes.pending != nullptr) return false;\n',
      to: '',
      test: 'moves are noted for one taker',
    },
    {
      fault: 'notes seem to be pending after the last was taken',
      from: '  if (notes.queue.IsEmpty() && notes.lost == 0) notes.SetPending(0);\n',
      to: '',
      test: 'moves are noted for one taker',
    },
    {
      fault: 'there is no bound of the notes that wait',
      from: '    if (pieces_ == kMostNotes / kNotesOfPiece) return false;\n',
      to: '',
      test: 'of more moves than can wait',
    },
    {
      fault: 'a range whose end was lost is forgotten',
      from: '    state.notes.removed.insert(state.ranges.extract(found));',
      to: '    state.ranges.erase(found);',
      test: 'of more moves than can wait',
    },
    {
      fault: 'after a loss, pages are not listed as having left',
      from: '        if (leaves && !Note(page, place, MoveReason::kLeft, lost_at, {})) return false;\n',
      to: '',
      test: 'of more moves than can wait',
    },
  ],
  'native/software/stream_calls.cc': [
    {
      fault: 'a stream does not wait for an event of another process',
      from: '    return Submit(*state, ForeignWaitWork{event_state->foreign, recording}, nullptr);\n',
      to: '    return kSuccess;\n',
      test: 'another process maps an allocation',
    },
  ],
  'native/software/event.cc': [
    {
      fault: 'without host memory, the thread of a stream ends the process to tell others of a recording',
      from: '  event.early.reserve(static_cast<std::size_t>(recording - event.slot->completed.load(std::memory_order_relaxed)));\n',
      to: '',
      test: 'the thread of a stream asks',
    },
    {
      fault: 'other processes are told of a recording before it has happened',
      from: '  if (is_over) CompleteRecording(event, recording);\n',
      to: '  CompleteRecording(event, recording);\n',
      test: 'another process maps an allocation',
    },
  ],
  'native/software/shared_pages.cc': [
    {
      fault: 'without host memory, the thread of a stream ends the process when it frees shared pages',
      from: '    } catch (const std::bad_alloc&) {\n      ++known;  // they stay shared, and serve as well\n',
      to: '    } catch (const std::out_of_range&) {\n      ++known;\n',
      test: 'the thread of a stream asks',
    },
    {
      fault: 'shared pages begin without contents',
      from: 'if (!file_.WriteTouched(begin, offset, to - begin) || ',
      to: 'if (',
      test: 'neighbours of an exported allocation',
    },
    {
      fault: 'device work writes while pages are exchanged',
      from: '  const WriteGate::Shut nobody_writes(write_gate);\n',
      to: '',
      test: 'an export loses no write',
    },
  ],
  'native/software/device_memory.cc': [
    {
      fault: 'pages stay shared when they are free',
      from: '  if (shared_pages_.Any()) shared_pages_.Unshare(first, last);\n',
      to: '',
      test: 'neighbours of an exported allocation',
    },
  ],
};

const arena = 'test/resources/global-arena-memory-resource.test.ts';
const arenaOfWorkers = 'test/resources/global-arena-between-workers.test.ts';
const arenaOfThreads = 'test/resources/thread-safe-arena-memory-resource.test.ts';
const arenaOfEndedWorkers = 'test/resources/thread-safe-arena-ended-workers.test.ts';

/** Faults of the addon, each with a file of test/ and the name of a test in it. */
export const addonFaults = {
  'native/arenas/global_arena.cc': [
    {
      fault: 'events stay in use after the wait for them',
      from: '  for (const auto& [begin, range] : taken) ReleaseEvent(range.freed);\n',
      to: '',
      file: arena,
      test: 'uses events again',
    },
    {
      fault: "a worker's bytes are not counted down if a wait is refused",
      from: '  arena.tenants.at(tenant).bytes -= bytes;\n',
      to: '',
      file: arena,
      test: 'if the driver refuses a wait',
    },
  ],
  'native/arenas/global_arena.h': [
    {
      fault: 'a stream waits for one of the streams that freed what it takes',
      from: '    if (status != kSuccess) return status;\n',
      to: '    return status;\n',
      file: arena,
      test: 'makes a stream wait for every stream that freed',
    },
  ],
  'native/addon/thread_safe_arenas.cc': [
    {
      fault: 'what an ended worker claims stays allocated while a table of its resource is in use',
      from: '      orphans->push_back({OrphanKind::kArenaMemory, arena->device(), claimed.address, claimed.bytes, nullptr, 0, nullptr, arena});\n',
      to: '      static_cast<void>(claimed);\n',
      file: arenaOfEndedWorkers,
      test: 'what a worker had is freed',
    },
    {
      fault: 'the device is waited for while a stream is captured',
      from: '  if (own_captures != 0) return kCapturing;\n',
      to: '',
      file: arenaOfThreads,
      test: 'does not wait for the device while a stream is captured',
    },
  ],
  'native/addon/global_arena.cc': [
    {
      fault: 'superblocks of an ended worker are free while its work runs',
      from: 'if (ended.empty() || !AwaitDevices(environment)) return false;',
      to: 'if (ended.empty()) return false;',
      file: arenaOfWorkers,
      test: 'once its work has run',
    },
    {
      fault: 'superblocks of an ended worker are freed again after another has taken them',
      from: '    if (RangeAt(*found->second, each.superblock)->second.owner != each.owner) continue;\n',
      to: '',
      file: arenaOfWorkers,
      test: 'frees what an ended worker had once',
    },
    {
      fault: 'a free goes on beyond the end of an allocation that ends within a superblock',
      from: 'last->second.asked_end == last->second.end && next',
      to: 'next',
      file: arena,
      test: 'in pieces',
    },
    {
      fault: 'a free goes on into what another worker has',
      from: 'next != arena.ranges.end() && next->second.owner == environment.id();',
      to: 'next != arena.ranges.end();',
      file: arenaOfWorkers,
      test: 'refuses a free that goes on into',
    },
    {
      fault: 'the event of a free stays in use',
      from: '    ReleaseEvent(freed);\n    is_last',
      to: '    is_last',
      file: arena,
      test: 'uses events again',
    },
    {
      fault: "a worker's bytes are not counted down at a free",
      from: '      arena->tenants.at(environment.id()).bytes -= end - address;\n',
      to: '',
      file: arena,
      test: 'ends with the last',
    },
    {
      fault: 'two workers that ask each other for superblocks wait for each other',
      from: '    if (self.answered < self.asked) {\n',
      to: '    if (false) {\n',
      file: arenaOfWorkers,
      test: 'takes a request of a worker for its answer',
    },
  ],
};
