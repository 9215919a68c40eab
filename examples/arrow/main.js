// Columns to the device and back: numbers, strings, lists, a dictionary, and nulls in each.
//
//     node examples/arrow/main.js
import assert from 'node:assert/strict';
import { Dictionary, Int32, tableFromArrays, Utf8, vectorFromArray } from 'apache-arrow';
import { createResourceStack, formatBytes, StatisticsResourceAdaptor, Stream } from 'cistern';
import { DeviceVector } from './device-vector.js';

const rows = 10_000;
const cities = ['Lima', 'Oslo', 'Quito', null];
const columns = {
  id: vectorFromArray(Array.from({ length: rows }, (_, i) => (i % 7 === 3 ? null : i))),
  name: vectorFromArray(
    Array.from({ length: rows }, (_, i) => (i % 5 === 0 ? null : `row ${i}`)),
    new Utf8(),
  ),
  city: vectorFromArray(
    Array.from({ length: rows }, (_, i) => cities[i % cities.length]),
    new Dictionary(new Utf8(), new Int32()),
  ),
  scores: vectorFromArray(Array.from({ length: rows }, (_, i) => (i % 11 === 0 ? null : [i, i / 2]))),
  exact: tableFromArrays({ exact: Float64Array.from({ length: rows }, (_, i) => i / 3) }).getChild('exact'),
};

const resource = new StatisticsResourceAdaptor(
  createResourceStack('pool(cuda, initialBytes=16MiB, deallocationEvents=deferred)').resource,
  {
    name: 'arrow',
  },
);
const stream = new Stream({ nonBlocking: true });
for (const [name, vector] of Object.entries(columns)) {
  const column = new DeviceVector(vector, { resource, stream, label: name });
  const back = await column.toHost();
  assert.equal(String(back.type), String(vector.type));
  assert.equal(back.nullCount, vector.nullCount);
  assert.equal(JSON.stringify(back), JSON.stringify(vector));
  console.log(`${name}: ${back.type}, ${back.nullCount} nulls, ${formatBytes(column.byteLength)} on the device`);
  column.dispose();
}
assert.equal(resource.statistics().bytes.current, 0);
console.log('every column came back as it was');
