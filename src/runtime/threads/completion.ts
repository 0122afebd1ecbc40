// An end that comes once, and why: a promise, and who keeps it.

export interface Completion {
  readonly ended: Promise<string>;
  /** Heard the first time. */
  readonly end: (why: string) => void;
}

export function completion(): Completion {
  let end: Completion['end'] = () => {};
  const ended = new Promise<string>((resolve) => {
    end = resolve;
  });
  return { ended, end };
}
