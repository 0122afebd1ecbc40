// WAIT_LAYER and WAIT_ROWS: a step waits for pages that are still on their way, and goes on without the sequences whose pages do not come.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/backend.hpp"
#include "kv/kv_pool.hpp"
#include "kv/layer_arrivals.hpp"
#include "ops/step.hpp"

namespace kvasir {

/** What a program keeps of the pages that a step waits for. */
class LayerWaits {
 public:
  /** A transfer of which nothing has come for so long fails its sequences. */
  explicit LayerWaits(std::chrono::milliseconds quiet) : quiet_(quiet) {}

  /** A step begins. `unanswered` (sequences) stays until it ends: 1 is written for those whose pages do not come. */
  void begin(const StepView& step, uint8_t* unanswered);
  /** Returns when the layer's pages are there, or will not be, or where `abort` is set: then the step is aborted. Meanwhile the threads are the guests'. */
  void await(int layer, KvPool& pool, Backend& backend, const int32_t* abort);
  /** Returns when the rows that the step begins with are there: then true. False: it is aborted, or they do not come, and nothing of it can be computed. */
  bool await_rows(Backend& backend, const int32_t* abort);
  bool aborted() const { return aborted_; }
  /** Have the rows not come that all others are made of? */
  bool lost() const { return lost_; }
  /** Is there a sequence in the step whose pages do not come? */
  bool any_failed() const { return any_failed_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_over(const LayerArrivals& arrivals, std::chrono::milliseconds within, int layer) const;
  bool has_come(LayerArrivals* arrivals, std::chrono::milliseconds within, int layer, Backend& backend, const int32_t* abort);
  template <class Over>
  void wait(EventCount& event, Backend& backend, const int32_t* abort, const Over& over);

  std::chrono::milliseconds quiet_;
  const StepView* step_ = nullptr;
  uint8_t* unanswered_ = nullptr;
  Clock::time_point begun_;
  bool any_failed_ = false;
  bool aborted_ = false;
  bool lost_ = false;
};

}  // namespace kvasir
