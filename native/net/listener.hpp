// Accepting connections of other processes, over TCP or RDMA and from processes of this host over shared memory, and
// opening them.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "net/handshake.hpp"
#include "net/socket.hpp"
#include "rdma/device.hpp"

namespace kvasir {

/** Connects to a listener. Null if none answers that has the same key and page layout. */
std::unique_ptr<Connection> open_connection(const HostPort& address, Transport transport, const HashKey& key, const KvLayout& layout, int timeout_ms, const std::atomic<bool>& ended);

class Listener {
 public:
  /**
   * Handles one connection in a thread of its own. It must return soon after `ended` is set; the connection is shut
   * down then.
   */
  using Serve = std::function<void(Connection& connection, const std::atomic<bool>& ended)>;

  /**
   * Port 0 chooses a free port. `serve` receives only connections that have proved the key; all that it refers to must
   * outlive the listener. @throws std::runtime_error if the address cannot be bound
   */
  Listener(const HostPort& address, Transport transport, const HashKey& key, const KvLayout& layout, Serve serve);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  /** Connections that did not prove the key. */
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Session {
    std::thread thread;
    std::atomic<bool> proven{false};  // the peer has proved the key
    std::atomic<bool> over{false};
  };

  void accept_all();
  void join_finished(bool all);
  bool has_room() const;
  void serve_session(Session& session, Socket socket, bool is_local);
  void handle(Session& session, Socket socket, bool is_local);

  const HashKey key_;
  const KvLayout layout_;
  const Serve serve_;
  const std::shared_ptr<RdmaDevice> device_;  // null: connections over RDMA are not accepted
  Socket listening_;
  const int port_;
  Socket local_;
  std::list<Session> sessions_;  // used by the accepting thread alone
  std::atomic<uint64_t> refused_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace kvasir
