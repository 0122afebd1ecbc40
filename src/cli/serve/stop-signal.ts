// Being asked to end, and ending.

/** What is still to be written has time for it. */
const endMs = 1_000;

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

/** All is closed: what keeps the process all the same is not waited for. The NATS client does, with a connection that it began to a server that hangs. */
export function endSoon(): void {
  setTimeout(() => process.exit(), endMs).unref();
}
