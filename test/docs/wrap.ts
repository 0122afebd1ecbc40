// Lines of generated pages.
const columns = 120;

/** @param first before the first line @param others before those that follow it */
export function wrap(text: string, first = '', others = ''): string[] {
  const lines: string[] = [];
  let line = first;
  for (const word of text.split(' ')) {
    if (line.length + word.length > columns) {
      lines.push(line.trimEnd());
      line = others;
    }
    line += `${word} `;
  }
  return [...lines, line.trimEnd()];
}
