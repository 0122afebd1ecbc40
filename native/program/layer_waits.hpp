// WAIT_LAYER and WAIT_ROWS: a step waits for pages in transfer and continues without the sequences of missing pages.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/backend.hpp"
#include "kv/kv_pool.hpp"
#include "kv/layer_arrivals.hpp"
#include "ops/step.hpp"

namespace kvasir {

/** A program's waits for pages in transfer. */
class LayerWaits {
 public:
  /** A transfer without an arrival for `stall_limit` fails its sequences. */
  explicit LayerWaits(std::chrono::milliseconds stall_limit) : stall_limit_(stall_limit) {}

  /**
   * Begins a step. `failed_sequences` (sequences) must stay valid until the step ends; 1 is written for sequences of
   * missing pages.
   */
  void begin(const StepView& step, uint8_t* failed_sequences);
  /**
   * Returns when the layer's pages have arrived or failed, or when `abort` is set, which aborts the step. Remote
   * queries may use the threads meanwhile.
   */
  void await(int layer, KvPool& pool, Backend& backend, const int32_t* abort);
  /**
   * True once the step's input rows have arrived. False if the step is aborted or they do not arrive: then nothing can
   * be computed.
   */
  bool await_rows(Backend& backend, const int32_t* abort);
  bool aborted() const { return aborted_; }
  /** True if the step's input rows did not arrive. */
  bool rows_missing() const { return rows_missing_; }
  /** True if the pages of a sequence of the step did not arrive. */
  bool any_failed() const { return any_failed_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool has_ended(const LayerArrivals& arrivals, std::chrono::milliseconds within, int layer) const;
  bool await_transfer(LayerArrivals* arrivals, std::chrono::milliseconds within, int layer, Backend& backend, const int32_t* abort);
  template <class Ended>
  void wait(EventCount& event, Backend& backend, const int32_t* abort, const Ended& ended);

  std::chrono::milliseconds stall_limit_;
  const StepView* step_ = nullptr;
  uint8_t* failed_sequences_ = nullptr;
  Clock::time_point begun_;
  bool any_failed_ = false;
  bool aborted_ = false;
  bool rows_missing_ = false;
};

}  // namespace kvasir
