// Sends pages between pools of one process: a thread copies them to receive buffers, layer by layer as a step computes
// them.
#pragma once
#include <thread>

#include "kv/receive_buffer.hpp"
#include "transfer/send_queue.hpp"

namespace kvasir {

struct SendCounts {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t early_bytes = 0;  // of them, sent while a step ran over the pool, so hidden behind computation
  uint64_t nanoseconds = 0;  // spent copying, or writing to sockets
  uint64_t streams = 0;      // streams begun
  uint64_t first_pages = 0;  // sum over streams of the pages that were ready when the first one was sent

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
 * Pages of one receive buffer are sent in the order of `send`, so that a partially filled page that is sent again
 * arrives in its last state. Receive buffers take turns: one without ready layers does not delay the others.
 */
class LocalPageSender {
 public:
  explicit LocalPageSender(std::shared_ptr<KvPool> pool);
  ~LocalPageSender();
  LocalPageSender(const LocalPageSender&) = delete;
  LocalPageSender& operator=(const LocalPageSender&) = delete;

  /**
   * With `last` the buffer completes after these pages. @throws std::runtime_error if a page or slot does not exist, or
   * page layouts differ
   */
  void send(const std::shared_ptr<ReceiveBuffer>& buffer, const std::vector<PageDescriptor>& descriptors, bool last);
  /** Drops the unsent pages of this buffer. None of its pages is read after it returns. */
  void stop(int buffer);
  /** Queued and unfinished pages of this buffer, which may still be read. */
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
