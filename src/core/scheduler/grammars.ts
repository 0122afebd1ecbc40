// Requests with grammars: a request is admitted once its grammar is compiled, and its matcher is freed when it leaves.

import type { InstanceEvent } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import { type Handled, type Identified, InstanceComponent, type InstanceContext } from './component.ts';
import type { RunningRequest } from './executor/executor.ts';

export class Grammars<Request extends Identified, S extends RunningRequest> extends InstanceComponent<Request, S> {
  readonly #context: InstanceContext<Request, S>;
  /** Requests with grammars that are being compiled. */
  readonly #compiling = new Map<RequestId, S>();

  constructor(context: InstanceContext<Request, S>) {
    super();
    this.#context = context;
  }

  override get pending(): number {
    return this.#compiling.size;
  }

  override accepted(running: S): void {
    this.#hold(running);
  }

  override resumed(running: S): void {
    this.#hold(running);
  }

  #hold(running: S): void {
    const { id, grammar, sequence } = running;
    if (grammar === undefined) return;
    sequence.waitsForGrammar = true;
    this.#compiling.set(id, running);
    this.#context.emit({ kind: 'compileGrammar', id, grammar });
  }

  override handle(event: InstanceEvent<Request, unknown>): Handled {
    if (event.kind !== 'grammarCompiled') return undefined;
    const { id, fault } = event;
    const running = this.#compiling.get(id);
    if (running === undefined) {
      this.#context.ignore(event, `request ${id} waits for no grammar`);
      return 'cacheOnly';
    }
    this.#compiling.delete(id);
    running.sequence.waitsForGrammar = false;
    if (fault !== undefined)
      this.#context.fail(running, `Cannot generate: the grammar cannot be compiled: ${fault}`, 'GRAMMAR_FAILED');
    return 'replan';
  }

  override releaseRequest(id: RequestId, running: S | undefined): boolean {
    if (running?.grammar === undefined) return false;
    this.#compiling.delete(id);
    this.#context.emit({ kind: 'releaseGrammar', id });
    return false;
  }

  override check(): void {
    for (const { id, sequence } of this.#compiling.values())
      if (!sequence.waitsForGrammar) throw new Error(`Instance broken: request ${id} does not wait for its grammar`);
  }
}
