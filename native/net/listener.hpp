// Where other processes reach an instance: by tcp, and, those of this host, over shared memory. Each connection has a thread of its own.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"

namespace kvasir {

/** How processes are reached. `automatic`: over shared memory where that works, else by tcp. */
enum class Way : int { automatic = 0, tcp = 1, shared = 2 };

/** Null where nobody who knows the key and has such pages answers. */
std::unique_ptr<Line> reach(const HostPort& address, Way way, const HashKey& key, const KvLayout& layout, int patience_ms, const std::atomic<bool>& ended);

class Listener {
 public:
  /** What is done with a connection, in its thread: it is cut once this returns, which should be soon after `ended` is set. */
  using Serve = std::function<void(Line& line, const std::atomic<bool>& ended)>;

  /** Throws where it cannot listen there; port 0: one that is free. `serve` hears those alone who proved the key, and may outlive no one it refers to. */
  Listener(const HostPort& address, Way way, const HashKey& key, const KvLayout& layout, Serve serve);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  /** Connections that did not prove the key. */
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    std::thread thread;
    std::atomic<bool> over{false};
  };

  void accept_all();
  void reap(bool all);
  void greet(Socket socket, bool is_local);

  const HashKey key_;
  const KvLayout layout_;
  const Serve serve_;
  Socket listening_;
  const int port_;
  Socket local_;
  std::list<Connection> connections_;  // of the thread that accepts
  std::atomic<uint64_t> refused_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace kvasir
