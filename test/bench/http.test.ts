// The HTTP bench against a scripted server: times, counts and faults.
import { afterEach, describe, expect, test } from 'vitest';
import { firstModel, SseLines, timedCompletion, timedGet } from '../../src/bench/http/client.ts';
import type { RowSizes } from '../../src/bench/http/rows.ts';
import { benchHttp, type HttpBenchOptions, httpRowNames } from '../../src/bench/http/run.ts';
import { answerAtOnce, event, type Scripted, ScriptedClock, scriptedServer, token, usage } from './scripted-server.ts';

const tiny: RowSizes = {
  repeats: 2,
  promptTokens: 5,
  outputTokens: 3,
  streamPromptTokens: 4,
  prefixTokens: 10,
  longTokens: 7,
  overloadRequests: 9,
  healthCalls: 3,
};

let server: Scripted | undefined;

afterEach(async () => {
  await server?.close();
  server = undefined;
});

async function serve(answer: Parameters<typeof scriptedServer>[0]): Promise<Scripted> {
  server = await scriptedServer(answer);
  return server;
}

function bench(rows: string[], extra: Partial<HttpBenchOptions> = {}) {
  return benchHttp({ url: server?.url ?? '', rows, sizes: tiny, ...extra });
}

describe('one timed completion', () => {
  test('time to first token, gaps, decode time and usage', async () => {
    const clock = new ScriptedClock();
    await serve(async (response, { prompt }) => {
      clock.pass(10);
      await clock.untilRead(() => response.writeHead(200).flushHeaders());
      for (const gapMs of [40, 7, 5]) {
        clock.pass(gapMs);
        await clock.untilRead(() => response.write(token()));
      }
      clock.pass(1000);
      response.end(token('', 'length') + usage(prompt.length, 3, 2) + event('[DONE]'));
    });
    const endpoint = { url: server?.url ?? '', model: 'm', apiKey: 'secret', now: clock.now };
    const answer = await timedCompletion(endpoint, { prompt: [7, 8, 9], maxTokens: 3 });
    expect(answer).toEqual({
      status: 200,
      statusMs: 10,
      ttftMs: 50,
      decodeMs: 12,
      gapsMs: [7, 5],
      outputTokens: 3,
      promptTokens: 3,
      cachedTokens: 2,
      complete: true,
    });
    expect(server?.requests).toMatchObject([{ model: 'm', prompt: [7, 8, 9], max_tokens: 3, ignore_eos: true }]);
    expect(server?.headers[0]?.authorization).toBe('Bearer secret');
  });

  test('without usage the chunks are counted, and the last one may both bring text and end', async () => {
    await serve((response) => {
      response.writeHead(200).end(token('a') + token('') + token('b', 'length') + event('[DONE]'));
    });
    const endpoint = { url: server?.url ?? '', model: 'm', apiKey: undefined, now: () => 0 };
    const answer = await timedCompletion(endpoint, { prompt: [1, 2], maxTokens: 3 });
    expect(answer).toMatchObject({ outputTokens: 3, promptTokens: 2, cachedTokens: 0, complete: true });
  });

  const broken: readonly (readonly [string, number | undefined, () => string | undefined])[] = [
    ['the connection breaks before the status', undefined, () => undefined],
    ['the stream breaks in the middle', 200, () => token()],
    ['a chunk is not JSON', 200, (): string => `${token()}data: {oops\n\n${event('[DONE]')}`],
    ['the stream ends without its last line', 200, () => token() + usage(1, 1)],
  ];
  test.each(broken)('incomplete when %s', async (name, status, text) => {
    await serve(async (response) => {
      const sent = text();
      if (sent === undefined) {
        response.destroy();
      } else if (name.includes('middle')) {
        await new Promise((flushed) => response.writeHead(200).write(sent, flushed));
        response.destroy();
      } else {
        response.writeHead(200).end(sent);
      }
    });
    const endpoint = { url: server?.url ?? '', model: 'm', apiKey: undefined, now: () => 0 };
    const answer = await timedCompletion(endpoint, { prompt: [1], maxTokens: 2 });
    expect(answer.status).toBe(status);
    expect(answer.complete).toBe(false);
  });

  test('a GET without a 200 response has no time', async () => {
    await serve(() => undefined);
    const endpoint = { url: `${server?.url}/v1/`, model: 'm', apiKey: undefined, now: () => 0 };
    expect(await timedGet(endpoint, '/health')).toBe(0);
    expect(await timedGet(endpoint, '/nowhere')).toBeUndefined();
    expect(await firstModel(endpoint)).toBe('scripted');
  });

  test('events are assembled from pieces', () => {
    const lines = new SseLines();
    expect(lines.push('data: {"a"')).toEqual([]);
    expect(lines.push(':1}\r\n\r\n: comment\ndata:[DO')).toEqual(['{"a":1}']);
    expect(lines.push('NE]\n')).toEqual(['[DONE]']);
  });
});

