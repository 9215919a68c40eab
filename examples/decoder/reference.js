// The same token, computed by JavaScript, to see whether the device computes it rightly.
import { weights } from './decoder.js';

/** One row of ones, after a token with an empty cache. */
export function referenceToken(layers, width) {
  const hidden = new Float64Array(width).fill(1);
  const add = (numbers) => {
    for (const [i, each] of numbers.entries()) hidden[i] += each;
  };
  for (let layer = 0; layer < layers; layer++) {
    const matrix = (rows, columns, i) => ({ columns, numbers: weights(rows, columns, 4 * layer + i) });
    const query = product(normalized(hidden), matrix(width, width, 0));
    add(product(query, matrix(width, width, 1)));
    const wide = product(normalized(hidden), matrix(width, 4 * width, 2)).map((each) => Math.max(each, 0));
    add(product(wide, matrix(4 * width, width, 3)));
  }
  return hidden;
}

function normalized(row) {
  const scale = 1 / Math.sqrt(row.reduce((sum, each) => sum + each * each, 0) / row.length + 1e-6);
  return row.map((each) => each * scale);
}

function product(row, { columns, numbers }) {
  const result = new Float64Array(columns);
  row.forEach((factor, k) => {
    for (let i = 0; i < columns; i++) result[i] += factor * numbers[k * columns + i];
  });
  return result;
}
