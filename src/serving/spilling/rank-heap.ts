/** What is ordered by its rank. */
export interface Ranked {
  rank: number;
  /** Decides between equal ranks: the lower comes first. */
  readonly serial: number;
  /** Its place in the heap, or -1. */
  heapPlace: number;
}

/** Items in the order of their ranks: a binary heap. Cost: logarithmic, of every call. */
export class RankHeap<T extends Ranked> {
  /** No item comes before its parent, which is at `(place - 1) >> 1`. */
  readonly #items: T[] = [];

  has(item: T): boolean {
    return item.heapPlace >= 0;
  }

  /** Adds an item; or moves one that is here to its place, after its rank has changed. */
  put(item: T): void {
    if (item.heapPlace < 0) item.heapPlace = this.#items.push(item) - 1;
    this.#move(item);
  }

  remove(item: T): void {
    const place = item.heapPlace;
    if (place < 0) return;
    item.heapPlace = -1;
    const last = this.#items.pop() as T;
    if (last === item) return;
    this.#set(place, last);
    this.#move(last);
  }

  /** Removes the first. */
  take(): T | undefined {
    const [first] = this.#items;
    if (first !== undefined) this.remove(first);
    return first;
  }

  #move(item: T): void {
    let place = item.heapPlace;
    for (let parent = (place - 1) >> 1; place > 0 && comesBefore(item, this.#items[parent] as T); parent = (place - 1) >> 1) {
      this.#set(place, this.#items[parent] as T);
      place = parent;
    }
    for (let child = this.#firstChild(place); child !== undefined && comesBefore(child, item); child = this.#firstChild(place)) {
      const next = child.heapPlace;
      this.#set(place, child);
      place = next;
    }
    this.#set(place, item);
  }

  #firstChild(place: number): T | undefined {
    const left = this.#items[2 * place + 1];
    const right = this.#items[2 * place + 2];
    return left !== undefined && right !== undefined && comesBefore(right, left) ? right : left;
  }

  #set(place: number, item: T): void {
    this.#items[place] = item;
    item.heapPlace = place;
  }
}

function comesBefore(a: Ranked, b: Ranked): boolean {
  return a.rank < b.rank || (a.rank === b.rank && a.serial < b.serial);
}
