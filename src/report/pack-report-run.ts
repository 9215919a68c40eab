/**
 * Packs a log while it is read, so that no more of it is in memory as numbers than the last events of each column.
 *
 *     event ──► live spans by address ──► columns, chunk by chunk ──► addresses by their places, sums of layers
 *
 * Memory: the packed columns, some 10 bytes an event as a rule and 33 at most; up to 70 for each allocation that is live at the same time; and
 * once all is read, instead of these, 8 bytes for each span and 24 for each distinct address.
 */
import { refuseCloning } from '../driver/local-object.js';
import { nearestLayer } from '../formats/layers.js';
import type { RecordedRun, RecordingDamage } from '../formats/recorded-run.js';
import type { RecordedEvents } from '../formats/recorded-run-builder.js';
import { RecordKind } from '../formats/recording/recording-format.js';
import { AddressMap } from '../suballocation/address-map.js';
import { ColumnWriter, type PackedColumn } from './column.js';
import type { RunOverview } from './report-contents.js';
import { packedPieces, type ReportColumns, type ReportTexts } from './report-data.js';
import { shortenPaths } from './shorten-paths.js';
import { LayerTally, summarizeLayers } from './summary.js';

/** What a {@link RecordedRun} says beside its events. */
export type RecordedTexts = Pick<
  RecordedRun,
  'source' | 'startedAt' | 'utcOffsetMinutes' | 'layers' | 'streams' | 'threads' | 'phases' | 'stacks' | 'labels' | 'damage'
>;

/** A log as a report holds it, which {@link writeReport} takes: {@link readReportRun} makes them. */
export class PackedReportRun {
  /** The path or name of the log. */
  readonly source: string;
  /** Everything that the log records. */
  readonly eventCount: number;
  /** Where the log stops being readable; the events are those before it. */
  readonly damage: RecordingDamage | undefined;
  /** @internal */
  readonly overview: RunOverview;
  readonly #texts: ReportTexts;
  readonly #columns: ReportColumns<PackedColumn>;

  /** @internal */
  constructor(texts: ReportTexts, columns: ReportColumns<PackedColumn>, overview: RunOverview) {
    this.source = texts.source;
    this.eventCount = texts.eventCount;
    this.damage = texts.damage;
    this.overview = overview;
    this.#texts = texts;
    this.#columns = columns;
    refuseCloning(this);
  }

  /** @internal The bytes of the run before they are compressed. */
  pieces(): Generator<Uint8Array> {
    return packedPieces(this.#texts, this.#columns);
  }
}

/** Packs what was read as a whole. */
export function packReportRun(run: RecordedRun): PackedReportRun {
  const { kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, times, firsts, seconds } = run;
  const packer = new ReportRunPacker();
  for (let i = 0; i < run.eventCount; i++) {
    packer.append(
      kinds[i] as RecordKind,
      layerOf[i] as number,
      streamOf[i] as number,
      threadOf[i] as number,
      phaseOf[i] as number,
      stackOf[i] as number,
      times[i] as number,
      firsts[i] as number,
      seconds[i] as number,
    );
  }
  return packer.finish(run);
}

/** What is live of a layer, by address: the slots of allocations, and of blocks. */
interface LiveAddresses {
  readonly allocations: AddressMap;
  readonly blocks: AddressMap;
}

/** Finds for every allocation its free and for every block its return, and packs all into columns. */
export class ReportRunPacker implements RecordedEvents {
  readonly #times = new ColumnWriter(true);
  readonly #changes = new ColumnWriter();
  readonly #pointers = new ColumnWriter();
  readonly #bytes = new ColumnWriter();
  readonly #isBlock = new ColumnWriter();
  readonly #layerOf = new ColumnWriter();
  readonly #streamOf = new ColumnWriter();
  readonly #endStreams = new ColumnWriter();
  readonly #threadOf = new ColumnWriter();
  readonly #phaseOf = new ColumnWriter();
  readonly #stackOf = new ColumnWriter();
  readonly #labelled = new ColumnWriter(true);
  readonly #labelOf = new ColumnWriter();
  readonly #failureTimes = new ColumnWriter(true);
  readonly #failureBytes = new ColumnWriter();
  readonly #failureLayerOf = new ColumnWriter();
  readonly #failureStreamOf = new ColumnWriter();
  readonly #failurePhaseOf = new ColumnWriter();
  readonly #phaseTimes = new ColumnWriter(true);
  readonly #phaseMarkOf = new ColumnWriter();
  readonly #phaseIsEnd = new ColumnWriter();

  readonly #live: LiveAddresses[] = [];
  readonly #tallies: LayerTally[] = [];
  /** By slot: the live span, or the next vacant slot and -1 behind the last one; and its bytes. */
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

  get eventCount(): number {
    return this.#events;
  }

