// The messenger of an instance: a thread that copies pages of its pool to buffers of others, layer by layer as a step computes them.
#pragma once
#include <thread>

#include "kv/receive_buffer.hpp"
#include "transfer/send_queue.hpp"

namespace kvasir {

struct SendCounts {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t early_bytes = 0;  // of them, that left while a step ran over the pool: hidden behind it
  uint64_t nanoseconds = 0;  // spent copying, or writing to sockets
  uint64_t streams = 0;      // that have begun
  uint64_t first_pages = 0;  // pages that could have left when the first of each stream did, all together

  SendCounts& operator+=(const SendCounts& more) {
    pages += more.pages;
    bytes += more.bytes;
    early_bytes += more.early_bytes;
    nanoseconds += more.nanoseconds;
    streams += more.streams;
    first_pages += more.first_pages;
    return *this;
  }
};

/**
 * Parcels of one buffer go in the order of sending, so that a page that is sent again as it filling lands as it was last. Landings take turns:
 * one whose layers are not ready holds up no other.
 */
class LocalPageSender {
 public:
  explicit LocalPageSender(std::shared_ptr<KvPool> pool);
  ~LocalPageSender();
  LocalPageSender(const LocalPageSender&) = delete;
  LocalPageSender& operator=(const LocalPageSender&) = delete;

  /** With `last` the buffer is complete once these have landed. Throws where a descriptor names no page or slot, or pages differ in shape. */
  void send(const std::shared_ptr<ReceiveBuffer>& buffer, const std::vector<PageDescriptor>& descriptors, bool last);
  /** Drops what has not left for the buffer of this number. Once this returns, nothing is read for it any more. */
  void stop(int buffer);
  /** Parcels for the buffer of this number whose pages may still be read. */
  size_t pending(int buffer) const;
  SendCounts counts() const;

 private:
  using Queue = SendQueue<std::shared_ptr<ReceiveBuffer>>;

  void serve();
  bool advance();
  void copy(const Queue::Batch& batch);

  std::shared_ptr<KvPool> pool_;
  Queue queue_;
  mutable std::mutex mutex_;
  SendCounts counts_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace kvasir
