import type { ScopeFrame } from '../../resource-scope.js';

/** More names would not fit into the 16 bits that a recording has for them; what comes later is this last phase. */
const maximumPhases = 65_535;
const lastPhaseName = '(more phases)';

/** The scope of a phase. */
interface PhaseFrame extends ScopeFrame {
  readonly kind: 'phase';
  readonly phase: Phase;
}

const outermost = new Map<string, Phase>();
let lastPhase: Phase | undefined;
let phases = 0;

/** Whether this environment had a phase yet: without, nobody needs to look for one. */
export let hasPhases = false;

/** A named part of a program. Those of the same name, within the same phase, are one. */
export class Phase {
  readonly name: string;
  /** The phase around it. */
  readonly outer: Phase | undefined;
  readonly #inner = new Map<string, Phase>();

  private constructor(name: string, outer: Phase | undefined) {
    this.name = name;
    this.outer = outer;
    phases++;
    hasPhases = true;
  }

  /** The phase of a name within another. */
  static of(name: string, outer: Phase | undefined): Phase {
    const siblings = outer === undefined ? outermost : outer.#inner;
    let phase = siblings.get(name);
    if (phase !== undefined) return phase;
    if (phases >= maximumPhases - 1) {
      lastPhase ??= new Phase(lastPhaseName, undefined);
      return lastPhase;
    }
    phase = new Phase(name, outer);
    siblings.set(name, phase);
    return phase;
  }
}

/** The innermost phase of a frame and those around it. */
export function innermostPhase(frame: ScopeFrame | undefined): Phase | undefined {
  for (let each = frame; each !== undefined; each = each.outer) if (isPhaseFrame(each)) return each.phase;
  return undefined;
}

function isPhaseFrame(frame: ScopeFrame): frame is PhaseFrame {
  return frame.kind === 'phase';
}
