// Predictions against what came: of first tokens, of gaps and of output lengths.
import { Histogram } from './histogram.ts';

/** Of counts. */
export interface CountFigures {
  readonly requests: number;
  readonly predictedMean: number;
  readonly actualMean: number;
  /** Median of the absolute error. */
  readonly errorP50: number;
  readonly errorP90: number;
}

export interface AuditFigures {
  readonly requests: number;
  readonly predictedMsMean: number;
  readonly actualMsMean: number;
  /** Median of the absolute error. */
  readonly errorMsP50: number;
  readonly errorMsP90: number;
}

export class PredictionAudit {
  #predictedUs = 0;
  #actualUs = 0;
  readonly #errorUs = new Histogram();

  add(predictedUs: number, actualUs: number): void {
    this.#predictedUs += predictedUs;
    this.#actualUs += actualUs;
    this.#errorUs.add(Math.round(Math.abs(predictedUs - actualUs)));
  }

  get counts(): CountFigures {
    const requests = this.#errorUs.count;
    const mean = (sum: number) => (requests === 0 ? 0 : sum / requests);
    return {
      requests,
      predictedMean: mean(this.#predictedUs),
      actualMean: mean(this.#actualUs),
      errorP50: this.#errorUs.percentile(0.5),
      errorP90: this.#errorUs.percentile(0.9),
    };
  }

  get figures(): AuditFigures {
    const requests = this.#errorUs.count;
    const meanMs = (us: number) => (requests === 0 ? 0 : us / requests / 1000);
    return {
      requests,
      predictedMsMean: meanMs(this.#predictedUs),
      actualMsMean: meanMs(this.#actualUs),
      errorMsP50: this.#errorUs.percentile(0.5) / 1000,
      errorMsP90: this.#errorUs.percentile(0.9) / 1000,
    };
  }
}
