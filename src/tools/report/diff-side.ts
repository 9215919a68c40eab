/**
 * One of two logs that are compared. Its events are added up as they come, and not kept: memory is needed for
 * what is live, and for each stack, label, account, phase or range of sizes.
 *
 *     event ──► live allocations by address ──► figures of each group, of each layer
 *
 * What was live at the peak is not known before the log ends, and the peak may be reached again and again. So
 * peaks are numbered, and a group keeps what it had at the last one only when it changes after that.
 */
import { doubled } from '../../recording/typed-arrays.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { EventKind, type EventSink, type LoggedEvent } from '../formats/event-columns.js';
import type { RecordedLayer } from '../formats/layers.js';
import { nearestLayer, sharesLabels } from '../formats/layers.js';

/** The figures of some allocations of a run. */
export interface DiffFigures {
  /** Bytes and number of those that are live when the whole run has the most bytes live. */
  readonly peakBytes: number;
  readonly peakCount: number;
  /** Bytes and number of those that are never freed. */
  readonly endBytes: number;
  readonly endCount: number;
  /** Bytes and number of all of them. */
  readonly allocatedBytes: number;
  readonly allocatedCount: number;
}

/** By what the allocations of a log can be told apart. */
export type DiffKey = 'stack' | 'label' | 'account' | 'phase' | 'size';

/** The keys of zero bytes, and of sizes from 2^n on. */
function sizeKeyOf(bytes: number): number {
  if (bytes === 0) return 0;
  const exponent = Math.floor(Math.log2(bytes));
  // The logarithm of a large number is rounded.
  return 2 ** exponent > bytes ? exponent : exponent + 1;
}

/** The events of a log, in figures. */
export class DiffSide implements EventSink {
  readonly #keys: readonly DiffKey[];
  readonly #layers: readonly RecordedLayer[];
  /** By layer, in the order in which the log names them. */
  readonly #figures: LayerFigures[] = [];
  eventCount = 0;

  /** @param layers the layers of the events; may grow */
  constructor(layers: readonly RecordedLayer[], keys: readonly DiffKey[]) {
    this.#layers = layers;
    this.#keys = keys;
  }

