// Names of hub models, the settings from the environment, and the choice of a model's files.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { chooseFiles } from '../../../src/weights/hub/choose-files.ts';
import { parseHubReference } from '../../../src/weights/hub/reference.ts';
import { hubSettings } from '../../../src/weights/hub/settings.ts';
import { reference } from './hub-fixture.ts';

describe('parseHubReference', () => {
  it.each([
    ['org/name', 'org/name', 'main', undefined],
    ['Org-1/Na.me_2', 'Org-1/Na.me_2', 'main', undefined],
    ['org/name@v1.0', 'org/name', 'v1.0', undefined],
    ['org/name@refs/pr/3', 'org/name', 'refs/pr/3', undefined],
    ['org/name:a/b.gguf', 'org/name', 'main', 'a/b.gguf'],
    ['org/name@dev:Q4_K_M', 'org/name', 'dev', 'Q4_K_M'],
  ])('%s', (text, id, revision, file) => {
    expect(parseHubReference(text)).toEqual({ text, id, revision, file });
  });

  it.each([
    ...[
      'name',
      './org/name',
      '/org/name',
      'a/b/c',
      'org/name.gguf',
      'org/model.safetensors',
      '',
      'org/',
      '../name',
      'org/..',
    ],
    ...[
      'org/a--b',
      'org/na..me',
      'org/name@',
      'org/name@../x',
      'org/name@-x',
      'org/name:',
      'org/name:../x.gguf',
      'org/name:/x',
      'o rg/x',
    ],
  ])('%j is not a reference', (text) => {
    expect(parseHubReference(text)).toBeUndefined();
  });
});

describe('hubSettings', () => {
  const home = mkdtempSync(join(tmpdir(), 'kvasir-home-'));
  afterAll(() => rmSync(home, { recursive: true }));

  it('reads the cache folder, the more specific variable first', () => {
    expect(hubSettings({ XDG_CACHE_HOME: '/x' }).cacheFolder).toBe('/x/huggingface/hub');
    expect(hubSettings({ XDG_CACHE_HOME: '/x', HF_HOME: '/h' }).cacheFolder).toBe('/h/hub');
    expect(hubSettings({ HF_HOME: '/h', HUGGINGFACE_HUB_CACHE: '/old' }).cacheFolder).toBe('/old');
    expect(hubSettings({ HUGGINGFACE_HUB_CACHE: '/old', HF_HUB_CACHE: '/c' }).cacheFolder).toBe('/c');
    expect(hubSettings({}).cacheFolder).toMatch(/\/\.cache\/huggingface\/hub$/);
  });

  it('reads token, endpoint and offline mode', () => {
    mkdirSync(home, { recursive: true });
    expect(hubSettings({ HF_HOME: home })).toMatchObject({
      token: undefined,
      endpoint: 'https://huggingface.co',
      offline: false,
    });
    writeFileSync(join(home, 'token'), 'from-file\n');
    expect(hubSettings({ HF_HOME: home }).token).toBe('from-file');
    expect(hubSettings({ HF_HOME: home, HF_TOKEN: 'mine' }).token).toBe('mine');
    expect(hubSettings({ HF_ENDPOINT: 'http://mirror/hf/', HF_HUB_OFFLINE: '1' })).toMatchObject({
      endpoint: 'http://mirror/hf',
      offline: true,
    });
    expect(() => hubSettings({ HF_TOKEN: 'two words' })).toThrow(/^Cannot use the token/);
    expect(() => hubSettings({ HF_ENDPOINT: 'mirror' })).toThrow(/^Cannot use HF_ENDPOINT mirror/);
  });
});

describe('chooseFiles', () => {
  const ggufs = [
    ...['m-Q4_0.gguf', 'm-Q4_K_M.gguf', 'm-Q4_K_S.gguf', 'mmproj-m-f16.gguf', 'README.md'],
    ...['big/m-Q8_0-00002-of-00002.gguf', 'big/m-Q8_0-00001-of-00002.gguf', 'm-BF16-00001-of-00003.gguf'],
  ];

  it.each([
    ['Q4_K_M', ['m-Q4_K_M.gguf']],
    ['q4_0', ['m-Q4_0.gguf']],
    ['Q8_0', ['big/m-Q8_0-00001-of-00002.gguf', 'big/m-Q8_0-00002-of-00002.gguf']],
    ['big/m-Q8_0-00002-of-00002.gguf', ['big/m-Q8_0-00001-of-00002.gguf', 'big/m-Q8_0-00002-of-00002.gguf']],
    ['m-Q4_K_S.gguf', ['m-Q4_K_S.gguf']],
  ])('GGUF %s', (file, files) => {
    expect(chooseFiles(ggufs, reference(`o/m:${file}`))).toEqual({ kind: 'gguf', files });
  });

  it.each([
    [
      'o/m',
      /^Cannot use o\/m: name one of its 4 GGUF models, as in o\/m:big\/m-Q8_0-00001-of-00002.gguf: .*m-Q4_K_S.gguf$/,
    ],
    ['o/m:Q4_K', /has no 'Q4_K'; its GGUF models: big/],
    ['o/m:m', /several names contain 'm': /],
    ['o/m:.*', /has no '\.\*'/],
    ['o/m:README.md', /README.md is not a complete GGUF model/],
    ['o/m:m-BF16-00001-of-00003.gguf', /is not a complete GGUF model/],
  ])('%s is refused in one line', (text, message) => {
    expect(() => chooseFiles(ggufs, reference(text))).toThrow(message);
  });

  it('chooses the only GGUF model, also next to a config.json without weights', () => {
    const only = { kind: 'gguf', files: ['m-Q4_0.gguf'] };
    expect(chooseFiles(['m-Q4_0.gguf', 'mmproj-m.gguf', 'config.json'], reference('o/m'))).toEqual(only);
  });

  it('chooses config, tokenizer, templates and one set of safetensors weights', () => {
    const metadata = ['config.json', 'tokenizer.json', 'chat_template.jinja', 'generation_config.json'];
    const others = ['onnx/model.onnx', 'pytorch_model.bin', 'consolidated.safetensors', 'README.md', 'sub/config.json'];
    const shards = [
      'model-00001-of-00002.safetensors',
      'model-00002-of-00002.safetensors',
      'model.safetensors.index.json',
    ];
    expect(chooseFiles([...metadata, ...others, ...shards], reference('o/m'))).toEqual({
      kind: 'folder',
      metadata: [...metadata, 'model.safetensors.index.json'],
      weights: undefined,
    });
    expect(chooseFiles([...metadata, ...others, ...shards, 'model.safetensors'], reference('o/m'))).toEqual({
      kind: 'folder',
      metadata,
      weights: ['model.safetensors'],
    });
    expect(() => chooseFiles([...metadata, 'pytorch_model.bin'], reference('o/m'))).toThrow(
      'Cannot use o/m: the repository has no GGUF file, and no config.json with model.safetensors',
    );
  });
});
