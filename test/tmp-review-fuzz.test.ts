import { test } from 'vitest';
import { appendFileSync } from 'node:fs';
import { mailbox, native } from '../src/driver/native.js';
import { StreamTimeline } from '../src/driver/stream-timeline.js';
import {
  ArenaMemoryResource, BinningMemoryResource, CisternError, Device, DriverError, Event, FixedSizeMemoryResource, LifetimeError, MonotonicMemoryResource,
  OutOfMemoryError, PoolMemoryResource, Stream, type DeallocationFence, type MemoryResource,
} from '../src/index.js';

const device = Device.get();
type VC = Map<number, number>;
function join(a: VC, b: VC) { for (const [k, v] of b) if ((a.get(k) ?? 0) < v) a.set(k, v); }

let streamVC = new Map<number, VC>();
let hostVC: VC = new Map();
let eventVC = new WeakMap<Event, VC>();
let dead = new Set<number>();
let holds = new Map<number, { release(): void }>();
let trace: string[] = [];
let onBlock: (() => void) | undefined;
let failRecord = 0; let failWait = 0;
let rnd: () => number = Math.random;
const chance = (p: number) => rnd() < p;
const pick = <T>(a: readonly T[]): T => a[Math.floor(rnd() * a.length)] as T;
const int = (a: number, b: number) => a + Math.floor(rnd() * (b - a + 1));

function vcOf(id: number): VC { let v = streamVC.get(id); if (!v) { v = new Map(); streamVC.set(id, v); } return v; }
function touch(id: number): VC { const v = vcOf(id); join(v, hostVC); return v; }
function tick(id: number): number { const v = touch(id); const c = (v.get(id) ?? 0) + 1; v.set(id, c); return c; }
class Fault extends Error {}
function checkDead(t: { id: number }, what: string) { if (dead.has(t.id)) throw new Fault(`${what} on dead stream ${t.id}`); }

const releaseAll = () => { for (const h of holds.values()) h.release(); holds.clear(); };
function block(what: string) { trace.push(`  [block ${what}]`); releaseAll(); onBlock?.(); releaseAll(); }

const P = StreamTimeline.prototype as any; const E = Event.prototype as any; const D = Device.prototype as any; const S = Stream.prototype as any;
const o = { wait: P.wait, query: P.query, sync: P.synchronizeSync, rec: E.recordOn, equery: E.query, esync: E.synchronizeSync, dsync: D.synchronizeSync, swait: S.wait };
P.wait = function (e: Event) {
  checkDead(this, 'wait');
  if (failWait > 0 && --failWait === 0) throw new DriverError('wait', 'CUDA_ERROR_INJECTED', 999, 'injected');
  o.wait.call(this, e); const ev = eventVC.get(e); if (ev) join(touch(this.id), ev); trace.push(`  wait s${this.id} ev${(e as any).__n}`); };
let en = 0;
E.recordOn = function (t: StreamTimeline) {
  checkDead(t, 'record');
  (this as any).__n ??= ++en;
  if (failRecord > 0 && --failRecord === 0) { this.version++; this.recordedOn = undefined; eventVC.delete(this); throw new DriverError('record', 'CUDA_ERROR_INJECTED', 999, 'injected'); }
  o.rec.call(this, t); eventVC.set(this, new Map(touch(t.id))); trace.push(`  rec s${t.id} ev${(this as any).__n}`); };
P.query = function () { checkDead(this, 'query'); const r = o.query.call(this); if (r) { join(hostVC, vcOf(this.id)); } trace.push(`  query s${this.id} ${r}`); return r; };
P.synchronizeSync = function () { checkDead(this, 'sync'); const c = this.beginSynchronization(); const snap = new Map(vcOf(this.id)); block(`s${this.id}`); native().synchronizeStream(this.handle); c(); join(hostVC, snap); };
D.synchronizeSync = function () {
  const c = StreamTimeline.beginSynchronizations(StreamTimeline.ofDevice(this.index)); const snap = new Map<number, number>();
  for (const v of streamVC.values()) join(snap, v);
  block('device'); native().synchronizeDevice(this.index); c(); join(hostVC, snap); };
