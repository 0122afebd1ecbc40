// Creating and running programs: buffers share one arena by lifetime, and a step runs the ops in order.
#include "program/program.hpp"

#include <algorithm>
#include <numeric>

#include "program/row_ops.hpp"
#include "program/worker_ops.hpp"

namespace kvasir {
namespace {

constexpr size_t kAlign = 128;  // a pair of cache lines

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/** A region of the arena, and the ops during which it is in use. */
struct Region {
  size_t bytes;
  int first;
  int last;
  size_t offset = 0;
};

/**
 * Places regions, largest first, each at the lowest offset without a region of an overlapping lifetime. Returns the
 * bytes needed.
 */
size_t place(std::vector<Region>& regions) {
  std::vector<size_t> order(regions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return regions[a].bytes > regions[b].bytes; });
  std::vector<const Region*> placed;  // by offset
  size_t total = 0;
  for (const size_t index : order) {
    Region& region = regions[index];
    for (const Region* other : placed) {
      const bool disjoint_in_time = other->last < region.first || region.last < other->first;
      const bool disjoint_in_space = region.offset + region.bytes <= other->offset || other->offset + other->bytes <= region.offset;
      if (!disjoint_in_time && !disjoint_in_space) region.offset = other->offset + other->bytes;
    }
    const auto after = std::find_if(placed.begin(), placed.end(), [&](const Region* other) { return other->offset > region.offset; });
    placed.insert(after, &region);
    total = std::max(total, region.offset + region.bytes);
  }
  return total;
}

}  // namespace

Program::Program(EncodedReader in, const ProgramBindings& bindings, std::chrono::milliseconds remote_deadline)
    : plan_(decode_program(in, bindings)), remote_(remote_deadline), waits_(remote_deadline) {
  place_buffers();
  const StepLimits& limits = plan_->limits;
  row_sequence_.resize(limits.tokens_max);
  groups_.resize(limits.groups.size());
  for (auto& sequences : groups_) sequences.reserve(limits.tokens_max);
  if (plan_->logits) sampler_ = std::make_unique<Sampler>(limits.vocabulary, bindings.backend->pool.size());
}

void Program::place_buffers() {
  std::vector<Region> regions;
  for (size_t i = 0; i < plan_->buffers.size(); i++) {
    const Buffer& buffer = plan_->buffers[i];
    regions.push_back({aligned(buffer.bytes(plan_->capacity(buffer))), plan_->lifetimes[i].first, plan_->lifetimes[i].last});
  }
  // Other memory of the ops is in use throughout.
  const int end = static_cast<int>(plan_->ops.size());
  const size_t out_bytes = plan_->attention_out_columns * sizeof(float) * static_cast<size_t>(plan_->limits.tokens_max);
  plan_->scratch_columns = aligned(plan_->scratch_columns * sizeof(float)) / sizeof(float);
  const size_t row_bytes = plan_->scratch_columns * sizeof(float) * static_cast<size_t>(plan_->bindings.backend->pool.size());
  for (const size_t bytes : {row_bytes, plan_->attention_bytes, out_bytes}) regions.push_back({aligned(bytes), 0, end});
  const size_t total = place(regions);
  arena_ = Mapping(total, "the buffers of a program");
  size_t next = 0;
  for (Buffer& buffer : plan_->buffers) buffer.data = arena_.data() + regions[next++].offset;
  scratch_ = reinterpret_cast<float*>(arena_.data() + regions[next++].offset);
  attention_scratch_ = arena_.data() + regions[next++].offset;
  attention_out_ = reinterpret_cast<float*>(arena_.data() + regions[next].offset);
}

void Program::describe_sequences(const StepView& step) {
  for (int s = 0; s < step.sequences(); s++) std::fill(&row_sequence_[step.row_start[s]], row_sequence_.data() + step.row_start[s + 1], s);
  for (size_t g = 0; g < groups_.size(); g++) {
    const StepGroupView& group = step.groups[g];
    groups_[g].clear();
    for (int s = 0; s < step.sequences(); s++) {
      const int row = step.row_start[s];
      groups_[g].push_back({row, step.row_start[s + 1] - row, step.positions[row], group.blocks.data + group.block_start[s], group.first_block[s]});
      groups_[g].back().bidirectional = plan_->bidirectional;
    }
  }
  for (const SparseKeysView& keys : step.sparse) groups_[keys.group][keys.sequence].is_sparse = true;
  for (const PageSelectionView& selection : step.page_selections) groups_[selection.group][selection.sequence].is_sparse = true;
}

