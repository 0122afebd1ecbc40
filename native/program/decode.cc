// Decoding a program: header, buffers, then ops.
#include <algorithm>

#include "program/program.hpp"

namespace kvasir {
namespace {

constexpr int kMost = 1 << 20;  // of buffers and ops

void read_buffer_spec(EncodedReader& in, int op_count, ProgramPlan& plan) {
  Buffer buffer;
  buffer.isa = plan.bindings.backend->isa;
  buffer.kv_type = plan.layout.type;
  buffer.kind = static_cast<BufferKind>(in.integer("buffer kind", 0, 3));
  buffer.logit_rows = in.integer("buffer rows", 0, 2) == 1;
  buffer.columns = in.size("buffer columns");
  buffer.form = static_cast<InputForm>(in.integer("buffer form", 0, kInputForms));
  buffer.heads = in.integer("buffer heads", 0, kMost);
  buffer.head_dim = in.integer("buffer headDim", 0, kMost);
  const int64_t query_columns = static_cast<int64_t>(buffer.heads) * buffer.head_dim;
  if (buffer.kind == BufferKind::query && query_columns != buffer.columns) {
    EncodedReader::refuse("columns of a query buffer: " + std::to_string(buffer.columns) + ", not " + std::to_string(query_columns));
  }
  const int first = in.integer("first op of a buffer", 0, int64_t{op_count} + 1);
  plan.lifetimes.push_back({first, in.integer("last op of a buffer", first, int64_t{op_count} + 1)});
  buffer.alone = in.integer("whether a buffer is alone", 0, 2) == 1;
  plan.scratch_columns = std::max(plan.scratch_columns, static_cast<size_t>(buffer.columns));
  plan.buffers.push_back(buffer);
}

}  // namespace

std::unique_ptr<ProgramPlan> decode_program(EncodedReader in, const ProgramBindings& bindings) {
  auto plan = std::make_unique<ProgramPlan>(bindings);
  if (in.integer("version", INT32_MIN, INT64_MAX) != kEncodingVersion) EncodedReader::refuse("it is encoded for another version");
  plan->layout.type = static_cast<KvType>(in.integer("kvType", 0, kKvTypes));
  plan->limits.tokens_max = in.size("tokensMax");
  plan->limits.logit_rows_max = in.size("logitRowsMax");
  plan->limits.context_max = in.size("contextMax");
  const int buffer_count = in.integer("buffers", 0, kMost);
  const int op_count = in.integer("ops", 0, kMost);
  const int logits = in.integer("logits", -1, buffer_count);
  plan->hidden_end = in.integer("ops up to the hidden states", 0, int64_t{op_count} + 1);
  const int group_count = in.integer("layer groups", 0, kMost);
  for (int i = 0; i < group_count; i++) {
    const int layers = in.size("layers of a group");
    const int window = in.integer("window of a group", -1, INT32_MAX);
    if (window == 0) EncodedReader::refuse("a window of a layer group is empty");
    plan->limits.groups.push_back({layers, window < 0 ? kNoWindow : window});
  }
  for (int i = 0; i < buffer_count; i++) read_buffer_spec(in, op_count, *plan);
  if (logits >= 0) {
    plan->logits = &plan->buffers[logits];
    if (plan->logits->kind != BufferKind::f32 || !plan->logits->logit_rows) EncodedReader::refuse("logits are not float32 logit rows");
    plan->limits.vocabulary = plan->logits->columns;
  }
  for (int i = 0; i < op_count; i++) plan->ops.push_back(decode_op(in, *plan));
  in.finish();
  return plan;
}

}  // namespace kvasir
