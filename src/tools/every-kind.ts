/** Makes the kinds of all capabilities known to specifications, also in a bundle. */
import { resourceKinds as checking } from '../checking/index.js';
import { resourceKinds as graphs } from '../graphs/index.js';
import { resourceKinds as plans } from '../plans/index.js';
import { resourceKinds as recording } from '../recording/index.js';
import type { ResourceKind } from '../resource-kind.js';
import { resourceKinds as serving } from '../serving/index.js';
import { addResourceKinds, resourceKinds as core } from '../specification/kinds-by-name.js';
import { resourceKinds as workers } from '../workers/index.js';

/** Every kind of resource that a specification can name, in the order of listings. */
export const everyKind: readonly ResourceKind[] = [...core, ...workers, ...plans, ...graphs, ...serving, ...recording, ...checking];

addResourceKinds(everyKind);
