// The server's thread: takes queries, finds their pages, computes, and yields to the steps of its instance.
#include "remote/server.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr int kBlockMost = 1 << 24;  // block ids index a table
constexpr int kBatchWork = 256;       // rows x ranges of open queries: the others wait
constexpr auto kPause = std::chrono::microseconds(500);

int64_t work_of(const RemoteQuery& query) { return static_cast<int64_t>(query.rows) * query.ranges(); }

/** A query has keys of one loan. */
int loan_of(const RemoteQuery& query) { return query.keys.empty() ? 0 : query.keys.front().loan; }

/** True if the query's sizes and block ranges agree with each other and with the pool. */
bool is_valid(const RemoteQuery& query, const KvPool& pool) {
  const bool same_form = query.isa == pool.isa && !(query.layout != pool.layout);
  if (!same_form || query.rows <= 0 || query.heads <= 0 || query.heads % pool.layout.kv_heads != 0) return false;
  if (query.query.size() != query_bytes(query.isa, query.layout.type, query.heads, query.layout.head_dim, query.rows)) return false;
  if (!query.slopes.empty() && query.slopes.size() != static_cast<size_t>(query.heads)) return false;
  int64_t blocks = 0, end = 0;
  for (const QueryKeys& keys : query.keys) {
    if (keys.first_block < end || keys.blocks <= 0 || keys.first_block > kRangesMost * kRangePages - keys.blocks) return false;
    end = keys.first_block + keys.blocks;
    blocks += keys.blocks;
  }
  return !query.keys.empty() && blocks == static_cast<int64_t>(query.blocks.size());
}

}  // namespace

void LentBlocks::lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages, int pool_pages) {
  const size_t layers = blocks.empty() ? 0 : pages.size() / blocks.size();
  const auto refuse = [](const std::string& why) { throw std::runtime_error("Cannot lend blocks: " + why); };
  if (pages.size() != layers * blocks.size() || (layers == 0 && !blocks.empty())) {
    refuse(std::to_string(pages.size()) + " pages cannot be divided among " + std::to_string(blocks.size()) + " blocks");
  }
  for (const int32_t block : blocks) {
    if (block < 0 || block >= kBlockMost) refuse("block " + std::to_string(block) + " is outside [0, " + std::to_string(kBlockMost) + ")");
    const Slot* slot = find(block);
    if (slot != nullptr && !slot->pages.empty()) refuse("block " + std::to_string(block) + " is lent already: loan " + std::to_string(slot->loan));
  }
  for (const int32_t page : pages)
    if (page < 0 || page >= pool_pages) refuse("the pool has " + std::to_string(pool_pages) + " pages, no page " + std::to_string(page));
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

RemoteAttentionServer::RemoteAttentionServer(std::shared_ptr<Backend> backend, std::shared_ptr<KvPool> pool)
    : backend_(std::move(backend)), pool_(std::move(pool)), thread_([this] { serve(); }) {}

void RemoteAttentionServer::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_.exchange(true)) return;
  }
  event_.notify();
  thread_.join();
  for (const auto& query : queue_) refuse(*query);
  queue_.clear();
}

void RemoteAttentionServer::lend(int loan, const std::vector<int32_t>& blocks, const std::vector<int32_t>& pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  lent_.lend(loan, blocks, pages, pool_->pages);
}

void RemoteAttentionServer::take_back(int loan, const std::vector<int32_t>& blocks) {
  const std::unordered_set<int32_t> recalled(blocks.begin(), blocks.end());
  ServedQueries readers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const int32_t block : blocks) lent_.take_back(loan, block);
    for (const auto& served : active_) {
      const RemoteQuery& query = served->query();
      size_t next = 0;
      bool reads = false;
      for (const QueryKeys& keys : query.keys) {
        for (int i = 0; i < keys.blocks; i++) reads = reads || (keys.loan == loan && recalled.count(query.blocks[next + i]) > 0);
        next += keys.blocks;
      }
      if (reads) readers.push_back(served);
    }
  }
  for (const auto& served : readers) served->stop();
}

RemoteAttentionServerCounts RemoteAttentionServer::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

RemoteAttentionServerCounts RemoteAttentionServer::counts_of(int loan) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = loans_.find(loan);
  return found == loans_.end() ? RemoteAttentionServerCounts{} : found->second.counts;
}

void RemoteAttentionServer::set_cpu_share(int loan, int thousandths) {
  std::lock_guard<std::mutex> lock(mutex_);
  Loan& changed = loans_[loan];
  // A rest by a smaller share would outlast it.
  if (thousandths > changed.cpu_share) changed.rests_until = {};
  changed.cpu_share = thousandths;
}

/** Requires the lock. */
void RemoteAttentionServer::count(const RemoteQuery& query, bool answered) {
  // Peers may state any loan: refused queries add none.
  if (!answered) {
    counts_.refused++;
    const auto known = loans_.find(loan_of(query));
    if (known != loans_.end()) known->second.counts.refused++;
    return;
  }
  for (RemoteAttentionServerCounts* counts : {&counts_, &loans_[loan_of(query)].counts}) {
    counts->queries++;
    if (!query.is_for_pages()) counts->rows += static_cast<uint64_t>(query.rows);
    counts->bytes_in += query.bytes_out();
    counts->bytes_out += query.bytes_back();
  }
}

