import { SpecificationError } from '../basics/errors.js';

/** A place in a specification that an error can point at. */
export interface Place {
  /** The place of a member or an item within this one. */
  at(key: string | number): Place;
  /** @throws SpecificationError pointing here; `fault` is one lowercase sentence. */
  fail(fault: string, expected?: readonly string[], options?: ErrorOptions): never;
}

/** A place in a text. */
export class TextPlace implements Place {
  readonly #text: string;
  readonly #start: number;
  readonly #end: number;
  readonly #items: readonly Place[];

  /**
   * @param start the first code unit
   * @param end the code unit after the last
   * @param items the places of the items, if this is a list
   */
  constructor(text: string, start: number, end: number, items: readonly Place[] = []) {
    this.#text = text;
    this.#start = start;
    this.#end = end;
    this.#items = items;
  }

  at(key: string | number): Place {
    return typeof key === 'number' ? (this.#items[key] ?? this) : this;
  }

  fail(fault: string, expected: readonly string[] = [], options?: ErrorOptions): never {
    const length = Math.max(1, this.#end - this.#start);
    throw new SpecificationError(fault, { specification: this.#text, position: this.#start, length, expected }, options);
  }
}

/** A place in an object. */
export class PathPlace implements Place {
  readonly #path: string;

  /** @param path empty for the object itself */
  constructor(path = '') {
    this.#path = path;
  }

  at(key: string | number): Place {
    if (typeof key === 'number') return new PathPlace(`${this.#path}[${key}]`);
    if (!/^[A-Za-z_$][\w$]*$/.test(key)) return new PathPlace(`${this.#path}[${JSON.stringify(key)}]`);
    return new PathPlace(this.#path === '' ? key : `${this.#path}.${key}`);
  }

  fail(fault: string, expected: readonly string[] = [], options?: ErrorOptions): never {
    throw new SpecificationError(fault, { path: this.#path, expected }, options);
  }
}
