/**
 * A vite plugin that makes code count its branches for libFuzzer. Each block, arm and right-hand
 * side of `&&`, `||` and `??` gets a byte of `globalThis.branchCounters`, which is incremented when
 * it runs. `onCounters` is called with the number of counters.
 */
export function countBranches(folder, onCounters) {
  let count = 0;
  return {
    name: 'count-branches',
    enforce: 'post',
    transform(code, id) {
      if (!id.startsWith(folder)) return undefined;
      const insertions = [];
      const next = () => `branchCounters[${count++}]++`;
      const insert = (at, text) => insertions.push([at, text]);
      const asStatement = (node) => {
        if (node === null || node === undefined || node.type === 'BlockStatement') return;
        insert(node.start, `{${next()};`);
        insert(node.end, '}');
      };
      const asExpression = (node) => {
        insert(node.start, `(${next()},(`);
        insert(node.end, '))');
      };
      const visit = {
        BlockStatement: ({ start }) => insert(start + 1, `${next()};`),
        IfStatement(node) {
          asStatement(node.consequent);
          asStatement(node.alternate);
        },
        ForStatement: ({ body }) => asStatement(body),
        ForOfStatement: ({ body }) => asStatement(body),
        ForInStatement: ({ body }) => asStatement(body),
        WhileStatement: ({ body }) => asStatement(body),
        DoWhileStatement: ({ body }) => asStatement(body),
        ConditionalExpression(node) {
          asExpression(node.consequent);
          asExpression(node.alternate);
        },
        LogicalExpression: ({ right }) => asExpression(right),
        SwitchCase: ({ consequent: [first] }) => first && insert(first.start, `${next()};`),
        ArrowFunctionExpression: ({ body }) => body.type !== 'BlockStatement' && asExpression(body),
      };
      walk(this.parse(code), visit);
      onCounters(count);
      return { code: withInsertions(code, insertions), map: null };
    },
  };
}

/** Visits outer nodes before inner ones. */
function walk(node, visit) {
  visit[node.type]?.(node);
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) if (typeof child?.type === 'string') walk(child, visit);
  }
}

/**
 * At the same place, the end of an inner node comes before the end of the outer one; starts keep
 * their order.
 */
function withInsertions(code, insertions) {
  const isClosing = (text) => text === '}' || text === '))';
  const ordered = insertions.map(([at, text], i) => ({ at, text, rank: isClosing(text) ? -i : insertions.length + i }));
  ordered.sort((a, b) => a.at - b.at || a.rank - b.rank);
  let result = '';
  let from = 0;
  for (const { at, text } of ordered) {
    result += code.slice(from, at) + text;
    from = at;
  }
  return result + code.slice(from);
}
