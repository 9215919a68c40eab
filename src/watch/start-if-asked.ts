import { watchFromEnvironment } from './watch-from-environment.js';

// The only side effect of importing cistern, and only if the environment asks for it.
void watchFromEnvironment();
