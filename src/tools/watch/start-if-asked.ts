import { watchFromEnvironment } from './watch-from-environment.js';

// The only side effect of importing cistern, and only if an environment variable requests it.
void watchFromEnvironment();
