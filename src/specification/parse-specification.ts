import { suggestion } from '../basics/nearest-word.js';
import type { OptionType, ResourceKind } from '../resource-kind.js';
import { checkSpecification } from './check-specification.js';
import { resourceKind } from './kinds-by-name.js';
import { type Place, TextPlace } from './place.js';
import type { Specification, SpecificationValue } from './specification.js';
import { checkComplete, checkDepth, checkValue, describeOptions, findKind, findOption } from './specification-rules.js';

/**
 * Reads the specification of a resource stack, and checks it against the known kinds. It is an
 * object, such as one read from JSON, or text, which nests like the constructor calls:
 *
 *     resource := kind [ "(" argument { "," argument } ")" ]
 *     argument := resource | option "=" ( value | "[" value { "," value } "]" )
 *
 * The argument without a name is the upstream. A size has a unit (`512MiB`, `1.5 GiB`), is in
 * bytes, or is a share of the device's total memory (`50%`). Put text that contains a space, a
 * comma, a parenthesis or a quote into double or single quotes, in which a backslash quotes the
 * next character.
 * @returns the specification with every size in bytes, or as a share
 * @throws SpecificationError pointing at the first error, with the words that are valid there.
 * @example
 * ```ts
 * parseSpecification('limiting(pool(cuda-async, initialBytes=1GiB, deallocationEvents=deferred), limitBytes=8GiB)');
 * parseSpecification({ kind: 'limiting', upstream: { kind: 'cuda' }, options: { limitBytes: '8GiB' } });
 * ```
 */
export function parseSpecification(specification: string | Specification): Specification {
  return typeof specification === 'string' ? new Parser(specification).parse() : checkSpecification(specification);
}

