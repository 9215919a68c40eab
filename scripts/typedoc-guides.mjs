// A plugin of typedoc: pages of docs/ are named after their headings, and exports are grouped by the
// folder that they come from.
import { Comment, CommentTag, Converter, ReflectionKind } from 'typedoc';

/** The group of each folder of src/; the first that a file's path contains. */
const groups = [
  ['src/basics/errors', 'Errors'],
  ['src/buffers/current-resource', 'Resources'],
  ['src/buffers/', 'Buffers'],
  ['src/adaptors/', 'Adaptors'],
  ['src/resources/', 'Resources'],
  ['src/resource', 'Resources'],
  ['src/memory-resource', 'Resources'],
  ['src/specification/', 'Stacks from text'],
  ['src/formats/', 'Logs'],
  ['src/plans/', 'Plans'],
  ['src/planning/', 'Plans'],
  ['src/replay/', 'Replay'],
  ['src/report/', 'Reports'],
  ['src/watch/', 'Watching'],
  ['src/testing/', 'Testing'],
  ['src/driver/', 'Devices, streams and events'],
  ['src/collector/', 'Buffers'],
];

/** @param {import('typedoc').Application} app */
export function load(app) {
  app.converter.on(Converter.EVENT_CREATE_DOCUMENT, (_context, document) => {
    const heading = document.content.find(({ kind, text }) => kind === 'text' && /^# /m.test(text));
    const title = /^# (.*)$/m.exec(heading?.text ?? '')?.[1];
    if (title !== undefined) document.name = title.replaceAll('`', '');
  });
  app.converter.on(Converter.EVENT_CREATE_DECLARATION, (context, reflection) => {
    if (reflection.parent === undefined || !reflection.parent.kindOf(ReflectionKind.Module)) return;
    const file = context.getSymbolFromReflection(reflection)?.declarations?.[0]?.getSourceFile().fileName ?? '';
    const group = groups.find(([place]) => file.includes(place))?.[1] ?? 'Other';
    reflection.comment ??= new Comment();
    if (reflection.comment.getTag('@category') !== undefined) return;
    reflection.comment.blockTags.push(new CommentTag('@category', [{ kind: 'text', text: group }]));
  });
}
