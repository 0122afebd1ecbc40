// Stop signals, and the end of the process.

/** Time for pending writes. */
const exitDelayMs = 1_000;

/** Resolves at the first SIGTERM or SIGINT, or when the parent of this child process has exited. */
export function stopSignal(): Promise<'stop'> {
  return new Promise((resolve) => {
    const stop = (): void => resolve('stop');
    // The parent exited while this process was starting.
    if (process.connected === false) stop();
    process.once('SIGTERM', stop);
    process.once('SIGINT', stop);
    process.once('disconnect', stop);
    // The channel to the parent must not keep this process alive.
    process.channel?.unref();
  });
}

/** Exits after pending writes: the NATS client would keep the process alive while a server does not answer its connection. */
export function exitAfterWrites(): void {
  setTimeout(() => process.exit(), exitDelayMs).unref();
}
