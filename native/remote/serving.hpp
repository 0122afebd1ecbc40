// One query while its room answers it: which pages it reads, its tasks, and whether they are to stop.
#pragma once
#include <chrono>

#include "attention/pieces.hpp"
#include "kv/kv_pool.hpp"
#include "remote/query.hpp"

namespace kvasir {

class GuestServing {
 public:
  /** `pages` are those of the query's blocks, from its first key's block on; blocks between its keys have none. */
  GuestServing(std::shared_ptr<GuestQuery> query, KvPool& pool, int first_block, std::vector<int32_t> pages, int threads)
      : query_(std::move(query)), pages_(std::move(pages)), blocks_(pages_.size()) {
    for (size_t i = 0; i < blocks_.size(); i++) blocks_[i] = static_cast<int32_t>(i);
    const GuestQuery& asked = *query_;
    sequence_ = {0, asked.rows, asked.start, blocks_.data(), first_block};
    args_ = {asked.isa, pool.layout, pool.data(), pages_.data(), 1, 0, asked.heads, asked.scale, &sequence_, 1, asked.rows, kNoWindow, asked.softcap,
             asked.slopes.empty() ? nullptr : asked.slopes.data()};
    plan_roots(threads);
    pieces_ = std::make_unique<AttentionPieces>(args_, asked.query.data(), roots_.data(), static_cast<int>(roots_.size()));
    done_ = std::vector<std::atomic<bool>>(static_cast<size_t>(pieces_->tasks()));
  }
  GuestServing(const GuestServing&) = delete;

  GuestQuery& query() { return *query_; }
  AttentionPieces& pieces() { return *pieces_; }
  bool done(int task) const { return done_[task].load(std::memory_order_acquire); }

  /** Once it returns none of its pages is read any more. */
  void stop() {
    stopped_.store(true, std::memory_order_seq_cst);
    while (reading_.load(std::memory_order_seq_cst) > 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed) || query_->dropped.load(std::memory_order_relaxed); }

  /** Does nothing once it is stopped; `goes_on` is asked before each range of keys. */
  template <class GoesOn>
  void run_task(int task, uint8_t* workspace, const GoesOn& goes_on) {
    reading_.fetch_add(1, std::memory_order_seq_cst);
    const bool begins = !stopped_.load(std::memory_order_seq_cst);
    if (begins && pieces_->run_task(task, workspace, [&] { return !stopped() && goes_on(); })) done_[task].store(true, std::memory_order_release);
    reading_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  void plan_roots(int threads) {
    const GuestQuery& asked = *query_;
    const int tile_tokens = tile_tokens_max(asked.heads / args_.layout.kv_heads);
    const long long tiles = static_cast<long long>(asked.rows + tile_tokens - 1) / tile_tokens * args_.layout.kv_heads;
    const int most = subtree_ranges(tiles * asked.ranges(), threads);
    for (size_t node = 0; node < asked.nodes.size(); node++) {
      const Partial to = asked.partial(node);
      AttentionRoot root = {&sequence_, 0, asked.rows, {}, {const_cast<float*>(to.o), const_cast<float*>(to.max), const_cast<float*>(to.sum)}, 0};
      add_subtrees(asked.nodes[node].first, asked.nodes[node].first + asked.nodes[node].ranges, most,
                   [&](int first, int ranges) { root.pieces.push_back({first, ranges, nullptr, false}); });
      roots_.push_back(std::move(root));
    }
  }

  std::shared_ptr<GuestQuery> query_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> blocks_;
  AttentionSequence sequence_ = {};
  AttentionArgs args_ = {};
  std::vector<AttentionRoot> roots_;
  std::unique_ptr<AttentionPieces> pieces_;
  std::vector<std::atomic<bool>> done_;
  std::atomic<int> reading_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace kvasir
