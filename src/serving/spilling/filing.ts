/**
 * Moves buffers on from the host to files: when somebody asks, before the host is full, and in the background for those who found it
 * full. After a file could not be written, none is for a second.
 */
import type { SpillFiles } from './spill-files.js';
import type { SpillMembers } from './spill-members.js';

const millisecondsToNextFile = 1000;

export class Filing {
  filed = 0;
  filedBytes = 0;
  refused = 0;
  readonly #files: SpillFiles;
  readonly #members: SpillMembers;
  readonly #mostHostBytes: () => number | undefined;
  readonly #moved: () => void;
  /** Bytes that are to go, and whether some are on their way. */
  #wantedBytes = 0;
  #isGoingOn = false;
  #failure: unknown;
  #failedAt = Number.NEGATIVE_INFINITY;
  #isEnded = false;

  /**
   * @param mostHostBytes above so many bytes on the host, which may change, some go on
   * @param moved called after each buffer, and at the end of all, unless it has ended
   */
  constructor(files: SpillFiles, members: SpillMembers, mostHostBytes: () => number | undefined, moved: () => void) {
    this.#files = files;
    this.#members = members;
    this.#mostHostBytes = mostHostBytes;
    this.#moved = moved;
  }

  /** Whether buffers are on their way, whose memory of the host comes back. */
  get isGoingOn(): boolean {
    return this.#isGoingOn;
  }

  /** Why no file could be written just now. */
  get failure(): unknown {
    return performance.now() - this.#failedAt < millisecondsToNextFile ? this.#failure : undefined;
  }

  /** Moves those of the least rank first, until so many bytes have gone. */
  async move(bytes: number): Promise<number> {
    let gone = 0;
    for (const member of [...this.#members].sort((a, b) => a.rank - b.rank)) {
      if (gone >= bytes || this.#isEnded) break;
      if (!member.isOnHost) continue;
      try {
        if (!(await member.goToFile(this.#files.outward))) continue;
      } catch (error) {
        this.refused++;
        this.#failure = error;
        this.#failedAt = performance.now();
        throw error;
      }
      gone += member.bytes;
      this.filed++;
      this.filedBytes += member.bytes;
      if (!this.#isEnded) this.#moved();
    }
    return gone;
  }

  /** To be called when buffers have come to the host. */
  keepHostBelow(): void {
    const most = this.#mostHostBytes();
    if (most === undefined) return;
    let excess = -most;
    for (const member of this.#members) if (member.isOnHost) excess += member.bytes;
    if (excess > 0) this.moveInBackground(excess);
  }

  /** Moves buffers on for those who wait. */
  moveInBackground(bytes: number): void {
    if (this.failure !== undefined) return;
    this.#wantedBytes = Math.max(this.#wantedBytes, bytes);
    if (this.#isGoingOn) return;
    for (const member of this.#members) if (member.isOnHost) return void this.#moveWhileWanted();
  }

  end(): void {
    this.#isEnded = true;
    this.#files.end();
  }

  async #moveWhileWanted(): Promise<void> {
    this.#isGoingOn = true;
    try {
      let gone: number;
      do {
        const wanted = this.#wantedBytes;
        this.#wantedBytes = 0;
        gone = await this.move(wanted);
      } while (gone > 0);
    } catch {
      // Noted; whoever waits is told.
    } finally {
      this.#wantedBytes = 0;
      this.#isGoingOn = false;
      if (!this.#isEnded) this.#moved();
    }
  }
}
