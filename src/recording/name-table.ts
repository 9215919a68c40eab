/**
 * Numbers for texts, from 1 to a maximum. When all are in use, further texts share the last number,
 * whose text says so.
 */
export class NameTable {
  readonly #indexes = new Map<string, number>();
  readonly #maximum: number;
  readonly #lastName: string;
  readonly #define: (index: number, name: string) => void;

  /**
   * @param maximum the last number
   * @param lastName the text of the last number
   * @param define called with each number before its first use
   */
  constructor(maximum: number, lastName: string, define: (index: number, name: string) => void) {
    this.#maximum = maximum;
    this.#lastName = lastName;
    this.#define = define;
  }

  /** The number of a text. */
  indexOf(name: string): number {
    const known = this.#indexes.get(name);
    if (known !== undefined) return known;
    const isLast = this.#indexes.size >= this.#maximum - 1;
    if (isLast && name !== this.#lastName) return this.indexOf(this.#lastName);
    const index = this.#indexes.size + 1;
    this.#indexes.set(name, index);
    this.#define(index, name);
    return index;
  }
}
