// A shard of a row is contiguous, since heads are its outer dimension: rows are cut and joined by copies.
#include "workers/worker_calls.hpp"

#include <algorithm>
#include <cstring>

namespace kvasir {
namespace {

/** Longer than several intervals of heartbeats, and than most delays of a busy machine: the step is repeated. */
constexpr auto kStallLimit = std::chrono::milliseconds(1000);
/** With rows of stalled workers alone, so that steps do not follow each other without a pause. */
constexpr auto kStalledLimit = std::chrono::milliseconds(100);

}  // namespace

void WorkerCalls::begin(const StepView& step, int pages, const std::vector<std::vector<AttentionSequence>>& groups, const std::vector<LayerGroup>& layers,
                        uint8_t* failed_sequences, const int32_t* abort) {
  step_ = step.attention_workers.empty() ? nullptr : &step;
  failed_sequences_ = failed_sequences;
  aborted_ = false;
  all_failed_ = false;
  if (step_ == nullptr) return;
  share_sequences(pages, layers);
  for (int w = 0; w < workers(); w++) {
    if (!computes(w)) continue;
    const auto& link = step.attention_workers[w];
    if (link != nullptr) link->begin(step, shares_[w], groups, layers, abort, stall_limits(w));
    if (link == nullptr || has_failed(*link)) fail(w);
  }
  aborted_ = !all_failed_ && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
}

void WorkerCalls::share_sequences(int pages, const std::vector<LayerGroup>& layers) {
  const bool by_heads = step_->sequence_workers.size == 0;
  shares_.assign(static_cast<size_t>(workers()), {});
  failed_workers_.assign(static_cast<size_t>(workers()), 0);
  for (int w = 0; w < workers(); w++) {
    WorkerShare& share = shares_[w];
    share.heads_of = by_heads ? workers() : 1;
    share.heads_at = by_heads ? w : 0;
    share.first_page = by_heads ? 0 : pages / workers() * w;
    for (size_t g = 0; g < layers.size(); g++) {
      const StepGroupView& group = step_->groups[g];
      const int rblocks = static_cast<int>(group.page_table.size / static_cast<size_t>(group.layers));
      share.first_block.push_back(by_heads ? 0 : rblocks / workers() * w);
    }
    for (int s = 0; s < step_->sequences(); s++) {
      if (!by_heads && step_->sequence_workers[s] != w) continue;
      share.sequences.push_back(s);
      share.rows += step_->row_start[s + 1] - step_->row_start[s];
    }
  }
}

/** Partitioned by requests, a worker that stands still must not delay the sequences of others. */
std::optional<StallLimits> WorkerCalls::stall_limits(int worker) const {
  if (step_->sequence_workers.size == 0) return std::nullopt;
  bool has_others = false;
  for (int w = 0; w < workers(); w++) has_others = has_others || (w != worker && shares_[w].rows > 0);
  return StallLimits{kStallLimit, has_others ? std::chrono::milliseconds(0) : kStalledLimit};
}

void WorkerCalls::fail(int worker) {
  failed_workers_[worker] = 1;
  for (const int s : shares_[worker].sequences) failed_sequences_[s] = 1;
  all_failed_ = std::all_of(failed_sequences_, failed_sequences_ + step_->sequences(), [](uint8_t each) { return each != 0; });
}

WorkerFrame WorkerCalls::frame_of(const WorkerCall& call, const WorkerShare& share) const {
  WorkerFrame frame = {};
  frame.call = call.number;
  frame.group = call.group;
  frame.layer = call.layer;
  frame.heads = call.heads / share.heads_of;
  frame.rows = share.rows;
  frame.scale = call.scale;
  frame.softcap = call.softcap;
  return frame;
}

/** Calls `copy(row of the step, row of the share)` for each row of the share. */
template <class Copy>
static void for_rows(const StepView& step, const WorkerShare& share, const Copy& copy) {
  int to = 0;
  for (const int s : share.sequences)
    for (int row = step.row_start[s]; row < step.row_start[s + 1]; row++) copy(static_cast<size_t>(row), static_cast<size_t>(to++));
}

void WorkerCalls::send_query(const WorkerCall& call, const Buffer& query) {
  const size_t row_bytes = query.bytes(1);
  for (int w = 0; w < workers(); w++) {
    if (!computes(w)) continue;
    const WorkerShare& share = shares_[w];
    const WorkerFrame frame = frame_of(call, share);
    const size_t part = row_bytes / share.heads_of;
    bytes_.resize(part * share.rows);
    for_rows(*step_, share, [&](size_t row, size_t to) { std::memcpy(bytes_.data() + part * to, query.data + row_bytes * row + part * share.heads_at, part); });
    step_->attention_workers[w]->send_query(frame, call.slopes == nullptr ? nullptr : call.slopes + frame.heads * share.heads_at, bytes_);
    if (has_failed(*step_->attention_workers[w])) fail(w);
  }
}

void WorkerCalls::send_keys(const WorkerCall& call, const Buffer& keys) {
  const size_t row_bytes = keys.bytes(1), half = row_bytes / 2;
  for (int w = 0; w < workers(); w++) {
    if (!computes(w)) continue;
    const WorkerShare& share = shares_[w];
    const size_t part = half / share.heads_of;
    bytes_.resize(2 * part * share.rows);
    for_rows(*step_, share, [&](size_t row, size_t at) {
      const uint8_t* from = keys.data + row_bytes * row + part * share.heads_at;
      uint8_t* to = bytes_.data() + 2 * part * at;
      std::memcpy(to, from, part);
      std::memcpy(to + part, from + half, part);
    });
    const WorkerFrame frame = frame_of(call, share);
    step_->attention_workers[w]->send_keys(frame, bytes_, static_cast<size_t>(share.rows) * frame.heads * call.head_dim);
    if (has_failed(*step_->attention_workers[w])) fail(w);
  }
}

void WorkerCalls::receive(const WorkerCall& call, float* out, const int32_t* abort) {
  const size_t columns = static_cast<size_t>(call.heads) * call.head_dim;
  for (int w = 0; w < workers() && !all_failed_; w++) {
    const WorkerShare& share = shares_[w];
    const size_t part = columns / share.heads_of;
    const bool received = computes(w) && step_->attention_workers[w]->receive(values_, abort);
    if (!received && computes(w)) {
      aborted_ = __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
      if (aborted_) return;
      fail(w);
    }
    for_rows(*step_, share, [&](size_t row, size_t from) {
      float* to = out + columns * row + part * share.heads_at;
      if (received) std::memcpy(to, values_.data() + part * from, part * sizeof(float));
      else std::fill_n(to, part, 0.0f);
    });
  }
}

}  // namespace kvasir
