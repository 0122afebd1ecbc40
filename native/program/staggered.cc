// The calling thread drives the first replica; each other replica has a thread for the duration of the call.
#include "program/staggered.hpp"

#include <condition_variable>
#include <exception>
#include <thread>

#include "base/spin.hpp"

namespace kvasir {
namespace {

/** Marks the step's beginning and, on every exit, its end, for senders that wait for its layers. */
struct RunningStep {
  StepProgress& progress;
  explicit RunningStep(StepProgress& of) : progress(of) { progress.begin(); }
  ~RunningStep() { progress.end(); }
  RunningStep(const RunningStep&) = delete;
  RunningStep& operator=(const RunningStep&) = delete;
};

[[noreturn]] void refuse(const std::string& why) { throw std::runtime_error("Cannot run the steps: " + why); }

}  // namespace

class StaggeredRun {
 public:
  StaggeredRun(const std::vector<ProgramRun>& runs, const std::vector<std::shared_ptr<Backend>>& replicas, const std::vector<SliceTurn>& turns)
      : runs_(runs), replicas_(replicas), turns_(turns), ended_(runs.size()) {
    const Backend& first = *replicas.front();
    for (const auto& replica : replicas)
      if (replica->isa != first.isa || replica->pool.size() > first.pool.size()) refuse("a replica has another instruction set or more threads than the first");
    for (const ProgramRun& run : runs)
      if (run.program->plan_->bindings.backend.get() != &first) refuse("they are of several backends");
    if (!turns.empty()) check_turns();
  }

  void begin(KvPool& pool, const int32_t* abort) {
    for (const ProgramRun& run : runs_) run.program->begin(pool, *run.step, abort);
  }

  void run_in_turn() {
    for (bool any = true; any;) {
      any = false;
      for (const ProgramRun& run : runs_) any = advance(run, *replicas_.front()) || any;
    }
  }

  void run_turns() {
    std::vector<std::thread> others;
    for (size_t r = 1; r < replicas_.size(); r++) others.emplace_back([this, r] { run_turns_of(static_cast<int>(r)); });
    run_turns_of(0);
    for (std::thread& other : others) other.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  std::vector<bool> outcomes() const {
    std::vector<bool> done;
    for (const ProgramRun& run : runs_) done.push_back(run.program->progress_ == Program::Progress::done);
    return done;
  }

 private:
  void check_turns() const {
    std::vector<int> slices(runs_.size(), 0);
    for (const SliceTurn& turn : turns_) {
      if (turn.batch < 0 || static_cast<size_t>(turn.batch) >= runs_.size()) refuse("a turn names batch " + std::to_string(turn.batch));
      if (turn.replica < 0 || static_cast<size_t>(turn.replica) >= replicas_.size()) refuse("a turn names replica " + std::to_string(turn.replica));
      slices[turn.batch]++;
    }
    for (size_t b = 0; b < runs_.size(); b++) {
      const int needed = runs_[b].program->slices();
      if (slices[b] != needed) refuse("batch " + std::to_string(b) + " has " + std::to_string(slices[b]) + " turns for " + std::to_string(needed) + " slices");
    }
  }

  static bool advance(const ProgramRun& run, Backend& replica) {
    if (run.program->progress_ != Program::Progress::running) return false;
    run.program->advance(replica, run.result);
    return true;
  }

  /** A turn waits for a turn before it in the order only, so that there is always one that can run. */
  void run_turns_of(int replica) {
    std::vector<int> before(runs_.size(), 0);  // turns of each batch so far
    for (const SliceTurn& turn : turns_) {
      const int slice = before[turn.batch]++;
      if (turn.replica != replica) continue;
      std::atomic<int>& ended = ended_[turn.batch];
      const auto is_next = [&] { return ended.load(std::memory_order_acquire) == slice; };
      if (!spin(is_next)) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, is_next);
      }
      try {
        advance(runs_[turn.batch], *replicas_[replica]);
      } catch (...) {
        runs_[turn.batch].program->progress_ = Program::Progress::aborted;
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = std::current_exception();
      }
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended.store(slice + 1, std::memory_order_release);
      }
      changed_.notify_all();
    }
  }

  const std::vector<ProgramRun>& runs_;
  const std::vector<std::shared_ptr<Backend>>& replicas_;
  const std::vector<SliceTurn>& turns_;
  std::vector<std::atomic<int>> ended_;  // turns of each batch
  std::mutex mutex_;                     // guards `failure_`, and changes of `ended_`
  std::condition_variable changed_;
  std::exception_ptr failure_;
};

std::vector<bool> run_staggered(KvPool& pool, const std::vector<ProgramRun>& runs, const std::vector<std::shared_ptr<Backend>>& replicas,
                                const std::vector<SliceTurn>& turns, const int32_t* abort) {
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& replica : replicas) {
    locks.emplace_back(replica->busy, std::try_to_lock);
    if (!locks.back()) throw std::runtime_error("Cannot run the step: another thread runs one on the same backend");
  }
  StaggeredRun staggered(runs, replicas, turns);
  staggered.begin(pool, abort);
  std::vector<std::unique_ptr<StepLock>> step_locks;
  for (const auto& replica : replicas) step_locks.push_back(std::make_unique<StepLock>(*replica));
  const RunningStep running(pool.progress);
  if (turns.empty()) staggered.run_in_turn();
  else staggered.run_turns();
  return staggered.outcomes();
}

}  // namespace kvasir
