// The hub's address, token and cache folder, from the environment variables of Hugging Face's own tools.
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

export interface HubSettings {
  /** Without a trailing slash. */
  readonly endpoint: string;
  readonly token: string | undefined;
  readonly cacheFolder: string;
  /** Only the cache is used. */
  readonly offline: boolean;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** @throws Error when HF_ENDPOINT is not a URL, or the token holds characters that a header cannot carry */
export function hubSettings(env: Environment): HubSettings {
  const cache = nonEmpty(env.XDG_CACHE_HOME) ?? join(homedir(), '.cache');
  const home = nonEmpty(env.HF_HOME) ?? join(cache, 'huggingface');
  return {
    endpoint: endpointOf(nonEmpty(env.HF_ENDPOINT) ?? 'https://huggingface.co'),
    token: tokenOf(nonEmpty(env.HF_TOKEN) ?? nonEmpty(env.HUGGING_FACE_HUB_TOKEN) ?? tokenFile(env, home)),
    cacheFolder: nonEmpty(env.HF_HUB_CACHE) ?? nonEmpty(env.HUGGINGFACE_HUB_CACHE) ?? join(home, 'hub'),
    offline: ['1', 'ON', 'YES', 'TRUE'].includes(env.HF_HUB_OFFLINE?.toUpperCase() ?? ''),
  };
}

function nonEmpty(value: string | undefined): string | undefined {
  const text = value?.trim();
  return text === '' ? undefined : text;
}

function endpointOf(text: string): string {
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol))
    throw new Error(`Cannot use HF_ENDPOINT ${text}: expected a URL such as https://huggingface.co`);
  return text.replace(/\/+$/, '');
}

function tokenOf(text: string | undefined): string | undefined {
  if (text !== undefined && !/^[\x21-\x7e]+$/.test(text))
    throw new Error(
      'Cannot use the token of HF_TOKEN or the token file: it contains spaces or other invalid characters',
    );
  return text;
}

function tokenFile(env: Environment, home: string): string | undefined {
  try {
    return nonEmpty(readFileSync(nonEmpty(env.HF_TOKEN_PATH) ?? join(home, 'token'), 'utf8'));
  } catch {
    return undefined;
  }
}