const wordPattern = /[\w-]+/y;
const blankPattern = /\s*/y;
/** Everything before a character that can end a value. */
const plainValuePattern = /[^,()"']*/y;
/** Everything before a character that can end an item of a list. */
const itemPattern = /[^,[\]]*/y;
const numberPattern = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/;

class Parser {
  readonly #text: string;
  #at = 0;
  #depth = 0;

  constructor(text: string) {
    this.#text = text;
  }

  parse(): Specification {
    this.#skipBlanks();
    const specification = this.#resource();
    if (this.#at < this.#text.length) this.#fail('there is more text after the resource', this.#at, this.#text.length);
    return specification;
  }

  #resource(): Specification {
    const start = this.#at;
    const name = this.#word();
    const place = this.#place(start, this.#at);
    const kind = findKind(name, place);
    checkDepth(++this.#depth, place);
    this.#skipBlanks();
    const { upstream, options } = this.#text[this.#at] === '(' ? this.#arguments(kind) : { options: {} };

    const end = this.#at;
    this.#depth--;
    this.#skipBlanks();
    const resource: Specification = { kind: name, ...(upstream === undefined ? {} : { upstream }), options, range: [start, end] };
    checkComplete(kind, resource, place);
    return resource;
  }

  /** Everything between parentheses. */
  #arguments(kind: ResourceKind): { upstream?: Specification; options: Record<string, SpecificationValue> } {
    const open = this.#at++;
    let upstream: Specification | undefined;
    const options: Record<string, SpecificationValue> = {};
    this.#skipBlanks();
    while (this.#text[this.#at] !== ')') {
      const start = this.#at;
      const name = this.#word();
      const end = this.#at;
      this.#skipBlanks();
      if (name !== '' && this.#text[this.#at] === '=') {
        this.#at++;
        if (Object.hasOwn(options, name)) this.#fail(`the option ${name} is given twice`, start, end);
        options[name] = this.#value(kind, name, this.#place(start, end));
      } else {
        this.#at = start;
        const isResource = resourceKind(name) !== undefined;
        const isOption = kind.role === 'upstream' || (!isResource && (upstream !== undefined || Object.hasOwn(kind.options, name)));
        if (isOption) this.#failOption(kind, name, start);
        if (upstream !== undefined) {
          this.#fail(`${kind.name} takes one upstream resource, and already has it`, start, Math.max(end, start + 1));
        }
        upstream = this.#resource();
      }
      if (this.#text[this.#at] === ',') {
        this.#at++;
        this.#skipBlanks();
        if (this.#text[this.#at] === ')') this.#fail('an argument is expected after the comma', this.#at, this.#at + 1);
      } else if (this.#text[this.#at] !== ')') {
        if (this.#at >= this.#text.length) this.#fail('this parenthesis is not closed', open, open + 1, [')']);
        this.#fail('a comma or a closing parenthesis is expected here', this.#at, this.#at + 1, [',', ')']);
      }
    }
    this.#at++;
    return { ...(upstream === undefined ? {} : { upstream }), options };
  }

  #value(kind: ResourceKind, name: string, namePlace: Place): SpecificationValue {
    const definition = findOption(kind, name, namePlace);
    this.#skipBlanks();
    if (definition.type === 'resource') return this.#resource();
    const start = this.#at;
    const first = this.#text[start];
    const items: Place[] = [];
    const value =
      definition.type === 'sizes' && first === '['
        ? this.#list(items)
        : meaningOf(definition.type, first === '"' || first === "'" ? this.#quoted(first) : this.#plain(plainValuePattern));
    const place = this.#place(start, this.#at, items);
    this.#skipBlanks();
    return checkValue(definition, name, value, place);
  }

  /** The items of a list. Adds their places to `places`. */
  #list(places: Place[]): (string | undefined)[] {
    const open = this.#at;
    const items: (string | undefined)[] = [];
    do {
      this.#at++;
      this.#skipBlanks();
      const start = this.#at;
      items.push(this.#plain(itemPattern));
      places.push(this.#place(start, this.#at));
      this.#skipBlanks();
    } while (this.#text[this.#at] === ',');
    if (this.#text[this.#at] !== ']') this.#fail('this list is not closed', open, open + 1, [']']);
    this.#at++;
    return items;
  }

  /** Text without trailing blanks, or `undefined` if it is empty. */
  #plain(pattern: RegExp): string | undefined {
    const start = this.#at;
    const text = this.#match(pattern).trimEnd();
    this.#at = start + text.length;
    return text === '' ? undefined : text;
  }

  #quoted(quote: string): string {
    const start = this.#at++;
    let value = '';
    for (;;) {
      let character = this.#text[this.#at++];
      if (character === quote) return value;
      if (character === '\\') character = this.#text[this.#at++];
      if (character === undefined) this.#fail('this quotation is not closed', start, start + 1, [quote]);
      value += character;
    }
  }

  #word(): string {
    return this.#match(wordPattern);
  }

  #skipBlanks(): void {
    this.#match(blankPattern);
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text)?.[0] ?? '';
    this.#at += match.length;
    return match;
  }

  /**
   * Throws for text that is neither an option with its value nor a resource that is allowed here.
   */
  #failOption(kind: ResourceKind, name: string, start: number): never {
    const options = Object.keys(kind.options);
    const end = Math.max(start + name.length, start + 1);
    const hint = options.includes(name) ? `, such as ${name}=value` : suggestion(name, options);
    if (options.length === 0) this.#fail(`no argument is expected here: ${describeOptions(kind)}`, start, end);
    this.#fail(`an option of ${kind.name} is expected here${hint}; ${describeOptions(kind)}`, start, end, options);
  }

  #fail(fault: string, start: number, end: number, expected: readonly string[] = []): never {
    return this.#place(start, end).fail(fault, expected);
  }

  #place(start: number, end: number, items: readonly Place[] = []): Place {
    return new TextPlace(this.#text, start, end, items);
  }
}

/**
 * The value that a text stands for, if the option's type is not text. The rules check whether it is
 * valid.
 */
function meaningOf(type: OptionType, text: string | undefined): unknown {
  if (type === 'boolean' && (text === 'true' || text === 'false')) return text === 'true';
  const isNumber = (type === 'integer' || type === 'number') && text !== undefined && numberPattern.test(text);
  return isNumber ? Number(text) : text;
}
