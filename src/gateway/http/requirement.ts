// What a validator requires of a value, in words that follow its name: "must be at least 1".

/** The members of an issue of the validator that are used here. */
export interface ValidationIssue {
  readonly code?: string | undefined;
  readonly message: string;
  readonly origin?: string;
  readonly minimum?: number | bigint;
  readonly maximum?: number | bigint;
  readonly inclusive?: boolean;
  readonly expected?: string;
  readonly values?: readonly unknown[];
  readonly keys?: readonly string[];
}

/** Beginnings of the validator's own messages; every other message was written for its value. */
const builtIn = /^(Too (small|big)|Invalid|Unrecognized)/;

const kinds: Readonly<Record<string, string | undefined>> = {
  number: 'a number',
  int: 'an integer',
  string: 'text',
  boolean: 'true or false',
  array: 'a list',
  object: 'an object',
  record: 'an object',
};

export function requirementOf(issue: ValidationIssue): string {
  const { code, message, minimum, maximum, inclusive = true, expected = '', values = [], keys = [] } = issue;
  if (!builtIn.test(message)) return message.replace(/^expected /, 'must be ');
  switch (code) {
    case 'too_small':
      return `must ${bounded(issue.origin, inclusive ? 'at least' : 'above', minimum)}`;
    case 'too_big':
      return `must ${bounded(issue.origin, inclusive ? 'at most' : 'below', maximum)}`;
    case 'invalid_type':
      return `must be ${kinds[expected] ?? expected}`;
    case 'invalid_value':
      return `must be ${oneOf(values)}`;
    case 'unrecognized_keys':
      return `has the unknown member '${keys[0]?.slice(0, 64)}'`;
    default:
      return 'has an invalid form';
  }
}

function bounded(origin: string | undefined, relation: string, bound: number | bigint | undefined): string {
  if (origin === 'string') return `have ${relation} ${bound} characters`;
  return origin === 'array' ? `have ${relation} ${bound} entries` : `be ${relation} ${bound}`;
}

function oneOf(values: readonly unknown[]): string {
  const spelled = values.map((value) => (typeof value === 'string' ? `'${value}'` : String(value)));
  const last = spelled.pop() ?? '';
  return spelled.length === 0 ? last : `${spelled.join(', ')} or ${last}`;
}
