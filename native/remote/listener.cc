// One reading and one writing thread for each connection, so that a long query does not delay the answers of others.
#include "remote/listener.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr size_t kOpenMax = 4096;  // open queries of a connection
/** Answers of the open queries of a connection, unless one is open alone: a peer may state large ones in few bytes. */
constexpr size_t kOpenAnswerBytesMost = kAnswerBytesMost;
constexpr auto kOverPoll = std::chrono::milliseconds(100);

}  // namespace

/**
 * One connection. The thread that ends a query writes its answer if that does not block; the session's own thread
 * writes the others.
 */
struct RemoteAttentionListener::Session final : QueryObserver {
  struct Open {
    uint32_t sequence;
    std::shared_ptr<RemoteQuery> query;
  };

  Session(Connection& over_connection, const std::atomic<bool>& when_ended) : connection(over_connection), ended(when_ended) {}

  Connection& connection;
  const std::atomic<bool>& ended;
  EventCount event;  // an answer is ready, or the session is over
  std::atomic<bool> over{false};
  std::mutex writing;  // guards writes to the connection, which is valid while `connected`
  bool connected = true;
  std::mutex mutex;  // guards `open` and `open_bytes`
  std::vector<Open> open;
  size_t open_bytes = 0;  // of the answers of `open`
  EventCount freed;       // `open_bytes` has fallen

  /** The reading thread waits until the open queries leave memory for this answer. False if the session is over. */
  bool await_memory(size_t answer_bytes) {
    while (!over && !ended) {
      const uint32_t seen = freed.epoch();
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (open.empty() || open_bytes + answer_bytes <= kOpenAnswerBytesMost) return true;
      }
      freed.wait_for(seen, kOverPoll);
    }
    return false;
  }

  bool add(uint32_t sequence, const std::shared_ptr<RemoteQuery>& query) {
    std::lock_guard<std::mutex> lock(mutex);
    if (open.size() == kOpenMax) return false;
    open.push_back({sequence, query});
    open_bytes += query->bytes_back();
    return true;
  }

  /** Removes and returns the ended queries that `matches` accepts. */
  template <class Matches>
  std::vector<Open> take_answered(const Matches& matches) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto first = std::partition(open.begin(), open.end(), [&](const Open& one) { return one.query->is_open() || !matches(*one.query); });
    std::vector<Open> ready(first, open.end());
    open.erase(first, open.end());
    for (const Open& one : ready) open_bytes -= one.query->bytes_back();
    if (!ready.empty()) freed.notify();
    return ready;
  }

  void query_ended(const RemoteQuery& query) override {
    if (!answer_at_once(query)) event.notify();
  }

  bool answer_at_once(const RemoteQuery& query) {
    const std::unique_lock<std::mutex> lock(writing, std::try_to_lock);
    if (!lock.owns_lock() || !connected || over || !connection.can_reserve() || answer_message_bytes(query) > Connection::kReserveBytes) return false;
    return answer(take_answered([&](const RemoteQuery& other) { return &other == &query; }));
  }

  /** Requires the lock `writing`. False if the session is over. */
  bool answer(const std::vector<Open>& ready) {
    for (const Open& one : ready)
      if (!send_answer(connection, *one.query, one.sequence, in_milliseconds(kStallMs), ended)) over = true;
    return !over;
  }

  /** The writing thread. */
  void write() {
    while (!over) {
      const uint32_t seen = event.epoch();
      const std::vector<Open> ready = take_answered([](const RemoteQuery&) { return true; });
      if (!ready.empty()) {
        const std::lock_guard<std::mutex> lock(writing);
        answer(ready);
      } else if (!over && !spin([&] { return event.epoch() != seen; })) {
        event.wait(seen);
      }
    }
    connection.shut_down();
  }

  /** Drops the open queries. No thread uses the connection after it returns. */
  void end() {
    const std::lock_guard<std::mutex> writes(writing);
    connected = false;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const Open& one : open) one.query->dropped.store(true, std::memory_order_relaxed);
    // Queries and their session own each other.
    open.clear();
  }
};

RemoteAttentionListener::RemoteAttentionListener(std::shared_ptr<RemoteAttentionEndpoint> server, const KvLayout& layout, const HostPort& address, Transport transport, const HashKey& key)
    : server_(std::move(server)),
      layout_(layout),
      listener_(address, transport, key, layout, [this](Connection& connection, const std::atomic<bool>& ended) { serve(connection, ended); }) {}

void RemoteAttentionListener::serve(Connection& connection, const std::atomic<bool>& ended) const {
  const auto session = std::make_shared<Session>(connection, ended);
  std::thread writer([&] { session->write(); });
  try {
    read(session);
  } catch (const std::exception&) {
    // No memory is left for a query: its connection ends, and the writing thread must be joined.
  }
  session->over = true;
  session->event.notify();
  writer.join();
  session->end();
}

void RemoteAttentionListener::read(const std::shared_ptr<Session>& session) const {
  for (uint32_t sequence = 1; !session->over; sequence++) {
    const auto query = receive_query(session->connection, layout_, sequence, kStallMs, session->ended);
    if (query == nullptr || !session->await_memory(query->bytes_back())) return;
    query->observer = session;
    query->open();
    if (!session->add(sequence, query)) return;
    server_->post(query);
  }
}

}  // namespace kvasir
