/** A phrase that suggests the nearest word, or an empty string. */
export function suggestion(value: unknown, words: readonly string[]): string {
  const nearest = typeof value === 'string' ? nearestWord(value, words) : undefined;
  return nearest === undefined ? '' : `, did you mean ${nearest}?`;
}

/**
 * The word that was probably meant, ignoring case and hyphens: the nearest spelling; otherwise the only word that has a
 * part in common with it, as `events` is a part of `deallocationEvents`.
 */
export function nearestWord(text: string, words: readonly string[]): string | undefined {
  // No name is longer, nor is one that was misspelled: a text of a hundred thousand letters would only be split in vain.
  return text.length > 100 ? undefined : (nearestSpelling(text, words) ?? onlyWordWithPartOf(text, words));
}

/**
 * The word with the fewest edits, if those are few for the text's length; otherwise the first word that the text abbreviates,
 * as `maxBytes` abbreviates `maximumBytes`. Ignores case and hyphens.
 */
export function nearestSpelling(text: string, words: readonly string[]): string | undefined {
  const plain = lettersOf(text);
  let nearest: string | undefined;
  let fewest = Math.max(1, Math.floor(plain.length / 3)) + 1;
  for (const word of words) {
    // A text needs at least as many edits as its length differs, which rules out most long texts
    // here.
    if (Math.abs(plain.length - lettersOf(word).length) >= fewest) continue;
    const edits = editDistance(plain, lettersOf(word));
    if (edits < fewest) [nearest, fewest] = [word, edits];
  }
  return nearest ?? words.find((word) => isShortFor(plain, lettersOf(word)));
}

function lettersOf(text: string): string {
  return text.toLowerCase().replaceAll(/[-_]/g, '');
}

/**
 * Whether `text` has at least three letters, starts like `word`, and its letters occur in `word` in
 * the same order.
 */
function isShortFor(text: string, word: string): boolean {
  if (text.length < 3 || text[0] !== word[0]) return false;
  let matched = 0;
  for (const letter of word) if (letter === text[matched]) matched++;
  return matched === text.length;
}

function onlyWordWithPartOf(text: string, words: readonly string[]): string | undefined {
  const parts = new Set(partsOf(text));
  const found = words.filter((word) => partsOf(word).some((part) => parts.has(part)));
  return found.length === 1 ? found[0] : undefined;
}

/** `dump` and `file` for `dumpFile` and `dump-file`. */
function partsOf(text: string): string[] {
  return text
    .split(/[-_]|(?=[A-Z])/)
    .filter((part) => part.length >= 3)
    .map((part) => part.toLowerCase());
}

/**
 * The number of insertions, removals, replacements and swaps of neighbours that turn one text into
 * the other (optimal string alignment).
 */
function editDistance(a: string, b: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = (last[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      let edits = Math.min((last[j] as number) + 1, (row[j - 1] as number) + 1, replaced);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) edits = Math.min(edits, (beforeLast[j - 2] as number) + 1);
      row.push(edits);
    }
    beforeLast = last;
    last = row;
  }
  return last[b.length] as number;
}
