// Where the hub is, who asks, and where its cache lies: the variables that Hugging Face's own tools read.
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

export interface HubSettings {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly token: string | undefined;
  readonly cacheFolder: string;
  /** Nothing but the cache is asked. */
  readonly offline: boolean;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** @throws Error when HF_ENDPOINT is no address, or the token is nothing that a header can carry */
export function hubSettings(env: Environment): HubSettings {
  const cache = given(env.XDG_CACHE_HOME) ?? join(homedir(), '.cache');
  const home = given(env.HF_HOME) ?? join(cache, 'huggingface');
  return {
    endpoint: endpointOf(given(env.HF_ENDPOINT) ?? 'https://huggingface.co'),
    token: tokenOf(given(env.HF_TOKEN) ?? given(env.HUGGING_FACE_HUB_TOKEN) ?? tokenFile(env, home)),
    cacheFolder: given(env.HF_HUB_CACHE) ?? given(env.HUGGINGFACE_HUB_CACHE) ?? join(home, 'hub'),
    offline: ['1', 'ON', 'YES', 'TRUE'].includes(env.HF_HUB_OFFLINE?.toUpperCase() ?? ''),
  };
}

function given(value: string | undefined): string | undefined {
  const text = value?.trim();
  return text === '' ? undefined : text;
}

function endpointOf(text: string): string {
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol))
    throw new Error(`Cannot use HF_ENDPOINT ${text}: write an address like https://huggingface.co`);
  return text.replace(/\/+$/, '');
}

function tokenOf(text: string | undefined): string | undefined {
  if (text !== undefined && !/^[\x21-\x7e]+$/.test(text))
    throw new Error(
      'Cannot use the token of HF_TOKEN or the token file: it holds spaces or other characters that no token has',
    );
  return text;
}

function tokenFile(env: Environment, home: string): string | undefined {
  try {
    return given(readFileSync(given(env.HF_TOKEN_PATH) ?? join(home, 'token'), 'utf8'));
  } catch {
    return undefined;
  }
}
