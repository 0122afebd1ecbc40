// The thread pool: tasks are claimed from one ticket counter, so a preempted thread delays its own task only.
#include "base/thread_pool.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "base/futex.hpp"
#include "base/spin.hpp"

namespace kvasir {
namespace {

// A ticket is (job number << 32 | next task). A closed job has no next task.
constexpr uint64_t kClosed = 0xffffffffu;
constexpr uint64_t ticket(uint32_t job, uint64_t next) { return (static_cast<uint64_t>(job) << 32) | next; }

}  // namespace

struct ThreadPool::State {
  alignas(64) std::atomic<uint64_t> tickets{ticket(0, kClosed)};
  // The job, read before a ticket is claimed: a successful claim proves that all of it belongs to the ticket's job.
  alignas(64) std::atomic<Task> task{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<uint32_t> count{0};
  alignas(64) std::atomic<uint32_t> unfinished{0};
  alignas(64) FutexWord job;             // number of the published job; idle workers sleep on it
  std::atomic<uint32_t> sleepers{0};
  alignas(64) FutexWord finished;        // number of the last finished job; the caller sleeps on it
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> closing{false};
  std::vector<std::thread> workers;

  /** Claims and runs tasks of the open job until none remains. */
  void work(int thread) {
    uint32_t done = 0;
    uint32_t job_number = 0;
    uint64_t seen = tickets.load(std::memory_order_acquire);
    for (;;) {
      const Task run = task.load(std::memory_order_relaxed);
      void* argument = context.load(std::memory_order_relaxed);
      const uint32_t limit = count.load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      const uint32_t next = static_cast<uint32_t>(seen);
      if (next >= limit || next == kClosed) break;
      if (!tickets.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      job_number = static_cast<uint32_t>(seen >> 32);
      run(argument, static_cast<int>(next), thread);
      done++;
      seen = tickets.load(std::memory_order_acquire);
      // The job cannot end before `done` is reported, so tickets still belong to it here.
    }
    if (done > 0) report(job_number, done);
  }

  void report(uint32_t job_number, uint32_t done) {
    if (unfinished.fetch_sub(done, std::memory_order_acq_rel) != done) return;
    finished.value.store(job_number, std::memory_order_seq_cst);
    if (caller_sleeps.load(std::memory_order_seq_cst)) finished.wake_all();
  }

  void publish(uint32_t job_number, uint32_t tasks, Task run, void* argument) {
    tickets.store(ticket(job_number, kClosed), std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    task.store(run, std::memory_order_relaxed);
    context.store(argument, std::memory_order_relaxed);
    count.store(tasks, std::memory_order_relaxed);
    unfinished.store(tasks, std::memory_order_relaxed);
    tickets.store(ticket(job_number, 0), std::memory_order_release);
    wake_workers(job_number);
  }

  void wake_workers(uint32_t job_number) {
    job.value.store(job_number, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) job.wake_all();
  }

  void serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
      const auto changed = [&] { return job.value.load(std::memory_order_acquire) != seen; };
      while (!spin(changed)) {
        // Each worker decrements for itself: a waker that reset the count could miss a worker about to sleep.
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        if (job.value.load(std::memory_order_seq_cst) == seen) job.wait(seen);
        sleepers.fetch_sub(1, std::memory_order_relaxed);
      }
      seen = job.value.load(std::memory_order_acquire);
      if (closing.load(std::memory_order_acquire)) return;
      work(thread);
    }
  }

  void wait(uint32_t job_number) {
    const auto ready = [&] { return finished.value.load(std::memory_order_acquire) == job_number; };
    if (spin(ready)) return;
    caller_sleeps.store(true, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t last = finished.value.load(std::memory_order_seq_cst);
      if (last == job_number) break;
      finished.wait(last);
    }
    caller_sleeps.store(false, std::memory_order_relaxed);
  }
};

ThreadPool::ThreadPool(int threads) : state_(new State) {
  for (int i = 1; i < threads; i++) state_->workers.emplace_back([state = state_.get(), i] { state->serve(i); });
}

ThreadPool::~ThreadPool() {
  state_->closing.store(true, std::memory_order_release);
  state_->wake_workers(state_->job.value.load(std::memory_order_relaxed) + 1);
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(int count, Task task, void* context) {
  if (count <= 1 || state_->workers.empty()) {
    for (int i = 0; i < count; i++) task(context, i, 0);
    return;
  }
  const uint32_t job_number = state_->job.value.load(std::memory_order_relaxed) + 1;
  state_->publish(job_number, static_cast<uint32_t>(count), task, context);
  state_->work(0);
  state_->wait(job_number);
}

}  // namespace kvasir
