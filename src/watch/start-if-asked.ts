import { watchFromEnvironment } from './watch-from-environment.js';

// Importing cistern does this one thing, and only where the environment asks for it.
void watchFromEnvironment();
