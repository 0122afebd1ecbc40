// Stop signals, and the end of the process.

/** Time for pending writes. */
const exitDelayMs = 1_000;

/** SIGTERM, which supervisors send; SIGINT, which a person sends; the exit of the parent of this child process. */
export type StopCause = 'SIGTERM' | 'SIGINT' | 'disconnect';

/** Resolves with the first cause to stop. A second signal ends the process at once. */
export function stopSignal(): Promise<{ readonly stop: StopCause }> {
  return new Promise((resolve) => {
    // The parent exited while this process was starting.
    if (process.connected === false) resolve({ stop: 'disconnect' });
    for (const stop of ['SIGTERM', 'SIGINT', 'disconnect'] as const) process.once(stop, () => resolve({ stop }));
    // The channel to the parent must not keep this process alive.
    process.channel?.unref();
  });
}

/** Ends the process after pending writes although a thread hangs: Node's exit would wait for the thread for ever. */
export function killAfterWrites(): void {
  setTimeout(() => process.kill(process.pid, 'SIGKILL'), exitDelayMs);
}

/** Kills the process when it exits, at the latest after this time: Node's exit would wait for a write that hangs. */
export function killInsteadOfExit(withinMs: number): void {
  const kill = () => process.kill(process.pid, 'SIGKILL');
  process.once('exit', kill);
  setTimeout(kill, withinMs).unref();
}

/** Exits after pending writes: the NATS client would keep the process alive while a server does not answer its connection. */
export function exitAfterWrites(): void {
  setTimeout(() => process.exit(), exitDelayMs).unref();
}
