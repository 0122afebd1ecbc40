// K and V of a row travel as one row of 2 kvHeads heads in the KV type, rounded as a page rounds them.
#include "program/worker_ops.hpp"

#include "program/operands.hpp"

namespace kvasir {
namespace {

int read_call(EncodedReader& in) { return in.integer("attention call", 0, 1 << 16); }

struct SendQuery final : ProgramOp {
  int call;
  PagedLayer layer;
  Rotation rotation;
  const float* norm;
  const Buffer *x, *q;
  const float* slopes;
  float eps, scale, softcap;

  SendQuery(EncodedReader& in, ProgramPlan& plan)
      : call(read_call(in)),
        layer(in, plan),
        rotation(in, plan, layer.head_dim),
        norm(data_of(read_vector(in, plan, "sendQ.qNorm", layer.head_dim, true))),
        x(read_plain(in, plan, "sendQ.x")),
        q(read_buffer(in, plan, "sendQ.q")),
        slopes(data_of(read_vector(in, plan, "sendQ.slopes", layer.heads, true))),
        eps(in.real("sendQ.eps")),
        scale(in.real("sendQ.scale")),
        softcap(in.real("sendQ.softcap")) {
    require(softcap >= 0, "sendQ.softcap is negative");
    if (slopes) plan.limits.has_slopes = true;
    layer.require_query(*q, plan);
    require(x->columns >= q->columns, differ("columns of sendQ.x", x->columns, q->columns));
    require_same_rows(*x, *q);
    plan.kv_heads_at_workers = layer.kv_heads;
  }
  void run(const StepState& s) const override {
    const QkvArgs args = {layer.heads, rotation.rotary_dim, rotation.rope, norm, nullptr, eps, s.step->positions.data, s.row_sequence};
    run_query(s.op, args, *x, s.tokens, *q);
    s.workers->send_query({call, layer.group, layer.index, layer.heads, layer.kv_heads, layer.head_dim, scale, softcap, slopes}, *q);
  }
};

struct SendKeys final : ProgramOp {
  int call;
  PagedLayer layer;
  Rotation rotation;
  const float* norm;
  const Buffer *x, *keys;
  float eps;
  int column;  // of x, at which K begins

  SendKeys(EncodedReader& in, ProgramPlan& plan)
      : call(read_call(in)),
        layer(in, plan),
        rotation(in, plan, layer.head_dim),
        norm(data_of(read_vector(in, plan, "sendKV.kNorm", layer.head_dim, true))),
        x(read_plain(in, plan, "sendKV.x")),
        keys(read_buffer(in, plan, "sendKV.keys")),
        eps(in.real("sendKV.eps")) {
    const bool fits = keys->kind == BufferKind::query && !keys->logit_rows && keys->heads == 2 * layer.kv_heads && keys->head_dim == layer.head_dim;
    require(fits && keys->kv_type == plan.layout.type, "sendKV.keys is not a buffer of K and V of the layer's KV heads");
    require(x->columns >= keys->columns, differ("columns of sendKV.x", x->columns, keys->columns));
    require_same_rows(*x, *keys);
    column = x->columns - keys->columns;
  }
  void run(const StepState& s) const override {
    const QkvArgs args = {layer.heads, rotation.rotary_dim, rotation.rope, nullptr, norm, eps, s.step->positions.data, s.row_sequence};
    run_keys(s.op, args, *x, column, s.tokens, *keys);
    s.workers->send_keys({call, layer.group, layer.index, layer.heads, layer.kv_heads, layer.head_dim, 0.0f, 0.0f, nullptr}, *keys);
  }
};

struct WaitPartial final : ProgramOp {
  int call;
  PagedLayer layer;
  const Buffer* out;

