// Errors of chat requests with the field names of the protocol that a client uses.
import { ApiError } from './errors.ts';

/** Beginnings of chat fields, each with its name in the other protocol; the first one that matches counts. */
export type FieldNames = readonly (readonly [chat: RegExp, own: string])[];

/** Waits for a part of a chat request. @throws ApiError with the names of the other protocol */
export async function withFieldNames<T>(names: FieldNames, part: Promise<T>): Promise<T> {
  try {
    return await part;
  } catch (error) {
    throw error instanceof ApiError ? renamed(error, names) : error;
  }
}

function renamed(error: ApiError, names: FieldNames): ApiError {
  const { status, message, code = 'invalid_value', param = '', retryAfterMs, refusal } = error;
  const name = names.find(([chat]) => param.search(chat) === 0);
  if (name === undefined) return error;
  const [chat, own] = name;
  const text = message.replaceAll(new RegExp(`'${chat.source}`, 'g'), `'${own}`);
  return new ApiError(status, text, { code, param: param.replace(chat, own), retryAfterMs, refusal });
}
