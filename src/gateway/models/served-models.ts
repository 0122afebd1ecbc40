// The models that an endpoint offers: a request names one, which is loaded before the request runs.

import type { GrammarCompiler } from '../../core/protocol/grammar.ts';
import type { ClusterPort, InferencePort, InstanceSnapshot } from '../../core/protocol/ports.ts';
import { oneLine } from '../../util/one-line.ts';
import { ApiError } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import type { Encode } from '../openai/prompt.ts';

/** A loaded model with its own instances and tokenizer. */
export interface ModelParts {
  readonly model: ServedModel;
  readonly port: InferencePort;
  readonly cluster: ClusterPort;
  readonly encode: Encode;
  /** Undefined: requests that constrain their output are refused. */
  readonly grammars?: GrammarCompiler | undefined;
}

/** What is known of a model before it is loaded. */
export type ModelCard = Pick<ServedModel, 'id' | 'createdS' | 'contextTokens'>;

/** Of a model that loads on demand. */
export interface ModelLoads {
  readonly state: 'unloaded' | 'loading' | 'loaded' | 'unloading';
  /** Memory that is reserved for it. */
  readonly bytes: number;
  readonly loads: number;
  readonly unloads: number;
  readonly failures: number;
  readonly loadSeconds: number;
}

/** Figures of a model for /metrics and /api/cluster. */
export interface ModelFigures {
  readonly model: string;
  /** Of its instances together. */
  readonly snapshot: InstanceSnapshot;
  /** Undefined: it is loaded as long as the server runs. */
  readonly loads: ModelLoads | undefined;
}

/** What a request needs of its model. */
export interface ModelUse {
  /** True for a batch job, which no client waits for. */
  readonly batch: boolean;
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal;
  /** Called before the request waits for a load; throws if the request is refused. Returns what ends the wait. */
  readonly beginWait?: () => () => void;
}

export interface ServedModels {
  readonly cards: readonly ModelCard[];
  figures(): readonly ModelFigures[];
  /**
   * Runs a request with its model, which stays loaded until `run` has resolved and the requests that it submitted have
   * ended. @param name the member `model` of the body, unchecked
   * @throws ApiError 404 for an unknown model, 503 if it cannot be loaded
   */
  use<T>(name: unknown, use: ModelUse, run: (parts: ModelParts) => Promise<T>): Promise<T>;
}

/** The only model of a server. Endpoints compare the name themselves. */
export class OneModel implements ServedModels {
  readonly #parts: ModelParts;

  constructor(parts: ModelParts) {
    this.#parts = parts;
  }

  get cards(): readonly ModelCard[] {
    return [this.#parts.model];
  }

  figures(): readonly ModelFigures[] {
    const { model, port } = this.#parts;
    return [{ model: model.id, snapshot: port.snapshot(), loads: undefined }];
  }

  use<T>(_name: unknown, _use: ModelUse, run: (parts: ModelParts) => Promise<T>): Promise<T> {
    return run(this.#parts);
  }
}

/** The member `model` of a body. */
export function modelNameOf(json: unknown): unknown {
  return typeof json === 'object' && json !== null && 'model' in json ? json.model : undefined;
}

/** @param known ids of the models */
export function unknownModel(name: string, known: readonly string[]): ApiError {
  const served = known.map((id) => `'${id}'`).join(', ');
  return new ApiError(404, `Cannot find model '${oneLine(name, 128)}': this server serves ${served}`, {
    code: 'model_not_found',
    param: 'model',
  });
}
