// Rows as aligned text, for people.

/** Prints objects of the same fields: a line of names, then one of values each. */
export function printTable(rows: readonly object[]): void {
  const [first] = rows;
  if (first === undefined) return;
  const names = Object.keys(first);
  const lines = [names, ...rows.map((row) => names.map((name) => cell(row[name as keyof typeof row])))];
  const widths = names.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0)));
  for (const line of lines) console.log(line.map((text, column) => text.padEnd(widths[column] ?? 0)).join('  '));
  console.log();
}

function cell(value: unknown): string {
  if (value === undefined) return '-';
  if (typeof value === 'number') return readable(value);
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** What is not whole is shown to four digits; `--json` has all of them. */
function readable(value: number): string {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

export function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
