// The end of a switch that handles every kind of a union.

/** Fails to compile while a kind is unhandled. @throws Error with the kind, for a value outside its type */
export function assertNever(value: never): never {
  const given: unknown = value;
  const kind = typeof given === 'object' && given !== null && 'kind' in given ? given.kind : given;
  throw new Error(`Unhandled kind: ${String(kind)}`);
}
