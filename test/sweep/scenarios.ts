import { graphScenarios } from './graph-scenarios.js';
import { hostScenarios } from './host-scenarios.js';
import { operationScenarios } from './operation-scenarios.js';
import type { Scenario } from './scenario-run.js';
import { bulkScenarios, exhaustionScenarios, stackScenarios } from './stack-scenarios.js';

/** Every scenario of the sweep. */
export function allScenarios(): Scenario[] {
  return [
    ...stackScenarios(),
    ...exhaustionScenarios(),
    ...bulkScenarios(),
    ...operationScenarios(),
    ...graphScenarios(),
    ...hostScenarios(),
  ];
}
