// A step waits for its transfers one after the other: attention needs all pages of a layer, and each transfer has a
// deadline of its own.
#include "program/layer_waits.hpp"

#include <algorithm>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);  // interval of checks of the abort flag and of deadlines

}  // namespace

void LayerWaits::begin(const StepView& step, uint8_t* failed_sequences) {
  step_ = &step;
  failed_sequences_ = failed_sequences;
  any_failed_ = false;
  aborted_ = false;
  rows_missing_ = false;
  if (!step.arriving.empty() || step.rows_in.rows.pool) begun_ = Clock::now();
}

template <class Ended>
void LayerWaits::wait(EventCount& event, Backend& backend, const int32_t* abort, const Ended& ended) {
  if (ended()) return;
  backend.threads_lock.unlock();
  const auto begin = Clock::now();
  while (!aborted_) {
    const uint32_t seen = event.epoch();
    if (ended()) break;
    aborted_ = __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
    if (!aborted_ && !spin([&] { return event.epoch() != seen; })) event.wait_for(seen, kPollInterval);
  }
  backend.threads_lock.lock();
  const std::chrono::nanoseconds waited = Clock::now() - begin;
  backend.arrival_wait_nanoseconds += static_cast<uint64_t>(waited.count());
}

bool LayerWaits::has_ended(const LayerArrivals& arrivals, std::chrono::milliseconds within, int layer) const {
  const Clock::time_point now = Clock::now();
  return arrivals.is_ready(layer) || arrivals.ended() || now - std::max(begun_, arrivals.last_arrival()) > stall_limit_ || now - begun_ > within;
}

/** Waits for one transfer. `arrivals` null: it does not exist any more. */
bool LayerWaits::await_transfer(LayerArrivals* arrivals, std::chrono::milliseconds within, int layer, Backend& backend, const int32_t* abort) {
  if (arrivals == nullptr) return false;
  wait(arrivals->event(), backend, abort, [&] { return has_ended(*arrivals, within, layer); });
  return arrivals->is_ready(layer);
}

void LayerWaits::await(int layer, KvPool& pool, Backend& backend, const int32_t* abort) {
  wait(pool.loading.event(), backend, abort, [&] { return pool.loading.is_ready(static_cast<uint32_t>(layer)); });
  for (const ArrivingKeysView& keys : step_->arriving) {
    if (aborted_) return;
    if (failed_sequences_[keys.sequence] != 0) continue;
    if (await_transfer(keys.arrivals.get(), keys.within, layer, backend, abort) || aborted_) continue;
    failed_sequences_[keys.sequence] = 1;
    any_failed_ = true;
  }
}

bool LayerWaits::await_rows(Backend& backend, const int32_t* abort) {
  const ArrivingRowsView& rows = step_->rows_in;
  const auto set_waiting = [this](int32_t waiting) {
    if (step_->waiting != nullptr) __atomic_store_n(step_->waiting, waiting, __ATOMIC_SEQ_CST);
  };
  set_waiting(1);
  const bool arrived = await_transfer(rows.arrivals.get(), rows.within, 0, backend, abort);
  set_waiting(0);
  if (aborted_ || arrived) return !aborted_;
  rows_missing_ = true;
  std::fill_n(failed_sequences_, step_->sequences(), uint8_t{1});
  return false;
}

}  // namespace kvasir
