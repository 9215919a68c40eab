// Loaded on a GPU before each program that counts bytes.
import * as cistern from '../../dist/index.js';
import { warmUp } from './warm-up.mjs';

warmUp(cistern);
