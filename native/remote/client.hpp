// A client of a remote attention server in another process: queries leave over one connection, answers return in any
// order.
#pragma once
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "net/listener.hpp"
#include "remote/endpoint.hpp"
#include "remote/query_frames.hpp"

namespace kvasir {

/** Connects on the first query. When the connection ends its open queries are refused; the next query reconnects. */
class RemoteAttentionClient final : public RemoteAttentionEndpoint {
 public:
  RemoteAttentionClient(const KvLayout& layout, HostPort address, Transport transport, const HashKey& key);
  ~RemoteAttentionClient() override { close(); }
  RemoteAttentionClient(const RemoteAttentionClient&) = delete;
  RemoteAttentionClient& operator=(const RemoteAttentionClient&) = delete;

  void post(std::shared_ptr<RemoteQuery> query) override;
  void close() override;

 private:
  void serve();
  bool connect();
  void disconnect();
  bool send_next();
  bool send_at_once(const std::shared_ptr<RemoteQuery>& query);
  void receive_answers();
  void refuse_all();

  const KvLayout layout_;
  const HostPort address_;
  const Transport transport_;
  const HashKey key_;
  EventCount event_;
  std::mutex mutex_;  // guards the next three
  std::deque<std::shared_ptr<RemoteQuery>> queue_;
  std::unordered_map<uint32_t, std::shared_ptr<RemoteQuery>> sent_;  // without an answer, by sequence number
  bool closed_ = false;

  std::mutex sending_;  // held while a query is read and sent; guards the next two
  std::unique_ptr<Connection> connection_;
  uint32_t sequence_ = 0;
  std::atomic<bool> broken_{false};
  std::atomic<bool> ended_{false};
  std::thread answer_thread_;
  std::thread thread_;
};

}  // namespace kvasir
