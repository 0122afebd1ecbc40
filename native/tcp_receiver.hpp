// The end of an instance's connections where pages arrive: read from sockets straight into the landings that were promised to senders.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "landing.hpp"
#include "tcp_frames.hpp"

namespace kvasir {

struct ReceiverCounts {
  uint64_t pages = 0;    // that have landed
  uint64_t bytes = 0;
  uint64_t late = 0;     // frames to landings that are closed or never were, or whose stream was stopped on the way
  uint64_t refused = 0;  // connections that did not prove the key
  uint64_t broken = 0;   // connections cut because of what came over them
};

/** A thread for each connection, since a landing's pages are written by one reader. */
class TcpReceiver {
 public:
  /** Throws where it cannot listen there. */
  TcpReceiver(std::shared_ptr<KvPool> pool, const HostPort& address, const HashKey& key);
  ~TcpReceiver();
  TcpReceiver(const TcpReceiver&) = delete;
  TcpReceiver& operator=(const TcpReceiver&) = delete;

  int port() const { return port_; }
  /** Lets senders that name this key write to the landing, until it is closed. */
  uint64_t admit(const std::shared_ptr<Landing>& landing);
  ReceiverCounts counts() const;

 private:
  struct Admitted {
    std::weak_ptr<Landing> landing;
    uint64_t key;
  };
  struct Connection {
    Socket socket;
    std::thread thread;
    std::atomic<bool> over{false};
  };
  enum class Heard { landed, late, left, broken };

  void serve();
  void reap(bool all);
  void hear(Connection& connection);
  Heard hear_frame(const Socket& socket, uint32_t sequence, std::vector<uint32_t>& places);
  bool is_sane(const FrameHeader& header, uint32_t sequence) const;
  Heard receive_pages(const Socket& socket, Landing* landing, const FrameHeader& header, const std::vector<uint32_t>& places);
  int64_t receive_into(const Socket& socket, const Landing& landing, const std::vector<uint32_t>& places, size_t done) const;
  std::shared_ptr<Landing> find(const FrameHeader& header);
  void count(Heard heard, size_t pages);

  std::shared_ptr<KvPool> pool_;
  const HashKey key_;
  const size_t page_bytes_;
  Socket listening_;
  const int port_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, Admitted> admitted_;
  ReceiverCounts counts_;
  std::list<Connection> connections_;  // the thread's that accepts
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace kvasir
