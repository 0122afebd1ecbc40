// What all processes of a cluster must have alike: the model, the form that it computes in, the key of blocks' identities, and the token of pages.
import { type BlockRoot, rootDigest } from '../kvcache/block-hash.ts';

/** Kept where all can read it. */
export interface Agreement {
  /** Four words. */
  readonly hashKey: readonly number[];
  readonly modelFingerprint: string;
  /** What instances compute in; undefined until one has joined. */
  readonly root: BlockRoot | undefined;
  /** By which they send each other pages; undefined until one has joined. */
  readonly pages: PagesSecret | undefined;
  /** It was lost, and said again by those who were there: what lay beside it was lost too, and they may not have said that again yet. */
  readonly again?: boolean | undefined;
}

export interface PagesSecret {
  /** Undefined: whoever joins has been given it. */
  readonly token: string | undefined;
  /** Equal where tokens are. */
  readonly mark: string;
}

/** One process: gateways have no form of their own. */
export interface Candidate {
  readonly modelFingerprint: string;
  readonly root: BlockRoot | undefined;
  /** Of the token that it was given, if it was given one. */
  readonly tokenMark?: string | undefined;
}

/** Drawn by whoever asks, for an agreement that is to be written. */
export interface Fresh {
  readonly hashKey: readonly number[];
  readonly pages: PagesSecret;
}

export type Verdict =
  | { readonly kind: 'agreed'; readonly agreement: Agreement }
  /** Write this one in place of what was read. */
  | { readonly kind: 'write'; readonly agreement: Agreement }
  /** It differs, or may have been lost: ask again when it is known whether anybody is there. */
  | { readonly kind: 'listen' }
  /** It has been lost: those who are there have to say it again. */
  | { readonly kind: 'wait' }
  | { readonly kind: 'refused'; readonly why: string };

/**
 * Whoever comes first, and whoever comes where nobody is any more, says what holds; others have to be like it.
 * @param stored what is written; undefined: nothing @param others is anybody there? undefined: that is not known
 */
export function agree(
  stored: Agreement | undefined,
  own: Candidate,
  fresh: Fresh,
  others: boolean | undefined,
): Verdict {
  const { modelFingerprint, root, tokenMark } = own;
  const given = tokenMark === undefined ? fresh.pages : { token: undefined, mark: tokenMark };
  const wanted = { modelFingerprint, root, pages: root && given, again: stored?.again };
  if (stored === undefined) {
    if (others === undefined) return { kind: 'listen' };
    return others ? { kind: 'wait' } : { kind: 'write', agreement: { ...wanted, hashKey: fresh.hashKey } };
  }
  const why = differs(stored, own);
  // A gateway that is alone leaves the form to the instance that comes first.
  const staleForm = root === undefined && stored.root !== undefined;
  const lacks = root !== undefined && (stored.root === undefined || stored.pages === undefined);
  if (why === undefined && lacks) return { kind: 'write', agreement: { ...wanted, hashKey: stored.hashKey } };
  if (why === undefined && !staleForm) return { kind: 'agreed', agreement: stored };
  if (others === undefined) return { kind: 'listen' };
  if (!others) return { kind: 'write', agreement: { ...wanted, hashKey: stored.hashKey } };
  return why === undefined ? { kind: 'agreed', agreement: stored } : { kind: 'refused', why };
}

export type RecordVerdict =
  /** Nothing is to be done: `held` is what holds. */
  | { readonly kind: 'stands'; readonly held: Agreement }
  /** Write this one in place of what was read. */
  | { readonly kind: 'write'; readonly agreement: Agreement }
  /** Others have agreed on something else while this process was not heard. */
  | { readonly kind: 'differs'; readonly why: string };

/** What a process that is there does about the record, which may have been lost, or said again by one that knew less. @param held what it has agreed to */
export function uphold(stored: Agreement | undefined, held: Agreement): RecordVerdict {
  const again = { ...held, again: true };
  if (stored === undefined) return { kind: 'write', agreement: again };
  const { root, pages } = held;
  const why = isOther(stored, held);
  if (why !== undefined) return { kind: 'differs', why };
  const lacks = (root && !stored.root) || (pages && !stored.pages);
  return lacks ? { kind: 'write', agreement: again } : { kind: 'stands', held: stored };
}

/** Two agreements, of the same model in the same form: each was made where the other's processes were not heard. */
export function couldHaveAgreed(one: Agreement, other: Agreement): boolean {
  const alike = one.modelFingerprint === other.modelFingerprint;
  return alike && (one.root && other.root && formsDiffer(one.root, other.root)) === undefined;
}

function isOther(stored: Agreement, held: Agreement): string | undefined {
  if (stored.hashKey.some((word, i) => word !== held.hashKey[i])) return 'it has another key of identities';
  if (stored.modelFingerprint !== held.modelFingerprint) return 'it has another model';
  const otherForm = stored.root && held.root && formsDiffer(stored.root, held.root);
  const otherToken = stored.pages && held.pages && stored.pages.mark !== held.pages.mark;
  return otherForm ?? (otherToken ? 'it has another token' : undefined);
}

/** What is not alike, in words. */
function differs(stored: Agreement, own: Candidate): string | undefined {
  const { modelFingerprint, root, pages } = stored;
  if (modelFingerprint !== own.modelFingerprint)
    return `the cluster has the model with the fingerprint ${modelFingerprint}, this one has ${own.modelFingerprint}`;
  return own.root && ((root && formsDiffer(root, own.root)) ?? (pages && tokensDiffer(pages, own.tokenMark)));
}

function tokensDiffer({ token, mark }: PagesSecret, given: string | undefined): string | undefined {
  if (given === undefined) return token === undefined ? 'it has a token, and this one was given none' : undefined;
  return given === mark ? undefined : 'it has another token than this one was given';
}

const fields = {
  modelFingerprint: 'model',
  weightForm: 'weights',
  inputForm: 'inputs',
  kvType: 'keys and values',
  rope: 'positions',
} as const satisfies Record<keyof BlockRoot, string>;

/** What of the form is not alike, in words; undefined: nothing. */
export function formsDiffer(theirs: BlockRoot, own: BlockRoot): string | undefined {
  const wrong = (Object.keys(fields) as (keyof BlockRoot)[]).find((field) => theirs[field] !== own[field]);
  return wrong && `the cluster has ${fields[wrong]} ${theirs[wrong]}, this one has ${own[wrong]}`;
}

/** Equal where blocks have equal identities: same form, same key. In hex. */
export function identityOf(root: BlockRoot, hashKey: readonly number[]): string {
  const words = rootDigest(root, '', Uint32Array.from(hashKey));
  return Array.from(words, (word) => word.toString(16).padStart(8, '0')).join('');
}
