// What all processes of a cluster must have alike: the model, the form that it computes in, and the key of blocks' identities.
import { type BlockRoot, rootDigest } from '../policy/blocks/block-hash.ts';

/** Kept where all can read it. */
export interface Agreement {
  /** Four words. */
  readonly hashKey: readonly number[];
  readonly modelFingerprint: string;
  /** What instances compute in; undefined until one has joined. */
  readonly root: BlockRoot | undefined;
}

/** One process: gateways have no form of their own. */
export interface Candidate {
  readonly modelFingerprint: string;
  readonly root: BlockRoot | undefined;
}

export type Verdict =
  | { readonly kind: 'agreed'; readonly agreement: Agreement }
  /** Write this one in place of what was read. */
  | { readonly kind: 'write'; readonly agreement: Agreement }
  /** It differs: ask again when it is known whether anybody is there. */
  | { readonly kind: 'listen' }
  | { readonly kind: 'refused'; readonly why: string };

/**
 * Whoever comes first, and whoever comes where nobody is any more, says what holds; others have to be like it.
 * @param stored what is written; undefined: nothing @param freshKey of a new agreement @param others is anybody there? undefined: that is not known
 */
export function agree(
  stored: Agreement | undefined,
  own: Candidate,
  freshKey: readonly number[],
  others: boolean | undefined,
): Verdict {
  if (stored === undefined) return { kind: 'write', agreement: { ...own, hashKey: freshKey } };
  const why = differs(stored, own);
  // A gateway that is alone leaves the form to the instance that comes first.
  const staleForm = own.root === undefined && stored.root !== undefined;
  if (why === undefined && own.root !== undefined && stored.root === undefined)
    return { kind: 'write', agreement: { ...stored, root: own.root } };
  if (why === undefined && !staleForm) return { kind: 'agreed', agreement: stored };
  if (others === undefined) return { kind: 'listen' };
  if (!others) return { kind: 'write', agreement: { ...own, hashKey: stored.hashKey } };
  return why === undefined ? { kind: 'agreed', agreement: stored } : { kind: 'refused', why };
}

/** What is not alike, in words. */
function differs(stored: Agreement, own: Candidate): string | undefined {
  const { modelFingerprint, root } = stored;
  if (modelFingerprint !== own.modelFingerprint)
    return `the cluster has the model with the fingerprint ${modelFingerprint}, this one has ${own.modelFingerprint}`;
  return root && own.root && formsDiffer(root, own.root);
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
