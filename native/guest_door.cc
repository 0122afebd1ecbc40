// A reader and a writer for each connection: a query that takes long holds up no other's answer.
#include "guest_door.hpp"

#include <algorithm>

#include "spin.hpp"

namespace kvasir {
namespace {

constexpr int kGreetMs = 5000;
constexpr int kStallMs = 20000;  // between the parts of one frame
constexpr size_t kConnectionsMax = 256;
constexpr size_t kOpenMax = 4096;  // queries of a connection

}  // namespace

GuestDoor::GuestDoor(std::shared_ptr<Room> room, const KvLayout& layout, const HostPort& address, const HashKey& key)
    : room_(std::move(room)), layout_(layout), key_(key), listening_(listen_at(address)), port_(port_of(listening_)), thread_([this] { serve(); }) {}

GuestDoor::~GuestDoor() {
  ended_ = true;
  thread_.join();
  reap(true);
}

void GuestDoor::serve() {
  while (!ended_) {
    if (!listening_.await_readable(kNever, ended_)) continue;
    reap(false);
    Socket socket = accept_from(listening_);
    // Those who are too many, or came while no descriptor is free, try again.
    if (!socket.is_open() || connections_.size() >= kConnectionsMax) continue;
    connections_.emplace_back();
    Connection& connection = connections_.back();
    connection.socket = std::move(socket);
    connection.writer = std::thread([this, &connection] { write(connection); });
    connection.reader = std::thread([this, &connection] { read(connection); });
  }
}

void GuestDoor::reap(bool all) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    if (!all && !at->done) {
      ++at;
      continue;
    }
    at->socket.cut();
    at->reader.join();
    at->writer.join();
    at = connections_.erase(at);
  }
}

void GuestDoor::read(Connection& connection) {
  bool on = greet_as_receiver(connection.socket, key_, layout_, in_milliseconds(kGreetMs), ended_) == Greeting::done;
  for (uint32_t sequence = 1; on && !connection.over; sequence++) {
    const auto query = receive_query(connection.socket, layout_, sequence, kStallMs, ended_);
    if (query == nullptr) break;
    query->answered = connection.bell;
    query->open();
    {
      std::lock_guard<std::mutex> lock(connection.mutex);
      on = connection.open.size() < kOpenMax;
      if (on) connection.open.push_back({sequence, query});
    }
    if (on) room_->post(query);
  }
  connection.over = true;
  connection.bell->ring();
}

/** Answers as they come; once the connection is over, nobody waits for what is open. */
void GuestDoor::write(Connection& connection) {
  while (!connection.over) {
    const uint32_t seen = connection.bell->rung();
    std::vector<Open> ready;
    {
      std::lock_guard<std::mutex> lock(connection.mutex);
      const auto first = std::partition(connection.open.begin(), connection.open.end(), [](const Open& open) { return open.query->is_open(); });
      ready.assign(first, connection.open.end());
      connection.open.erase(first, connection.open.end());
    }
    for (const Open& open : ready)
      if (!send_answer(connection.socket, *open.query, open.sequence, in_milliseconds(kStallMs), ended_)) connection.over = true;
    if (ready.empty() && !connection.over && !spin([&] { return connection.bell->rung() != seen; })) connection.bell->wait(seen);
  }
  connection.socket.cut();
  std::lock_guard<std::mutex> lock(connection.mutex);
  for (const Open& open : connection.open) open.query->dropped.store(true, std::memory_order_relaxed);
  connection.done = true;
}

}  // namespace kvasir
