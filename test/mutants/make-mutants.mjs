// Makes mutants from the syntax tree of a file: each is one changed range of its text. Mutants that
// do not type-check are left out.
import { createHash } from 'node:crypto';
import ts from 'typescript';

const kinds = ts.SyntaxKind;

/** The replacement of an operator. */
const operators = new Map([
  [kinds.LessThanToken, ['<=', '>=']],
  [kinds.LessThanEqualsToken, ['<', '>']],
  [kinds.GreaterThanToken, ['>=', '<=']],
  [kinds.GreaterThanEqualsToken, ['>', '<']],
  [kinds.EqualsEqualsEqualsToken, ['!==']],
  [kinds.ExclamationEqualsEqualsToken, ['===']],
  [kinds.PlusToken, ['-']],
  [kinds.MinusToken, ['+']],
  [kinds.AsteriskToken, ['/']],
  [kinds.SlashToken, ['*']],
  [kinds.PercentToken, ['*']],
  [kinds.AmpersandToken, ['|']],
  [kinds.BarToken, ['&']],
  [kinds.CaretToken, ['&']],
  [kinds.LessThanLessThanToken, ['>>']],
  [kinds.GreaterThanGreaterThanToken, ['<<']],
  [kinds.GreaterThanGreaterThanGreaterThanToken, ['<<']],
  [kinds.AmpersandAmpersandToken, ['||']],
  [kinds.BarBarToken, ['&&']],
  [kinds.PlusEqualsToken, ['-=', '=']],
  [kinds.MinusEqualsToken, ['+=', '=']],
  [kinds.AsteriskEqualsToken, ['/=', '=']],
  [kinds.SlashEqualsToken, ['*=', '=']],
  [kinds.AmpersandEqualsToken, ['|=', '=']],
  [kinds.BarEqualsToken, ['&=', '=']],
  [kinds.CaretEqualsToken, ['|=', '=']],
  [kinds.QuestionQuestionEqualsToken, ['=']],
]);
const comparisons = new Set([
  kinds.LessThanToken,
  kinds.LessThanEqualsToken,
  kinds.GreaterThanToken,
  kinds.GreaterThanEqualsToken,
  kinds.EqualsEqualsEqualsToken,
  kinds.ExclamationEqualsEqualsToken,
]);
const steps = new Map([
  [kinds.PlusPlusToken, '--'],
  [kinds.MinusMinusToken, '++'],
]);
/** Methods that are replaced by another, or by nothing. */
const methods = new Map([
  ['some', 'every'],
  ['every', 'some'],
  ['max', 'min'],
  ['min', 'max'],
  ['filter', undefined],
  ['slice', undefined],
  ['reverse', undefined],
  ['toReversed', undefined],
  ['sort', undefined],
  ['toSorted', undefined],
]);
/** Calls that reach the driver or an upstream, whose errors are swallowed. */
const failing =
  /^(#?record\w*|wait|query\w*|synchronize\w*|order\w*|check\w*|cover|afterEnd|release\w*|receivedInCommon|freed\w*|freeWithEvent|freeRecord\w*)$/;
/** Files in which a fault in passing on an error loses memory or order. */
const passingErrorsOn = /^src\/(stream-ordering|driver|adaptors)\//;

// As shown, and as compiled: code after it does not count as unreachable, and no type is narrowed.
const always = { true: '(true as boolean)', false: '(false as boolean)' };

export function compilerOptions(root) {
  const { config } = ts.readConfigFile(`${root}tsconfig.json`, ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, root);
  // Unused names in a mutant are not errors.
  return { ...options, noUnusedLocals: false, noUnusedParameters: false, noEmit: true };
}

/** The mutants of one file, in the order of the text. */
export function makeMutants(sourceFile, checker, file) {
  const text = sourceFile.text;
  const mutants = [];
  const seen = new Set();

  function emit(node, kind, start, end, replacement, shown = replacement) {
    if (text.slice(start, end) === replacement) return;
    const key = `${start} ${end} ${shown}`;
    if (seen.has(key)) return;
    seen.add(key);
    const { line } = sourceFile.getLineAndCharacterOfPosition(start);
    mutants.push({
      file,
      kind,
      start,
      end,
      text: replacement,
      line: line + 1,
      ...enclosing(node),
      change: describe(kind, text.slice(start, end), shown),
    });
  }
  const replace = (node, kind, replacement, shown) => emit(node, kind, node.getStart(sourceFile), node.end, replacement, shown);
  const textOf = (node) => node.getText(sourceFile);

  function enclosing(node) {
    const names = [];
    let region;
    for (let at = node; at !== undefined; at = at.parent) {
      if (
        ts.isFunctionDeclaration(at) ||
        ts.isClassLike(at) ||
        ts.isMethodDeclaration(at) ||
        ts.isAccessor(at) ||
        ts.isPropertyDeclaration(at)
      )
        names.unshift(at.name === undefined ? '' : textOf(at.name));
      else if (ts.isConstructorDeclaration(at)) names.unshift('constructor');
      else if (ts.isVariableStatement(at) && ts.isSourceFile(at.parent)) names.unshift(textOf(at.declarationList.declarations[0].name));
      // The reach of a mutant's types: a member of a class, or a statement of the module.
      if (region === undefined && (ts.isClassElement(at) || (at.parent !== undefined && ts.isSourceFile(at.parent)))) region = at;
    }
    // Nodes that affect the types of a whole class or module.
    const reachesOut =
      region !== undefined && !(ts.isMethodDeclaration(region) || ts.isAccessor(region) || ts.isFunctionDeclaration(region));
    return { where: names.join('.'), reachesOut, region: region?.getStart(sourceFile) ?? 0, regionEnd: region?.end ?? text.length };
  }

  const hasEffects = (node) =>
    ts.isCallExpression(node) ||
    ts.isNewExpression(node) ||
    (ts.isBinaryExpression(node) && ts.isAssignmentExpression(node)) ||
    ((ts.isPrefixUnaryExpression(node) || ts.isPostfixUnaryExpression(node)) && steps.has(node.operator)) ||
    (ts.forEachChild(node, hasEffects) ?? false);

  const isBoolean = (node) => {
    const type = checker.getTypeAtLocation(node);
    return (
      (type.flags & ts.TypeFlags.BooleanLike) !== 0 || (type.isUnion() && type.types.every(({ flags }) => flags & ts.TypeFlags.BooleanLike))
    );
  };
  const isNumber = (node) => (checker.getTypeAtLocation(node).flags & ts.TypeFlags.NumberLike) !== 0;
  const isString = (node) => (checker.getTypeAtLocation(node).flags & ts.TypeFlags.StringLike) !== 0;
  const isLogical = (node) =>
    ts.isBinaryExpression(node) && [kinds.AmpersandAmpersandToken, kinds.BarBarToken].includes(node.operatorToken.kind);
  const isComparison = (node) => ts.isBinaryExpression(node) && comparisons.has(node.operatorToken.kind);
  const isNot = (node) => ts.isPrefixUnaryExpression(node) && node.operator === kinds.ExclamationToken;
  const unwrapped = (node) => (ts.isParenthesizedExpression(node) ? unwrapped(node.expression) : node);

  /** Whether the value of a node decides what is done. */
  function isDecision({ parent }, node) {
    if (ts.isIfStatement(parent) || ts.isWhileStatement(parent) || ts.isDoStatement(parent)) return parent.expression === node;
    if (ts.isForStatement(parent) || ts.isConditionalExpression(parent)) return parent.condition === node;
    return false;
  }

  /** Whether a node is a whole condition, not part of one. */
  function isConditionRoot(node) {
    if (isDecision(node, node)) return true;
    const { parent } = node;
    const isValue =
      (ts.isReturnStatement(parent) && parent.expression === node) ||
      (ts.isArrowFunction(parent) && parent.body === node) ||
      ((ts.isVariableDeclaration(parent) || ts.isPropertyDeclaration(parent)) && parent.initializer === node) ||
      (ts.isBinaryExpression(parent) && parent.operatorToken.kind === kinds.EqualsToken && parent.right === node) ||
      (ts.isCallExpression(parent) && parent.arguments.includes(node));
    return isValue && ts.isExpression(node) && isBoolean(node);
  }

  function mutateCondition(root) {
    const inner = unwrapped(root);
    if (inner.kind === kinds.TrueKeyword || inner.kind === kinds.FalseKeyword) return;
    // With the narrowing of the condition.
    replace(root, 'condition', `(${textOf(root)} || ${always.true})`, 'true');
    replace(root, 'condition', `((${textOf(root)}) && ${always.false})`, 'false');
    mutateParts(root, true);
  }

  function mutateParts(node, isRoot) {
    const inner = unwrapped(node);
    if (isNot(inner)) {
      replace(node, 'negation', textOf(inner.operand));
      mutateParts(inner.operand, true);
    } else if (isLogical(inner)) {
      if (isRoot) replace(node, 'negation', `!(${textOf(inner)})`);
      const isAnd = inner.operatorToken.kind === kinds.AmpersandAmpersandToken;
      for (const part of [inner.left, inner.right]) {
        replace(part, 'part of a condition', isAnd ? always.true : always.false, isAnd ? 'true' : 'false');
        mutateParts(part, false);
      }
    } else if (!isComparison(inner)) replace(node, 'negation', `!(${textOf(inner)})`);
    else if (ts.isBinaryExpression(inner) && isRoot && !operators.has(inner.operatorToken.kind))
      replace(node, 'negation', `!(${textOf(inner)})`);
  }

  function mutateValue(node, kind) {
    if (ts.isObjectLiteralExpression(node) || node.kind === kinds.NullKeyword) return;
    if (isBoolean(node)) return;
    if (isNumber(node)) {
      if (!ts.isNumericLiteral(node)) replace(node, kind, `(${textOf(node)}) + 1`);
    } else if (isString(node)) replace(node, kind, "''");
    else {
      if (textOf(node) !== 'undefined') replace(node, kind, 'undefined');
      if (textOf(node) !== '[]' && checker.isArrayLikeType(checker.getTypeAtLocation(node))) replace(node, kind, '[]');
    }
  }

  /** Leaves out one of a list, with its comma. */
  function drop(list, index, kind) {
    const node = list[index];
    const start = index > 0 ? list[index - 1].end : node.getStart(sourceFile);
    const end = index > 0 || list.length === 1 ? node.end : list[index + 1].getStart(sourceFile);
    emit(node, kind, start, end, '', `without ${textOf(node)}`);
  }

  function visitStatement(node) {
    const { parent } = node;
    const isLone = !ts.isBlock(parent) && !ts.isSourceFile(parent) && !ts.isCaseOrDefaultClause(parent);
    const isOnlyOfIf = ts.isIfStatement(parent) && parent.thenStatement === node && parent.elseStatement === undefined;
    const remove = () => {
      // Equivalent to a condition that is never true, or a loop that never runs.
      if (isOnlyOfIf) return;
      replace(node, 'statement', isLone ? '{}' : ';', 'nothing');
    };
    if (ts.isExpressionStatement(node)) {
      const { expression } = node;
      if (ts.isCallExpression(expression) && expression.expression.kind === kinds.SuperKeyword) return;
      remove();
      if (passingErrorsOn.test(file) && ts.isCallExpression(expression) && ts.isPropertyAccessExpression(expression.expression)) {
        if (failing.test(expression.expression.name.text)) replace(node, 'error swallowed', `try { ${textOf(node)} } catch {}`);
      }
    } else if (ts.isReturnStatement(node)) {
      if (node.expression !== undefined) mutateValue(node.expression, 'returned value');
      const isLast = ts.isBlock(parent) && parent.statements.at(-1) === node && ts.isFunctionLike(parent.parent);
      if (!isLast) remove();
    } else if (ts.isThrowStatement(node) || ts.isBreakOrContinueStatement(node)) remove();
    else if (ts.isIfStatement(node)) {
      if (node.elseStatement === undefined) {
        if (hasEffects(node.expression)) remove();
      } else {
        emit(node, 'statement', node.thenStatement.end, node.elseStatement.end, '', `without else ${textOf(node.elseStatement)}`);
      }
    } else if (ts.isForOfStatement(node)) {
      remove();
      const body = textOf(node.statement);
      replace(node.statement, 'first only', `{ ${body} break; }`, 'of the first only');
    } else if (ts.isIterationStatement(node, false)) remove();
    else if (ts.isTryStatement(node) && node.catchClause !== undefined) {
      const body = textOf(node.tryBlock);
      const last = node.finallyBlock === undefined ? '' : ` finally ${textOf(node.finallyBlock)}`;
      replace(node, 'error not caught', last === '' ? body : `try ${body}${last}`, `without catch ${textOf(node.catchClause.block)}`);
    }
  }

  function visit(node) {
    if (ts.isTypeNode(node) || ts.isImportDeclaration(node) || ts.isExportDeclaration(node) || ts.isInterfaceDeclaration(node)) return;
    // The declaration of a kind belongs to specifications, which are not mutated.
    if (ts.isCallExpression(node) && /^define(Adaptor|Upstream)$/.test(textOf(node.expression))) return;
    if (ts.isStatement(node)) visitStatement(node);
    if (ts.isArrowFunction(node) && !ts.isBlock(node.body)) mutateValue(node.body, 'returned value');
    if (ts.isExpression(node) && isConditionRoot(node)) mutateCondition(node);
    if (ts.isBinaryExpression(node)) {
      const { operatorToken } = node;
      const isText = operatorToken.kind === kinds.PlusToken && isString(node);
      if (!isText) for (const other of operators.get(operatorToken.kind) ?? []) replace(operatorToken, 'operator', other);
      if (operatorToken.kind === kinds.QuestionQuestionToken) {
        replace(node, 'operator', textOf(node.left));
        replace(node, 'operator', textOf(node.right));
      }
    }
    if ((ts.isPrefixUnaryExpression(node) || ts.isPostfixUnaryExpression(node)) && steps.has(node.operator)) {
      const operand = textOf(node.operand);
      const other = steps.get(node.operator);
      replace(node, 'operator', ts.isPrefixUnaryExpression(node) ? other + operand : operand + other);
    }
    if (ts.isPrefixUnaryExpression(node) && [kinds.MinusToken, kinds.TildeToken].includes(node.operator))
      replace(node, 'operator', textOf(node.operand));
    if (ts.isNumericLiteral(node) && !ts.isPropertyAssignment(node.parent)) {
      const value = Number(node.text.replaceAll('_', ''));
      replace(node, 'number', String(value + 1));
      if (value > 0) replace(node, 'number', String(value - 1));
    }
    if ((node.kind === kinds.TrueKeyword || node.kind === kinds.FalseKeyword) && !ts.isLiteralTypeNode(node.parent)) {
      const value = node.kind === kinds.TrueKeyword ? 'false' : 'true';
      replace(node, 'truth', always[value], value);
    }
    if ((ts.isCallExpression(node) || ts.isNewExpression(node)) && node.arguments !== undefined) {
      const list = node.arguments;
      if (list.length > 0) drop(list, list.length - 1, 'argument');
      if (ts.isCallExpression(node) && ts.isPropertyAccessExpression(node.expression) && methods.has(node.expression.name.text)) {
        const other = methods.get(node.expression.name.text);
        if (other !== undefined) replace(node.expression.name, 'method', other);
        else replace(node, 'method', textOf(node.expression.expression));
      }
    }
    if (ts.isObjectLiteralExpression(node)) for (const i of node.properties.keys()) drop(node.properties, i, 'property');
    if (ts.isArrayLiteralExpression(node)) for (const i of node.elements.keys()) drop(node.elements, i, 'element');
    ts.forEachChild(node, visit);
  }

  visit(sourceFile);
  number(mutants);
  return mutants.sort((a, b) => a.start - b.start || a.end - b.end);
}

/**
 * A name that stays when lines move: the function, the change, and an index if there are several.
 */
function number(mutants) {
  const counts = new Map();
  for (const mutant of mutants) {
    const name = `${mutant.where}: ${mutant.change}`;
    const count = (counts.get(name) ?? 0) + 1;
    counts.set(name, count);
    mutant.name = count === 1 ? name : `${name} (${count})`;
  }
}

function describe(kind, from, to) {
  const short = (text) => {
    const line = text
      .replaceAll(/\/\/.*$/gm, '')
      .replaceAll(/\s+/g, ' ')
      .trim();
    return line.length <= 110 ? line : `${line.slice(0, 70)} … ${line.slice(-35)}`;
  };
  if (to === 'nothing') return `removed ${short(from)}`;
  if (kind === 'error swallowed') return `errors swallowed of ${short(from)}`;
  if (kind === 'first only') return `once only ${short(from)}`;
  return to.startsWith('without ') ? short(to) : `${short(from)} -> ${short(to)}`;
}

/**
 * The text of a file that calls `__hit` with a number at every statement of its functions, starting
 * at `first`, and the places of these statements.
 */
export function withProbes(sourceFile, first) {
  const { text } = sourceFile;
  const statements = [];
  const before = [];
  const after = [];
  const visit = (node) => {
    if (ts.isTypeNode(node) || ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node) || ts.isImportDeclaration(node)) return;
    const { parent } = node;
    const start = node.getStart(sourceFile);
    const call = `__hit(${first + statements.length})`;
    if (ts.isArrowFunction(parent ?? node) && parent.body === node && !ts.isBlock(node)) {
      statements.push({ start, end: node.end });
      before.push({ at: start, text: `(${call}, (` });
      after.push({ at: node.end, text: '))' });
    } else if (isStatementOfFunction(node)) {
      const isListed = ts.isBlock(parent) || ts.isCaseOrDefaultClause(parent);
      statements.push({ start, end: node.end });
      before.push({ at: start, text: isListed ? `${call};` : `{ ${call};` });
      if (!isListed) after.push({ at: node.end, text: '}' });
    }
    ts.forEachChild(node, visit);
  };
  visit(sourceFile);
  // At one position, ends come before starts; of two ends, the inner one comes first.
  const insertions = [...after.reverse().map((one) => ({ ...one, rank: 0 })), ...before.map((one) => ({ ...one, rank: 1 }))];
  let probed = '';
  let copied = 0;
  for (const { at, text: inserted } of insertions.sort((a, b) => a.at - b.at || a.rank - b.rank)) {
    probed += text.slice(copied, at) + inserted;
    copied = at;
  }
  return { text: probed + text.slice(copied), statements };
}

