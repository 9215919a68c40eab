import { type SettingName, setting, settingNames, unknownSettings } from '../settings.js';
import { type ArgumentRangeError, formatValue, invalidValue } from './errors.js';
import { nearestSpelling } from './nearest-word.js';
import { bytesOf, sizeMeant } from './units.js';

/** The error for a value that an environment variable cannot have. `expected` follows "must be". */
export function invalidSetting(name: SettingName, expected: string): ArgumentRangeError {
  return invalidValue(`${name} must be ${expected}, got ${formatValue(setting(name))}`);
}

/**
 * Whether a variable is 1 and not 0; `undefined` if it is not set.
 * @throws ArgumentRangeError for any other value
 */
export function flagSetting(name: SettingName): boolean | undefined {
  const value = setting(name);
  if (value === undefined) return undefined;
  if (value !== '0' && value !== '1') throw invalidSetting(name, '0 or 1');
  return value === '1';
}

/**
 * The word of a variable; `undefined` if it is not set.
 * @throws ArgumentRangeError if it is none of the words
 */
export function wordSetting<Word extends string>(name: SettingName, words: readonly Word[]): Word | undefined {
  const value = setting(name);
  if (value === undefined) return undefined;
  const word = words.find((each) => each === value);
  if (word === undefined) throw invalidSetting(name, `one of ${words.join(', ')}`);
  return word;
}

/**
 * The integer of a variable, in decimal digits; `undefined` if it is not set.
 * @throws ArgumentRangeError if it is no integer from `least` to `most`, which `range` names
 */
export function integerSetting(name: SettingName, least: number, most: number, range = `${least} to ${most}`): number | undefined {
  const value = setting(name);
  if (value === undefined) return undefined;
  const integer = /^\d+$/.test(value) ? Number(value) : -1;
  if (integer < least || integer > most) throw invalidSetting(name, `an integer from ${range}`);
  return integer;
}

/**
 * The bytes of a variable such as `512MiB`, as specifications have them; `undefined` if it is not
 * set.
 * @throws ArgumentRangeError if it is no size from `least` to `most`; `expected` says what it must be
 */
export function bytesSetting(name: SettingName, expected: string, least = 0, most: number = Number.MAX_SAFE_INTEGER): number | undefined {
  const value = setting(name);
  if (value === undefined) return undefined;
  const bytes = bytesOf(value);
  const meant = sizeMeant(value);
  if (bytes === undefined || bytes < least || bytes > most) {
    throw invalidSetting(name, meant === undefined ? expected : `${expected} (did you mean ${meant}?)`);
  }
  return bytes;
}

/**
 * The variables that are probably misspelt, each with the one that was meant. A variable that resembles none, such as one of
 * the program's own or of a test, is not among them.
 */
export function misspeltSettings(): { readonly name: string; readonly meant: SettingName }[] {
  const bare = (name: string) => name.slice('CISTERN_'.length);
  const known = settingNames.map(bare);
  return unknownSettings().flatMap((name) => {
    const meant = nearestSpelling(bare(name), known);
    return meant === undefined ? [] : [{ name, meant: `CISTERN_${meant}` as SettingName }];
  });
}
