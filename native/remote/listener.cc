// A reader and a writer for each connection: a query that takes long holds up no other's answer.
#include "remote/listener.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr int kStallMs = 20000;  // between the parts of one frame
constexpr size_t kOpenMax = 4096;  // queries of a connection

}  // namespace

/** A connection: whoever finishes a query writes its answer where that waits for nothing, and its own thread writes the others. */
struct GuestDoor::Visit final : GuestEar {
  struct Open {
    uint32_t sequence;
    std::shared_ptr<GuestQuery> query;
  };

  Visit(Line& over_line, const std::atomic<bool>& when_ended) : line(over_line), ended(when_ended) {}

  Line& line;
  const std::atomic<bool>& ended;
  Bell bell;  // an answer is there, or all is over
  std::atomic<bool> over{false};
  std::mutex writing;  // over the line, which is there while `stays`
  bool stays = true;
  std::mutex mutex;  // of what follows
  std::vector<Open> open;

  bool add(uint32_t sequence, const std::shared_ptr<GuestQuery>& query) {
    std::lock_guard<std::mutex> lock(mutex);
    if (open.size() == kOpenMax) return false;
    open.push_back({sequence, query});
    return true;
  }

  /** Those that are answered and that `wants` names. */
  template <class Wants>
  std::vector<Open> take_answered(const Wants& wants) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto first = std::partition(open.begin(), open.end(), [&](const Open& one) { return one.query->is_open() || !wants(*one.query); });
    std::vector<Open> ready(first, open.end());
    open.erase(first, open.end());
    return ready;
  }

  void hear(const GuestQuery& query) override {
    if (!answer_at_once(query)) bell.ring();
  }

  bool answer_at_once(const GuestQuery& query) {
    const std::unique_lock<std::mutex> lock(writing, std::try_to_lock);
    if (!lock.owns_lock() || !stays || over || !line.has_room() || answer_letter_bytes(query) > Line::kDraftBytes) return false;
    return answer(take_answered([&](const GuestQuery& other) { return &other == &query; }));
  }

  /** Under the lock of writing. False where the connection is over. */
  bool answer(const std::vector<Open>& ready) {
    for (const Open& one : ready)
      if (!send_answer(line, *one.query, one.sequence, in_milliseconds(kStallMs), ended)) over = true;
    return !over;
  }

  /** Answers as they come. */
  void write() {
    while (!over) {
      const uint32_t seen = bell.rung();
      const std::vector<Open> ready = take_answered([](const GuestQuery&) { return true; });
      if (!ready.empty()) {
        const std::lock_guard<std::mutex> lock(writing);
        answer(ready);
      } else if (!over && !spin([&] { return bell.rung() != seen; })) {
        bell.wait(seen);
      }
    }
    line.cut();
  }

  /** Nobody waits for what is open; once it returns nobody uses the line any more. */
  void end() {
    const std::lock_guard<std::mutex> writes(writing);
    stays = false;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const Open& one : open) one.query->dropped.store(true, std::memory_order_relaxed);
    // Queries and this hold one another.
    open.clear();
  }
};

GuestDoor::GuestDoor(std::shared_ptr<Room> room, const KvLayout& layout, const HostPort& address, Way way, const HashKey& key)
    : room_(std::move(room)),
      layout_(layout),
      listener_(address, way, key, layout, [this](Line& line, const std::atomic<bool>& ended) { serve(line, ended); }) {}

void GuestDoor::serve(Line& line, const std::atomic<bool>& ended) const {
  const auto visit = std::make_shared<Visit>(line, ended);
  std::thread writer([&] { visit->write(); });
  read(visit);
  visit->over = true;
  visit->bell.ring();
  writer.join();
  visit->end();
}

void GuestDoor::read(const std::shared_ptr<Visit>& visit) const {
  for (uint32_t sequence = 1; !visit->over; sequence++) {
    const auto query = receive_query(visit->line, layout_, sequence, kStallMs, visit->ended);
    if (query == nullptr) return;
    query->ear = visit;
    query->open();
    if (!visit->add(sequence, query)) return;
    room_->post(query);
  }
}

}  // namespace kvasir
