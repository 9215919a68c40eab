import { readdirSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device, Event, MiB, reclaimUnreachableBuffers, Stream } from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { type Ledger, takeLedger } from '../sweep/ledger.js';

/** Creates what is created once and stays: default streams. */
export function prepare(): void {
  for (let index = 0; index < Device.count(); index++) Stream.legacyDefault(Device.get(index)).synchronizeSync();
}

/** What must be equal after every round: bytes, and driver objects. */
export function takeBooks(): Ledger {
  const { byFunction } = driverCallCounts();
  const events = (byFunction['cuEventCreate'] as number) - (byFunction['cuEventDestroy'] as number);
  return { ...takeLedger(), events, 'buffers that wait for a collection': watchedBuffers().count };
}

/** What is measured of the process after a round. */
export interface Measures {
  readonly residentBytes: number;
  readonly heapBytes: number;
  readonly externalBytes: number;
  readonly descriptors: number;
  readonly threads: number;
  /** Handles and requests of Node that keep the process alive. */
  readonly handles: number;
  /**
   * The extent of tables in native code: the addon's for events and streams, and the software
   * device's for streams.
   */
  readonly eventPlaces: number;
  readonly streamPlaces: number;
  readonly driverStreamPlaces: number;
}

/** More than are ever live at once in a round. */
const probes = { events: 512, streams: 64 };
/** The part of a handle above its place in the table. */
const generation = 2 ** 20;

/**
 * Creates enough objects to use up free places. Places that were never given up then show, even if
 * nothing else refers to them.
 */
function takePlaces(): Pick<Measures, 'eventPlaces' | 'streamPlaces' | 'driverStreamPlaces'> {
  const events = Array.from({ length: probes.events }, () => new Event());
  const streams = Array.from({ length: probes.streams }, () => new Stream({ nonBlocking: true }));
  const last = (handles: number[]) => Math.max(...handles.map((handle) => handle % generation));
  const places = {
    eventPlaces: last(events.map(({ handle }) => handle)),
    streamPlaces: last(streams.map(({ handle }) => handle)),
    driverStreamPlaces: last(streams.map(({ nativeHandle }) => nativeHandle)),
  };
  for (const each of [...events, ...streams]) each.dispose();
  return places;
}

/** How much each may grow over the rounds that count. */
export const allowances: Readonly<Measures> = {
  residentBytes: 6 * MiB,
  heapBytes: 1 * MiB,
  externalBytes: 1 * MiB,
  descriptors: 1,
  // Node's own threads come and go.
  threads: 2,
  handles: 1,
  // A stream that is ending takes one for a while.
  eventPlaces: 4,
  streamPlaces: 4,
  driverStreamPlaces: 4,
};

/** Collects garbage, and lets the work that waits for it run. */
export async function collect(): Promise<void> {
  for (let turn = 0; turn < 2; turn++) {
    reclaimUnreachableBuffers('major');
    for (let job = 0; job < 3; job++) await setImmediate();
  }
}

export function takeMeasures(): Measures {
  const { rss, heapUsed, external } = process.memoryUsage();
  return {
    residentBytes: rss,
    heapBytes: heapUsed,
    externalBytes: external,
    descriptors: readdirSync('/proc/self/fd').length,
    threads: readdirSync('/proc/self/task').length,
    handles: process.getActiveResourcesInfo().length,
    ...takePlaces(),
  };
}
