// A ring of bytes in memory that two processes share: one writes, the other reads. Each side checks the other's
// position and ends the ring if it is impossible.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvasir {

/** A thread of one process that waits for the other process. */
struct RingWaiter {
  std::atomic<uint32_t> sleeps{0};
  std::atomic<uint64_t> wake_at{0};  // wake it once the other side's position reaches this
};

/** The shared state of a ring; zeroed memory is an empty ring. Positions count bytes from the beginning. */
struct RingState {
  alignas(64) std::atomic<uint64_t> written{0};
  RingWaiter reader;
  alignas(64) std::atomic<uint64_t> read{0};
  RingWaiter writer;
};

constexpr size_t kRingBytes = size_t{1} << 20;
/** Reader and writer never deadlock if each waits for at most this many bytes. */
constexpr size_t kRingWaitBytes = kRingBytes / 2;

/** The ring's memory mapped twice in a row, so that bytes across its end are contiguous. */
class RingMemory {
 public:
  /** `data()` is null if the system refuses the mapping. */
  RingMemory(int descriptor, size_t offset);
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
};

/** The reading or the writing end of a ring, for one thread at a time. */
class RingEnd {
 public:
  static RingEnd reader(RingState& state, const uint8_t* memory) { return {state.read, state.written, state.reader, state.writer, const_cast<uint8_t*>(memory), 0}; }
  static RingEnd writer(RingState& state, uint8_t* memory) { return {state.written, state.read, state.writer, state.reader, memory, kRingBytes}; }

  static constexpr size_t kInvalid = SIZE_MAX;
  /** Bytes that may be read, or written, from `next` on; `kInvalid` if the other side's position is impossible. */
  size_t available() const {
    const uint64_t count = theirs_.load(std::memory_order_seq_cst) + lead_ - position_;
    return count <= kRingBytes ? static_cast<size_t>(count) : kInvalid;
  }
  uint8_t* next() const { return memory_ + position_ % kRingBytes; }
  /** Hands `bytes` to the other side and wakes it if it waits for them. */
  void advance(size_t bytes) const;
  /** Sleeps until `bytes` are available, a wake-up, or `limit`. */
  void sleep(size_t bytes, std::chrono::nanoseconds limit) const;
  /** Wakes the threads that sleep at either end. */
  void wake_all() const;

 private:
  using Position = std::atomic<uint64_t>;
  RingEnd(Position& mine, Position& theirs, RingWaiter& me, RingWaiter& other, uint8_t* memory, uint64_t lead)
      : mine_(mine), theirs_(theirs), me_(me), other_(other), memory_(memory), lead_(lead) {}

  Position& mine_;
  Position& theirs_;
  RingWaiter& me_;
  RingWaiter& other_;
  uint8_t* memory_;
  uint64_t lead_;
  mutable uint64_t position_ = 0;  // private copy of `mine_`, which the other process can overwrite
};

}  // namespace kvasir
