import { EventKind, type LoggedEvent } from './event-columns.js';

/** Counts of the allocations, failures and frees of a layer, and of those that have more than a format may hold. */
export interface LayerTally {
  events: number;
  stacks: number;
  phases: number;
  accounts: number;
}

/** Counts of what a log has, from which what a format leaves out is known. */
export class EventTally {
  readonly #kinds: number[] = [];
  readonly #layers: LayerTally[] = [];

  append({ kind, layer, stack, phase, account }: Readonly<LoggedEvent>): void {
    this.#kinds[kind] = (this.#kinds[kind] ?? 0) + 1;
    if (kind > EventKind.failure) return;
    while (this.#layers.length <= layer) this.#layers.push({ events: 0, stacks: 0, phases: 0, accounts: 0 });
    const tally = this.#layers[layer] as LayerTally;
    tally.events++;
    if (stack !== 0) tally.stacks++;
    if (phase !== 0) tally.phases++;
    if (account !== 0) tally.accounts++;
  }

  /** How many events are of some kinds. */
  countOf(...kinds: readonly EventKind[]): number {
    return kinds.reduce((sum, kind) => sum + (this.#kinds[kind] ?? 0), 0);
  }

  /** The layers that have events, by their places. */
  layers(places: readonly number[] | undefined): ReadonlyMap<number, LayerTally> {
    const used = [...this.#layers.entries()].filter(([, { events }]) => events > 0);
    return new Map(used.map(([layer, tally]) => [places?.[layer] ?? layer, tally]));
  }
}
