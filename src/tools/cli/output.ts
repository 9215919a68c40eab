/**
 * The one place that prints. Names from a log, and of files, are untrusted: a terminal would obey escape
 * sequences in them, which move its cursor, change its title or hide text, and marks of writing
 * direction show text in another order. Everything that is printed goes through {@link Output}, which shows such
 * characters as JSON does: JSON that a command prints means the same.
 */
import { once } from 'node:events';
import { setting } from '../../settings.js';

/** A standard stream of the process, or what takes its place. */
export interface RawStream extends NodeJS.WritableStream {
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
}

/**
 * What is not just shown: control characters except newline and tab, marks of writing direction and what is
 * invisible except joiners, which scripts need, separators of lines, and halves of characters.
 */
const unsafe = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu;

/**
 * What {@link Output} turns into the codes for bold. Programs that measure text take both for codes of a terminal, too. The
 * numbers differ in each process, so that no name can have them.
 */
const numbers = Array.from({ length: 3 }, () => 1000 + Math.floor(Math.random() * 9000)).join(';');
const marks = { begin: `\x1b[1;${numbers}m`, end: `\x1b[22;${numbers}m` };
const codes = { begin: '\x1b[1m', end: '\x1b[22m' };

/** The text with each character that a terminal would not just show as `\u` and its number. */
export function visible(text: string): string {
  return text.replace(unsafe, (characters) =>
    characters
      .split('')
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
      .join(''),
  );
}

/** The same in one line, for a name in a table or a message: a newline in it would begin a line that seems to be cistern's. */
export function visibleInLine(text: string): string {
  return visible(text).replaceAll('\n', '\\n').replaceAll('\t', '\\t');
}

/** Where the text of a command goes. */
export class Output {
  readonly #stream: RawStream;

  constructor(stream: RawStream) {
    this.#stream = stream;
  }

  /** Whether it is a terminal that understands more than text. */
  get isTerminal(): boolean {
    return this.#stream.isTTY === true && setting('TERM') !== 'dumb';
  }

  /** The width of a terminal, which may be unknown; `undefined` elsewhere. */
  get columns(): number | undefined {
    return this.#stream.isTTY === true ? (this.#stream.columns ?? 100) : undefined;
  }

  /** Prints text, whatever it contains. */
  write(text: string): void {
    this.#stream.write(this.#encoded(text));
  }

  /** Passes on bytes that a command has made itself, and waits until more can be. */
  async send(bytes: Uint8Array): Promise<void> {
    if (!this.#stream.write(bytes)) await once(this.#stream, 'drain');
  }

  /** Text in bold, for this output; as it is if that does not show it, or `NO_COLOR` is set. */
  bold(text: string): string {
    return this.isTerminal && setting('NO_COLOR') === undefined ? `${marks.begin}${text}${marks.end}` : text;
  }

  /** The stream itself, for what moves the cursor; everything in it that is not cistern's must be {@link visible}. */
  get unescaped(): RawStream {
    return this.#stream;
  }

  #encoded(text: string): string {
    return text
      .split(marks.begin)
      .map((part) => part.split(marks.end).map(visible).join(codes.end))
      .join(codes.begin);
  }
}
