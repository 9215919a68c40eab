/** Pays for live allocations: an account, or a holder of promised memory. */
export interface Payer {
  /** Live allocations that it pays for, and, while there are any, its place among those who do. */
  allocations: number;
  place: number;
}

/** Gives payers of live allocations small numbers, which a map from addresses can store. */
export class PayerNumbers<P extends Payer> {
  readonly #payers: (P | undefined)[] = [];
  readonly #spare: number[] = [];

  /** Counts an allocation. Returns the payer's number. */
  add(payer: P): number {
    if (payer.allocations++ === 0) this.#enter(payer);
    return payer.place;
  }

  get(number: number): P {
    return this.#payers[number] as P;
  }

  /** Ends the count of an allocation. Returns the payer. */
  remove(number: number): P {
    const payer = this.#payers[number] as P;
    if (--payer.allocations === 0) {
      this.#payers[number] = undefined;
      this.#spare.push(number);
    }
    return payer;
  }

  /** Apart (V8: inlining). */
  #enter(payer: P): void {
    payer.place = this.#spare.pop() ?? this.#payers.length;
    this.#payers[payer.place] = payer;
  }
}
