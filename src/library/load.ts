// Opens an engine in this process: compiled kernels if there are any, the model, and its threads.
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import { modelOptionsSchema } from '../cli/options/options.ts';
import { packageFile } from '../cli/package-root.ts';
import { describeInstances } from '../cli/serve/describe-instances.ts';
import { openServing } from '../cli/serve/open-serving.ts';
import { UsageError } from '../cli/usage-error.ts';
import { describeIssue } from '../cli/usage-issue.ts';
import { findNative } from '../kernel/native/addon.ts';
import { ChatTemplate } from '../text/template/chat-template.ts';
import { HubError } from '../weights/hub/errors.ts';
import { Engine, processHold } from './engine.ts';
import { KvasirError, LoadError } from './errors.ts';
import { Llm } from './llm.ts';

/** Options of an engine. Sizes are bytes, or texts such as `512m` and `2g`. */
export interface LoadOptions {
  /** A GGUF file, a Hugging Face folder, or `org/name[@revision][:file.gguf]` of the hub. Default: the embedded kvasir-tiny. */
  readonly model?: string | undefined;
  /** Tokens of prompt and output at most. Default: the model's own, at most 8192. */
  readonly context?: number | undefined;
  /** Compute threads. Default: all cores. */
  readonly threads?: number | undefined;
  /** Memory for KV pages. Default: by context. */
  readonly kvMemory?: number | string | undefined;
  /** The type of keys and values; `q8` takes about half the memory. Default: `bf16`. */
  readonly kvType?: string | undefined;
  /** The form of the weights in memory. Default: `native`. */
  readonly weights?: string | undefined;
  /** The form that inputs of linear layers are rounded to. Default: `auto`. */
  readonly inputs?: string | undefined;
  /** Host memory for cached blocks below the KV pages. Default: none. */
  readonly hostMemory?: number | string | undefined;
  /** A folder for cached blocks on SSD, also across restarts. Default: none. */
  readonly ssd?: string | undefined;
  /** The size of the blocks on SSD. Default: 64 contexts, at most 10 GB. */
  readonly ssdSize?: number | string | undefined;
  /** Requests at once; one more is refused. Default: 256. */
  readonly queue?: number | undefined;
  /** A Jinja template in place of the model's own. */
  readonly chatTemplate?: string | undefined;
  /** False: ready earlier, but the first requests are slower. */
  readonly warmUp?: boolean | undefined;
  /** False: never compile missing native kernels; the slow TypeScript reference then computes. */
  readonly build?: boolean | undefined;
  /** Receives lines on the start and on problems. Default: problems and compilations go to standard error. */
  readonly log?: ((line: string) => void) | undefined;
}

const modelShape = modelOptionsSchema.shape;
const size = modelShape.kvMemory;
const loadSchema = modelOptionsSchema.extend({
  hostMemory: size,
  ssd: z.string().min(1).optional(),
  ssdSize: size,
  queue: z.number().int().min(1).default(256),
  chatTemplate: z.string().min(1).optional(),
});

/**
 * Loads a model and starts its threads. Engines are independent of one another. One that is not closed does not keep the
 * process alive after its last request.
 * @throws LoadError for an option or a model that cannot be used
 */
export async function load(options: LoadOptions = {}): Promise<Llm> {
  const { log, build = true, ...given } = options;
  return processHold.during(async () => {
    try {
      return await open(parseOptions(given), build, log);
    } catch (error) {
      if (error instanceof KvasirError) throw error;
      const message = error instanceof Error ? error.message : String(error);
      if (error instanceof HubError) throw new LoadError(`model_${error.kind}`, message, { cause: error });
      const code = error instanceof UsageError ? 'invalid_option' : 'load_failed';
      throw new LoadError(code, withOptionNames(message), { cause: error });
    }
  });
}

function parseOptions(given: Readonly<Record<string, unknown>>): z.infer<typeof loadSchema> {
  const unknown = Object.keys(given).find((name) => !Object.hasOwn(loadSchema.shape, name));
  if (unknown !== undefined) throw new UsageError(`Cannot load: unknown option '${unknown}'`);
  const parsed = loadSchema.safeParse(given);
  if (parsed.success) return parsed.data;
  throw new UsageError(describeIssue(parsed.error.issues, given, (name) => name));
}

/** Messages of the command line name flags. */
function withOptionNames(message: string): string {
  return message.replaceAll(/--([a-zA-Z-]+)/g, (_, flag: string) =>
    flag.replaceAll(/-([a-z])/g, (__, letter: string) => letter.toUpperCase()),
  );
}

async function open(
  { chatTemplate: source, ...options }: z.infer<typeof loadSchema>,
  build: boolean,
  log: LoadOptions['log'],
): Promise<Llm> {
  const chatTemplate = source === undefined ? undefined : new ChatTemplate(source);
  if (chatTemplate?.problem !== undefined) throw new UsageError(`Cannot use --chatTemplate: ${chatTemplate.problem}`);
  const warn = log ?? console.error;
  await prepareKernels(build, warn);
  const serving = await openServing(options, { ...options, log: warn, holdsProcess: false });
  try {
    const instances = await serving.cluster.ready();
    log?.(describeInstances(serving.model.id, instances));
    for (const note of serving.notes) log?.(note);
  } catch (error) {
    await serving.close();
    throw error;
  }
  const replaced = chatTemplate && { chatTemplate, toolTemplate: undefined };
  return new Llm(new Engine({ ...serving, model: { ...serving.model, ...replaced } }, options.queue));
}

/** Compiles the kernels if none load. Without a compiler, or a folder to write to, the TypeScript reference computes. */
async function prepareKernels(build: boolean, log: (line: string) => void): Promise<void> {
  const found = findNative();
  if (found.kind === 'loaded') return;
  if (!build) return log(`Computing with the slow TypeScript reference: ${found.why}`);
  const script = pathToFileURL(packageFile('scripts/native-choice.mjs')).href;
  const { prepareNative } = (await import(script)) as { prepareNative(report: (line: string) => void): Promise<void> };
  try {
    await prepareNative(log);
  } catch (error) {
    const [why] = (error instanceof Error ? error.message : String(error)).split('\n');
    log(`Computing with the slow TypeScript reference: ${why}`);
  }
}
