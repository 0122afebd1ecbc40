// One transfer after the other: all of a layer are needed before its attention, and each keeps its own time.
#include "layer_waits.hpp"

#include "spin.hpp"

namespace kvasir {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);  // between looks at the abort word and at deadlines

}  // namespace

void LayerWaits::begin(const StepView& step, uint8_t* unanswered) {
  step_ = &step;
  unanswered_ = unanswered;
  any_failed_ = false;
  aborted_ = false;
  if (!step.arriving.empty()) begun_ = Clock::now();
}

template <class Over>
void LayerWaits::wait(Bell& bell, Team& team, const int32_t* abort, const Over& over) {
  if (over()) return;
  team.turn.give();
  const auto begin = Clock::now();
  while (!aborted_) {
    const uint32_t seen = bell.rung();
    if (over()) break;
    aborted_ = __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
    if (!aborted_ && !spin([&] { return bell.rung() != seen; })) bell.wait_for(seen, kLook);
  }
  team.turn.take();
  const std::chrono::nanoseconds waited = Clock::now() - begin;
  team.arrival_wait_nanoseconds += static_cast<uint64_t>(waited.count());
}

bool LayerWaits::is_over(const ArrivingKeysView& keys, int layer, Clock::time_point now) const {
  const LayerArrivals& arrivals = *keys.arrivals;
  return arrivals.has(layer) || arrivals.ended() || now - std::max(begun_, arrivals.last()) > quiet_ || now - begun_ > keys.within;
}

void LayerWaits::await(int layer, KvPool& pool, Team& team, const int32_t* abort) {
  wait(pool.arrivals.bell(), team, abort, [&] { return pool.arrivals.has(static_cast<uint32_t>(layer)); });
  for (const ArrivingKeysView& keys : step_->arriving) {
    if (aborted_) return;
    if (unanswered_[keys.sequence] != 0) continue;
    const bool known = keys.arrivals != nullptr;
    if (known) wait(keys.arrivals->bell(), team, abort, [&] { return is_over(keys, layer, Clock::now()); });
    if (aborted_ || (known && keys.arrivals->has(layer))) continue;
    unanswered_[keys.sequence] = 1;
    any_failed_ = true;
  }
}

}  // namespace kvasir
