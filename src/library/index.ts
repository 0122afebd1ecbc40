// `kvasir`: an engine in the process of its user.
export type { ChatDelta, ChatOptions, ChatResult, ChatRun, FinishReason, OutputOf } from './chat.ts';
export type { Usage } from './engine.ts';
export {
  ClosedError,
  EngineError,
  InvalidRequestError,
  KvasirError,
  LoadError,
  OutputError,
  OverloadedError,
} from './errors.ts';
export type { CompletionResult, CompletionRun, EmbedOptions, EngineStats, ModelDescription, TextDelta } from './llm.ts';
export { Llm } from './llm.ts';
export { type LoadOptions, load } from './load.ts';
export {
  type AssistantMessage,
  type Message,
  type NoTools,
  type PastToolCall,
  type SystemMessage,
  type Tool,
  type ToolCall,
  type ToolChoice,
  type ToolContext,
  type ToolMessage,
  type ToolSet,
  tool,
  type UserMessage,
} from './messages.ts';
export type { Run } from './run.ts';
export type { SamplingOptions } from './sampling.ts';
export type { FromJsonSchema, Infer, JsonSchema, Schema, StandardResult, StandardSchema } from './schema.ts';
