// Sleeping and waking between processes, by futexes in shared memory.
#include "net/shared_ring.hpp"

#include <sys/mman.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#endif

namespace kvasir {
namespace {

#if defined(__linux__)

uint32_t* word_of(RingWaiter& waiter) { return reinterpret_cast<uint32_t*>(&waiter.sleeps); }

void futex_sleep(RingWaiter& waiter, std::chrono::nanoseconds limit) {
  const timespec time = {static_cast<time_t>(limit.count() / 1000000000), static_cast<long>(limit.count() % 1000000000)};
  syscall(SYS_futex, word_of(waiter), FUTEX_WAIT, 1, &time, nullptr, 0);
}
void futex_wake(RingWaiter& waiter) { syscall(SYS_futex, word_of(waiter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

#else

// Only Linux shares rings.
void futex_sleep(RingWaiter&, std::chrono::nanoseconds) {}
void futex_wake(RingWaiter&) {}

#endif

void wake(RingWaiter& waiter) {
  if (waiter.sleeps.exchange(0, std::memory_order_seq_cst) != 0) futex_wake(waiter);
}

}  // namespace

RingMemory::RingMemory(int descriptor, size_t offset) {
  void* reserved = mmap(nullptr, 2 * kRingBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return;
  data_ = static_cast<uint8_t*>(reserved);
  for (size_t half = 0; half < 2 * kRingBytes; half += kRingBytes) {
    if (mmap(data_ + half, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, static_cast<off_t>(offset)) != MAP_FAILED) continue;
    munmap(data_, 2 * kRingBytes);
    data_ = nullptr;
    return;
  }
}

RingMemory::~RingMemory() {
  if (data_ != nullptr) munmap(data_, 2 * kRingBytes);
}

void RingEnd::advance(size_t bytes) const {
  position_ += bytes;
  mine_.store(position_, std::memory_order_seq_cst);
  if (other_.sleeps.load(std::memory_order_seq_cst) != 0 && position_ >= other_.wake_at.load(std::memory_order_relaxed)) wake(other_);
}

void RingEnd::sleep(size_t bytes, std::chrono::nanoseconds limit) const {
  me_.wake_at.store(position_ + bytes - lead_, std::memory_order_relaxed);
  me_.sleeps.store(1, std::memory_order_seq_cst);
  if (available() < bytes) futex_sleep(me_, limit);
  me_.sleeps.store(0, std::memory_order_seq_cst);
}

void RingEnd::wake_all() const {
  wake(me_);
  wake(other_);
}

}  // namespace kvasir
