// Where debtors of other processes reach a guest room: their queries are read from connections, its answers written back.
#pragma once
#include <memory>

#include "net/listener.hpp"
#include "remote/endpoint.hpp"
#include "remote/query_frames.hpp"

namespace kvasir {

class GuestDoor {
 public:
  /** Throws where it cannot listen there; port 0: one that is free. */
  GuestDoor(std::shared_ptr<Room> room, const KvLayout& layout, const HostPort& address, Way way, const HashKey& key);
  GuestDoor(const GuestDoor&) = delete;
  GuestDoor& operator=(const GuestDoor&) = delete;

  int port() const { return listener_.port(); }

 private:
  struct Visit;

  void serve(Line& line, const std::atomic<bool>& ended) const;
  void read(const std::shared_ptr<Visit>& visit) const;

  std::shared_ptr<Room> room_;
  const KvLayout layout_;
  Listener listener_;
};

}  // namespace kvasir
