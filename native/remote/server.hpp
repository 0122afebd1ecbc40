// The guest room of a pool: a thread that answers the queries of debtors over lent pages.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/thread_pool.hpp"
#include "remote/endpoint.hpp"
#include "remote/serving.hpp"

namespace kvasir {

struct GuestRoomCounts {
  uint64_t queries = 0;
  uint64_t rows = 0;
  uint64_t refused = 0;
  uint64_t nanoseconds = 0;  // of computing, over all threads
  uint64_t rest_nanoseconds = 0;  // that what was asked was held up, so that guests keep to their share
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
};

/** Which pages are lent, by the creditor's block ids. */
class LentBlocks {
 public:
  /** `pages` is (blocks, layers). Throws where a block is lent already, or the pool has no such page. */
  void lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages, int pool_pages);
  void take_back(int loan, int32_t block);
  /** Page of a block in a layer; -1 where it is not lent as this loan. */
  int32_t page(int loan, int32_t block, int layer) const;

 private:
  struct Slot {
    int loan = 0;
    std::vector<int32_t> pages;  // (layers); empty: not lent
  };
  const Slot* find(int32_t block) const { return block >= 0 && static_cast<size_t>(block) < slots_.size() ? &slots_[block] : nullptr; }

  std::vector<Slot> slots_;
};

/**
 * Computes with the team's threads while no step runs on them, else alone: then for no more than its share of a core's time, unless the step waits
 * for guests of its own. Small queries go first: a row that decodes does not wait behind a prompt.
 */
class GuestRoom final : public Room {
 public:
  GuestRoom(std::shared_ptr<Team> team, std::shared_ptr<KvPool> pool);
  ~GuestRoom() override { close(); }
  GuestRoom(const GuestRoom&) = delete;
  GuestRoom& operator=(const GuestRoom&) = delete;

  void lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages);
  /** Once it returns no guest work touches the pages of these blocks. */
  void take_back(int loan, const std::vector<int32_t>& blocks);
  void set_share(int thousandths) { share_.store(thousandths, std::memory_order_relaxed); }
  GuestRoomCounts counts() const;
  /** Of the queries of one loan, but for the time. */
  GuestRoomCounts counts_of(int loan) const;
  const KvLayout& layout() const { return pool_->layout; }
  void post(std::shared_ptr<GuestQuery> query) override;
  void close() override;

 private:
  using Servings = std::vector<std::shared_ptr<GuestServing>>;

  void serve();
  std::vector<std::shared_ptr<GuestQuery>> take_queries();
  /** Those whose blocks are all lent; the others are refused. */
  Servings admit(std::vector<std::shared_ptr<GuestQuery>> queries, int threads);
  void compute(const Servings& servings);
  bool compute_together(const Servings& servings);
  void compute_alone(GuestServing& serving, int task);
  void run_task(GuestServing& serving, int task, int thread, bool yields);
  void finish(GuestServing& serving);
  void refuse(GuestQuery& query);
  void count(const GuestQuery& query, bool answered);
  void rest(std::chrono::nanoseconds worked);
  void nap(std::chrono::nanoseconds most);
  uint8_t* workspace(int thread) const { return workspaces_ + workspace_bytes_ * thread; }

  std::shared_ptr<Team> team_;
  std::shared_ptr<KvPool> pool_;
  std::atomic<int> share_{1000};
  std::atomic<bool> closing_{false};
  Bell bell_;  // something is asked

  mutable std::mutex mutex_;  // of what follows
  LentBlocks lent_;
  std::deque<std::shared_ptr<GuestQuery>> queue_;
  Servings serving_;
  GuestRoomCounts counts_;
  std::unordered_map<int, GuestRoomCounts> counts_of_loans_;

  // Of the room's thread.
  GrowingMemory memory_;
  uint8_t* workspaces_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::thread thread_;
};

}  // namespace kvasir
