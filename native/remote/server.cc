// The room's thread: takes queries, finds their pages, computes, and yields to the steps of its own instance.
#include "remote/server.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/spin.hpp"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBlockMost = 1 << 24;  // ids are places in a table
constexpr int kTurnWork = 256;       // row x range, taken in one go at least: what comes meanwhile waits for it
constexpr auto kNap = std::chrono::microseconds(500);

int64_t work_of(const GuestQuery& query) { return static_cast<int64_t>(query.rows) * query.ranges(); }

/** Whether sizes and places agree with one another and with the pool. */
bool is_sound(const GuestQuery& query, const KvPool& pool) {
  const bool same_form = query.isa == pool.isa && !(query.layout != pool.layout);
  if (!same_form || query.rows <= 0 || query.heads <= 0 || query.heads % pool.layout.kv_heads != 0 || query.nodes.empty()) return false;
  if (query.query.size() != query_bytes(query.isa, query.layout.type, query.heads, query.layout.head_dim, query.rows)) return false;
  if (!query.slopes.empty() && query.slopes.size() != static_cast<size_t>(query.heads)) return false;
  int64_t blocks = 0, end = 0;
  for (const GuestKeys& keys : query.keys) {
    if (keys.first_block < end || keys.blocks <= 0 || keys.first_block > kRangesMost * kRangePages - keys.blocks) return false;
    end = keys.first_block + keys.blocks;
    blocks += keys.blocks;
  }
  return !query.keys.empty() && blocks == static_cast<int64_t>(query.blocks.size());
}

/** The pages of a query in order of blocks, -1 between its keys; none where some are not lent. */
std::vector<int32_t> find_pages(const GuestQuery& query, const LentBlocks& lent) {
  const int first = query.keys.front().first_block;
  std::vector<int32_t> pages(static_cast<size_t>(query.keys.back().first_block + query.keys.back().blocks - first), -1);
  size_t next = 0;
  for (const GuestKeys& keys : query.keys) {
    for (int i = 0; i < keys.blocks; i++) {
      const int32_t page = lent.page(keys.loan, query.blocks[next++], query.layer);
      if (page < 0) return {};
      pages[keys.first_block - first + i] = page;
    }
  }
  for (const GuestNode& node : query.nodes) {
    const int64_t begin = int64_t{node.first} * kRangePages - first, end = begin + int64_t{node.ranges} * kRangePages;
    if (node.ranges <= 0 || begin < 0 || end > static_cast<int64_t>(pages.size())) return {};
    if (std::any_of(pages.begin() + begin, pages.begin() + end, [](int32_t page) { return page < 0; })) return {};
  }
  return pages;
}

}  // namespace

void LentBlocks::lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages, int pool_pages) {
  const size_t layers = blocks.empty() ? 0 : pages.size() / blocks.size();
  const auto refuse = [](const std::string& why) { throw std::runtime_error("Cannot lend blocks: " + why); };
  if (pages.size() != layers * blocks.size() || (layers == 0 && !blocks.empty())) {
    refuse(std::to_string(pages.size()) + " pages are not the same number for " + std::to_string(blocks.size()) + " blocks");
  }
  for (const int32_t block : blocks) {
    if (block < 0 || block >= kBlockMost) refuse("block " + std::to_string(block) + " is outside the " + std::to_string(kBlockMost) + " that can be told apart");
    const Slot* slot = find(block);
    if (slot != nullptr && !slot->pages.empty()) refuse("block " + std::to_string(block) + " is lent already: loan " + std::to_string(slot->loan));
  }
  for (const int32_t page : pages)
    if (page < 0 || page >= pool_pages) refuse("the pool has " + std::to_string(pool_pages) + " pages: " + std::to_string(page));
  for (size_t i = 0; i < blocks.size(); i++) {
    if (static_cast<size_t>(blocks[i]) >= slots_.size()) slots_.resize(static_cast<size_t>(blocks[i]) + 1);
    slots_[blocks[i]] = {loan, std::vector<int32_t>(pages.begin() + i * layers, pages.begin() + (i + 1) * layers)};
  }
}

