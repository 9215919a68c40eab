/**
 * Packs a log as it is read.
 *
 *     event ──► live spans by address ──► columns, chunk by chunk ──► addresses as indexes, sums per layer
 *
 * Memory: the packed columns, usually about 10 bytes per event and at most 33; up to 70 bytes for each
 * allocation live at the same time. Once everything is read, these 70 bytes are replaced by 8 bytes
 * per span and 24 per distinct address.
 */

import { refuseCloning } from '../../driver/workers/local-object.js';
import { doubled } from '../../recording/typed-arrays.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { assertRecordedRun } from '../formats/assert-recorded-run.js';
import { appendEvents, EventKind, type EventSink, type LoggedEvent } from '../formats/event-columns.js';
import type { RecordedLayer } from '../formats/layers.js';
import { nearestLayer, sharesLabels } from '../formats/layers.js';
import type { RecordedRun, RecordingDamage, RunDescription } from '../formats/recorded-run.js';
import { ColumnWriter, type PackedColumn } from '../formats/report/column.js';
import { columnWriters, mapColumns, packedPieces, type ReportColumns, type ReportTexts } from '../formats/report/report-data.js';
import type { RunOverview } from './report-contents.js';
import { shortenPaths, shownName } from './shorten-paths.js';
import { LayerTally, summarizeLayers } from './summary.js';

/** A log packed for {@link writeReport}; {@link readReportRun} makes it. */
export class PackedReportRun {
  /** The path or name of the log. */
  readonly source: string;
  /** Number of events in the log. */
  readonly eventCount: number;
  /** Set if the log cannot be read to its end; the events are those before that point. */
  readonly damage: RecordingDamage | undefined;
  /** Number of records of a recording that are left out: a newer cistern wrote them. */
  readonly skippedRecordCount: number;
  /** @internal */
  readonly overview: Omit<RunOverview, 'fits' | 'graphs'>;
  readonly #texts: ReportTexts;
  readonly #columns: ReportColumns<PackedColumn>;

  /** @internal */
  constructor(source: string, texts: ReportTexts, columns: ReportColumns<PackedColumn>, overview: Omit<RunOverview, 'fits' | 'graphs'>) {
    this.source = source;
    this.eventCount = texts.eventCount;
    this.damage = texts.damage;
    this.skippedRecordCount = texts.skippedRecordCount;
    this.overview = overview;
    this.#texts = texts;
    this.#columns = columns;
    refuseCloning(this);
  }

  /** @internal The bytes of the run before compression. */
  pieces(): Generator<Uint8Array> {
    return packedPieces(this.#texts, this.#columns);
  }
}

/** Packs a log that was read as a whole. */
export function packReportRun(run: RecordedRun): PackedReportRun {
  assertRecordedRun(run, 'run');
  const packer = new ReportRunPacker(run.layers);
  appendEvents(run, packer);
  return packer.finish(run);
}

/** The live slots of a layer, by address: those of allocations, and those of blocks. */
interface LiveAddresses {
  readonly allocations: AddressMap;
  readonly blocks: AddressMap;
}

/**
 * Finds the free of each allocation and the return of each block, and packs everything into
 * columns.
 */
export class ReportRunPacker implements EventSink {
  readonly #layers: readonly RecordedLayer[];
  readonly #columns = columnWriters();
  readonly #live: LiveAddresses[] = [];
  readonly #tallies: LayerTally[] = [];
  /**
   * By slot: the live span and its bytes; for a vacant slot, the next vacant slot, or -1 for the
   * last.
   */
  #slotSpans = new Int32Array(1024);
  #slotBytes = new Float64Array(1024);
  #vacantSlot = -1;
  #slotCount = 0;

  #events = 0;
  #spans = 0;
  #changeCount = 0;
  #eventRecords = 0;
  #eventWaits = 0;
  #unmatchedFrees = 0;
  #firstTime = 0;
  #time = 0;
  #firstChangeAt = 0;

  /** @param layers the layers of the events; may grow */
  constructor(layers: readonly RecordedLayer[]) {
    this.#layers = layers;
  }

  /** Number of events so far. */
  get eventCount(): number {
    return this.#events;
  }