void RemoteAttentionServer::post(std::shared_ptr<RemoteQuery> query) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closing_.load()) queue_.push_back(std::exchange(query, nullptr));
  }
  if (query != nullptr) {
    refuse(*query);
  } else {
    event_.notify();
  }
}

void RemoteAttentionServer::refuse(RemoteQuery& query) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    count(query, false);
  }
  query.end(RemoteQuery::State::refused);
}

void RemoteAttentionServer::serve() {
  ServedQueries open;
  while (!closing_.load()) {
    const uint32_t seen = event_.epoch();
    admit(take_queries(open), open);
    if (!open.empty()) {
      compute(open);
    } else if (!closing_.load() && !spin([&] { return event_.epoch() != seen; })) {
      event_.wait(seen);
    }
  }
  for (const auto& served : open) finish(*served, workspace(0), true);
}

/** Takes queries until those with loans that do not rest are enough for a batch; the others wait. */
std::vector<std::shared_ptr<RemoteQuery>> RemoteAttentionServer::take_queries(const ServedQueries& open) {
  const auto now = Clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t work = 0;
  for (const auto& served : open)
    if (rest_end(loan_of(served->query())) <= now) work += work_of(served->query());
  std::stable_sort(queue_.begin(), queue_.end(), [](const auto& a, const auto& b) { return work_of(*a) < work_of(*b); });
  std::vector<std::shared_ptr<RemoteQuery>> taken;
  for (; !queue_.empty() && work < kBatchWork; queue_.pop_front()) {
    work += work_of(*queue_.front());
    taken.push_back(std::move(queue_.front()));
  }
  return taken;
}

/** The query with its pages, which are not taken back before it stops; null unless all of its blocks are lent. */
std::shared_ptr<ServedQuery> RemoteAttentionServer::activate(std::shared_ptr<RemoteQuery> query, int threads) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int32_t> pages = is_valid(*query, *pool_) ? find_pages(*query, [&](int loan, size_t block) { return lent_.page(loan, query->blocks[block], query->layer); }) : std::vector<int32_t>();
  if (pages.empty()) return nullptr;
  const int first_block = query->keys.front().first_block;
  return active_.emplace_back(std::make_shared<ServedQuery>(std::move(query), pool_->data(), first_block, std::move(pages), threads));
}

void RemoteAttentionServer::answer_with(ThreadPool& threads, GrowingMemory& memory, std::shared_ptr<RemoteQuery> query) {
  const std::shared_ptr<ServedQuery> served = closing_.load() ? nullptr : activate(query, threads.size());
  if (served == nullptr) {
    refuse(*query);
    return;
  }
  const size_t workspace_bytes = served->pieces().workspace_bytes();
  uint8_t* workspaces = memory.at_least(workspace_bytes * threads.size());
  threads.run(served->pieces().tasks(), [&](int task, int thread) { served->run_task(task, workspaces + workspace_bytes * thread, [&] { return !closing_.load(); }); });
  finish(*served, workspaces, false);
}

