// A program: ops over planned buffers, bound to weights and threads. One call of `run` is one engine step.
#pragma once
#include <memory>
#include <vector>

#include "base/backend.hpp"
#include "base/memory.hpp"
#include "kv/kv_pool.hpp"
#include "ops/buffer.hpp"
#include "ops/ops.hpp"
#include "ops/step.hpp"
#include "program/encoded.hpp"
#include "program/layer_waits.hpp"
#include "remote/remote_attention.hpp"

namespace kvasir {

using FloatVector = std::vector<float>;

struct ProgramBindings {
  std::shared_ptr<Backend> backend;
  std::vector<std::shared_ptr<const Linear>> linears;
  std::vector<std::shared_ptr<const FloatVector>> vectors;
};

/** What the ops of a program may see while a step runs. */
struct StepState {
  OpContext op;
  const StepView* step;
  KvPool* pool;
  int tokens;
  int logit_rows;
  const int32_t* row_sequence;                               // (tokens)
  const std::vector<std::vector<AttentionSequence>>* groups;  // sequences as each layer group sees them
  void* attention_scratch;
  float* attention_out;  // (tokens, columns): where a result waits to be rounded
  Backend* backend;
  RemoteAttention* remote;
  LayerWaits* waits;
  const uint8_t* unanswered;  // (sequences)
  const int32_t* abort;

  int rows(const Buffer& buffer) const { return buffer.logit_rows ? logit_rows : tokens; }
};

class ProgramOp {
 public:
  virtual ~ProgramOp() = default;
  virtual void run(const StepState& state) const = 0;
};

/** A decoded program: its ops, and what they ask for. Ops point into `buffers`, so the vector never grows after the first op. */
struct ProgramPlan {
  explicit ProgramPlan(const ProgramBindings& given) : bindings(given) {}

  /** The ops, first and last, during which a buffer holds something. */
  struct Life {
    int first;
    int last;
  };

  ProgramBindings bindings;
  StepLimits limits = {0, 0, 0, INT32_MAX, 0, 0, {}};
  KvLayout layout = {KvType::bf16, 0, 0};  // kv_heads 0: no op touches pages
  std::vector<Buffer> buffers;
  std::vector<Life> lives;  // of each buffer
  std::vector<std::unique_ptr<ProgramOp>> ops;
  const Buffer* logits = nullptr;
  size_t scratch_columns = 1;
  size_t attention_bytes = 0;
  size_t attention_out_columns = 0;
  const Buffer* rows_in = nullptr;   // filled from pages of rows, where the step has such
  const Buffer* rows_out = nullptr;  // left in them
  int ready_layers = 0;  // layers whose readiness is told so far

  int capacity(const Buffer& buffer) const { return buffer.logit_rows ? limits.logit_rows_max : limits.tokens_max; }
};

std::unique_ptr<ProgramPlan> decode_program(EncodedReader in, const ProgramBindings& bindings);

/** Reads the next op, checks it against buffers and weights, and notes what it needs in the plan. */
std::unique_ptr<ProgramOp> decode_op(EncodedReader& in, ProgramPlan& plan);

class Program {
 public:
  /** Remote keys whose room has answered nothing, and pages on their way of which nothing has come, for `remote_deadline` fail their sequences. */
  Program(EncodedReader in, const ProgramBindings& bindings, std::chrono::milliseconds remote_deadline);

  /** False: `abort` was set and the step can run again; nothing counts as written. Throws when the step is not one it can run. */
  bool run(KvPool& pool, const StepView& step, const int32_t* abort, const SamplingResult& result);
  /** (sequences of the last step): 1 where remote keys were refused or late, or pages on their way did not come. */
  const std::vector<uint8_t>& unanswered() const { return unanswered_; }

  /** A buffer of `rows` rows that tests may read and write; throws where its memory serves others too. */
  const Buffer& open_buffer(int index, int rows) const;
  Isa isa() const { return plan_->bindings.backend->isa; }
  /** Bytes of buffers and scratch. */
  size_t bytes() const { return arena_.bytes(); }

 private:
  void place_buffers();
  void describe_sequences(const StepView& step);

  std::unique_ptr<ProgramPlan> plan_;
  Mapping arena_;
  float* scratch_ = nullptr;
  void* attention_scratch_ = nullptr;
  float* attention_out_ = nullptr;
  std::unique_ptr<Sampler> sampler_;
  std::vector<int32_t> row_sequence_;
  std::vector<std::vector<AttentionSequence>> groups_;
  std::vector<uint8_t> unanswered_;
  RemoteAttention remote_;
  LayerWaits waits_;
};

}  // namespace kvasir
