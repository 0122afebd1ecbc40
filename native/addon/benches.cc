// Bindings of the kernel benches: roofs and peaks of the machine, attention over pages in memory.
#include <napi.h>

#include "addon/addon.hpp"
#include "bench/attention.hpp"
#include "bench/linear.hpp"

namespace kvasir {
namespace {

constexpr int kMebibytesMax = 1 << 20;
constexpr int kRepetitionsMax = 1 << 20;
constexpr int kTokensMax = 1 << 24;
constexpr int kHeadsMax = 1 << 10;

/** A backend locked against steps. */
struct ExclusiveBackend {
  explicit ExclusiveBackend(Arguments& in) : backend(registries().backends.get(in.handle("backend"))), lock(backend->busy), step_lock(*backend) {}
  std::shared_ptr<Backend> backend;
  std::lock_guard<std::mutex> lock;
  StepLock step_lock;
};

size_t read_mebibytes(Arguments& in, const char* what) { return static_cast<size_t>(in.integer(what, 1, kMebibytesMax)) << 20; }

AttentionShape read_shape(Arguments& in, Isa isa) {
  const auto type = static_cast<KvType>(in.integer("kvType", 0, kKvTypes - 1));
  const int kv_heads = in.integer("kvHeads", 1, kHeadsMax);
  const int group = in.integer("query heads of a KV head", 1, kHeadsMax);
  const int head_dim = in.integer("headDim", 1, kHeadsMax);
  return {isa, type, kv_heads, group, head_dim};
}

void set_split(Napi::Object result, const AttentionSplit& split) {
  result.Set("tileTokens", split.tile_tokens);
  result.Set("groupRanges", split.group_ranges);
  result.Set("tasks", split.tasks);
  result.Set("merges", split.merges);
}

/** (backend, MiB, repetitions) => bytes per second */
Napi::Value bind_read_roof(Arguments& in, Napi::Env env) {
  const ExclusiveBackend busy(in);
  const size_t bytes = read_mebibytes(in, "mebibytes");
  return Napi::Number::New(env, read_roof(busy.backend->pool, bytes, in.integer("repetitions", 1, kRepetitionsMax)));
}

/** (backend, kvType) => operations per second of attention's instruction */
Napi::Value bind_attention_peak(Arguments& in, Napi::Env env) {
  const ExclusiveBackend busy(in);
  return Napi::Number::New(env, attention_peak(busy.backend->pool, busy.backend->isa, static_cast<KvType>(in.integer("kvType", 0, kKvTypes - 1))));
}

/** (backend, inputs) => operations per second of the instruction of linear layers */
Napi::Value bind_product_peak(Arguments& in, Napi::Env env) {
  const ExclusiveBackend busy(in);
  return Napi::Number::New(env, product_peak(busy.backend->pool, busy.backend->isa, static_cast<InputForm>(in.integer("inputs", 0, kInputForms - 1))));
}

/**
 * (backend, kvType, kvHeads, group, headDim, context, MiB, repetitions) => { seconds, bytes, sequences, and the split }
 */
Napi::Value bind_bench_decode(Arguments& in, Napi::Env env) {
  const ExclusiveBackend busy(in);
  const AttentionShape shape = read_shape(in, busy.backend->isa);
  const int context = in.integer("context", 1, kTokensMax);
  const size_t bytes = read_mebibytes(in, "mebibytes");
  const DecodeFigure figure = bench_decode(busy.backend->pool, shape, context, bytes, in.integer("repetitions", 1, kRepetitionsMax));
  Napi::Object result = Napi::Object::New(env);
  result.Set("seconds", figure.seconds);
  result.Set("bytes", figure.bytes);
  result.Set("sequences", figure.sequences);
  set_split(result, figure.split);
  return result;
}

/** (backend, kvType, kvHeads, group, headDim, observed, context, repetitions) => { seconds, attentionSeconds } */
Napi::Value bind_bench_scoring(Arguments& in, Napi::Env env) {
  const ExclusiveBackend busy(in);
  const AttentionShape shape = read_shape(in, busy.backend->isa);
  const int observed = in.integer("observed", 1, kTokensMax);
  const int context = in.integer("context", observed, kTokensMax);
  const ScoringFigure figure = bench_scoring(busy.backend->pool, shape, observed, context, in.integer("repetitions", 1, kRepetitionsMax));
  Napi::Object result = Napi::Object::New(env);
  result.Set("seconds", figure.seconds);
  result.Set("attentionSeconds", figure.attention_seconds);
  return result;
}

/**
 * (backend, kvType, kvHeads, group, headDim, queries, context, repetitions) => { seconds, operations, and the split }
 */
Napi::Value bind_bench_prefill(Arguments& in, Napi::Env env) {
  const ExclusiveBackend busy(in);
  const AttentionShape shape = read_shape(in, busy.backend->isa);
  const int queries = in.integer("queries", 1, kTokensMax);
  const int context = in.integer("context", queries, kTokensMax);
  const PrefillFigure figure = bench_prefill(busy.backend->pool, shape, queries, context, in.integer("repetitions", 1, kRepetitionsMax));
  Napi::Object result = Napi::Object::New(env);
  result.Set("seconds", figure.seconds);
  result.Set("operations", figure.flops);
  set_split(result, figure.split);
  return result;
}

}  // namespace

void bind_benches(Napi::Env env, Napi::Object exports) {
  bind<bind_read_roof>(env, exports, "readRoof");
  bind<bind_attention_peak>(env, exports, "attentionPeak");
  bind<bind_product_peak>(env, exports, "productPeak");
  bind<bind_bench_decode>(env, exports, "benchDecode");
  bind<bind_bench_scoring>(env, exports, "benchScoring");
  bind<bind_bench_prefill>(env, exports, "benchPrefill");
}

}  // namespace kvasir
