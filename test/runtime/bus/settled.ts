// Waiting for ends of a bus on the test's own thread to have heard all that they tell one another.

/** More than messages that answer one another in these tests: each takes a turn of the event loop. */
const turns = 30;

export async function settled(): Promise<void> {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
}
