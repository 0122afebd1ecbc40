// A ring of bytes in memory that two processes share: one writes, the other reads. Neither believes what the other says: a position that cannot be ends it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvasir {

/** A thread of one process that waits for the other. */
struct Sleeper {
  std::atomic<uint32_t> sleeps{0};
  std::atomic<uint64_t> until{0};  // the other's position that is worth waking up for
};

/** What both know of a ring; zeroed memory is an empty one. Positions count bytes from the beginning. */
struct RingState {
  alignas(64) std::atomic<uint64_t> written{0};
  Sleeper reader;
  alignas(64) std::atomic<uint64_t> read{0};
  Sleeper writer;
};

constexpr size_t kRingBytes = size_t{1} << 20;
/** Waiting for no more than this, reader and writer never wait for each other. */
constexpr size_t kRingWaitBytes = kRingBytes / 2;

/** The memory of a ring twice in a row: what runs over its end goes on in one piece. */
class RingMemory {
 public:
  /** Null where the system has no room. */
  RingMemory(int descriptor, size_t offset);
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
};

/** One side of a ring, for one thread at a time: what it may read, or where it may write. */
class RingEnd {
 public:
  static RingEnd reader(RingState& state, const uint8_t* memory) { return {state.read, state.written, state.reader, state.writer, const_cast<uint8_t*>(memory), 0}; }
  static RingEnd writer(RingState& state, uint8_t* memory) { return {state.written, state.read, state.writer, state.reader, memory, kRingBytes}; }

  static constexpr size_t kLie = SIZE_MAX;
  /** Bytes that may be read, or written, from `next` on; `kLie` where the other's position cannot be. */
  size_t available() const {
    const uint64_t count = theirs_.load(std::memory_order_seq_cst) + lead_ - position_;
    return count <= kRingBytes ? static_cast<size_t>(count) : kLie;
  }
  uint8_t* next() const { return memory_ + position_ % kRingBytes; }
  /** They are the other side's now; it is woken if that is what it waits for. */
  void pass(size_t bytes) const;
  /** Sleeps until so many are available, or somebody wakes it, or that time is over. */
  void sleep(size_t bytes, std::chrono::nanoseconds most) const;
  /** Wakes whoever sleeps at either side. */
  void wake_all() const;

 private:
  using Position = std::atomic<uint64_t>;
  RingEnd(Position& mine, Position& theirs, Sleeper& me, Sleeper& other, uint8_t* memory, uint64_t lead)
      : mine_(mine), theirs_(theirs), me_(me), other_(other), memory_(memory), lead_(lead) {}

  Position& mine_;
  Position& theirs_;
  Sleeper& me_;
  Sleeper& other_;
  uint8_t* memory_;
  uint64_t lead_;
  mutable uint64_t position_ = 0;  // what `mine_` says, unless the other side has written there
};

}  // namespace kvasir
