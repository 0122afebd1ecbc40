// A shard of a row is contiguous, since heads are its outer dimension: rows are cut and joined by copies.
#include "workers/worker_calls.hpp"

#include <algorithm>
#include <cstring>

namespace kvasir {

void WorkerCalls::begin(const StepView& step, const std::vector<std::vector<AttentionSequence>>& groups, const std::vector<LayerGroup>& layers, uint8_t* unanswered,
                        const int32_t* abort) {
  step_ = step.attention_workers.empty() ? nullptr : &step;
  unanswered_ = unanswered;
  aborted_ = false;
  failed_ = false;
  if (step_ == nullptr) return;
  for (const auto& link : step.attention_workers) {
    if (link != nullptr) link->begin(step, groups, layers, abort);
    if (link == nullptr || link->is_broken()) fail();
  }
  aborted_ = !failed_ && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
}

void WorkerCalls::fail() {
  failed_ = true;
  std::fill_n(unanswered_, step_->sequences(), uint8_t{1});
}

WorkerFrame WorkerCalls::frame_of(const WorkerCall& call, int rows) const {
  WorkerFrame frame = {};
  frame.call = call.number;
  frame.group = call.group;
  frame.layer = call.layer;
  frame.heads = call.heads / workers();
  frame.rows = rows;
  frame.scale = call.scale;
  frame.softcap = call.softcap;
  return frame;
}

void WorkerCalls::send_query(const WorkerCall& call, const Buffer& query, int rows) {
  const WorkerFrame frame = frame_of(call, rows);
  const size_t row_bytes = query.bytes(1), part = row_bytes / workers();
  bytes_.resize(part * rows);
  for (int w = 0; w < workers() && !failed_; w++) {
    for (int row = 0; row < rows; row++) std::memcpy(bytes_.data() + part * row, query.data + row_bytes * row + part * w, part);
    step_->attention_workers[w]->send_query(frame, call.slopes == nullptr ? nullptr : call.slopes + frame.heads * w, bytes_);
    if (step_->attention_workers[w]->is_broken()) fail();
  }
}

void WorkerCalls::send_keys(const WorkerCall& call, const Buffer& keys, int rows) {
  const size_t row_bytes = keys.bytes(1), half = row_bytes / 2, part = half / workers();
  bytes_.resize(2 * part * rows);
  for (int w = 0; w < workers() && !failed_; w++) {
    for (int row = 0; row < rows; row++) {
      const uint8_t* from = keys.data + row_bytes * row + part * w;
      uint8_t* to = bytes_.data() + 2 * part * row;
      std::memcpy(to, from, part);
      std::memcpy(to + part, from + half, part);
    }
    step_->attention_workers[w]->send_keys(frame_of(call, rows), bytes_, static_cast<size_t>(rows) * call.heads / workers() * call.head_dim);
    if (step_->attention_workers[w]->is_broken()) fail();
  }
}

void WorkerCalls::receive(const WorkerCall& call, int rows, float* out, const int32_t* abort) {
  const size_t columns = static_cast<size_t>(call.heads) * call.head_dim, part = columns / workers();
  for (int w = 0; w < workers() && !failed_ && !aborted_; w++) {
    if (!step_->attention_workers[w]->receive(values_, abort)) {
      aborted_ = __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
      if (!aborted_) fail();
      return;
    }
    for (int row = 0; row < rows; row++) std::memcpy(out + columns * row + part * w, values_.data() + part * row, part * sizeof(float));
  }
}

}  // namespace kvasir
