import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';

describe('each design note', () => {
  const notes = readdirSync('docs/design');

  test.each(notes)('%s says when it was decided, and whether it still holds', (note) => {
    const [title, empty, state] = readFileSync(`docs/design/${note}`, 'utf8').split('\n') as [string, string, string];
    expect(title).toMatch(new RegExp(`^# ${note.slice(0, 3)}: `));
    expect(empty).toBe('');
    expect(state).toMatch(/^\d{4}-\d\d-\d\d, (standing|replaced by \[\d{3}\]\([\w-]+\.md\))\.$/);
    const successor = /\((.*)\)/.exec(state)?.[1];
    if (successor !== undefined) expect(notes).toContain(successor);
  });
});