void Program::begin(KvPool& pool, const StepView& step, const int32_t* abort) {
  const KvLayout& wanted = plan_->layout;
  const bool fits = pool.isa == isa() && pool.layout.type == wanted.type && pool.layout.kv_heads == wanted.kv_heads && pool.layout.head_dim == wanted.head_dim;
  if (wanted.kv_heads > 0 && !fits) throw std::runtime_error("Cannot run the step: the KV pool has pages of another shape than the program's");
  StepLimits limits = plan_->limits;
  limits.pages = pool.pages;
  limits.slot_pages_of_state = LayerSlots::slot_pages_of_state(pool.layout);
  limits.kv_type = pool.layout.type;
  pool.expect_use(check_step(step, limits));
  check_row_pages(step, *plan_);
  check_attention_workers(step, *plan_, pool);
  describe_sequences(step);
  failed_sequences_.assign(static_cast<size_t>(step.sequences()), 0);
  remote_.begin(step, groups_, failed_sequences_.data());
  waits_.begin(step, failed_sequences_.data());
  sparse_.begin(step, failed_sequences_.data());
  state_.emplace(StepState{{plan_->bindings.backend->pool, row_kernels(isa()), scratch_, plan_->scratch_columns},
                           &step,
                           &pool,
                           static_cast<int>(step.tokens.size),
                           static_cast<int>(step.logit_rows.size),
                           row_sequence_.data(),
                           &groups_,
                           attention_scratch_,
                           attention_out_,
                           plan_->bindings.backend.get(),
                           &remote_,
                           &waits_,
                           &workers_,
                           &sparse_,
                           failed_sequences_.data(),
                           abort});
  next_op_ = 0;
  progress_ = Progress::running;
}

int Program::slices() const {
  int slices = 1;
  for (size_t i = 1; i < plan_->ops.size(); i++) slices += plan_->ops[i]->awaits_workers() ? 1 : 0;
  return slices;
}

void Program::move_to(Backend& replica) {
  const StepState from = *state_;
  state_.emplace(StepState{{replica.pool, from.op.rows, scratch_, plan_->scratch_columns},
                           from.step,
                           from.pool,
                           from.tokens,
                           from.logit_rows,
                           from.row_sequence,
                           from.groups,
                           from.attention_scratch,
                           from.attention_out,
                           &replica,
                           from.remote,
                           from.waits,
                           from.workers,
                           from.sparse,
                           from.failed_sequences,
                           from.abort});
}

void Program::advance(Backend& replica, const SamplingResult& result) {
  if (state_->backend != &replica) move_to(replica);
  const StepState& state = *state_;
  if (next_op_ == 0) workers_.begin(*state.step, state.pool->pages, groups_, plan_->limits.groups, failed_sequences_.data(), state.abort);
  const size_t end = ops_of(*state.step);
  while (next_op_ < end) {
    progress_ = Progress::aborted;
    if (__atomic_load_n(state.abort, __ATOMIC_RELAXED) != 0) return;
    plan_->ops[next_op_++]->run(state);
    if (remote_.aborted() || waits_.aborted() || workers_.aborted()) return;
    progress_ = Progress::done;
    if (waits_.rows_missing() || workers_.all_failed()) return;
    if (next_op_ < end && plan_->ops[next_op_]->awaits_workers()) {
      progress_ = Progress::running;
      return;
    }
  }
  progress_ = Progress::done;
  if (sampler_ && state.step->needs_logits) sampler_->run(state.op.pool, state.op.rows, plan_->logits->row(0), state.logit_rows, state.step->sampling.args(), result);
}

const Buffer& Program::open_buffer(int index, int rows) const {
  const std::string name = "Cannot open buffer " + std::to_string(index) + ": ";
  if (index < 0 || static_cast<size_t>(index) >= plan_->buffers.size()) throw std::runtime_error(name + "no such buffer");
  const Buffer& buffer = plan_->buffers[index];
  if (!buffer.alone) throw std::runtime_error(name + "it shares its memory with other buffers");
  if (rows < 0 || rows > plan_->capacity(buffer)) throw std::runtime_error(name + "it has " + std::to_string(plan_->capacity(buffer)) + " rows, not " + std::to_string(rows));
  return buffer;
}

}  // namespace kvasir
