import '../common/common.css';
import './watch.css';
import type { StatisticsSample } from '../../watch/statistics-sample.js';
import { byId } from '../common/dom.js';
import { formatTimeOfDay } from '../common/format.js';
import { History } from './history.js';
import { lineTables } from './lines.js';
import { BytesByName, DevicePanel, ResourcePanels } from './panels.js';
import { numberTables, Tables } from './tables.js';

type State = 'connecting' | 'live' | 'quiet' | 'lost' | 'ended';

/** After this many intervals without a sample, the process is reported as busy. */
const quietIntervals = 5;

const history = new History();
const resources = new ResourcePanels(byId('resources'));
const libraries = new BytesByName(byId('libraries'), byId('library-charts'), 'All libraries: bytes on devices', (sample) =>
  sample.libraries.map(({ name, deviceBytes: bytes }) => ({ name, bytes })),
);
const accounts = new BytesByName(byId('accounts'), byId('account-charts'), 'Accounts: bytes', (sample) =>
  // What is within another account counts there too.
  sample.accounts.map(({ path: name, liveBytes: bytes }) => ({ name, bytes })),
);
const device = new DevicePanel(byId('device'), byId('device-charts'));
const lines = new Tables(byId('line-tables'));
const tables = new Tables(byId('tables'));
const status = byId('status');
const pause = byId('pause');
const windowSelect = byId('window') as HTMLSelectElement;

let isPaused = false;
let isDrawing = false;
let arrived = performance.now();

/** Changes the status only if the text differs: a screen reader reads every change. */
function say(state: State, text: string): void {
  if (status.textContent === text) return;
  status.dataset['state'] = state;
  status.textContent = text;
}

function draw(): void {
  isDrawing = false;
  const samples = history.window(Number(windowSelect.value));
  const latest = samples.at(-1);
  if (latest === undefined) return;
  byId('process').textContent = `: process ${latest.processId}`;
  byId('hint').hidden = latest.resources.length > 0 || latest.libraries.length > 0;
  resources.show(samples);
  libraries.show(samples);
  accounts.show(samples);
  device.show(samples);
  byId('lines').hidden = latest.bufferSites.length + latest.leakSites.length === 0;
  lines.show(lineTables(samples));
  tables.show(numberTables(latest));
}

function drawSoon(): void {
  if (isDrawing || isPaused) return;
  isDrawing = true;
  requestAnimationFrame(draw);
}

/** The time of the last sample, by the reader's clock. */
function lastTime(): string {
  return history.latest === undefined ? 'the beginning' : formatTimeOfDay(history.latest.timeMilliseconds);
}

const events = new EventSource('events');
events.addEventListener('message', ({ data }: MessageEvent<string>) => {
  history.add(JSON.parse(data) as StatisticsSample);
  arrived = performance.now();
  say('live', 'Live');
  drawSoon();
});
events.addEventListener('end', ({ data }: MessageEvent<string>) => {
  const { status: code } = JSON.parse(data) as { status: number | null };
  events.close();
  clearInterval(quietCheck);
  say('ended', code === null ? `The server closed at ${lastTime()}.` : `The process ended with status ${code} at ${lastTime()}.`);
});
events.addEventListener('error', () => {
  say('lost', `No connection since ${lastTime()}: the process has ended or is busy.`);
});

const quietCheck = setInterval(() => {
  const { samples } = history;
  const [before, last] = samples.slice(-2);
  const interval = before === undefined || last === undefined ? 1000 : last.timeMilliseconds - before.timeMilliseconds;
  if (status.dataset['state'] !== 'live' || performance.now() - arrived < quietIntervals * Math.max(interval, 1000)) return;
  say('quiet', `Nothing new since ${lastTime()}: the process is busy or stopped.`);
}, 1000);

pause.addEventListener('click', () => {
  isPaused = !isPaused;
  pause.setAttribute('aria-pressed', String(isPaused));
  drawSoon();
});
windowSelect.addEventListener('change', draw);
