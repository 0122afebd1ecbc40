// The thread of an SSD tier: processes one block at a time, so that reads overtake writes. Blocks pass through a buffer
// and the pool's pages are used under the lock, so that stopping a job never waits for the disk.
#include "store/block_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace kvasir {

BlockStore::BlockStore(std::shared_ptr<KvPool> pool, int pages_of_block, const std::string& path, int slots, const std::array<uint8_t, 32>& identity,
                       std::function<void()> wake)
    : pool_(std::move(pool)),
      pages_of_block_(pages_of_block),
      wake_(std::move(wake)),
      slab_(pool_->isa, path, {pool_->layout.page_bytes() * static_cast<uint64_t>(pages_of_block), static_cast<uint32_t>(slots), identity}),
      buffer_(slab_.block_bytes()),
      thread_([this] { serve(); }) {}

BlockStore::~BlockStore() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    reads_.erase(reads_.begin() + (current_job_ != 0 && !reads_.empty() && reads_.front().number == current_job_ ? 1 : 0), reads_.end());
  }
  changed_.notify_all();
  thread_.join();
}

void BlockStore::begin(int job, Kind kind, std::vector<StoredBlock> blocks) {
  for (const StoredBlock& block : blocks) {
    const bool has_pages = kind == Kind::erase || (block.page >= 0 && block.page <= pool_->pages - pages_of_block_);
    if (has_slot(block) && has_pages) continue;
    throw std::runtime_error("Cannot move a block to or from SSD: no such slot or pages: slot " + std::to_string(block.slot) + ", page " +
                             std::to_string(block.page));
  }
  enqueue({job, kind, std::move(blocks), 0, {}, nullptr, {}, 0, false});
}

void BlockStore::begin_by_layer(int job, std::vector<StoredBlock> blocks, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals) {
  const bool known = std::all_of(blocks.begin(), blocks.end(), [this](const StoredBlock& block) { return has_slot(block); }) &&
                     std::all_of(pages.begin(), pages.end(), [this](int32_t page) { return page >= 0 && page < pool_->pages; });
  if (!known || pages.size() != blocks.size() * static_cast<size_t>(pages_of_block_))
    throw std::runtime_error("Cannot read blocks of SSD: no such slots or pages: " + std::to_string(blocks.size()) + " blocks, " + std::to_string(pages.size()) + " pages");
  enqueue({job, Kind::read, std::move(blocks), 0, std::move(pages), std::move(arrivals), {}, 0, false});
}

void BlockStore::enqueue(Job job) {
  if (job.blocks.empty()) throw std::runtime_error("Cannot move blocks to or from SSD: none are given");
  const Kind kind = job.kind;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_of(kind).push_back(std::move(job));
  }
  changed_.notify_all();
}

void BlockStore::stop(int job) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_job = [job](const Job& other) { return other.number == job; };
  for (std::deque<Job>* queue : {&reads_, &writes_}) {
    for (Job& each : *queue) {
      if (!is_job(each)) continue;
      each.stopped = true;
      if (each.arrivals) each.arrivals->finish();
    }
    // The thread removes the job in progress after its current block or page.
    if (current_job_ != job) queue->erase(std::remove_if(queue->begin(), queue->end(), is_job), queue->end());
  }
  results_.erase(std::remove_if(results_.begin(), results_.end(), [job](const BlockStoreResult& result) { return result.job == job; }), results_.end());
}

int BlockStore::take(BlockStoreResult* out, int limit) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int count = std::min(limit, static_cast<int>(results_.size()));
  std::copy_n(results_.begin(), count, out);
  results_.erase(results_.begin(), results_.begin() + count);
  return count;
}

BlockStoreCounts BlockStore::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

std::string BlockStore::error() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void BlockStore::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !reads_.empty() || !writes_.empty(); });
    if (reads_.empty() && writes_.empty()) return;
    const Kind kind = reads_.empty() ? writes_.front().kind : Kind::read;
    Job& job = queue_of(kind).front();
    const StoredBlock block = job.blocks[job.next];
    current_job_ = job.number;
    if (kind == Kind::write) std::memcpy(buffer_.data(), pool_->page(block.page), slab_.block_bytes());
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    // Other threads can only mark the job in progress as stopped.
    const bool by_layer = job.arrivals != nullptr;
    const bool done = by_layer ? read_page(job) : execute(kind, block);
    const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - begin;
    lock.lock();
    if (kind == Kind::read && done && !job.stopped) deliver(job, block);
    if (kind == Kind::read) counts_.read_nanoseconds += static_cast<uint64_t>(spent.count());
    const bool is_block = !by_layer || !done || job.layer == pages_of_block_ - 1;
    if (kind == Kind::read && is_block) done ? counts_.read_bytes += slab_.block_bytes() : counts_.bad_blocks++;
    if (kind == Kind::write) done ? counts_.written_bytes += slab_.block_bytes() : counts_.failed_writes++;
    if (kind == Kind::write && !done) error_ = slab_.error();
    current_job_ = 0;
    const bool ended = advance(queue_of(kind), done);
    changed_.notify_all();
    if (!ended) continue;
    lock.unlock();
    wake_();
    lock.lock();
  }
}

bool BlockStore::execute(Kind kind, const StoredBlock& block) {
  if (kind == Kind::erase) slab_.erase(block.slot);
  if (kind == Kind::write) return slab_.write(block.slot, block.digest, block.depth, buffer_.data());
  if (kind == Kind::read) return slab_.read(block.slot, block.digest, buffer_.data());
  return true;
}

/** Reads the next page of a layer. False if it was a block's last page and the block is invalid. */
bool BlockStore::read_page(Job& job) {
  if (job.layer == 0) job.readings.push_back(slab_.begin_reading(job.blocks[job.next].slot, job.blocks[job.next].digest));
  Slab::Reading& reading = job.readings[job.next];
  slab_.read_next(reading, buffer_.data(), pool_->layout.page_bytes());
  return job.layer < pages_of_block_ - 1 || slab_.end_reading(reading);
}

/** Copies what was read to its pages. */
void BlockStore::deliver(Job& job, const StoredBlock& block) {
  if (!job.arrivals) {
    std::memcpy(pool_->page(block.page), buffer_.data(), slab_.block_bytes());
    return;
  }
  if (!job.readings[job.next].valid) return;
  const size_t place = job.next * static_cast<size_t>(pages_of_block_) + static_cast<size_t>(job.layer);
  std::memcpy(pool_->page(job.pages[place]), buffer_.data(), pool_->layout.page_bytes());
  job.arrivals->page_arrived(static_cast<int>(place));
}

/** Records progress of the queue's first job; true if it has a result. */
bool BlockStore::advance(std::deque<Job>& queue, bool done) {
  Job& job = queue.front();
  if (job.stopped) {
    if (job.arrivals) job.arrivals->finish();
    queue.pop_front();
    return false;
  }
  if (done) job.next++;
  if (done && job.next < job.blocks.size()) return false;
  if (done && job.arrivals && ++job.layer < pages_of_block_) {
    job.next = 0;
    return false;
  }
  if (job.arrivals) job.arrivals->finish();
  const bool has_result = job.kind != Kind::erase;
  if (has_result) results_.push_back({job.number, static_cast<int32_t>(job.next)});
  queue.pop_front();
  return has_result;
}

}  // namespace kvasir