  append({ kind, layer, stream, thread, phase, stack, account, time, first, second }: Readonly<LoggedEvent>): void {
    if (this.#events++ === 0) this.#firstTime = time;
    // Threads that share a log may write events slightly out of order.
    this.#time = Math.max(this.#time, Math.round(time - this.#firstTime));
    switch (kind) {
      case EventKind.allocate:
      case EventKind.growth: {
        // Allocations of zero bytes have no address range.
        if (!(second > 0)) break;
        const isBlock = kind === EventKind.growth;
        const addresses = this.#addresses(layer, isBlock);
        const before = addresses.take(first);
        if (before >= 0) this.#end(before, layer, isBlock, stream);
        this.#begin(addresses, layer, isBlock, stream, first, second);
        this.#columns.threadOf.add(thread);
        this.#columns.phaseOf.add(phase);
        this.#columns.stackOf.add(stack);
        this.#columns.accountOf.add(account);
        break;
      }
      case EventKind.free:
      case EventKind.release: {
        if (first === 0) break;
        const isBlock = kind === EventKind.release;
        const slot = this.#addresses(layer, isBlock).take(first);
        if (slot >= 0) this.#end(slot, layer, isBlock, stream);
        else this.#unmatchedFrees++;
        break;
      }
      case EventKind.label:
        for (const [other, { allocations }] of this.#live.entries()) {
          const slot = sharesLabels(this.#layers, layer, other) ? allocations.get(first) : -1;
          if (slot < 0) continue;
          this.#columns.labelled.add(this.#slotSpans[slot] as number);
          this.#columns.labelOf.add(second);
        }
        break;
      case EventKind.failure:
        this.#layer(layer);
        (this.#tallies[layer] as LayerTally).failureCount++;
        this.#columns.failureTimes.add(this.#time);
        this.#columns.failureBytes.add(second);
        this.#columns.failureLayerOf.add(layer);
        this.#columns.failureStreamOf.add(stream);
        this.#columns.failurePhaseOf.add(phase);
        this.#columns.failureAccountOf.add(account);
        break;
      case EventKind.phaseBegin:
      case EventKind.phaseEnd:
        this.#columns.phaseTimes.add(this.#time);
        this.#columns.phaseMarkOf.add(first);
        this.#columns.phaseIsEnd.add(kind === EventKind.phaseBegin ? 0 : 1 + Math.min(second, 1));
        break;
      case EventKind.eventRecord:
        this.#eventRecords++;
        break;
      case EventKind.eventWait:
        this.#eventWaits++;
    }
  }

  /**
   * The finished run. Nothing may be added afterwards.
   * @param places for each layer of the events, its index in `layers`, if these differ
   */
  finish(texts: RunDescription, places?: readonly number[]): PackedReportRun {
    const { startedAt, utcOffsetMinutes, streams, threads, phases, labels, accounts, notes, damage, skippedRecordCount } = texts;
    const source = shownName(texts.source);
    const layers = texts.layers.length > 0 ? texts.layers : [{ name: 'log', upstream: undefined }];
    this.#live.length = 0;
    const tallies = layers.map((_, layer) => this.#tallies[places?.indexOf(layer) ?? layer] ?? new LayerTally());
    const packed = mapColumns(this.#columns, (column) => column.finish());
    const { addresses, addressOf } = placesOf(packed.addressOf);
    const renumbered = (column: PackedColumn) => (places === undefined ? column : column.map((layer) => places[layer] ?? 0));
    const columns = {
      ...packed,
      addresses: packedAscending(addresses),
      addressOf,
      layerOf: renumbered(packed.layerOf),
      failureLayerOf: renumbered(packed.failureLayerOf),
    };
    const report: ReportTexts = {
      ...{ source, utcOffsetMinutes, layers, streams, threads, phases, labels, accounts, notes, damage, skippedRecordCount },
      stacks: shortenPaths(texts.stacks),
      startedAt: startedAt === undefined ? undefined : startedAt + this.#firstTime / 1e6,
      eventCount: this.#events,
      eventRecordCount: this.#eventRecords,
      eventWaitCount: this.#eventWaits,
      unmatchedFreeCount: this.#unmatchedFrees,
      durationNanoseconds: this.#time,
    };
    const summaries = summarizeLayers(layers, tallies, columns, addresses, this.#firstChangeAt);
    const servesAllocations = ({ allocationCount, failureCount }: LayerTally) => allocationCount + failureCount > 0;
    return new PackedReportRun(texts.source, report, columns, {
      source,
      startedAt: report.startedAt ?? null,
      durationNanoseconds: this.#time,
      eventCount: this.#events,
      isDamaged: damage !== undefined,
      threadCount: threads.length,
      streamCount: streams.length,
      layer: nearestLayer(layers, (layer) => servesAllocations(tallies[layer] as LayerTally)) ?? 0,
      layers: summaries.map((summary, layer) => ({ ...summary, name: layers[layer]?.name ?? '' })),
    });
  }

  #begin(addresses: AddressMap, layer: number, isBlock: boolean, stream: number, pointer: number, bytes: number): void {
    const span = this.#spans++;
    const slot = this.#takeSlot();
    this.#slotSpans[slot] = span;
    this.#slotBytes[slot] = bytes;
    addresses.insert(pointer, slot);
    (this.#tallies[layer] as LayerTally).begin(isBlock, bytes, this.#changeCount, this.#time);
    // Replaced by its index among all addresses once these are known.
    this.#columns.addressOf.add(pointer);
    this.#columns.bytes.add(bytes);
    this.#columns.isBlock.add(isBlock ? 1 : 0);
    this.#columns.layerOf.add(layer);
    this.#columns.streamOf.add(stream);
    this.#change(0);
  }

  #end(slot: number, layer: number, isBlock: boolean, stream: number): void {
    (this.#tallies[layer] as LayerTally).end(isBlock, this.#slotBytes[slot] as number);
    this.#columns.endStreams.add(stream);
    this.#change(this.#spans - (this.#slotSpans[slot] as number));
    this.#slotSpans[slot] = this.#vacantSlot;
    this.#vacantSlot = slot;
  }

  #change(distance: number): void {
    if (this.#changeCount++ === 0) this.#firstChangeAt = this.#time;
    this.#columns.times.add(this.#time);
    this.#columns.changes.add(distance);
  }

  #addresses(layer: number, isBlock: boolean): AddressMap {
    const { allocations, blocks } = this.#live[layer] ?? this.#layer(layer);
    return isBlock ? blocks : allocations;
  }

  /** Makes the state of a layer, and of those before it. */
  #layer(layer: number): LiveAddresses {
    while (this.#live.length <= layer) {
      this.#live.push({ allocations: new AddressMap(), blocks: new AddressMap() });
      this.#tallies.push(new LayerTally());
    }
    return this.#live[layer] as LiveAddresses;
  }

  #takeSlot(): number {
    const vacant = this.#vacantSlot;
    if (vacant >= 0) {
      this.#vacantSlot = this.#slotSpans[vacant] as number;
      return vacant;
    }
    if (this.#slotCount === this.#slotSpans.length) {
      this.#slotSpans = doubled(this.#slotSpans);
      this.#slotBytes = doubled(this.#slotBytes);
    }
    return this.#slotCount++;
  }
}

/** The distinct pointers, ascending, and for each pointer its index among them. */
function placesOf(pointers: PackedColumn): { addresses: Float64Array; addressOf: PackedColumn } {
  const all = new Float64Array(pointers.head.count);
  let count = 0;
  for (const values of pointers.chunks()) {
    all.set(values, count);
    count += values.length;
  }
  all.sort();
  let kept = 0;
  for (let i = 0; i < count; i++) if (i === 0 || all[i] !== all[kept - 1]) all[kept++] = all[i] as number;
  const addresses = all.slice(0, kept);
  return { addresses, addressOf: pointers.map((pointer) => indexIn(addresses, pointer)) };
}

function packedAscending(ascending: Float64Array): PackedColumn {
  const writer = new ColumnWriter(true);
  for (let i = 0; i < ascending.length; i++) writer.add(ascending[i] as number);
  return writer.finish();
}

function indexIn(ascending: Float64Array, value: number): number {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((ascending[middle] as number) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
