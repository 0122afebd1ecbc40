// The remote attention server of a pool: a thread that answers the queries of debtors over lent pages.
#pragma once
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/backend.hpp"
#include "kv/kv_pool.hpp"
#include "remote/endpoint.hpp"
#include "remote/serving.hpp"

namespace kvasir {

/** Of all queries, or of those of one loan. */
struct RemoteAttentionServerCounts {
  uint64_t queries = 0;
  uint64_t rows = 0;
  uint64_t refused = 0;
  uint64_t nanoseconds = 0;  // spent computing, over all threads
  uint64_t throttled_nanoseconds = 0;  // spent waiting so that queries stay within their CPU share
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
};

/** The lent pages, by the creditor's block ids. */
class LentBlocks {
 public:
  /**
   * `pages` is (blocks, layers). @throws std::runtime_error if a block is already lent, or the pool has no such page
   */
  void lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages, int pool_pages);
  void take_back(int loan, int32_t block);
  /** The page of a block in a layer; -1 if it is not lent under this loan. */
  int32_t page(int loan, int32_t block, int layer) const;

 private:
  struct Slot {
    int loan = 0;
    std::vector<int32_t> pages;  // (layers); empty if not lent
  };
  const Slot* find(int32_t block) const { return block >= 0 && static_cast<size_t>(block) < slots_.size() ? &slots_[block] : nullptr; }

  std::vector<Slot> slots_;
};

/**
 * Computes with all threads of the backend while no step runs on them, else with its own thread alone. In the second
 * case each loan uses at most its share of one core's time, except while the step waits for remote answers of its own.
 * A loan that has used its share rests, and the queries of other loans continue. Small queries go first, so that a
 * decode row does not wait behind a prompt.
 */
class RemoteAttentionServer final : public RemoteAttentionEndpoint {
 public:
  RemoteAttentionServer(std::shared_ptr<Backend> backend, std::shared_ptr<KvPool> pool);
  ~RemoteAttentionServer() override { close(); }
  RemoteAttentionServer(const RemoteAttentionServer&) = delete;
  RemoteAttentionServer& operator=(const RemoteAttentionServer&) = delete;

  void lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages);
  /** No query reads the pages of these blocks after it returns. */
  void take_back(int loan, const std::vector<int32_t>& blocks);
  void set_cpu_share(int loan, int thousandths);
  RemoteAttentionServerCounts counts() const;
  RemoteAttentionServerCounts counts_of(int loan) const;
  const KvLayout& layout() const { return pool_->layout; }
  void post(std::shared_ptr<RemoteQuery> query) override;
  /** Answers or refuses a query in the calling thread, with threads that the caller holds and its workspace. */
  void answer_with(ThreadPool& threads, GrowingMemory& memory, std::shared_ptr<RemoteQuery> query);
  void close() override;

 private:
  using ServedQueries = std::vector<std::shared_ptr<ServedQuery>>;
  using Clock = std::chrono::steady_clock;

  struct Loan {
    RemoteAttentionServerCounts counts;
    int cpu_share = 1000;  // in thousandths
    Clock::time_point rests_until{};
  };

  void serve();
  std::vector<std::shared_ptr<RemoteQuery>> take_queries(const ServedQueries& open);
  void admit(std::vector<std::shared_ptr<RemoteQuery>> queries, ServedQueries& open);
  std::shared_ptr<ServedQuery> activate(std::shared_ptr<RemoteQuery> query, int threads);
  void send_pages(RemoteQuery& query);
  void compute(ServedQueries& open);
  bool compute_together(const ServedQueries& open);
  bool compute_alone(const ServedQueries& open);
  ServedQuery* first_awake(const ServedQueries& open);
  void run_task(ServedQuery& served, int task, int thread, bool yields);
  void finish(ServedQuery& served, uint8_t* workspace, bool counts);
  void refuse(RemoteQuery& query);
  void count(const RemoteQuery& query, bool answered);
  Clock::time_point rest_end(int loan);
  void rest(int loan, std::chrono::nanoseconds worked);
  void pause(const ServedQueries& open);
  uint8_t* workspace(int thread) const { return workspaces_ + workspace_bytes_ * thread; }

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<KvPool> pool_;
  std::atomic<bool> closing_{false};
  EventCount event_;  // a query was posted

  mutable std::mutex mutex_;  // guards the next five
  LentBlocks lent_;
  std::deque<std::shared_ptr<RemoteQuery>> queue_;
  ServedQueries active_;
  RemoteAttentionServerCounts counts_;
  std::unordered_map<int, Loan> loans_;

  // Used by the server's thread alone.
  GrowingMemory workspace_memory_;
  uint8_t* workspaces_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::thread thread_;
};

}  // namespace kvasir