  WaitPartial(EncodedReader& in, ProgramPlan& plan) : call(read_call(in)), layer(in, plan) {
    read_buffer(in, plan, "waitPartial.sent.q", true);
    read_buffer(in, plan, "waitPartial.sent.kv", true);
    out = read_buffer(in, plan, "waitPartial.out");
    require_columns(*out, static_cast<int64_t>(layer.heads) * layer.head_dim, "columns of waitPartial.out");
    require(!out->logit_rows, "waitPartial.out has logit rows");
    if (out->kind != BufferKind::f32) plan.attention_out_columns = std::max(plan.attention_out_columns, static_cast<size_t>(out->columns));
  }
  bool awaits_workers() const override { return true; }
  void run(const StepState& s) const override {
    Buffer plain;
    plain.columns = out->columns;
    plain.data = reinterpret_cast<uint8_t*>(s.attention_out);
    const bool rounds = out->kind != BufferKind::f32;
    const WorkerCall of = {call, layer.group, layer.index, layer.heads, layer.kv_heads, layer.head_dim, 0.0f, 0.0f, nullptr};
    s.workers->receive(of, rounds ? s.attention_out : out->row(0), s.abort);
    if (rounds) run_convert(s.op, plain, s.tokens, *out);
  }
};

}  // namespace

std::unique_ptr<ProgramOp> decode_send_q(EncodedReader& in, ProgramPlan& plan) { return std::make_unique<SendQuery>(in, plan); }

std::unique_ptr<ProgramOp> decode_send_kv(EncodedReader& in, ProgramPlan& plan) { return std::make_unique<SendKeys>(in, plan); }

std::unique_ptr<ProgramOp> decode_wait_partial(EncodedReader& in, ProgramPlan& plan) { return std::make_unique<WaitPartial>(in, plan); }

/** A sequence's blocks and pages lie in the ranges of numbers that its worker has. */
static void check_sequence_workers(const StepView& step, int pages) {
  const auto refuse = [](size_t sequence, const char* why) {
    throw std::runtime_error("Cannot run the step: the attention worker of sequence " + std::to_string(sequence) + " " + why);
  };
  const size_t sequences = static_cast<size_t>(step.sequences()), workers = step.attention_workers.size();
  if (step.sequence_workers.size != sequences) throw std::runtime_error("Cannot run the step: sequenceWorkers does not name a worker for each sequence");
  for (size_t s = 0; s < sequences; s++) {
    const int worker = step.sequence_workers[s];
    if (worker < 0 || static_cast<size_t>(worker) >= workers) refuse(s, "does not exist");
    const int last = step.positions[step.row_start[s + 1] - 1];
    for (const StepGroupView& group : step.groups) {
      if (has_slots(step, static_cast<int>(s), static_cast<int>(&group - step.groups.data()))) continue;
      const int rblocks = static_cast<int>(group.page_table.size / static_cast<size_t>(group.layers) / workers);
      if (rblocks == 0) refuse(s, "has no blocks");
      const int count = last / kPageTokens + 1 - group.first_block[s];
      for (int i = 0; i < count; i++) {
        const int block = group.blocks[group.block_start[s] + i];
        if (block < 0 || block / rblocks != worker) refuse(s, "does not have its blocks");
        for (int layer = 0; layer < group.layers; layer++)
          if (group.page_table[static_cast<size_t>(block) * group.layers + layer] / pages != worker) refuse(s, "does not have its pages");
      }
    }
  }
}

/** The pages of a sequence's slots and bounds lie in the range that its worker has. */
static void check_sparse_workers(const StepView& step, int pages) {
  const auto check = [&](int sequence, const Span<int32_t>& list) {
    for (size_t i = 0; i < list.size; i++) {
      if (list[i] / pages == step.sequence_workers[static_cast<size_t>(sequence)]) continue;
      throw std::runtime_error("Cannot run the step: the attention worker of sequence " + std::to_string(sequence) + " does not have its sparse pages");
    }
  };
  for (const SparseKeysView& keys : step.sparse) {
    check(keys.sequence, keys.slots.pages);
    check(keys.sequence, keys.slots.states);
  }
  for (const KvSelectionView& selection : step.selections) {
    check(selection.sequence, selection.slots.pages);
    check(selection.sequence, selection.slots.states);
  }
  for (const PageSelectionView& selection : step.page_selections) check(selection.sequence, selection.bounds);
}

void check_attention_workers(const StepView& step, const ProgramPlan& plan, const KvPool& pool) {
  const int workers = static_cast<int>(step.attention_workers.size()), heads = plan.kv_heads_at_workers;
  const auto refuse = [](const std::string& why) { throw std::runtime_error("Cannot run the step: " + why); };
  if (heads == 0 && workers > 0) refuse("it names attention workers, and the program computes attention itself");
  if (heads > 0 && workers == 0) refuse("the program leaves attention to attention workers, and the step names none");
  if (heads == 0) return;
  const bool by_heads = step.sequence_workers.size == 0;
  if (by_heads && heads % workers != 0) refuse(std::to_string(workers) + " attention workers cannot share " + std::to_string(heads) + " KV heads equally");
  if (!by_heads && pool.pages % workers != 0) refuse(std::to_string(workers) + " attention workers cannot share " + std::to_string(pool.pages) + " pages equally");
  const int pages = by_heads ? pool.pages : pool.pages / workers;
  for (const auto& link : step.attention_workers) {
    const KvLayout shard = {plan.layout.type, by_heads ? heads / workers : heads, plan.layout.head_dim};
    if (link != nullptr && link->layout() != shard) refuse("an attention worker holds pages of another shape than the program's shards");
    if (link != nullptr && link->pages() < pages) {
      refuse("an attention worker has " + std::to_string(link->pages()) + " pages, the instance uses " + std::to_string(pages));
    }
  }
  if (!by_heads) {
    check_sequence_workers(step, pages);
    check_sparse_workers(step, pages);
  }
  if (!step.remote.empty() || !step.arriving.empty()) refuse("keys at attention workers cannot be lent or in transfer");
}

}  // namespace kvasir
