// Waits until the endpoints of a bus on the test's own thread have exchanged all messages.

/** More than the longest chain of replies in these tests; each message takes one turn of the event loop. */
const turns = 30;

export async function settled(): Promise<void> {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
}
