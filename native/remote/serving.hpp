// One query over pages at hand: the pages it reads, its tasks, and its stop flag.
#pragma once
#include <algorithm>
#include <chrono>

#include "attention/pieces.hpp"
#include "remote/query.hpp"

namespace kvasir {

/**
 * The pages of a query in block order, -1 between its extents of keys; empty if `page_of`(loan, index of the block in
 * the query) is negative for any.
 */
template <class PageOf>
std::vector<int32_t> find_pages(const RemoteQuery& query, const PageOf& page_of) {
  const int first = query.keys.front().first_block;
  std::vector<int32_t> pages(static_cast<size_t>(query.keys.back().first_block + query.keys.back().blocks - first), -1);
  size_t next = 0;
  for (const QueryKeys& keys : query.keys) {
    for (int i = 0; i < keys.blocks; i++) {
      const int32_t page = page_of(keys.loan, next++);
      if (page < 0) return {};
      pages[keys.first_block - first + i] = page;
    }
  }
  for (const QueryNode& node : query.nodes) {
    const int64_t begin = int64_t{node.first} * kRangePages - first, end = begin + int64_t{node.ranges} * kRangePages;
    if (node.ranges <= 0 || begin < 0 || end > static_cast<int64_t>(pages.size())) return {};
    if (std::any_of(pages.begin() + begin, pages.begin() + end, [](int32_t page) { return page < 0; })) return {};
  }
  return pages;
}

class ServedQuery {
 public:
  /** `pages` index `data`: those of the query's blocks from its first block on, -1 between its extents of keys. */
  ServedQuery(std::shared_ptr<RemoteQuery> query, uint8_t* data, int first_block, std::vector<int32_t> pages, int threads)
      : query_(std::move(query)), pages_(std::move(pages)), blocks_(pages_.size()) {
    for (size_t i = 0; i < blocks_.size(); i++) blocks_[i] = static_cast<int32_t>(i);
    const RemoteQuery& request = *query_;
    sequence_ = {0, request.rows, request.start, blocks_.data(), first_block};
    args_ = {request.isa, request.layout, data, pages_.data(), 1, 0, request.heads, request.scale, &sequence_, 1, request.rows, kNoWindow, request.softcap,
             request.slopes.empty() ? nullptr : request.slopes.data()};
    plan_roots(threads);
    pieces_ = std::make_unique<AttentionPieces>(args_, request.query.data(), roots_.data(), static_cast<int>(roots_.size()));
    pieces_->use_partials(partials_.at_least(pieces_->partial_bytes()));
    done_ = std::vector<std::atomic<bool>>(static_cast<size_t>(pieces_->tasks()));
  }
  ServedQuery(const ServedQuery&) = delete;

  RemoteQuery& query() { return *query_; }
  AttentionPieces& pieces() { return *pieces_; }
  bool done(int task) const { return done_[task].load(std::memory_order_acquire); }
  /** The first task that is not done; -1: all are. */
  int next_task() const {
    for (size_t task = 0; task < done_.size(); task++)
      if (!done(static_cast<int>(task))) return static_cast<int>(task);
    return -1;
  }

  /** None of its pages is read after it returns. */
  void stop() {
    stopped_.store(true, std::memory_order_seq_cst);
    while (reading_.load(std::memory_order_seq_cst) > 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed) || query_->dropped.load(std::memory_order_relaxed); }

  /** Does nothing once the query is stopped. `keep_going` is called before each range of keys; false ends the task. */
  template <class KeepGoing>
  void run_task(int task, uint8_t* workspace, const KeepGoing& keep_going) {
    reading_.fetch_add(1, std::memory_order_seq_cst);
    const bool begins = !stopped_.load(std::memory_order_seq_cst);
    if (begins && pieces_->run_task(task, workspace, [&] { return !stopped() && keep_going(); })) done_[task].store(true, std::memory_order_release);
    reading_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  void plan_roots(int threads) {
    const RemoteQuery& request = *query_;
    const int tile_tokens = tile_tokens_max(request.heads / args_.layout.kv_heads);
    const long long tiles = static_cast<long long>(request.rows + tile_tokens - 1) / tile_tokens * args_.layout.kv_heads;
    const int most = subtree_ranges(tiles * request.ranges(), threads);
    for (size_t node = 0; node < request.nodes.size(); node++) {
      const Partial to = request.partial(node);
      AttentionRoot root = {&sequence_, 0, request.rows, {}, {const_cast<float*>(to.o), const_cast<float*>(to.max), const_cast<float*>(to.sum)}, 0};
      add_subtrees(request.nodes[node].first, request.nodes[node].first + request.nodes[node].ranges, most,
                   [&](int first, int ranges) { root.pieces.push_back({first, ranges, nullptr, false}); });
      roots_.push_back(std::move(root));
    }
  }

  std::shared_ptr<RemoteQuery> query_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> blocks_;
  AttentionSequence sequence_ = {};
  AttentionArgs args_ = {};
  std::vector<AttentionRoot> roots_;
  std::unique_ptr<AttentionPieces> pieces_;
  GrowingMemory partials_;
  std::vector<std::atomic<bool>> done_;
  std::atomic<int> reading_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace kvasir