  append(event: Readonly<LoggedEvent>): void {
    this.eventCount++;
    const { kind, layer, first, second } = event;
    if (kind === EventKind.label) {
      for (const [other, figures] of this.#figures.entries()) if (sharesLabels(this.#layers, layer, other)) figures.label(first, second);
    } else if (kind <= EventKind.failure) {
      while (this.#figures.length <= layer) this.#figures.push(new LayerFigures(this.#keys));
      const figures = this.#figures[layer] as LayerFigures;
      figures.isUsed = true;
      if (kind === EventKind.allocate) figures.allocate(event);
      else if (kind === EventKind.free) figures.free(first);
    }
  }

  /**
   * The figures of a layer, or of the one nearest to the program that has events; `undefined` if there is no
   * layer of that name.
   * @param layers the layers, nearest to the program first
   * @param places for each layer of the events, its index in `layers`, if these differ
   */
  finish(layers: readonly RecordedLayer[], places: readonly number[] | undefined, name: string | undefined): LayerFigures | undefined {
    const found = nearestLayer(layers, (layer) => this.#figures[places?.indexOf(layer) ?? layer]?.isUsed === true, name);
    if (found === undefined && name !== undefined) return undefined;
    const layer = found ?? 0;
    return this.#figures[places?.indexOf(layer) ?? layer] ?? new LayerFigures(this.#keys);
  }
}

/** What is known of a live allocation, besides its groups. */
const slotFields = 2;

/** The allocations of a layer. */
export class LayerFigures {
  /** Whether the layer has allocations, failed ones or frees. */
  isUsed = false;
  readonly #keys: readonly DiffKey[];
  readonly #sums: Readonly<Record<string, GroupSums>>;
  readonly #live = new AddressMap();
  /** By slot: the bytes of a live allocation, and the number of the operation that made it; for a vacant one, the next vacant one. */
  #slots = new Float64Array(slotFields * 1024);
  /** By slot and key: the group. */
  #groups: Uint32Array;
  #slotCount = 0;
  #vacantSlot = -1;
  #operations = 0;
  #liveBytes = 0;
  #peakBytes = 0;
  #peakOperation = -1;

  constructor(keys: readonly DiffKey[]) {
    this.#keys = keys;
    this.#sums = Object.fromEntries(keys.map((key) => [key, new GroupSums()]));
    this.#groups = new Uint32Array(keys.length * 1024);
  }

  allocate({ stack, account, phase, first, second }: Readonly<LoggedEvent>): void {
    const operation = this.#operations++;
    // An allocation of zero bytes has no memory, and may share its pointer with others.
    const slot = second === 0 ? -1 : this.#takeSlot();
    for (const [i, key] of this.#keys.entries()) {
      const group =
        key === 'size' ? sizeKeyOf(second) : key === 'label' ? 0 : key === 'stack' ? stack : key === 'account' ? account : phase;
      (this.#sums[key] as GroupSums).allocate(group, second);
      if (slot >= 0) this.#groups[slot * this.#keys.length + i] = group;
    }
    if (slot < 0) return;
    this.#slots[slotFields * slot] = second;
    this.#slots[slotFields * slot + 1] = operation;
    this.#live.insert(first, slot);
    this.#liveBytes += second;
    if (this.#liveBytes <= this.#peakBytes) return;
    this.#peakBytes = this.#liveBytes;
    this.#peakOperation = operation;
    for (const key of this.#keys) (this.#sums[key] as GroupSums).peaks++;
  }

  free(pointer: number): void {
    this.#operations++;
    const slot = this.#live.take(pointer);
    if (slot < 0) return;
    const bytes = this.#slots[slotFields * slot] as number;
    this.#liveBytes -= bytes;
    for (const [i, key] of this.#keys.entries()) {
      (this.#sums[key] as GroupSums).free(this.#groups[slot * this.#keys.length + i] as number, bytes);
    }
    this.#slots[slotFields * slot] = this.#vacantSlot;
    this.#vacantSlot = slot;
  }

  /** Moves a live allocation to the group of a label, for all of its life. */
  label(pointer: number, label: number): void {
    const i = this.#keys.indexOf('label');
    const slot = i < 0 ? -1 : this.#live.get(pointer);
    if (slot < 0) return;
    const at = slot * this.#keys.length + i;
    const wasAtPeak = (this.#slots[slotFields * slot + 1] as number) <= this.#peakOperation;
    (this.#sums['label'] as GroupSums).move(this.#groups[at] as number, label, this.#slots[slotFields * slot] as number, wasAtPeak);
    this.#groups[at] = label;
  }

  /** The groups with allocations, and their figures. */
  groups(key: DiffKey): Generator<[group: number, figures: DiffFigures]> {
    return (this.#sums[key] as GroupSums).finish();
  }

  #takeSlot(): number {
    const vacant = this.#vacantSlot;
    if (vacant >= 0) {
      this.#vacantSlot = this.#slots[slotFields * vacant] as number;
      return vacant;
    }
    if (slotFields * this.#slotCount === this.#slots.length) {
      this.#slots = doubled(this.#slots);
      this.#groups = doubled(this.#groups);
    }
    return this.#slotCount++;
  }
}

/** The fields of a group; `peakOf` is the number of the peak that the figures of the peak are of. */
const field = { liveBytes: 0, liveCount: 1, peakBytes: 2, peakCount: 3, peakOf: 4, allocatedBytes: 5, allocatedCount: 6 } as const;
const fieldCount = 8;

/** The figures of groups, by their numbers. */
class GroupSums {
  /** How often the peak was exceeded. */
  peaks = 0;
  #rows = new Float64Array(fieldCount * 16);

  allocate(group: number, bytes: number): void {
    const at = this.#settled(group);
    const rows = this.#rows;
    rows[at + field.allocatedBytes] = (rows[at + field.allocatedBytes] as number) + bytes;
    rows[at + field.allocatedCount] = (rows[at + field.allocatedCount] as number) + 1;
    if (bytes > 0) this.#add(at + field.liveBytes, bytes, 1);
  }

  free(group: number, bytes: number): void {
    this.#add(this.#settled(group) + field.liveBytes, -bytes, -1);
  }

  move(from: number, to: number, bytes: number, wasAtPeak: boolean): void {
    for (const [group, sign] of [
      [from, -1],
      [to, 1],
    ] as const) {
      const at = this.#settled(group);
      for (const each of [field.liveBytes, field.allocatedBytes]) this.#add(at + each, sign * bytes, sign);
      if (wasAtPeak) this.#add(at + field.peakBytes, sign * bytes, sign);
    }
  }

  *finish(): Generator<[group: number, figures: DiffFigures]> {
    for (let group = 0; group * fieldCount < this.#rows.length; group++) {
      const at = this.#settled(group);
      const [endBytes, endCount, peakBytes, peakCount, , allocatedBytes, allocatedCount] = this.#rows.subarray(at, at + fieldCount);
      if (allocatedCount === 0) continue;
      yield [group, { peakBytes, peakCount, endBytes, endCount, allocatedBytes, allocatedCount } as DiffFigures];
    }
  }

  /** Where the row of a group begins, whose figures of the peak are those of the last one. */
  #settled(group: number): number {
    const at = group * fieldCount;
    while (at >= this.#rows.length) this.#rows = doubled(this.#rows);
    const rows = this.#rows;
    if (rows[at + field.peakOf] !== this.peaks) {
      rows[at + field.peakOf] = this.peaks;
      rows[at + field.peakBytes] = rows[at + field.liveBytes] as number;
      rows[at + field.peakCount] = rows[at + field.liveCount] as number;
    }
    return at;
  }

  /** Adds to bytes, and to the count behind them. */
  #add(at: number, bytes: number, count: number): void {
    const rows = this.#rows;
    rows[at] = (rows[at] as number) + bytes;
    rows[at + 1] = (rows[at + 1] as number) + count;
  }
}