void LentBlocks::take_back(int loan, int32_t block) {
  const Slot* slot = find(block);
  if (slot != nullptr && slot->loan == loan) slots_[block] = {};
}

int32_t LentBlocks::page(int loan, int32_t block, int layer) const {
  const Slot* slot = find(block);
  const bool lent = slot != nullptr && slot->loan == loan && layer >= 0 && static_cast<size_t>(layer) < slot->pages.size();
  return lent ? slot->pages[layer] : -1;
}

GuestRoom::GuestRoom(std::shared_ptr<Team> team, std::shared_ptr<KvPool> pool)
    : team_(std::move(team)), pool_(std::move(pool)), thread_([this] { serve(); }) {}

void GuestRoom::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_.exchange(true)) return;
  }
  bell_.ring();
  thread_.join();
  for (const auto& query : queue_) refuse(*query);
  queue_.clear();
}

void GuestRoom::lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  lent_.lend(loan, blocks, pages, pool_->pages);
}

void GuestRoom::take_back(int loan, const std::vector<int32_t>& blocks) {
  const std::unordered_set<int32_t> gone(blocks.begin(), blocks.end());
  Servings readers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const int32_t block : blocks) lent_.take_back(loan, block);
    for (const auto& serving : serving_) {
      const GuestQuery& query = serving->query();
      size_t next = 0;
      bool reads = false;
      for (const GuestKeys& keys : query.keys) {
        for (int i = 0; i < keys.blocks; i++) reads = reads || (keys.loan == loan && gone.count(query.blocks[next + i]) > 0);
        next += keys.blocks;
      }
      if (reads) readers.push_back(serving);
    }
  }
  for (const auto& serving : readers) serving->stop();
}

GuestRoomCounts GuestRoom::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

GuestRoomCounts GuestRoom::counts_of(int loan) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = counts_of_loans_.find(loan);
  return found == counts_of_loans_.end() ? GuestRoomCounts{} : found->second;
}

/** Under the lock. A query has keys of one loan. */
void GuestRoom::count(const GuestQuery& query, bool answered) {
  const int loan = query.keys.empty() ? 0 : query.keys.front().loan;
  for (GuestRoomCounts* counts : {&counts_, &counts_of_loans_[loan]}) {
    if (!answered) {
      counts->refused++;
      continue;
    }
    counts->queries++;
    counts->rows += static_cast<uint64_t>(query.rows);
    counts->bytes_in += query.bytes_out();
    counts->bytes_out += query.bytes_back();
  }
}

void GuestRoom::post(std::shared_ptr<GuestQuery> query) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closing_.load()) queue_.push_back(std::exchange(query, nullptr));
  }
  if (query != nullptr) {
    refuse(*query);
  } else {
    bell_.ring();
  }
}

void GuestRoom::refuse(GuestQuery& query) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    count(query, false);
  }
  query.end(GuestQuery::State::refused);
}

void GuestRoom::serve() {
  while (!closing_.load()) {
    const uint32_t seen = bell_.rung();
    auto queries = take_queries();
    if (queries.empty()) {
      if (!closing_.load() && !spin([&] { return bell_.rung() != seen; })) bell_.wait(seen);
      continue;
    }
    compute(admit(std::move(queries), team_->pool.size()));
  }
}

std::vector<std::shared_ptr<GuestQuery>> GuestRoom::take_queries() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::stable_sort(queue_.begin(), queue_.end(), [](const auto& a, const auto& b) { return work_of(*a) < work_of(*b); });
  std::vector<std::shared_ptr<GuestQuery>> taken;
  for (int64_t work = 0; !queue_.empty() && work < kTurnWork; queue_.pop_front()) {
    work += work_of(*queue_.front());
    taken.push_back(std::move(queue_.front()));
  }
  return taken;
}

