import { ArgumentTypeError, formatValue, SpecificationError } from '../errors.js';
import { parseBytes } from '../units.js';
import { nearestWord } from './nearest-word.js';
import type { ResourceKind } from './resource-kind.js';
import { kindNames, resourceKind } from './resource-kinds.js';
import { maximumDepth, type OptionDefinition, type Specification, type SpecificationValue } from './specification.js';

/**
 * Reads the text that describes a stack of resources, inside out as one would construct it, and holds it against the kinds that exist:
 *
 *     resource := kind [ "(" argument { "," argument } ")" ]
 *     argument := resource | option "=" value
 *
 * The argument without a name is the upstream. A size has a unit (`512MiB`, `1.5 GiB`) or is in bytes; text that holds a space, a comma,
 * a parenthesis or a quote is put into double or single quotes, in which a backslash takes the next character as it is.
 * @throws SpecificationError pointing at the first fault, with what was expected there.
 * @throws ArgumentTypeError for what is no text.
 * @example
 * ```ts
 * parseSpecification('limiting(pool(cuda-async, initial=1GiB, events=deferred), limit=8GiB)');
 * ```
 */
export function parseSpecification(text: string): Specification {
  if (typeof text !== 'string') throw new ArgumentTypeError(`specification must be a string, got ${formatValue(text)}`);
  return new Parser(text).parse();
}

const wordPattern = /[\w-]+/y;
const blankPattern = /\s*/y;
/** Everything up to what can end a value. */
const plainValuePattern = /[^,()"']*/y;
const numberPattern = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;

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
    if (name === '') this.#fail(`a resource is expected here; kinds: ${kindNames.join(', ')}`, start, start + 1, kindNames);
    const kind = resourceKind(name);
    if (kind === undefined) this.#failUnknown('resource kind', name, kindNames, start, this.#at);
    const nameEnd = this.#at;
    if (++this.#depth > maximumDepth) this.#fail(`there are more than ${maximumDepth} resources within each other`, start, nameEnd);
    this.#skipBlanks();
    const { upstream, options } = this.#text[this.#at] === '(' ? this.#arguments(kind) : { options: {} };

    const end = this.#at;
    this.#depth--;
    this.#skipBlanks();
    if (kind.role !== 'upstream' && upstream === undefined) {
      this.#fail(`${name} needs an upstream resource, such as ${name}(cuda)`, start, nameEnd, kindNames);
    }
    for (const [option, { required, type }] of Object.entries(kind.options)) {
      if (required === true && options[option] === undefined) {
        this.#fail(`${name} needs the option ${option}=${type}`, start, nameEnd, [option]);
      }
    }
    return { kind: name, ...(upstream === undefined ? {} : { upstream }), options, range: [start, end] };
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
        options[name] = this.#value(kind, name, start, end);
      } else {
        this.#at = start;
        const isResource = resourceKind(name) !== undefined;
        const isOption = kind.role === 'upstream' || (!isResource && (upstream !== undefined || Object.hasOwn(kind.options, name)));
        if (isOption) this.#failOption(kind, name, start);
        if (upstream !== undefined) {
          this.#fail(`${kind.name} takes one upstream resource, and has it already`, start, Math.max(end, start + 1));
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

  #value(kind: ResourceKind, name: string, nameStart: number, nameEnd: number): SpecificationValue {
    const definition = Object.hasOwn(kind.options, name) ? kind.options[name] : undefined;
    const names = Object.keys(kind.options);
    if (definition === undefined) this.#failUnknown(`option of ${kind.name}`, name, names, nameStart, nameEnd);
    this.#skipBlanks();
    if (definition.type === 'resource') return this.#resource();
    const start = this.#at;
    const quote = this.#text[start];
    const text = quote === '"' || quote === "'" ? this.#quoted(quote) : this.#match(plainValuePattern).trimEnd();
    const end = quote === '"' || quote === "'" ? this.#at : start + text.length;
    this.#skipBlanks();
    const value = text === '' && end === start ? undefined : readValue(definition, text);
    if (value !== undefined) return value;
    const words = definition.words ?? [];
    const found = text === '' ? 'nothing' : formatValue(text);
    this.#fail(
      `${name} must be ${describeValue(definition)}, got ${found}${suggestion(text, words)}`,
      start,
      Math.max(end, start + 1),
      words,
    );
  }

  #quoted(quote: string): string {
    const start = this.#at++;
    let value = '';
    for (;;) {
      let character = this.#text[this.#at++];
      if (character === quote) return value;
      if (character === '\\') character = this.#text[this.#at++];
      if (character === undefined) this.#fail('this quotation does not end', start, start + 1, [quote]);
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

  /** Something that is neither an option with its value nor a resource that may stand here. */
  #failOption(kind: ResourceKind, name: string, start: number): never {
    const options = Object.keys(kind.options);
    const end = Math.max(start + name.length, start + 1);
    const hint = options.includes(name) ? `, such as ${name}=value` : suggestion(name, options);
    this.#fail(`an option of ${kind.name} is expected here${hint}; options: ${options.join(', ')}`, start, end, options);
  }

  #failUnknown(what: string, name: string, known: readonly string[], start: number, end: number): never {
    const list = what === 'resource kind' ? 'kinds' : 'options';
    this.#fail(`there is no ${what} ${formatValue(name)}${suggestion(name, known)}; ${list}: ${known.join(', ')}`, start, end, known);
  }

  #fail(fault: string, start: number, end: number, expected: readonly string[] = []): never {
    throw new SpecificationError(fault, { specification: this.#text, position: start, length: Math.max(1, end - start), expected });
  }
}

function suggestion(text: string, words: readonly string[]): string {
  const nearest = nearestWord(text, words);
  return nearest === undefined ? '' : `, did you mean ${nearest}?`;
}

/** The value that a text stands for, or `undefined` where it is none of the option's. */
function readValue(definition: OptionDefinition, text: string): SpecificationValue | undefined {
  switch (definition.type) {
    case 'size':
      return parseBytes(text);
    case 'integer':
      return /^[+-]?\d+$/.test(text) && Number.isSafeInteger(Number(text)) ? Number(text) : undefined;
    case 'number':
      return numberPattern.test(text) && Number.isFinite(Number(text)) ? Number(text) : undefined;
    case 'boolean':
      return text === 'true' ? true : text === 'false' ? false : undefined;
    case 'word':
      return definition.words?.includes(text) ? text : undefined;
    case 'text':
      return text;
    case 'resource':
      return undefined;
  }
}

/** What a value of the option must be, for people. */
function describeValue(definition: OptionDefinition): string {
  switch (definition.type) {
    case 'size':
      return 'a size such as 512MiB';
    case 'integer':
      return 'an integer';
    case 'number':
      return 'a number';
    case 'boolean':
      return 'true or false';
    case 'word':
      return `one of ${definition.words?.join(', ')}`;
    case 'text':
      return 'text';
    case 'resource':
      return 'a resource';
  }
}
