import { mailbox, native } from '../../src/driver/native.js';
import { directFaults } from '../support/direct-faults.mjs';
import { openingName, sweepOpening } from './opening.js';
import { allScenarios } from './scenarios.js';
import { type SweepResult, sweep } from './sweep.js';

/** The messages from the process that makes the trials to the one that prints the table. */
export type SweepMessage =
  | { readonly kind: 'trial'; readonly index: number; readonly scenario: string; readonly fault: string }
  | { readonly kind: 'result'; readonly result: SweepResult }
  | { readonly kind: 'end' };

/**
 * Sweeps all scenarios from a given one on.
 * @param filters texts of which the names of the scenarios must contain one
 */
export async function sweepAll(from: number, filters: readonly string[], tell: (message: SweepMessage) => void): Promise<void> {
  directFaults(native(), mailbox, (reason) => {
    throw new Error(reason);
  });
  const isChosen = (name: string) => filters.some((text) => name.includes(text));
  const scenarios = allScenarios();
  const onTrialOf = (index: number, scenario: string) => (fault: string) => tell({ kind: 'trial', index, scenario, fault });
  for (const [index, scenario] of scenarios.entries()) {
    if (index < from || !isChosen(scenario.name)) continue;
    tell({ kind: 'result', result: await sweep(scenario, { onTrial: onTrialOf(index, scenario.name) }) });
  }
  if (from <= scenarios.length && isChosen(openingName)) {
    tell({ kind: 'result', result: sweepOpening(onTrialOf(scenarios.length, openingName)) });
  }
  tell({ kind: 'end' });
}
