// Sleeping until a 32-bit word changes: a futex on Linux, a mutex and a condition variable elsewhere.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace kvasir {

/**
 * A word that threads of one process wait on. `wake_all` costs a system call on Linux: callers check first whether a
 * thread sleeps.
 */
class FutexWord {
 public:
  std::atomic<uint32_t> value{0};

#if defined(__linux__)
  /** Returns at once if the word does not hold `expected`; may return spuriously. */
  void wait(uint32_t expected) { syscall(SYS_futex, word(), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0); }
  /** As `wait`, for at most `limit`. */
  void wait_for(uint32_t expected, std::chrono::nanoseconds limit) {
    const timespec time = {static_cast<time_t>(limit.count() / 1000000000), static_cast<long>(limit.count() % 1000000000)};
    syscall(SYS_futex, word(), FUTEX_WAIT_PRIVATE, expected, &time, nullptr, 0);
  }
  /** Call after the word has changed. */
  void wake_all() { syscall(SYS_futex, word(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

 private:
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");
  uint32_t* word() { return reinterpret_cast<uint32_t*>(&value); }
#else
  void wait(uint32_t expected) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return value.load(std::memory_order_acquire) != expected; });
  }
  void wait_for(uint32_t expected, std::chrono::nanoseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return value.load(std::memory_order_acquire) != expected; });
  }
  void wake_all() {
    { std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
#endif
};

}  // namespace kvasir