function isStatementOfFunction(node) {
  if (!ts.isStatement(node) || ts.isBlock(node) || ts.findAncestor(node.parent, ts.isFunctionLike) === undefined) return false;
  const isSuper =
    ts.isExpressionStatement(node) && ts.isCallExpression(node.expression) && node.expression.expression.kind === kinds.SuperKeyword;
  return !isSuper;
}

/**
 * Mutants that type-check. Many are put into one program, at most one per function; those that
 * reach beyond their function are checked again with no other in their file.
 */
export function typeChecked(mutants, sources, options, onProgress) {
  const host = ts.createCompilerHost(options);
  const originals = new Map();
  const overlay = new Map();
  const getOriginal = host.getSourceFile.bind(host);
  host.getSourceFile = (name, ...rest) => {
    if (overlay.has(name)) return overlay.get(name);
    if (!originals.has(name)) originals.set(name, getOriginal(name, ...rest));
    return originals.get(name);
  };
  const roots = [...sources.values()].map(({ path }) => path);
  let program = ts.createProgram(roots, options, host);

  /**
   * Finds for each mutant of a round the first error in its function, or `elsewhere` for an error
   * that any of them may have caused.
   */
  function check(round) {
    overlay.clear();
    const ranges = [];
    for (const [file, list] of groupBy(round, ({ file }) => file)) {
      const { text, path } = sources.get(file);
      let mutated = text;
      let shift = 0;
      for (const mutant of list.sort((a, b) => a.start - b.start)) {
        const { start, end, region, regionEnd, text: replacement } = mutant;
        mutated = mutated.slice(0, start + shift) + replacement + mutated.slice(end + shift);
        const from = region + shift;
        shift += replacement.length - (end - start);
        ranges.push({ mutant, path, from, to: regionEnd + shift });
      }
      const target = { languageVersion: options.target, impliedNodeFormat: ts.ModuleKind.ESNext };
      overlay.set(path, ts.createSourceFile(path, mutated, target, true));
    }
    program = ts.createProgram(roots, options, host, program);
    const verdicts = new Map(round.map((mutant) => [mutant, 'good']));
    for (const path of overlay.keys()) {
      const own = ranges.filter((range) => range.path === path);
      for (const { start = 0 } of program.getSemanticDiagnostics(program.getSourceFile(path))) {
        const range = own.find(({ from, to }) => start >= from && start <= to);
        if (range !== undefined) verdicts.set(range.mutant, 'bad');
        else
          for (const { mutant } of own) if (verdicts.get(mutant) === 'good') verdicts.set(mutant, own.length === 1 ? 'bad' : 'elsewhere');
      }
    }
    return verdicts;
  }

  const good = new Set();
  const parsed = mutants.filter((mutant) => parses(mutant, sources.get(mutant.file)));
  const again = parsed.filter(({ reachesOut }) => reachesOut);
  function checkAll(list, regionOf) {
    const rounds = roundsOf(list, regionOf);
    for (const [number, round] of rounds.entries()) {
      for (const [mutant, verdict] of check(round)) {
        if (verdict === 'good') good.add(mutant);
        else if (verdict === 'elsewhere') again.push(mutant);
      }
      onProgress?.(number + 1, rounds.length);
    }
  }
  const within = parsed.filter(({ reachesOut }) => !reachesOut);
  checkAll(within, ({ file, region }) => `${file} ${region}`);
  checkAll(again.splice(0), ({ file }) => file);
  return mutants.filter((mutant) => good.has(mutant));
}

/** Spreads mutants over rounds, so that no round has two of one region. */
function roundsOf(mutants, regionOf) {
  const rounds = [];
  for (const list of groupBy(mutants, regionOf).values()) {
    for (const [number, mutant] of list.entries()) {
      rounds[number] ??= [];
      rounds[number].push(mutant);
    }
  }
  return rounds;
}

function groupBy(list, keyOf) {
  const groups = new Map();
  for (const item of list) {
    const key = keyOf(item);
    if (groups.has(key)) groups.get(key).push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

function parses({ start, end, text: replacement }, { text, path }) {
  const file = ts.createSourceFile(path, text.slice(0, start) + replacement + text.slice(end), ts.ScriptTarget.ESNext, false);
  return file.parseDiagnostics.length === 0;
}

export function hashOf(...texts) {
  const hash = createHash('sha256');
  for (const text of texts) hash.update(text).update('\0');
  return hash.digest('hex').slice(0, 16);
}
