import { allScenarios } from './scenarios.js';
import { type SweepResult, sweep } from './sweep.js';

/** What the process that makes the trials tells the one that prints the table. */
export type SweepMessage =
  | { readonly kind: 'trial'; readonly index: number; readonly scenario: string; readonly fault: string }
  | { readonly kind: 'result'; readonly result: SweepResult }
  | { readonly kind: 'end' };

/**
 * Sweeps all scenarios from one on.
 * @param filter what the names of the scenarios must contain
 */
export async function sweepAll(from: number, filter: string, tell: (message: SweepMessage) => void): Promise<void> {
  for (const [index, scenario] of allScenarios().entries()) {
    if (index < from || !scenario.name.includes(filter)) continue;
    const onTrial = (fault: string) => tell({ kind: 'trial', index, scenario: scenario.name, fault });
    tell({ kind: 'result', result: await sweep(scenario, { onTrial }) });
  }
  tell({ kind: 'end' });
}
