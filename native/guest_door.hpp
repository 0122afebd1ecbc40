// Where debtors of other processes reach a guest room: their queries are read from connections, its answers written back.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "guest_frames.hpp"
#include "room.hpp"

namespace kvasir {

class GuestDoor {
 public:
  /** Throws where it cannot listen there; port 0: one that is free. */
  GuestDoor(std::shared_ptr<Room> room, const KvLayout& layout, const HostPort& address, const HashKey& key);
  ~GuestDoor();
  GuestDoor(const GuestDoor&) = delete;
  GuestDoor& operator=(const GuestDoor&) = delete;

  int port() const { return port_; }

 private:
  struct Open {
    uint32_t sequence;
    std::shared_ptr<GuestQuery> query;
  };
  struct Connection {
    Socket socket;
    std::mutex mutex;
    std::vector<Open> open;
    std::shared_ptr<Bell> bell = std::make_shared<Bell>();  // an answer is there, or all is over
    std::atomic<bool> over{false};
    std::atomic<bool> done{false};
    std::thread reader, writer;
  };

  void serve();
  void reap(bool all);
  void read(Connection& connection);
  void write(Connection& connection);

  std::shared_ptr<Room> room_;
  const KvLayout layout_;
  const HashKey key_;
  Socket listening_;
  const int port_;
  std::list<Connection> connections_;  // of the thread that accepts
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace kvasir