/** Copies the pages one by one under the lock, so that none is read once it is taken back. */
void RemoteAttentionServer::send_pages(RemoteQuery& query) {
  const size_t bytes = pool_->layout.page_bytes();
  bool complete = is_valid(query, *pool_);
  size_t next = 0;
  for (size_t i = 0; complete && i < query.keys.size(); i++) {
    for (int block = 0; complete && block < query.keys[i].blocks; block++, next++) {
      std::lock_guard<std::mutex> lock(mutex_);
      const int32_t page = lent_.page(query.keys[i].loan, query.blocks[next], query.layer);
      complete = page >= 0 && !closing_.load() && !query.dropped.load(std::memory_order_relaxed);
      if (complete) std::copy_n(pool_->page(page), bytes, query.answer + next * bytes);
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    count(query, complete);
  }
  query.end(complete ? RemoteQuery::State::answered : RemoteQuery::State::refused);
}

/** Adds the queries over lent blocks alone to the open ones; refuses the others. */
void RemoteAttentionServer::admit(std::vector<std::shared_ptr<RemoteQuery>> queries, ServedQueries& open) {
  const int threads = backend_->pool.size();
  for (auto& query : queries) {
    if (query->is_for_pages()) {
      send_pages(*query);
      continue;
    }
    std::shared_ptr<ServedQuery> served;
    try {
      served = activate(query, threads);
    } catch (const std::bad_alloc&) {
      // No memory is left for the query: it is refused, and the thread serves the others.
    }
    if (served == nullptr) refuse(*query);
    else open.push_back(std::move(served));
  }
  if (queries.empty()) return;
  std::stable_sort(open.begin(), open.end(), [](const auto& a, const auto& b) { return work_of(a->query()) < work_of(b->query()); });
  workspace_bytes_ = 0;
  for (const auto& served : open) workspace_bytes_ = std::max(workspace_bytes_, served->pieces().workspace_bytes());
  workspaces_ = workspace_memory_.at_least(workspace_bytes_ * threads);
}

/** Runs tasks of open queries, and finishes those that are over. */
void RemoteAttentionServer::compute(ServedQueries& open) {
  if (!compute_together(open) && !compute_alone(open)) pause(open);
  const auto over = std::stable_partition(open.begin(), open.end(), [](const auto& served) { return !served->stopped() && served->next_task() >= 0; });
  for (auto served = over; served != open.end(); ++served) finish(**served, workspace(0), true);
  open.erase(over, open.end());
}

/** Uses all threads of the backend until a step requires them; false if a step holds them. */
bool RemoteAttentionServer::compute_together(const ServedQueries& open) {
  if (backend_->pool.size() == 1 || !backend_->threads_lock.try_lock_for_query()) return false;
  std::vector<std::pair<ServedQuery*, int>> tasks;
  for (const auto& served : open)
    for (int task = 0; task < served->pieces().tasks() && !served->stopped(); task++)
      if (!served->done(task)) tasks.emplace_back(served.get(), task);
  backend_->pool.run(static_cast<int>(tasks.size()), [&](int index, int thread) {
    const auto [served, task] = tasks[index];
    if (!backend_->threads_lock.step_waits()) run_task(*served, task, thread, true);
  });
  backend_->threads_lock.unlock_after_query();
  return true;
}

/** Runs a task of the first query with a loan that does not rest; false if all rest. */
bool RemoteAttentionServer::compute_alone(const ServedQueries& open) {
  ServedQuery* next = first_awake(open);
  if (next == nullptr) return false;
  const int task = next->next_task();
  if (task < 0) return true;
  const bool beside_step = backend_->threads_lock.step_runs();
  const auto begin = Clock::now();
  run_task(*next, task, 0, false);
  if (beside_step) rest(loan_of(next->query()), Clock::now() - begin);
  return true;
}

/** The first query with a loan that does not rest. Loans rest only beside steps. */
ServedQuery* RemoteAttentionServer::first_awake(const ServedQueries& open) {
  if (!backend_->threads_lock.step_runs()) return open.front().get();
  const auto now = Clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& served : open)
    if (rest_end(loan_of(served->query())) <= now) return served.get();
  return nullptr;
}

/** When queries of the loan continue beside a step. Requires the lock. */
RemoteAttentionServer::Clock::time_point RemoteAttentionServer::rest_end(int loan) {
  const Loan& rested = loans_[loan];
  return rested.cpu_share == 0 ? Clock::time_point::max() : rested.rests_until;
}

/** The loan rests so that its queries use at most its share of a core. */
void RemoteAttentionServer::rest(int loan, std::chrono::nanoseconds worked) {
  std::lock_guard<std::mutex> lock(mutex_);
  Loan& rested = loans_[loan];
  const int share = std::max(1, rested.cpu_share);
  rested.rests_until = Clock::now() + worked * (1000 - share) / share;
}

/** Sleeps while all loans of these queries rest, for a short time at most: a step may end, and other queries may come. */
void RemoteAttentionServer::pause(const ServedQueries& open) {
  std::unordered_set<int> loans;
  for (const auto& served : open) loans.insert(loan_of(served->query()));
  const auto begin = Clock::now();
  auto end = begin + kPause;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const int loan : loans) end = std::min(end, rest_end(loan));
  }
  if (end > begin) std::this_thread::sleep_for(end - begin);
  const std::chrono::nanoseconds slept = Clock::now() - begin;
  const auto nanoseconds = static_cast<uint64_t>(slept.count());
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.throttled_nanoseconds += nanoseconds;
  for (const int loan : loans) loans_[loan].counts.throttled_nanoseconds += nanoseconds;
}

void RemoteAttentionServer::run_task(ServedQuery& served, int task, int thread, bool yields) {
  const auto begin = Clock::now();
  served.run_task(task, workspace(thread), [&] { return !(yields && backend_->threads_lock.step_waits()) && !closing_.load(); });
  const std::chrono::nanoseconds spent = Clock::now() - begin;
  const auto nanoseconds = static_cast<uint64_t>(spent.count());
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.nanoseconds += nanoseconds;
  loans_[loan_of(served.query())].counts.nanoseconds += nanoseconds;
}

/** @param counts the creditor computed it: it counts among its queries */
void RemoteAttentionServer::finish(ServedQuery& served, uint8_t* workspace, bool counts) {
  RemoteQuery& query = served.query();
  bool complete = !served.stopped() && !closing_.load();
  for (int task = 0; task < served.pieces().tasks(); task++) complete = complete && served.done(task);
  for (int merge = 0; complete && merge < served.pieces().merges(); merge++) served.pieces().run_merge(merge, workspace);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    active_.erase(std::find_if(active_.begin(), active_.end(), [&](const auto& other) { return other.get() == &served; }));
    if (counts) count(query, complete);
  }
  query.end(complete ? RemoteQuery::State::answered : RemoteQuery::State::refused);
}

}  // namespace kvasir
