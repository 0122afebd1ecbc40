// Grammars that constrain the output of a request, and the port that compiles them.

/**
 * The text of a grammar is a JSON schema, a regular expression, rules in EBNF with the rule `root`, or a structural tag
 * of XGrammar as JSON: free text with parts that have grammars of their own.
 */
export type GrammarKind = 'json_schema' | 'regex' | 'ebnf' | 'structural_tag';

/** Every sampled token continues a text of the grammar; at the end of such a text only end-of-sequence tokens remain. */
export interface Grammar {
  readonly kind: GrammarKind;
  /** At most `grammarCharactersMax` UTF-16 units. */
  readonly text: string;
}

export const grammarCharactersMax = 65_536;

/** Compiles grammars for the vocabulary of the served model, outside the calling thread and within bounds. */
export interface GrammarCompiler {
  /**
   * Resolves when the grammar is compiled, to undefined, or to the reason why it cannot be compiled. Tenants take turns;
   * undefined: clients without a name. Rejects with GrammarQueueFull.
   */
  compile(grammar: Grammar, tenant?: string): Promise<string | undefined>;
}

/** Too many grammars wait to be compiled: a later request may succeed. */
export class GrammarQueueFull extends Error {
  readonly retryAfterMs: number;

  constructor(message: string, retryAfterMs: number) {
    super(message);
    this.name = 'GrammarQueueFull';
    this.retryAfterMs = retryAfterMs;
  }
}