describe('rows', () => {
  test('single: medians over requests of exact lengths', async () => {
    const clock = new ScriptedClock();
    await serve(async (response, request, n) => {
      if (n === 0) return answerAtOnce(response, request);
      await clock.untilRead(() => response.writeHead(200).flushHeaders());
      for (const ms of n === 1 ? [100, 10, 10] : [200, 20, 20]) {
        clock.pass(ms);
        await clock.untilRead(() => response.write(token()));
      }
      response.end(token('', 'length') + usage(5, 3) + event('[DONE]'));
    });
    const { rows, model } = await bench(['single'], { now: clock.now });
    expect(model).toBe('scripted');
    // Nearest rank: of two values the median is the lower. 2 tokens in 20 ms and in 40 ms.
    expect(rows.single).toEqual({
      promptTokens: 5,
      ttftMs: 100,
      decodeTokensPerSecond: 50,
      requests: 2,
      complete: 2,
    });
    expect(server?.requests.slice(1).map(({ prompt }) => prompt.length)).toEqual([5, 5]);
  });

  test('c8 and c32: waves of streams, every gap counted', async () => {
    await serve(answerAtOnce);
    const { rows } = await bench(['c8', 'c32']);
    expect(rows.c8).toMatchObject({ streams: 8, requests: 16, complete: 16 });
    expect(rows.c32).toMatchObject({ streams: 32, requests: 64, complete: 64 });
    expect(server?.requests).toHaveLength(1 + 16 + 64);
    expect(new Set(server?.requests.map(({ prompt }) => prompt.join()))).toHaveLength(81);
  });

  test('prefix: seven share the first prompt except their own tokens, and start after its first token', async () => {
    const release: (() => void)[] = [];
    await serve(async (response, request, n) => {
      if (n === 0) return answerAtOnce(response, request);
      // Rounds of eight: the first, which ends when the last of its seven followers was answered.
      const place = (n - 1) % 8;
      if (place > 0) {
        answerAtOnce(response, request, 10);
        if (place === 7) release.pop()?.();
        return;
      }
      const others = new Promise<void>((go) => release.push(go));
      expect(server?.requests).toHaveLength(n + 1);
      response.writeHead(200).write(token());
      await others;
      response.end(token() + usage(26, 2) + event('[DONE]'));
    });
    const { rows } = await bench(['prefix']);
    expect(rows.prefix).toMatchObject({ prefixTokens: 10, cachedTokens: [10] });
    const prompts = server?.requests.slice(1).map(({ prompt }) => prompt) ?? [];
    expect(prompts.map(({ length }) => length)).toEqual(Array(16).fill(26));
    for (const round of [prompts.slice(0, 8), prompts.slice(8)])
      expect(new Set(round.map((prompt) => prompt.slice(0, 10).join()))).toHaveLength(1);
    expect(new Set(prompts.map((prompt) => prompt.slice(0, 10).join()))).toHaveLength(2);
    expect(new Set(prompts.map((prompt) => prompt.join()))).toHaveLength(16);
  });

  test('together: computed tokens are those not cached', async () => {
    await serve((response, request, n) => answerAtOnce(response, request, n > 1 ? 9 : 0));
    const { rows } = await bench(['together']);
    // 26 of the first, 17 of each of the other seven, over 26.
    expect(rows.together).toMatchObject({ streams: 8, computedTokens: 145, ratio: 5.58 });
  });

  test('long: health calls beside a prefill, until there are enough', async () => {
    await serve(async (response, request, n) => {
      const before = checked;
      // After the warm-up and two prefills alone come those with health calls beside them.
      while (n > 2 && checked < before + 2) await new Promise(setImmediate);
      answerAtOnce(response, request);
    });
    let checked = 0;
    const now = (): number => checked++;
    const { rows } = await bench(['long'], { now });
    expect(rows.long).toMatchObject({ promptTokens: 7, healthFailed: 0 });
    expect(server?.requests.at(-1)).toMatchObject({ max_tokens: 1 });
  });

  test('long: a refused prompt is an error with its status', async () => {
    await serve((response, request) => {
      if (request.max_tokens === 1) response.writeHead(400).end();
      else answerAtOnce(response, request);
    });
    await expect(bench(['long'])).rejects.toThrow('Cannot bench long: a prompt of 7 tokens gave no token: status 400');
  });

  test('overload: distinguishes served, refused and lost requests', async () => {
    await serve((response, request, n) => {
      if (n === 0 || n > 4) return answerAtOnce(response, request);
      if (n === 1) response.destroy();
      else if (n === 2) response.writeHead(500).end();
      else response.writeHead(429, { 'retry-after': '1' }).end('{}');
    });
    const { rows } = await bench(['overload']);
    expect(rows.overload).toMatchObject({ requests: 9, served: 5, refused: 2, lost: 2 });
  });

  test('overload: without refusals their times are absent', async () => {
    await serve(answerAtOnce);
    const { rows } = await bench(['overload'], { now: () => 3 });
    expect(JSON.parse(JSON.stringify(rows.overload))).toMatchObject({ served: 9, refused: 0, lost: 0, refusalMs: {} });
  });
});

describe('bad usage', () => {
  test('an unknown row is named with the known ones', async () => {
    await serve(answerAtOnce);
    await expect(bench(['fast'])).rejects.toThrow(`Cannot bench row 'fast': the rows are ${httpRowNames.join(', ')}`);
  });

  test('a server that refuses the warm-up is named with its status', async () => {
    await serve((response) => void response.writeHead(401).end());
    await expect(bench(['single'])).rejects.toThrow(/Cannot bench http.*status 401/);
  });

  test('an unreachable server', async () => {
    await serve(answerAtOnce);
    const url = server?.url ?? '';
    await server?.close();
    await expect(benchHttp({ url, rows: ['single'], sizes: tiny })).rejects.toThrow(
      /the server does not answer: .*ECONNREFUSED/,
    );
  });
});
