// A program: ops over planned buffers, bound to weights and threads. One call of `run` is one engine step.
#pragma once
#include <memory>
#include <optional>
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
#include "sparse/sparse_attention.hpp"
#include "workers/worker_calls.hpp"

namespace kvasir {

using FloatVector = std::vector<float>;

struct ProgramBindings {
  std::shared_ptr<Backend> backend;
  std::vector<std::shared_ptr<const Linear>> linears;
  std::vector<std::shared_ptr<const FloatVector>> vectors;
};

/** The state that ops use while a step runs. */
struct StepState {
  OpContext op;
  const StepView* step;
  KvPool* pool;
  int tokens;
  int logit_rows;
  const int32_t* row_sequence;                               // (tokens)
  const std::vector<std::vector<AttentionSequence>>* groups;  // the sequences of each layer group
  void* attention_scratch;
  float* attention_out;  // (tokens, columns): a result before it is rounded
  Backend* backend;
  RemoteAttention* remote;
  LayerWaits* waits;
  WorkerCalls* workers;
  SparseAttention* sparse;
  const uint8_t* failed_sequences;  // (sequences)
  const int32_t* abort;

  int rows(const Buffer& buffer) const { return buffer.logit_rows ? logit_rows : tokens; }
};

class ProgramOp {
 public:
  virtual ~ProgramOp() = default;
  virtual void run(const StepState& state) const = 0;
  /** True if it waits for attention workers: another batch may use the threads before it runs. */
  virtual bool awaits_workers() const { return false; }
};

/**
 * A decoded program: its ops and their requirements. Ops point into `buffers`, so the vector never grows after the
 * first op.
 */
struct ProgramPlan {
  explicit ProgramPlan(const ProgramBindings& given) : bindings(given) {}

  /** The first and the last op during which a buffer holds a value. */
  struct Lifetime {
    int first;
    int last;
  };

  ProgramBindings bindings;
  StepLimits limits = {0, 0, 0, INT32_MAX, 0, 0, {}};
  KvLayout layout = {KvType::bf16, 0, 0};  // kv_heads 0: no op uses pages
  std::vector<Buffer> buffers;
  std::vector<Lifetime> lifetimes;  // of each buffer
  std::vector<std::unique_ptr<ProgramOp>> ops;
  const Buffer* logits = nullptr;
  int hidden_end = 0;          // ops from here on compute logits alone
  bool bidirectional = false;  // rows attend to all keys of their sequences
  size_t scratch_columns = 1;
  size_t attention_bytes = 0;
  size_t attention_out_columns = 0;
  const Buffer* rows_in = nullptr;   // filled from pages of rows, if the step has them
  const Buffer* rows_out = nullptr;  // written to pages of rows, if the step has them
  int ready_layers = 0;  // LAYER_READY ops decoded so far
  int kv_heads_at_workers = 0;  // KV heads of ops that use attention workers; 0: none

  int capacity(const Buffer& buffer) const { return buffer.logit_rows ? limits.logit_rows_max : limits.tokens_max; }
};

std::unique_ptr<ProgramPlan> decode_program(EncodedReader in, const ProgramBindings& bindings);

/** Reads the next op, checks it against buffers and weights, and adds its requirements to the plan. */
std::unique_ptr<ProgramOp> decode_op(EncodedReader& in, ProgramPlan& plan);

class Program {
 public:
  /**
   * A sequence fails if its remote keys' endpoint, or the transfer of its pages, shows no progress for
   * `remote_deadline`.
   */
  Program(EncodedReader in, const ProgramBindings& bindings, std::chrono::milliseconds remote_deadline);

  /** (sequences of the last step): 1 if remote keys were refused or late, or pages in transfer did not arrive. */
  const std::vector<uint8_t>& failed_sequences() const { return failed_sequences_; }

  /** A buffer of `rows` rows that tests may read and write. @throws std::runtime_error if it shares its memory */
  const Buffer& open_buffer(int index, int rows) const;
  Isa isa() const { return plan_->bindings.backend->isa; }
  const std::shared_ptr<Backend>& backend() const { return plan_->bindings.backend; }
  /** Bytes of buffers and scratch. */
  size_t bytes() const { return arena_.bytes(); }

 private:
  friend class StaggeredRun;

  enum class Progress { running, done, aborted };

  void place_buffers();
  void describe_sequences(const StepView& step);
  /** Checks the step and announces it to its attention workers. */
  void begin(KvPool& pool, const StepView& step, const int32_t* abort);
  /** Slices between waits for attention workers. */
  int slices() const;
  /** The next ops run on the threads of `replica`. */
  void move_to(Backend& replica);
  /** Ops that the step runs. */
  size_t ops_of(const StepView& step) const { return step.needs_logits ? plan_->ops.size() : static_cast<size_t>(plan_->hidden_end); }
  /** Runs ops on `replica` up to the next one that waits for attention workers, and samples after the last. */
  void advance(Backend& replica, const SamplingResult& result);

  std::unique_ptr<ProgramPlan> plan_;
  Mapping arena_;
  float* scratch_ = nullptr;
  void* attention_scratch_ = nullptr;
  float* attention_out_ = nullptr;
  std::unique_ptr<Sampler> sampler_;
  std::vector<int32_t> row_sequence_;
  std::vector<std::vector<AttentionSequence>> groups_;
  std::vector<uint8_t> failed_sequences_;
  RemoteAttention remote_;
  LayerWaits waits_;
  WorkerCalls workers_;
  SparseAttention sparse_;
  // Of the step in progress:
  std::optional<StepState> state_;
  size_t next_op_ = 0;
  Progress progress_ = Progress::done;
};

}  // namespace kvasir