E.query = function () { const r = o.equery.call(this); if (r) { const ev = eventVC.get(this); if (ev) join(hostVC, ev); } return r; };
S.wait = function (e: Event) { o.swait.call(this, e); const ev = eventVC.get(e); if (ev) join(touch(this.id), ev); };

interface Use { deps: [number, number][]; live: number; }
interface Seg { base: number; units: (Use | undefined)[]; stream: number }
class Upstream implements MemoryResource {
  readonly memoryKind = 'device' as const; readonly device = device;
  segs: Seg[] = []; next = 2 ** 33; used = 0; limit: number; during: (() => void) | undefined; failFree = 0; failFreeHit = false; failFreeHit = false;
  constructor(limit: number) { this.limit = limit; }
  allocate(bytes: number, stream: Stream): number {
    if (bytes === 0) return 0;
    const fail = () => { throw new OutOfMemoryError('up', { requestedBytes: bytes, path: ['Up'] }); };
    if (this.used + bytes > this.limit) fail();
    this.used += bytes;
    const id = stream.timeline.id;
    this.during?.();
    if (stream.isDisposed && false) fail();
    const c = tick(id);
    const use: Use = { deps: [[id, c]], live: 0 };
    const seg = { base: this.next, units: new Array(bytes / 256).fill(use), stream: id };
    this.next += bytes + 256 * int(0, 8);
    this.segs.push(seg);
    trace.push(`  UP alloc ${bytes} s${id} -> ${seg.base}`);
    return seg.base;
  }
  deallocate(p: number, bytes: number, stream: Stream) {
    if (p === 0) return;
    const id = stream.timeline.id;
    const i = this.segs.findIndex((s) => s.base === p);
    if (i < 0 || (this.segs[i] as Seg).units.length * 256 !== bytes) throw new Fault(`upstream free of ${p} ${bytes}`);
    const v = touch(id);
    const seg = this.segs[i] as Seg;
    const seen = new Set<Use>();
    for (const u of seg.units) if (u && !seen.has(u)) { seen.add(u); if (u.live && !ending) throw new Fault(`upstream gets live memory ${u.live}`); if (!u.live) ordered(u, v, `upstream free on s${id}`); }
    if (this.failFree > 0 && --this.failFree === 0) throw new DriverError('free', 'CUDA_ERROR_INJECTED', 999, 'injected');
    this.segs.splice(this.segs.indexOf(seg), 1); this.used -= bytes;
    trace.push(`  UP free ${p} ${bytes} s${id}`);
    this.during?.();
  }
  isEqual(x: MemoryResource) { return x === this; }
  [Symbol.dispose]() {}
  find(p: number): Seg { const s = this.segs.find((s) => p >= s.base && p < s.base + s.units.length * 256); if (!s) throw new Fault(`pointer ${p} in no segment`); return s; }
}
let ending = false;
function ordered(u: Use, v: VC, what: string) { for (const [s, c] of u.deps) if ((v.get(s) ?? 0) < c) throw new Fault(`${what}: not ordered after s${s}@${c} (has ${v.get(s) ?? 0})`); }

interface Live { id: number; p: number; bytes: number; stream: Stream; sid: number; freed?: [number, number]; use: Use; mark?: number }

