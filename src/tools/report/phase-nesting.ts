import type { RecordedPhase } from '../formats/recorded-run.js';

/**
 * A number for each phase, which follows from that of the phase around it. Each phase is looked at once, however deep it is. A
 * damaged log may contain a cycle of phases: one of them then counts as being in no other.
 * @param outside the number outside of all phases, which is phase 0
 */
export function fromOutermostPhase(
  phases: readonly RecordedPhase[],
  outside: number,
  within: (outer: number, phase: number) => number,
): readonly number[] {
  const numbers: (number | undefined)[] = [outside];
  const isPassed = new Uint8Array(phases.length);
  for (let phase = 1; phase < phases.length; phase++) {
    const unknown: number[] = [];
    let at = phase;
    for (; numbers[at] === undefined && isPassed[at] === 0 && at < phases.length; at = phases[at]?.outer ?? 0) {
      isPassed[at] = 1;
      unknown.push(at);
    }
    let number = numbers[at] ?? outside;
    for (const each of unknown.reverse()) {
      number = within(number, each);
      numbers[each] = number;
    }
  }
  return numbers as number[];
}
