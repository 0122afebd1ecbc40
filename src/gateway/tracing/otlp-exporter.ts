// Sends spans to an OpenTelemetry collector as OTLP JSON over HTTP. Serving never waits for the exporter.
import type { Logger } from 'pino';
import type { AttributeValue, Span } from './spans.ts';

const queueMax = 8_192;
const sendMax = 1_024;
const flushMs = 1_000;
const timeoutMs = 5_000;
/** SPAN_KIND_INTERNAL, SPAN_KIND_SERVER, STATUS_CODE_ERROR. */
const [internal, server, failed] = [1, 2, 2];

export interface OtlpOptions {
  /** Address of the collector; spans go to its path /v1/traces. */
  readonly endpoint: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly logger: Logger;
}

/** Spans that exceed the buffer or cannot be sent are dropped and counted. */
export class OtlpExporter {
  readonly #options: OtlpOptions;
  readonly #url: string;
  #queue: Span[] = [];
  #timer: NodeJS.Timeout | undefined;
  #sending: Promise<void> = Promise.resolve();
  #dropped = 0;

  constructor(options: OtlpOptions) {
    this.#options = options;
    const base = options.endpoint.replace(/\/+$/, '');
    this.#url = base.endsWith('/v1/traces') ? base : `${base}/v1/traces`;
  }

  get dropped(): number {
    return this.#dropped;
  }

  add(spans: readonly Span[]): void {
    if (this.#queue.length + spans.length > queueMax) {
      this.#dropped += spans.length;
      return;
    }
    this.#queue.push(...spans);
    this.#timer ??= setTimeout(() => void this.flush(), flushMs).unref();
  }

  /** Resolves when all buffered spans have been sent or dropped. */
  flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    while (this.#queue.length > 0) {
      const spans = this.#queue.splice(0, sendMax);
      this.#sending = this.#sending.then(() => this.#send(spans));
    }
    return this.#sending;
  }

  async #send(spans: readonly Span[]): Promise<void> {
    const { headers, logger } = this.#options;
    try {
      const response = await fetch(this.#url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: JSON.stringify(encode(spans)),
        signal: AbortSignal.timeout(timeoutMs),
      });
      await response.arrayBuffer();
      if (!response.ok) throw new Error(`the collector answered ${response.status}`);
    } catch (error) {
      this.#dropped += spans.length;
      const why = error instanceof Error ? error.message : String(error);
      logger.warn({ dropped: this.#dropped }, `Cannot export spans to ${this.#url}: ${why}`);
    }
  }
}

/** ExportTraceServiceRequest of opentelemetry-proto, in its JSON form: 64-bit numbers are texts. */
function encode(spans: readonly Span[]): object {
  const resource = { attributes: attributes({ 'service.name': 'kvasir' }) };
  return { resourceSpans: [{ resource, scopeSpans: [{ scope: { name: 'kvasir' }, spans: spans.map(encodeSpan) }] }] };
}

function encodeSpan(span: Span): object {
  return {
    traceId: span.traceId,
    spanId: span.spanId,
    ...(span.parentId !== undefined && { parentSpanId: span.parentId }),
    name: span.name,
    kind: span.isServer ? server : internal,
    startTimeUnixNano: nanoseconds(span.startedUs),
    endTimeUnixNano: nanoseconds(span.endedUs),
    attributes: attributes(span.attributes),
    status: span.error === undefined ? {} : { code: failed, message: span.error },
  };
}

function nanoseconds(us: number): string {
  return String(BigInt(Math.round(us)) * 1000n);
}

function attributes(values: Span['attributes']): readonly object[] {
  return Object.entries(values).flatMap(([key, value]) =>
    value === undefined || !isEncodable(value) ? [] : [{ key, value: encodeValue(value) }],
  );
}

/** Infinite numbers become texts: JSON has none. */
function isEncodable(value: AttributeValue): boolean {
  return typeof value !== 'number' || Number.isFinite(value);
}

function encodeValue(value: AttributeValue): object {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}