  append(
    kind: RecordKind,
    layer: number,
    stream: number,
    thread: number,
    phase: number,
    stack: number,
    time: number,
    first: number,
    second: number,
  ): void {
    if (this.#events++ === 0) this.#firstTime = time;
    // Threads that share a log may write events out of order by a little.
    this.#time = Math.max(this.#time, Math.round(time - this.#firstTime));
    switch (kind) {
      case RecordKind.allocate:
      case RecordKind.growth: {
        // Zero bytes have no place.
        if (!(second > 0)) break;
        const isBlock = kind === RecordKind.growth;
        const addresses = this.#addresses(layer, isBlock);
        const before = addresses.take(first);
        if (before >= 0) this.#end(before, layer, isBlock, stream);
        this.#begin(addresses, layer, isBlock, stream, first, second);
        this.#threadOf.add(thread);
        this.#phaseOf.add(phase);
        this.#stackOf.add(stack);
        break;
      }
      case RecordKind.free:
      case RecordKind.release: {
        if (first === 0) break;
        const isBlock = kind === RecordKind.release;
        const slot = this.#addresses(layer, isBlock).take(first);
        if (slot >= 0) this.#end(slot, layer, isBlock, stream);
        else this.#unmatchedFrees++;
        break;
      }
      case RecordKind.label:
        for (const { allocations } of this.#live) {
          const slot = allocations.get(first);
          if (slot < 0) continue;
          this.#labelled.add(this.#slotSpans[slot] as number);
          this.#labelOf.add(second);
        }
        break;
      case RecordKind.failure:
        this.#layer(layer);
        (this.#tallies[layer] as LayerTally).failureCount++;
        this.#failureTimes.add(this.#time);
        this.#failureBytes.add(second);
        this.#failureLayerOf.add(layer);
        this.#failureStreamOf.add(stream);
        this.#failurePhaseOf.add(phase);
        break;
      case RecordKind.phaseBegin:
      case RecordKind.phaseEnd:
        this.#phaseTimes.add(this.#time);
        this.#phaseMarkOf.add(first);
        this.#phaseIsEnd.add(kind === RecordKind.phaseEnd ? 1 : 0);
        break;
      case RecordKind.eventRecord:
        this.#eventRecords++;
        break;
      case RecordKind.eventWait:
        this.#eventWaits++;
    }
  }

  /**
   * The run. Nothing may be added any more.
   * @param places for each layer of the events its place in `layers`, where that differs
   */
  finish(texts: RecordedTexts, places?: readonly number[]): PackedReportRun {
    const { source, startedAt, utcOffsetMinutes, streams, threads, phases, labels, damage } = texts;
    const layers = texts.layers.length > 0 ? texts.layers : [{ name: 'log', upstream: undefined }];
    this.#live.length = 0;
    const tallies = layers.map((_, layer) => this.#tallies[places?.indexOf(layer) ?? layer] ?? new LayerTally());
    const { addresses, addressOf } = placesOf(this.#pointers.finish());
    const renumbered = (column: PackedColumn) => (places === undefined ? column : column.map((layer) => places[layer] ?? 0));
    const columns: ReportColumns<PackedColumn> = {
      times: this.#times.finish(),
      changes: this.#changes.finish(),
      addresses: packed(addresses),
      addressOf,
      bytes: this.#bytes.finish(),
      isBlock: this.#isBlock.finish(),
      layerOf: renumbered(this.#layerOf.finish()),
      streamOf: this.#streamOf.finish(),
      endStreams: this.#endStreams.finish(),
      threadOf: this.#threadOf.finish(),
      phaseOf: this.#phaseOf.finish(),
      stackOf: this.#stackOf.finish(),
      labelled: this.#labelled.finish(),
      labelOf: this.#labelOf.finish(),
      failureTimes: this.#failureTimes.finish(),
      failureBytes: this.#failureBytes.finish(),
      failureLayerOf: renumbered(this.#failureLayerOf.finish()),
      failureStreamOf: this.#failureStreamOf.finish(),
      failurePhaseOf: this.#failurePhaseOf.finish(),
      phaseTimes: this.#phaseTimes.finish(),
      phaseMarkOf: this.#phaseMarkOf.finish(),
      phaseIsEnd: this.#phaseIsEnd.finish(),
    };
    const report: ReportTexts = {
      ...{ source, utcOffsetMinutes, layers, streams, threads, phases, labels, damage },
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
    return new PackedReportRun(report, columns, {
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
    this.#pointers.add(pointer);
    this.#bytes.add(bytes);
    this.#isBlock.add(isBlock ? 1 : 0);
    this.#layerOf.add(layer);
    this.#streamOf.add(stream);
    this.#change(0);
  }

  #end(slot: number, layer: number, isBlock: boolean, stream: number): void {
    (this.#tallies[layer] as LayerTally).end(isBlock, this.#slotBytes[slot] as number);
    this.#endStreams.add(stream);
    this.#change(this.#spans - (this.#slotSpans[slot] as number));
    this.#slotSpans[slot] = this.#vacantSlot;
    this.#vacantSlot = slot;
  }

  #change(distance: number): void {
    if (this.#changeCount++ === 0) this.#firstChangeAt = this.#time;
    this.#times.add(this.#time);
    this.#changes.add(distance);
  }

  #addresses(layer: number, isBlock: boolean): AddressMap {
    const { allocations, blocks } = this.#live[layer] ?? this.#layer(layer);
    return isBlock ? blocks : allocations;
  }

  /** Makes what is needed for a layer, and those before it. */
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
      const spans = new Int32Array(2 * this.#slotCount);
      const bytes = new Float64Array(2 * this.#slotCount);
      spans.set(this.#slotSpans);
      bytes.set(this.#slotBytes);
      this.#slotSpans = spans;
      this.#slotBytes = bytes;
    }
    return this.#slotCount++;
  }
}

/** Every pointer once, ascending, and for each pointer its place among them. */
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

function packed(ascending: Float64Array): PackedColumn {
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
