// The cluster agreement: what all processes must share, which is the model, its number formats, the block hash key and
// the page token.

import { type BlockRoot, rootDigest } from '../kvcache/block-hash.ts';

/** The stored record. */
export interface Agreement {
  /** Four words. */
  readonly hashKey: readonly number[];
  readonly modelFingerprint: string;
  /** Model and number formats of the instances; undefined until one has joined. */
  readonly root: BlockRoot | undefined;
  /** Authenticates page transfers between instances; undefined until one has joined. */
  readonly pages: PagesSecret | undefined;
  /**
   * The record was lost and restored by a member: other records of the same store were lost too, and may not be
   * restored yet.
   */
  readonly restored?: boolean | undefined;
}

export interface PagesSecret {
  /** Undefined: each process was given the token by its operator. */
  readonly token: string | undefined;
  /** Equal for equal tokens. */
  readonly mark: string;
}

/** A process that joins. */
export interface JoiningProcess {
  readonly modelFingerprint: string;
  /** Undefined for gateways, which compute nothing. */
  readonly root: BlockRoot | undefined;
  /**
   * The root with another input form. The process chose the form of `root` itself: that of running processes replaces it.
   * Undefined: its operator gave the form.
   */
  readonly rootIn?: ((inputForm: string) => BlockRoot) | undefined;
  /** Mark of the token that its operator gave it, if any. */
  readonly tokenMark?: string | undefined;
  /** Hash key of the blocks that it keeps on SSD: that of the record if it writes the first one. */
  readonly hashKey?: readonly number[] | undefined;
}

/** Random values for the record, if the joining process writes it. */
export interface FreshSecrets {
  readonly hashKey: readonly number[];
  readonly pages: PagesSecret;
}

export type JoinDecision =
  | { readonly kind: 'agreed'; readonly agreement: Agreement }
  /** Replace the record that was read by this one (compare-and-set). */
  | { readonly kind: 'write'; readonly agreement: Agreement }
  /** The record differs, or may be lost: decide again once it is known whether other processes are alive. */
  | { readonly kind: 'discover' }
  /** The record is lost while others are alive: they restore it. */
  | { readonly kind: 'wait' }
  | { readonly kind: 'refused'; readonly why: string };

/**
 * Decides for a process that joins: the first process, or one without any live peer, sets the agreement, and every
 * other one must match it.
 * @param stored the record; undefined: none
 * @param others other processes are alive; undefined: unknown
 */
export function agree(
  stored: Agreement | undefined,
  own: JoiningProcess,
  fresh: FreshSecrets,
  others: boolean | undefined,
): JoinDecision {
  const { modelFingerprint, tokenMark } = own;
  const root = acceptableRoot(stored, own);
  const secret = tokenMark === undefined ? fresh.pages : { token: undefined, mark: tokenMark };
  const pages = root === undefined && tokenMark === undefined ? undefined : secret;
  const proposal = { modelFingerprint, root, pages, restored: stored?.restored };
  if (stored === undefined) {
    if (others === undefined) return { kind: 'discover' };
    return others ? { kind: 'wait' } : { kind: 'write', agreement: { ...proposal, hashKey: fresh.hashKey } };
  }
  const why = mismatch(stored, { ...own, root });
  // Without peers, a gateway leaves the formats to the first instance, and an instance chooses its own input form.
  const staleForm = stored.root !== undefined && stored.root.inputForm !== own.root?.inputForm;
  const completes = root !== undefined && (stored.root === undefined || stored.pages === undefined);
  if (why === undefined && completes) return { kind: 'write', agreement: { ...proposal, hashKey: stored.hashKey } };
  if (why === undefined && !staleForm) return { kind: 'agreed', agreement: stored };
  if (others === undefined) return { kind: 'discover' };
  if (!others) return { kind: 'write', agreement: { ...proposal, root: own.root, hashKey: stored.hashKey } };
  return why === undefined ? { kind: 'agreed', agreement: stored } : { kind: 'refused', why };
}

