import { unpackReportRun } from '../../formats/report/report-data.js';
import type { ReportRun } from '../../formats/report/report-run.js';

/** Unpacks the data of a run embedded in the page. */
export async function loadRun(element: Element): Promise<ReportRun> {
  const bytes = fromBase64(element.textContent ?? '');
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return unpackReportRun(new Uint8Array(await new Response(stream).arrayBuffer()));
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(Math.floor((text.length / 4) * 3));
  let count = 0;
  // In pieces, because a string of all bytes would take as much memory again.
  for (let start = 0; start < text.length; start += 65_536) {
    const binary = atob(text.slice(start, start + 65_536));
    for (let i = 0; i < binary.length; i++) bytes[count++] = binary.charCodeAt(i);
  }
  return bytes.subarray(0, count);
}
