// Loaded before a program: ends it with SIGKILL at its nth step, which is before or after a call of native code (KILL_AT=n). So a
// process can be killed at every point where what others see of it changes.
import { env, kill, pid } from 'node:process';

const { native } = await import('../../dist/chunks/driver.js');
const binding = native();
const killAt = Number(env.KILL_AT ?? Number.POSITIVE_INFINITY);
let made = 0;
const step = () => {
  if (made++ === killAt) kill(pid, 'SIGKILL');
};
for (const [name, call] of Object.entries(binding)) {
  if (typeof call !== 'function') continue;
  binding[name] = (...args) => {
    step();
    const result = call(...args);
    step();
    return result;
  };
}
/** How many steps there were. */
export const stepsMade = () => made;
