// A guest room of another process, as a debtor sees it: queries leave over one connection, answers come back in any order.
#pragma once
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "net/listener.hpp"
#include "remote/endpoint.hpp"
#include "remote/query_frames.hpp"

namespace kvasir {

/** Connects when something is asked. What is open when the connection ends is refused; the next query makes a new one. */
class FarRoom final : public Room {
 public:
  FarRoom(const KvLayout& layout, HostPort address, Way way, const HashKey& key);
  ~FarRoom() override { close(); }
  FarRoom(const FarRoom&) = delete;
  FarRoom& operator=(const FarRoom&) = delete;

  void post(std::shared_ptr<GuestQuery> query) override;
  void close() override;

 private:
  void serve();
  bool connect();
  void disconnect();
  bool send_next();
  bool send_at_once(const std::shared_ptr<GuestQuery>& query);
  void hear();
  void refuse_all();

  const KvLayout layout_;
  const HostPort address_;
  const Way way_;
  const HashKey key_;
  Bell bell_;
  std::mutex mutex_;  // of what is open
  std::deque<std::shared_ptr<GuestQuery>> waiting_;
  std::unordered_map<uint32_t, std::shared_ptr<GuestQuery>> asked_;  // by sequence
  bool closed_ = false;

  std::mutex sending_;  // a query, which is read meanwhile, over the line
  std::unique_ptr<Line> line_;
  uint32_t sequence_ = 0;
  std::atomic<bool> broken_{false};
  std::atomic<bool> ended_{false};
  std::thread ears_;
  std::thread thread_;
};

}  // namespace kvasir
