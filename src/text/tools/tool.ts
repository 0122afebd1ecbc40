// Tools that a model may call, the calls in its output, and the pieces in which calls arrive.

/** A function of the client that the model may call. */
export interface Tool {
  readonly name: string;
  readonly description?: string | undefined;
  /** JSON Schema of the arguments; undefined: no arguments. */
  readonly parameters?: Readonly<Record<string, unknown>> | undefined;
  /** Constrains the arguments to the schema. */
  readonly strict?: boolean | undefined;
}

/** `auto`: the model decides. `required`: it calls at least one tool. With a name, it calls this tool. */
export type ToolChoice = 'none' | 'auto' | 'required' | { readonly name: string };

/** A call of an assistant message. */
export interface ToolCall {
  readonly id: string;
  readonly name: string;
  /** JSON text of the arguments, as the model wrote it. */
  readonly arguments: string;
}

/** A piece of a call: the first piece of a call has its name, later ones continue its arguments. */
export interface ToolCallPiece {
  /** Number of the call in its output, from 0. */
  readonly index: number;
  readonly name?: string;
  readonly arguments: string;
}
