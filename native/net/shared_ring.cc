// Sleeping and waking between processes, by futexes in the memory that they share.
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

uint32_t* word_of(Sleeper& sleeper) { return reinterpret_cast<uint32_t*>(&sleeper.sleeps); }

void park(Sleeper& sleeper, std::chrono::nanoseconds most) {
  const timespec time = {static_cast<time_t>(most.count() / 1000000000), static_cast<long>(most.count() % 1000000000)};
  syscall(SYS_futex, word_of(sleeper), FUTEX_WAIT, 1, &time, nullptr, 0);
}
void unpark(Sleeper& sleeper) { syscall(SYS_futex, word_of(sleeper), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

#else

// Nobody shares rings there.
void park(Sleeper&, std::chrono::nanoseconds) {}
void unpark(Sleeper&) {}

#endif

void wake(Sleeper& sleeper) {
  if (sleeper.sleeps.exchange(0, std::memory_order_seq_cst) != 0) unpark(sleeper);
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

void RingEnd::pass(size_t bytes) const {
  position_ += bytes;
  mine_.store(position_, std::memory_order_seq_cst);
  if (other_.sleeps.load(std::memory_order_seq_cst) != 0 && position_ >= other_.until.load(std::memory_order_relaxed)) wake(other_);
}

void RingEnd::sleep(size_t bytes, std::chrono::nanoseconds most) const {
  me_.until.store(position_ + bytes - lead_, std::memory_order_relaxed);
  me_.sleeps.store(1, std::memory_order_seq_cst);
  if (available() < bytes) park(me_, most);
  me_.sleeps.store(0, std::memory_order_seq_cst);
}

void RingEnd::wake_all() const {
  wake(me_);
  wake(other_);
}

}  // namespace kvasir
