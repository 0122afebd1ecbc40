// Being asked to end.

/** Resolves at the first SIGTERM or SIGINT. */
export function stopSignal(): Promise<'stop'> {
  return new Promise((resolve) => {
    const stop = (): void => resolve('stop');
    process.once('SIGTERM', stop);
    process.once('SIGINT', stop);
  });
}
