// A reliable connection between two adapters: this side writes into memory of the peer, in order.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>

#include "rdma/device.hpp"

namespace kvasir {

/** Where a queue pair is reached, and the memory that its peer may write to. */
struct QueuePairAddress {
  uint64_t memory = 0;
  uint32_t key = 0;
  uint32_t number = 0;
  uint32_t first_packet = 0;
  uint16_t lid = 0;
  uint8_t link_layer = 0, mtu = 0;
  verbs::Gid gid = {};
};

/** Any thread may use it. */
class QueuePair {
 public:
  /**
   * Registers `bytes` of memory from `memory` on; the peer may write to the first `writable` ones.
   * @throws std::runtime_error with the reason if the device refuses
   */
  QueuePair(std::shared_ptr<RdmaDevice> device, uint8_t* memory, size_t writable, size_t bytes);
  /** Ends pending writes. Afterwards the peer writes nothing to the memory. */
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const QueuePairAddress& address() const { return address_; }
  /** Once, before any write. False if the device refuses the peer's address. */
  bool connect(const QueuePairAddress& peer);

  /** Bytes of the registered memory, and their offset in the peer's. */
  struct Data {
    const uint8_t* from = nullptr;
    size_t bytes = 0;
    uint64_t offset = 0;
  };
  /** A word, and its offset in the peer's memory. */
  struct Word {
    uint64_t value = 0;
    uint64_t offset = 0;
  };
  /**
   * Queues a write of the data, if there are any, and of the word behind them: the peer sees the word after the data.
   * With `notifies` a peer that sleeps in `await` wakes up. Returns the ticket of the write, which increases; 0 if the
   * queue is full or has failed.
   */
  uint64_t write(const Data& data, const Word& word, bool notifies);
  /** Tickets up to this one are complete: their bytes are in the peer's memory. */
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  /** The ticket of the last write. */
  uint64_t queued() const { return queued_.load(std::memory_order_acquire); }
  /** True if a write with data would be queued. */
  bool can_write() const;
  /** A write failed: the peer is gone or refuses it. */
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }

  /** Collects completions, and makes used notifications available again. */
  void poll();
  /** The next notification makes `descriptor` readable. Notifications that are there already do not. */
  void request_notification();
  int descriptor() const { return channel_->descriptor; }
  /** Discards what makes `descriptor` readable. Never blocks. */
  void take_notification();

 private:
  void create(uint8_t* memory, size_t writable, size_t bytes);
  bool initialise();
  bool post_receives(int count);
  void free();

  const std::shared_ptr<RdmaDevice> device_;
  const VerbsLibrary& verbs_;
  verbs::MemoryRegion* inbox_ = nullptr;
  verbs::MemoryRegion* outbox_ = nullptr;
  verbs::CompletionChannel* channel_ = nullptr;
  verbs::CompletionQueue* sent_ = nullptr;
  verbs::CompletionQueue* received_ = nullptr;
  verbs::QueuePair* pair_ = nullptr;
  QueuePairAddress address_, peer_;
  std::mutex mutex_;  // guards the two queues of requests, and `used_`
  int used_ = 0;      // notifications that were used and are not available again
  std::atomic<uint64_t> queued_{0}, completed_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace kvasir