function run(kind: string, policy: 'eager' | 'deferred' | 'off', seed: number, steps: number, reent: boolean, fails: boolean) {
  let s = seed * 2654435761 >>> 0; rnd = () => { s = (s + 0x6d2b79f5) | 0; let t = Math.imul(s ^ (s >>> 15), 1 | s); t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t; return ((t ^ (t >>> 14)) >>> 0) / 4294967296; };
  streamVC = new Map(); hostVC = new Map(); eventVC = new WeakMap(); dead = new Set(); trace = []; en = 0; failRecord = failWait = 0; ending = false; onBlock = undefined;
  device.synchronizeSync();
  const MB = 1 << 20;
  const cap = kind === 'arena' ? pick([2, 4, 6]) * MB : pick([64, 256, 1024]) * 256;
  const up = new Upstream(chance(0.3) ? cap * 4 : Infinity);
  const max = chance(0.8) ? cap * 2 : Infinity;
  let r: any;
  if (kind === 'pool') r = new PoolMemoryResource(up, { initialBytes: chance(0.5) ? cap : 0, maximumBytes: max, deallocationEvents: policy });
  else if (kind === 'arena') r = new ArenaMemoryResource(up, { arenaBytes: cap, deallocationEvents: policy });
  else if (kind === 'fixed') r = new FixedSizeMemoryResource(up, { blockBytes: 1024, blocksToPreallocate: pick([0, 4, 16]), maximumBytes: max, deallocationEvents: policy });
  else if (kind === 'binning') r = new BinningMemoryResource(up, { bins: [512, 1024, 4096], blocksToPreallocate: pick([0, 4]), deallocationEvents: policy });
  else r = new MonotonicMemoryResource(up, { initialBytes: 2048, growthFactor: pick([1, 2]), maximumBytes: max, deallocationEvents: policy });
  const mono = kind === 'mono';
  const validate = () => { if (r.validate) r.validate(); else for (const b of r.bins) b.resource.validate(); };
  const streams: { stream: Stream; foreign?: () => void }[] = [];
  const live = new Map<number, Live>();
  const marks: { mark: any; at: number }[] = [];
  const sharedEvents: Event[] = [];
  const pending: { complete: () => void; event: Event; snap: VC }[] = [];
  let n = 0; let depth = 0; let ooms = 0;
  const newStream = () => {
    if (chance(0.2)) {
      native().createStream(0, true, 0); const h = mailbox[1] as number; native().streamAddress(h); const a = mailbox[1] as number;
      const announces = chance(0.4);
      const stream = Stream.fromHandle(a, { announcesEnd: announces });
      streams.push(announces ? { stream } : { stream, foreign: () => native().releaseStream(h) });
      trace.push(`new foreign s${stream.timeline.id} announces ${announces}`);
    } else { const stream = new Stream({ nonBlocking: true }); streams.push({ stream }); trace.push(`new s${stream.timeline.id}`); }
  };
  for (let i = 0; i < int(1, 4); i++) newStream();
  const endStream = (i: number) => {
    const e = streams[i] as (typeof streams)[0]; if (e.stream.isDisposed) { streams.splice(i, 1); return; }
    const id = e.stream.timeline.id;
    holds.get(id)?.release(); holds.delete(id);
    streams.splice(i, 1);
    // what lives on it for the monotonic one is ordered at its end
    trace.push(`end s${id} ${e.foreign ? 'foreign' : ''}`);
    if (e.foreign && chance(0.6)) { for (const l of live.values()) if (l.sid === id && !l.freed) l.freed = [id, vcOf(id).get(id) ?? 0]; e.foreign(); dead.add(id); zombies.push(e.stream); }
    else {
      try { e.stream.dispose(); } catch (x) { if (x instanceof DriverError) { streams.push(e); trace.push('  refused'); return; } throw x; }
      for (const l of live.values()) if (l.sid === id && !l.freed) l.freed = [id, vcOf(id).get(id) ?? 0];
    }
  };
  const zombies: Stream[] = [];
  const size = () => kind === 'arena' ? (chance(0.8) ? int(1, 900000) : int(1, 2 * MB)) : kind === 'fixed' ? int(1, 1024) : chance(0.8) ? int(1, 4096) : int(1, cap);
  const free = (l: Live, t: Stream, fence: DeallocationFence | undefined) => {
    const id = t.timeline.id;
    const c = tick(id);
    const before: [number, number] | undefined = l.freed;
    if (!mono) { live.delete(l.id); l.use.live = 0; l.use.deps = [[id, c]]; } else l.freed = [id, c];
    try { r.deallocate(l.p, l.bytes, t, fence); } catch (x) {
      if (!mono) { if (x instanceof DriverError) { live.set(l.id, l); l.use.live = l.id; l.use.deps = []; } }
      else if (x instanceof DriverError) { if (before) l.freed = before; else delete l.freed; }
      throw x;
    }
  };
  const takeBack = (since: number): Live[] => {
    const back = [...live.values()].filter((l) => l.id > since);
    return back;
  };
  const op = () => {
    const usable = streams.filter((e) => !e.stream.isDisposed);
    if (usable.length === 0) { if (depth === 0) newStream(); return; }
    const e = pick(usable); const st = e.stream; const id = st.timeline.id;
    const x = rnd();
    if (x < 0.4) {
      const bytes = size(); const al = chance(0.1) && kind !== 'fixed' && kind !== 'binning' ? pick([512, 1024, 4096]) : 256;
      trace.push(`alloc ${bytes} al ${al} s${id}`);
      const p = r.allocate(bytes, st, al);
      trace.push(`  -> ${p}`);
      if (p % al) throw new Fault('misaligned');
      const v = touch(id); const seg = up.find(p); const first = (p - seg.base) / 256; const count = Math.ceil(bytes / 256);
      if (first + count > seg.units.length) throw new Fault('beyond the segment');
      const use: Use = { live: ++n, deps: [] };
      for (let i = first; i < first + count; i++) { const u = seg.units[i] as Use; if (u.live) throw new Fault(`handed out twice: ${u.live}`); if (u.deps.length) ordered(u, v, `alloc on s${id}`); seg.units[i] = use; }
      tick(id);
      live.set(n, { id: n, p, bytes, stream: st, sid: id, use });
    } else if (x < 0.72) {
      if (live.size === 0) return;
      const l = [...live.values()][int(0, live.size - 1)] as Live;
      if (l.freed) return;
      let t = l.stream;
      if (t.isDisposed || dead.has(t.timeline.id) || chance(0.3)) {
        t = st;
        if (l.stream.isDisposed || dead.has(l.sid)) { if (vcOf(id) !== vcOf(l.sid)) { join(touch(id), vcOf(l.sid)); } }
        else if (t !== l.stream) { const ev = new Event(); try { ev.record(l.stream); t.wait(ev); } catch (y) { if (y instanceof DriverError) return; throw y; } }
      }
      // in the oracle only: a stream that ended was waited for by its user (real device: nothing runs there)
      let fence: DeallocationFence | undefined;
      const y = rnd();
      if (y < 0.1) fence = 'eager'; else if (y < 0.2) fence = 'deferred'; else if (y < 0.3) fence = 'off';
      else if (y < 0.4) { const ev = chance(0.5) && sharedEvents.length ? pick(sharedEvents) : new Event(); if (ev.handle >= 0) { tick(t.timeline.id); try { ev.record(t); } catch (z) { if (z instanceof DriverError) return; throw z; } fence = ev; if (!sharedEvents.includes(ev)) sharedEvents.push(ev); } }
      trace.push(`free ${l.p} ${l.bytes} s${t.timeline.id} (alloc s${l.sid}) ${fence instanceof Event ? 'event' : fence}`);
      // with an event fence the clock is that of the record; free() ticks again, so no: record again afterwards
      if (fence instanceof Event) {
        const c = vcOf(t.timeline.id).get(t.timeline.id) as number;
        const keep = { ...l };
        void keep;
        if (!mono) { live.delete(l.id); l.use.live = 0; l.use.deps = [[t.timeline.id, c]]; } else l.freed = [t.timeline.id, c];
        try { r.deallocate(l.p, l.bytes, t, fence); } catch (z) { if (z instanceof DriverError) { if (mono) delete l.freed; else { live.set(l.id, l); l.use.live = l.id; l.use.deps = []; } } throw z; }
      } else free(l, t, fence);
    } else if (x < 0.76) { if (holds.has(id)) { holds.get(id)?.release(); holds.delete(id); } else holds.set(id, st.hold()); }
    else if (x < 0.78) { trace.push(`sync s${id}`); if (depth === 0) st.synchronizeSync(); }
    else if (x < 0.80) { st.query(); }
    else if (x < 0.82) { if (streams.length < 6) newStream(); }
    else if (x < 0.85) { if (chance(0.5)) endStream(streams.findIndex((q) => q.stream === st)); }
    else if (x < 0.87) { const o2 = pick(usable).stream; if (o2 !== st) { const ev = new Event(); ev.record(o2); st.wait(ev); trace.push(`user wait s${id} for s${o2.timeline.id}`); } }
    else if (x < 0.88) { if (sharedEvents.length) { const ev = pick(sharedEvents); if (ev.handle >= 0) { if (chance(0.5)) { ev.dispose(); trace.push('dispose shared event'); } else { ev.record(st); trace.push('re-record shared event'); } } } }
    else if (x < 0.90) { if (depth === 0 || true) { trace.push(`trim s${id}`); r.trim(st, chance(0.3) ? { bytesToKeep: int(0, cap) } : {}); } }
    else if (x < 0.93 && kind === 'arena') { trace.push('defragment'); r.defragment(); }
    else if (x < 0.96 && mono) {
      if (chance(0.5) || marks.length === 0) { const mark = r.mark(); marks.push({ mark, at: n }); trace.push(`mark ${mark.id} at ${n}`); }
      else {
        const m = pick(marks); const stood = m.mark.isStanding; const before = n;
        trace.push(`rewind ${m.mark.id} at ${m.at} standing ${stood}`);
        monoBack(m.at, () => r.rewind(m.mark), stood);
        void before;
      }
    } else if (x < 0.965 && mono) {
      const which = chance(0.5); trace.push(which ? 'reset' : `release s${id}`);
      monoBack(0, () => (which ? r.reset() : r.release(st)), true);
    } else if (x < 0.98) {
      if (chance(0.5)) { const complete = st.timeline.beginSynchronization(); const event = new Event(); const ev = event as any; ev.__n ??= ++en; o.rec.call(event, st.timeline); pending.push({ complete, event, snap: new Map(touch(id)) }); trace.push(`begin async sync s${id}`); }
      else if (pending.length) { const q = pick(pending); if (o.equery.call(q.event)) { q.complete(); join(hostVC, q.snap); pending.splice(pending.indexOf(q), 1); trace.push('async sync done'); } }
    } else if (fails) { if (chance(0.5)) failRecord = int(1, 3); else if (chance(0.5)) failWait = int(1, 3); else up.failFree = 1; trace.push(`failure armed ${failRecord} ${failWait} ${up.failFree}`); }
  };
  function monoBack(at: number, call: () => void, stood: boolean) {
    // What is allocated by host functions during the call, before the state changes, goes too; so the model is applied right at the change.
    const applied = () => { for (const l of takeBack(at)) { live.delete(l.id); l.use.live = 0; const sid = l.sid; const ends = l.stream.isDisposed || dead.has(sid); if (!l.freed) l.use.deps = [[sid, ends ? vcOf(sid).get(sid) ?? 0 : vcOf(sid).get(sid) ?? 0]]; else l.use.deps = [l.freed]; } for (let i = marks.length - 1; i >= 0; i--) if ((marks[i] as any).at > at || !(marks[i] as any).mark.isStanding) marks.splice(i, 1); };
    // steps happen synchronously inside; deps at the clock before the call are a lower bound; apply before and undo where refused
    const saved = [...live.values()].map((l) => ({ l, freed: l.freed }));
    const savedDuring = up.during; const savedBlock = onBlock;
    // no re-entrancy of allocations inside a rewind: order of model and change would be unclear
    onBlock = undefined; up.during = undefined;
    for (const l of takeBack(at)) if (!l.stream.isDisposed && !dead.has(l.sid) && !l.freed) tick(l.sid);
    const marksBefore = [...marks];
    applied();
    try { call(); if (!stood) throw new Fault('rewound to a fallen mark'); } catch (x) {
      const rewound = x instanceof DriverError && up.failFreeHit;
      if (!rewound) { live.clear(); for (const { l, freed } of saved) { if (freed) l.freed = freed; l.use.live = l.id; l.use.deps = []; live.set(l.id, l); } marks.length = 0; marks.push(...marksBefore); }
      if (!stood && x instanceof CisternError && !(x instanceof DriverError)) { marks.splice(0, marks.length, ...marks.filter((m) => m.mark.isStanding)); return; }
      if (x instanceof DriverError && !rewound) { /* nothing must have changed: check */ }
      throw x;
    } finally { onBlock = savedBlock; up.during = savedDuring; }
  }
  const guarded = () => {
    try { op(); } catch (x) {
      if (x instanceof OutOfMemoryError) { ooms++; trace.push('  OOM'); return; }
      if (x instanceof DriverError && fails) { trace.push(`  threw ${x.message}`); return; }
      if (x instanceof LifetimeError && depth >= 0 && reent && /stream \d+ is already disposed/.test(x.message)) { trace.push(`  threw ${x.message}`); return; }
      throw x;
    }
  };
  let faultInside: unknown;
  const foreign = () => { if (!reent || depth >= 2 || faultInside) return; if (!chance(0.4)) return; depth++; try { trace.push('  {'); for (let i = int(1, 3); i > 0; i--) guarded(); trace.push('  }'); } catch (x) { faultInside = x; } finally { depth--; } };
  up.during = foreign; onBlock = foreign;
  try {
    for (let i = 0; i < steps; i++) { guarded(); if (faultInside) throw faultInside; if (i % 7 === 0) validate(); }
    // the end
    failRecord = failWait = 0; up.failFree = 0; up.during = undefined; onBlock = undefined;
    validate();
    if (chance(0.5)) {
      // free everything, then the largest allocation must succeed
      releaseAll();
      const st = streams.find((e) => !e.stream.isDisposed)?.stream ?? new Stream({ nonBlocking: true });
      if (mono) monoBack(0, () => r.reset(), true);
      else for (const l of [...live.values()]) { device.synchronizeSync(); free(l, l.stream.isDisposed || dead.has(l.sid) ? st : l.stream, undefined); }
      validate();
      if (up.limit === Infinity) {
        const bytes = kind === 'arena' ? cap : kind === 'pool' || mono ? (max === Infinity ? cap : max) : 512;
        trace.push(`final alloc ${bytes} s${st.timeline.id}`);
        let p: number;
        try { p = r.allocate(bytes, st); } catch (x) { throw new Fault(`everything is free, but: ${(x as Error).message}`); }
        const seg = up.find(p); const v = touch(st.timeline.id);
        for (let i = 0; i < bytes / 256; i++) { const u = seg.units[(p - seg.base) / 256 + i] as Use; if (u.live) throw new Fault('twice'); ordered(u, v, 'final'); }
        r.deallocate(p, bytes, st);
        const c = tick(st.timeline.id); for (let i = 0; i < bytes / 256; i++) seg.units[(p - seg.base) / 256 + i] = { live: 0, deps: [[st.timeline.id, c - 1]] };
      }
    }
    ending = true; trace.push('dispose');
    if (mono) for (const l of live.values()) { l.use.live = 0; l.use.deps = l.freed ? [l.freed] : [[l.sid, vcOf(l.sid).get(l.sid) ?? 0]]; }
    r.dispose();
    if (kind !== 'binning' && up.segs.length) throw new Fault(`${up.segs.length} segments leaked`);
  } catch (x) {
    throw new Error(`FAULT kind ${kind} policy ${policy} seed ${seed} reent ${reent} fails ${fails}: ${(x as Error).stack}\n${trace.slice(-Number(process.env.TR ?? 60)).join('\n')}`);
  } finally {
    releaseAll(); up.during = undefined; onBlock = undefined; failRecord = failWait = 0;
    dead.clear();
    for (const e of streams) { e.foreign?.(); try { e.stream.dispose(); } catch {} }
    native().synchronizeDevice(0);
  }
}

test('fuzz', () => {
  const ms = Number(process.env.MS ?? 20000); const end = performance.now() + ms;
  const kinds = (process.env.KINDS ?? 'pool,arena,fixed,binning,mono').split(',');
  const modes = (process.env.MODES ?? '00,10,01,11').split(',');
  const only = process.env.SEED;
  const seen = new Map<string, number>(); let runs = 0;
  for (let seed = Number(only ?? 1); performance.now() < end; seed++) {
    for (const kind of kinds) for (const policy of (process.env.POL ?? 'eager,deferred,off').split(',') as any) for (const m of modes) {
      runs++;
      try { run(kind, policy, seed, Number(process.env.STEPS ?? 300), m[0] === '1', m[1] === '1'); } catch (x) {
        const msg = (x as Error).message; const key = `${kind} ${m} ${(msg.split('\n')[0] as string).replace(/\d+/g, 'N')}`;
        const k = (seen.get(key) ?? 0) + 1; seen.set(key, k);
        if (k === 1) appendFileSync('/tmp/review/faults.txt', `${msg}\n=====\n`);
      }
    }
    if (only) break;
  }
  console.log(`${runs} runs`); for (const [k, v] of seen) console.log(v, k);
}, 600000);
