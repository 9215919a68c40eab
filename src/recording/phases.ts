import { innermostOf, type ScopeFrame } from '../scopes/resource-scope.js';

/** The last index that fits into a recording's 16 bits; further names share it. */
const maximumPhases = 65_535;
const lastPhaseName = '(more phases)';

/** The scope of a phase. */
interface PhaseFrame extends ScopeFrame {
  readonly kind: 'phase';
  /** `undefined` outside of all phases. */
  readonly phase: Phase | undefined;
}

/** By name: parts of the program, and captures of graphs. */
class InnerPhases {
  readonly parts = new Map<string, Phase>();
  readonly graphs = new Map<string, Phase>();
}

const outermost = new InnerPhases();
let lastPhase: Phase | undefined;
let phases = 0;

/** A named part of a program, or the captures of a graph. Phases of the same name within the same phase are one. */
export class Phase {
  readonly name: string;
  /** The phase around it. */
  readonly outer: Phase | undefined;
  /** Whether it is the capture of a graph with memory. */
  readonly isGraph: boolean;
  readonly #inner = new InnerPhases();

  private constructor(name: string, outer: Phase | undefined, isGraph: boolean) {
    this.name = name;
    this.outer = outer;
    this.isGraph = isGraph;
    phases++;
  }

  /** The phase with a name within another. */
  static of(name: string, outer: Phase | undefined, isGraph: boolean): Phase {
    const siblings = (outer === undefined ? outermost : outer.#inner)[isGraph ? 'graphs' : 'parts'];
    let phase = siblings.get(name);
    if (phase !== undefined) return phase;
    if (phases >= maximumPhases - 1) {
      lastPhase ??= new Phase(lastPhaseName, undefined, false);
      return lastPhase;
    }
    phase = new Phase(name, outer, isGraph);
    siblings.set(name, phase);
    return phase;
  }
}

/** The innermost phase among a frame and those around it. */
export function innermostPhase(frame: ScopeFrame | undefined): Phase | undefined {
  return innermostOf<PhaseFrame>('phase', frame)?.phase;
}
