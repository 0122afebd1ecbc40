// Being asked to end.

/** Resolves at the first SIGTERM or SIGINT, or when the process is gone that started this one as its own. */
export function stopSignal(): Promise<'stop'> {
  return new Promise((resolve) => {
    const stop = (): void => resolve('stop');
    // While this one was still starting.
    if (process.connected === false) stop();
    process.once('SIGTERM', stop);
    process.once('SIGINT', stop);
    process.once('disconnect', stop);
    // A channel to it must not keep this process alive.
    process.channel?.unref();
  });
}
