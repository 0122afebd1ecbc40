// The end of an instance's connections where pages arrive: read from sockets straight into the landings that were promised to senders.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kv/receive_buffer.hpp"
#include "net/listener.hpp"
#include "transfer/frame_reader.hpp"
#include "transfer/page_frames.hpp"
#include "transfer/pages_checksum.hpp"

namespace kvasir {

struct ReceiverCounts {
  uint64_t pages = 0;    // that have landed
  uint64_t bytes = 0;
  uint64_t late = 0;     // frames to landings that are closed or never were, or whose stream was stopped on the way
  uint64_t refused = 0;  // connections that did not prove the key
  uint64_t broken = 0;   // connections cut because of what came over them
};

/** Each connection is read by a thread of its own, and a landing's pages are written by that one. */
class PageReceiver {
 public:
  /** Throws where it cannot listen there. */
  PageReceiver(std::shared_ptr<KvPool> pool, const HostPort& address, Way way, const HashKey& key);
  PageReceiver(const PageReceiver&) = delete;
  PageReceiver& operator=(const PageReceiver&) = delete;

  int port() const { return listener_.port(); }
  /** Lets senders that name this key write to the landing, until it is closed. */
  uint64_t admit(const std::shared_ptr<Landing>& landing);
  ReceiverCounts counts() const;

 private:
  struct Admitted {
    std::weak_ptr<Landing> landing;
    uint64_t key;
  };
  enum class Heard { landed, late, left, broken };
  struct Frame {
    FrameHeader header;
    std::vector<uint32_t> places;
  };

  void hear(Line& line, const std::atomic<bool>& ended);
  Heard hear_frame(Inbox& inbox, uint32_t sequence, Frame& frame, const std::atomic<bool>& ended);
  bool is_sane(const FrameHeader& header, uint32_t sequence) const;
  Heard receive_pages(Inbox& inbox, Landing* landing, const Frame& frame, const std::atomic<bool>& ended);
  int64_t receive_into(Inbox& inbox, const Landing& landing, const Frame& frame, size_t done) const;
  size_t copy_arrived(const Line& line, const Landing& landing, const Frame& frame, size_t done, PagesChecksum& sum) const;
  std::shared_ptr<Landing> find(const FrameHeader& header);
  void count(Heard heard, size_t pages);

  std::shared_ptr<KvPool> pool_;
  const size_t page_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, Admitted> admitted_;
  ReceiverCounts counts_;
  Listener listener_;
};

}  // namespace kvasir