/** The root of a joining process, in the input form of the record if it may take that. */
function acceptableRoot(stored: Agreement | undefined, { root, rootIn }: JoiningProcess): BlockRoot | undefined {
  return stored?.root === undefined || rootIn === undefined ? root : rootIn(stored.root.inputForm);
}

export type ReconcileDecision =
  /** The record is consistent: `held` is what the process holds from now on. */
  | { readonly kind: 'consistent'; readonly held: Agreement }
  /** Replace the record that was read by this one (compare-and-set). */
  | { readonly kind: 'write'; readonly agreement: Agreement }
  /** Other processes have agreed on something else during a partition. */
  | { readonly kind: 'differs'; readonly why: string };

/**
 * Decides for a member about a record that may be lost, or restored by a process with fewer fields.
 * @param held the agreement of the member
 */
export function reconcile(stored: Agreement | undefined, held: Agreement): ReconcileDecision {
  const restoredRecord = { ...held, restored: true };
  if (stored === undefined) return { kind: 'write', agreement: restoredRecord };
  const { root, pages } = held;
  const why = conflict(stored, held);
  if (why !== undefined) return { kind: 'differs', why };
  const lacks = (root && !stored.root) || (pages && !stored.pages);
  return lacks ? { kind: 'write', agreement: restoredRecord } : { kind: 'consistent', held: stored };
}

/** True for agreements on one model and one set of formats: they arose on the two sides of a partition. */
export function isCompatible(one: Agreement, other: Agreement): boolean {
  const sameModel = one.modelFingerprint === other.modelFingerprint;
  return sameModel && (one.root && other.root && formsDiffer(one.root, other.root)) === undefined;
}

function conflict(stored: Agreement, held: Agreement): string | undefined {
  if (stored.hashKey.some((word, i) => word !== held.hashKey[i])) return 'it has another block hash key';
  if (stored.modelFingerprint !== held.modelFingerprint) return 'it has another model';
  const otherForm = stored.root && held.root && formsDiffer(stored.root, held.root);
  const otherToken = stored.pages && held.pages && stored.pages.mark !== held.pages.mark;
  return otherForm ?? (otherToken ? 'it has another token' : undefined);
}

/** The first difference, in words; undefined: none. */
function mismatch(stored: Agreement, own: JoiningProcess): string | undefined {
  const { modelFingerprint, root, pages } = stored;
  if (modelFingerprint !== own.modelFingerprint)
    return `the cluster has the model with the fingerprint ${modelFingerprint}, this one has ${own.modelFingerprint}`;
  if (own.root === undefined && own.tokenMark === undefined) return undefined;
  return (own.root && root && formsDiffer(root, own.root)) ?? (pages && tokenMismatch(pages, own.tokenMark));
}

function tokenMismatch({ token, mark }: PagesSecret, given: string | undefined): string | undefined {
  if (given === undefined) return token === undefined ? 'it has a token, and this one was given none' : undefined;
  return given === mark ? undefined : 'it has another token than this one was given';
}

const fields = {
  modelFingerprint: 'model',
  weightForm: 'weights',
  inputForm: 'inputs',
  kvType: 'keys and values',
  rope: 'positions',
  sparseLayers: 'sparse layers',
} as const satisfies Record<keyof BlockRoot, string>;

/** The input form in which all instruction sets compute the same bits. */
export const bitEqualForm = 'i16';

/** The first format that differs, in words; undefined: none. */
export function formsDiffer(theirs: BlockRoot, own: BlockRoot): string | undefined {
  const wrong = (Object.keys(fields) as (keyof BlockRoot)[]).find((field) => theirs[field] !== own[field]);
  return wrong && `the cluster has ${fields[wrong]} ${theirs[wrong] ?? 'none'}, this one has ${own[wrong] ?? 'none'}`;
}

/** Identity of a block namespace in hex: equal roots and keys give equal block hashes. */
export function identityOf(root: BlockRoot, hashKey: readonly number[]): string {
  const words = rootDigest(root, '', Uint32Array.from(hashKey));
  return Array.from(words, (word) => word.toString(16).padStart(8, '0')).join('');
}
