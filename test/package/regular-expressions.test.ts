import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { checkSync } from 'recheck';
import ts from 'typescript';
import { expect, test } from 'vitest';

interface Found {
  readonly file: string;
  readonly literal: string;
}

function literalsOf(file: string): Found[] {
  const found: Found[] = [];
  const source = ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.Latest);
  const visit = (node: ts.Node) => {
    if (ts.isRegularExpressionLiteral(node)) found.push({ file, literal: node.text });
    else if ((ts.isNewExpression(node) || ts.isCallExpression(node)) && node.expression.getText(source) === 'RegExp')
      found.push({ file, literal: 'RegExp, which hides its pattern from this test' });
    ts.forEachChild(node, visit);
  };
  visit(source);
  return found;
}

/**
 * Why a pattern may take more steps than a text has characters, or `undefined` if none can.
 * @param patience after so many milliseconds, the pattern counts as one that nobody can decide about: some with bounded repeats have
 * automata that would take hours, others milliseconds
 */
function faultOf(literal: string, patience = 60_000): string | undefined {
  const end = literal.lastIndexOf('/');
  if (end < 1) return literal;
  // Decided on the pattern alone, by its automaton, so that the answer is always the same.
  const result = checkSync(literal.slice(1, end), literal.slice(end + 1), { checker: 'automaton', timeout: patience });
  if (result.status === 'safe') return undefined;
  return result.status === 'vulnerable' ? `${result.complexity.summary}: ${result.attack.pattern}` : result.error.kind;
}

test('a pattern that may take the square of the length of a text is found', () => {
  // Each of them was in the sources once.
  expect(faultOf('/^(.*) \\((.*?):(\\d+)(?::\\d+)?\\)$/')).toContain('2nd degree polynomial');
  expect(faultOf('/^[+-]?(\\d+\\.?\\d*|\\.\\d+)([eE][+-]?\\d+)?$/')).toContain('2nd degree polynomial');
  expect(faultOf('/^0*(\\d+)(?:\\.(\\d*?)0*)?\\s*%$/')).toContain('3rd degree polynomial');
});

test('a pattern that cannot be decided about is a fault, not a wait without end', () => {
  expect(faultOf('/^.*\\w{1,30}=.{0,30}$/', 1000)).toBe('timeout');
});

test('every pattern takes a number of steps in proportion to the text, whatever the text is', () => {
  const files = readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'));
  const patterns = files.flatMap((name) => literalsOf(join('src', name)));
  expect(patterns.length).toBeGreaterThan(40);
  const faults = patterns.map(({ file, literal }) => ({ file, literal, fault: faultOf(literal) }));
  expect(faults.filter(({ fault }) => fault !== undefined)).toEqual([]);
}, 120_000);
