import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BlockGroups } from '../../src/suballocation/block-groups.js';
import { blockFields } from '../../src/suballocation/block-lists.js';

const block = (number: number) => number * blockFields;

describe('block groups', () => {
  test('return what was added to them, the latest first', () => {
    const groups = new BlockGroups();
    const group = groups.addGroup();
    const other = groups.addGroup();
    for (const number of [3, 1, 2]) groups.add(block(number), group);
    groups.add(block(5), other);
    expect([groups.first(group), groups.first(other), groups.count]).toEqual([block(2), block(5), 4]);
    groups.remove(block(1));
    groups.remove(block(2));
    expect([groups.first(group), groups.count]).toEqual([block(3), 2]);
    expect([groups.groupOf(block(3)), groups.groupOf(block(1)), groups.groupOf(block(1000))]).toEqual([group, -1, -1]);
    groups.validate();
  });

  test('do not touch blocks that are in none of them', () => {
    const groups = new BlockGroups();
    groups.remove(block(7));
    groups.add(block(7), groups.addGroup());
    groups.remove(block(7));
    groups.remove(block(7));
    groups.remove(block(500));
    expect(groups.count).toBe(0);
    groups.validate();
  });

  test('reuse the number of a removed group', () => {
    const groups = new BlockGroups();
    const first = groups.addGroup();
    const second = groups.addGroup();
    groups.removeGroup(first);
    expect(groups.addGroup()).toBe(first);
    expect(groups.addGroup()).not.toBe(second);
  });

  test('keep their invariants after any steps', () => {
    const step = fc.record({ action: fc.constantFrom('add', 'add', 'remove', 'end'), number: fc.nat(300), pick: fc.nat(5) });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 150, size: 'max' }), (steps) => {
        const groups = new BlockGroups();
        const live: { group: number; blocks: number[] }[] = [];
        for (const { action, number, pick } of steps) {
          const holder = live.find(({ blocks }) => blocks.includes(block(number)));
          if (action === 'add' && holder === undefined) {
            const chosen = live[pick] ?? { group: groups.addGroup(), blocks: [] };
            if (!live.includes(chosen)) live.push(chosen);
            groups.add(block(number), chosen.group);
            chosen.blocks.unshift(block(number));
          } else if (action === 'remove') {
            groups.remove(block(number));
            if (holder !== undefined) holder.blocks.splice(holder.blocks.indexOf(block(number)), 1);
          } else if (action === 'end' && live[pick] !== undefined) {
            const [{ group, blocks }] = live.splice(pick, 1) as [(typeof live)[0]];
            for (const expected of blocks) {
              expect(groups.first(group)).toBe(expected);
              groups.remove(expected);
            }
            expect(groups.first(group)).toBe(-1);
            groups.removeGroup(group);
          }
          groups.validate();
          expect(groups.count).toBe(live.reduce((sum, { blocks }) => sum + blocks.length, 0));
        }
      }),
    );
  });
});
