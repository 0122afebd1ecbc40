// A reader and a writer for each connection: a query that takes long holds up no other's answer.
#include "guest_door.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "spin.hpp"

namespace kvasir {
namespace {

constexpr int kStallMs = 20000;  // between the parts of one frame
constexpr size_t kOpenMax = 4096;  // queries of a connection

}  // namespace

/** A connection, while it lasts. */
struct GuestDoor::Visit {
  struct Open {
    uint32_t sequence;
    std::shared_ptr<GuestQuery> query;
  };

  Visit(Line& over_line, const std::atomic<bool>& when_ended) : line(over_line), ended(when_ended) {}

  Line& line;
  const std::atomic<bool>& ended;
  std::shared_ptr<Bell> bell = std::make_shared<Bell>();  // an answer is there, or all is over
  std::atomic<bool> over{false};
  std::mutex mutex;  // of what follows
  std::vector<Open> open;

  bool add(uint32_t sequence, const std::shared_ptr<GuestQuery>& query) {
    std::lock_guard<std::mutex> lock(mutex);
    if (open.size() == kOpenMax) return false;
    open.push_back({sequence, query});
    return true;
  }

  std::vector<Open> take_answered() {
    std::lock_guard<std::mutex> lock(mutex);
    const auto first = std::partition(open.begin(), open.end(), [](const Open& one) { return one.query->is_open(); });
    std::vector<Open> ready(first, open.end());
    open.erase(first, open.end());
    return ready;
  }

  /** Answers as they come; once the connection is over, nobody waits for what is open. */
  void write() {
    while (!over) {
      const uint32_t seen = bell->rung();
      const std::vector<Open> ready = take_answered();
      for (const Open& one : ready)
        if (!send_answer(line, *one.query, one.sequence, in_milliseconds(kStallMs), ended)) over = true;
      if (ready.empty() && !over && !spin([&] { return bell->rung() != seen; })) bell->wait(seen);
    }
    line.cut();
    std::lock_guard<std::mutex> lock(mutex);
    for (const Open& one : open) one.query->dropped.store(true, std::memory_order_relaxed);
  }
};

GuestDoor::GuestDoor(std::shared_ptr<Room> room, const KvLayout& layout, const HostPort& address, Way way, const HashKey& key)
    : room_(std::move(room)),
      layout_(layout),
      listener_(address, way, key, layout, [this](Line& line, const std::atomic<bool>& ended) { serve(line, ended); }) {}

void GuestDoor::serve(Line& line, const std::atomic<bool>& ended) const {
  Visit visit(line, ended);
  std::thread writer([&] { visit.write(); });
  read(visit);
  visit.over = true;
  visit.bell->ring();
  writer.join();
}

void GuestDoor::read(Visit& visit) const {
  for (uint32_t sequence = 1; !visit.over; sequence++) {
    const auto query = receive_query(visit.line, layout_, sequence, kStallMs, visit.ended);
    if (query == nullptr) return;
    query->answered = visit.bell;
    query->open();
    if (!visit.add(sequence, query)) return;
    room_->post(query);
  }
}

}  // namespace kvasir
