// The receiving end of page transfers between processes: reads frames from connections straight into receive buffers.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kv/receive_buffer.hpp"
#include "net/listener.hpp"
#include "transfer/buffered_reader.hpp"
#include "transfer/page_frames.hpp"
#include "transfer/pages_checksum.hpp"

namespace kvasir {

struct ReceiverCounts {
  uint64_t pages = 0;    // received
  uint64_t bytes = 0;
  uint64_t late = 0;     // frames to closed or unknown buffers, or stopped while they were sent
  uint64_t refused = 0;  // connections that did not prove the key
  uint64_t broken = 0;   // connections closed because of invalid frames
};

/** One thread reads each connection, and a buffer's pages are written by that thread. */
class PageReceiver {
 public:
  /** @throws std::runtime_error if the address cannot be bound */
  PageReceiver(std::shared_ptr<KvPool> pool, const HostPort& address, Transport transport, const HashKey& key);
  PageReceiver(const PageReceiver&) = delete;
  PageReceiver& operator=(const PageReceiver&) = delete;

  int port() const { return listener_.port(); }
  /** Returns the key with which senders may write to the buffer until it is closed. */
  uint64_t register_buffer(const std::shared_ptr<ReceiveBuffer>& buffer);
  ReceiverCounts counts() const;

 private:
  struct Registration {
    std::weak_ptr<ReceiveBuffer> buffer;
    uint64_t key;
  };
  enum class FrameOutcome { received, late, closed, broken };
  struct Frame {
    FrameHeader header;
    std::vector<uint32_t> slots;
  };

  void serve(Connection& connection, const std::atomic<bool>& ended);
  FrameOutcome receive_frame(BufferedReader& reader, uint32_t sequence, Frame& frame, const std::atomic<bool>& ended);
  bool is_valid(const FrameHeader& header, uint32_t sequence) const;
  FrameOutcome receive_pages(BufferedReader& reader, ReceiveBuffer* buffer, const Frame& frame, const std::atomic<bool>& ended);
  int64_t receive_into(BufferedReader& reader, const ReceiveBuffer& buffer, const Frame& frame, size_t done) const;
  size_t copy_arrived(const Connection& connection, const ReceiveBuffer& buffer, const Frame& frame, size_t done, PagesChecksum& sum) const;
  std::shared_ptr<ReceiveBuffer> find(const FrameHeader& header);
  void count(FrameOutcome outcome, size_t pages);

  std::shared_ptr<KvPool> pool_;
  const size_t page_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, Registration> registered_;
  ReceiverCounts counts_;
  Listener listener_;
};

}  // namespace kvasir
