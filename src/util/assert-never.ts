// The end of an exhaustive switch: the type check fails when a case is missing.

/** @throws Error naming the value that no case handles */
export function assertNever(value: never): never {
  throw new Error(`Unhandled case: ${JSON.stringify(value)}`);
}