GuestRoom::Servings GuestRoom::admit(std::vector<std::shared_ptr<GuestQuery>> queries, int threads) {
  Servings admitted;
  for (auto& query : queries) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const std::vector<int32_t> pages = is_sound(*query, *pool_) ? find_pages(*query, lent_) : std::vector<int32_t>();
      if (!pages.empty()) {
        const int first_block = query->keys.front().first_block;
        admitted.push_back(std::make_shared<GuestServing>(std::exchange(query, nullptr), *pool_, first_block, pages, threads));
        serving_.push_back(admitted.back());
      }
    }
    if (query != nullptr) refuse(*query);
  }
  workspace_bytes_ = 0;
  size_t partial_bytes = 0;
  for (const auto& serving : admitted) {
    workspace_bytes_ = std::max(workspace_bytes_, serving->pieces().workspace_bytes());
    partial_bytes += serving->pieces().partial_bytes();
  }
  workspaces_ = memory_.at_least(workspace_bytes_ * threads + partial_bytes);
  uint8_t* partials = workspaces_ + workspace_bytes_ * threads;
  for (const auto& serving : admitted) {
    serving->pieces().use_partials(partials);
    partials += serving->pieces().partial_bytes();
  }
  return admitted;
}

void GuestRoom::compute(const Servings& servings) {
  for (const auto& serving : servings) {
    for (int task = 0; task < serving->pieces().tasks(); task++) {
      while (!serving->done(task) && !serving->stopped() && !closing_.load()) {
        if (!compute_together(servings)) compute_alone(*serving, task);
      }
    }
    finish(*serving);
  }
}

/** With all threads of the team, until a step wants them; false where one has them. */
bool GuestRoom::compute_together(const Servings& servings) {
  if (team_->pool.size() == 1 || !team_->turn.try_take()) return false;
  std::vector<std::pair<GuestServing*, int>> open;
  for (const auto& serving : servings)
    for (int task = 0; task < serving->pieces().tasks() && !serving->stopped(); task++)
      if (!serving->done(task)) open.emplace_back(serving.get(), task);
  team_->pool.run(static_cast<int>(open.size()), [&](int index, int thread) {
    const auto [serving, task] = open[index];
    if (!team_->turn.wanted()) run_task(*serving, task, thread, true);
  });
  team_->turn.give_back();
  return true;
}

void GuestRoom::compute_alone(GuestServing& serving, int task) {
  if (share_.load() == 0 && team_->turn.step_runs()) {
    nap(kNap);
    return;
  }
  const auto begin = Clock::now();
  run_task(serving, task, 0, false);
  rest(Clock::now() - begin);
}

/** Lets the share pass that is not the guests' while a step of the instance's own runs. */
void GuestRoom::rest(std::chrono::nanoseconds worked) {
  const int share = std::max(1, share_.load());
  const auto end = Clock::now() + worked * (1000 - share) / share;
  while (Clock::now() < end && team_->turn.step_runs() && !closing_.load()) nap(end - Clock::now());
}

void GuestRoom::nap(std::chrono::nanoseconds most) {
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kNap, most));
  const std::chrono::nanoseconds slept = Clock::now() - begin;
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.rest_nanoseconds += static_cast<uint64_t>(slept.count());
}

void GuestRoom::run_task(GuestServing& serving, int task, int thread, bool yields) {
  const auto begin = Clock::now();
  serving.run_task(task, workspace(thread), [&] { return !(yields && team_->turn.wanted()) && !closing_.load(); });
  const std::chrono::nanoseconds spent = Clock::now() - begin;
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.nanoseconds += static_cast<uint64_t>(spent.count());
}

void GuestRoom::finish(GuestServing& serving) {
  GuestQuery& query = serving.query();
  bool whole = !serving.stopped() && !closing_.load();
  for (int task = 0; task < serving.pieces().tasks(); task++) whole = whole && serving.done(task);
  for (int merge = 0; whole && merge < serving.pieces().merges(); merge++) serving.pieces().run_merge(merge, workspace(0));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    serving_.erase(std::find_if(serving_.begin(), serving_.end(), [&](const auto& other) { return other.get() == &serving; }));
    count(query, whole);
  }
  query.end(whole ? GuestQuery::State::answered : GuestQuery::State::refused);
}

}  // namespace kvasir
