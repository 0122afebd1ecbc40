// How a model writes tool calls and reasoning, as data derived from its chat template.

/** One call as a JSON object. The texts are those that the template writes. */
export interface JsonShape {
  readonly kind: 'json';
  /** All calls are items of one JSON list. */
  readonly isList: boolean;
  /** The member with the name; undefined: the name is the key of the arguments. */
  readonly nameKey: string | undefined;
  readonly argumentsKey: string | undefined;
  /** The text before the name, between name and arguments, and after the arguments. */
  readonly open: string;
  readonly middle: string;
  readonly end: string;
  /** `end` has a call id of that many characters at this offset. */
  readonly idAt: number | undefined;
}

/** One call with its name in markers, and its arguments as one JSON object. */
export interface NamedShape {
  readonly kind: 'named';
  /** The text between name and call id; undefined: no id. */
  readonly idOpen: string | undefined;
  /** The text before the arguments. */
  readonly nameEnd: string;
}

/** One call with its name in markers, and each argument in markers of its own. */
export interface PairsShape {
  readonly kind: 'pairs';
  readonly nameEnd: string;
  readonly keyOpen: string;
  readonly keyEnd: string;
  readonly valueEnd: string;
  /** Texts are written as JSON strings; otherwise as they are. */
  readonly isQuoted: boolean;
}

/** One call as Python writes it: a name, and named arguments in round brackets. */
export interface PythonShape {
  readonly kind: 'python';
}

/** Calls are `sectionOpen`, calls with `separator` between them, `sectionClose`; each is `callOpen`, its shape, `callClose`. */
export interface CallFormat {
  readonly sectionOpen: string;
  readonly callOpen: string;
  readonly callClose: string;
  readonly separator: string;
  readonly sectionClose: string;
  readonly shape: JsonShape | NamedShape | PairsShape | PythonShape;
  /** The template writes several calls in one message. */
  readonly isParallel: boolean;
}

/** The markers around the reasoning of a model. */
export interface ReasoningFormat {
  readonly open: string;
  readonly close: string;
}

/** How tools and calls are passed to a chat template. */
export interface TemplateStyle {
  /** Tools are the variable `tools`, or JSON text in the member `tools` of the system message. */
  readonly tools: 'variable' | 'system message';
  /** Arguments are an object, or JSON text. */
  readonly argumentsAs: 'object' | 'text';
  /** The content of a message that has calls only. */
  readonly emptyContent: '' | null;
  /**
   * Call ids: any text; nine letters or digits, as Mistral's templates require; or `functions.NAME:INDEX` with the number
   * of the call in the conversation, which Kimi's templates write in place of the name.
   */
  readonly ids: 'any' | 'short' | 'named';
  /** The template writes no calls: they become part of the content. */
  readonly callsInContent: boolean;
}

/** The id of a call in which a template finds its name. */
export function namedId(name: string, index: number): string {
  return `functions.${name}:${index}`;
}

/** The text that begins the first call; empty if a call begins with its JSON object. */
export function markerOf({ sectionOpen, callOpen }: CallFormat): string {
  return (sectionOpen.trim() === '' ? callOpen : sectionOpen).trim();
}

/** Calls as a template of this format writes them. Only for formats of JSON objects in a list. */
export function writeCalls(
  { sectionOpen, separator, sectionClose, shape }: CallFormat,
  calls: readonly { readonly name: string; readonly arguments: string }[],
): string {
  if (shape.kind !== 'json' || !shape.isList) throw new Error('Cannot write calls: the format is no list of objects');
  const items = calls.map(
    ({ name, arguments: args }) => shape.open + name + shape.middle + (args.trim() || '{}') + shape.end,
  );
  return `${sectionOpen}[${items.join(separator)}]${sectionClose}`;
}
