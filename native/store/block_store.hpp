// The SSD tier of an instance: a thread reads blocks of a slab straight into pool pages and writes them straight from
// there.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "kv/kv_pool.hpp"
#include "kv/layer_arrivals.hpp"
#include "store/slab.hpp"

namespace kvasir {

/** A block of the slab and its pages in the pool, consecutive from `page` on. */
struct StoredBlock {
  int32_t slot;
  int32_t page;
  uint32_t depth;
  BlockDigest digest;
};

struct BlockStoreCounts {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t bad_blocks = 0;     // read and found invalid
  uint64_t failed_writes = 0;
  uint64_t read_nanoseconds = 0;  // spent reading
};

/** The outcome of a job: its first `done` blocks are moved. */
struct BlockStoreResult {
  int32_t job;
  int32_t done;
};

/** Reads take priority over writes, block by block; each kind runs in the order of submission. */
class BlockStore {
 public:
  enum class Kind { read, write, erase };

  /** `wake` is called by the store's thread when there is a result. Throws as `Slab` does. */
  BlockStore(std::shared_ptr<KvPool> pool, int pages_of_block, const std::string& path, int slots, const std::array<uint8_t, 32>& identity,
             std::function<void()> wake);
  /** Finishes the queued writes first. */
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /** What was found on opening; call before the first job. */
  const Slab& slab() const { return slab_; }
  /**
   * Reading stops at the first invalid block. Erasing has no result. @throws std::runtime_error if a block names no
   * slot or no pages
   */
  void begin(int job, Kind kind, std::vector<StoredBlock> blocks);
  /**
   * Reads blocks into `pages` (blocks, pages of a block), ignoring their `page`: the first page of every block, then
   * the second, and so on. `arrivals` receive each page by its index; a block's last page is reported only if the whole
   * block is valid. An invalid block ends the job.
   */
  void begin_by_layer(int job, std::vector<StoredBlock> blocks, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals);
  /**
   * Drops a job. None of its pages is read or written after the return, and it has no result. It does not wait for the
   * disk, which may have stalled.
   */
  void stop(int job);
  /** Moves at most `limit` results into `out`; returns the count. */
  int take(BlockStoreResult* out, int limit);
  BlockStoreCounts counts() const;
  /** The system's message for the last failed write. */
  std::string error() const;

 private:
  struct Job {
    int number;
    Kind kind;
    std::vector<StoredBlock> blocks;
    size_t next = 0;
    // Of jobs that read layer by layer:
    std::vector<int32_t> pages;
    std::shared_ptr<LayerArrivals> arrivals;
    std::vector<Slab::Reading> readings;
    int layer = 0;
    bool stopped = false;
  };

  void serve();
  std::deque<Job>& queue_of(Kind kind) { return kind == Kind::read ? reads_ : writes_; }
  bool execute(Kind kind, const StoredBlock& block);
  bool read_page(Job& job);
  void deliver(Job& job, const StoredBlock& block);
  bool has_slot(const StoredBlock& block) const { return block.slot >= 0 && block.slot < slab_.slots(); }
  void enqueue(Job job);
  bool advance(std::deque<Job>& queue, bool done);

  std::shared_ptr<KvPool> pool_;
  const int pages_of_block_;
  std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> reads_, writes_;
  int current_job_ = 0;  // the job that reads or writes its pages now; 0: none
  std::deque<BlockStoreResult> results_;
  BlockStoreCounts counts_;
  std::string error_;
  bool closing_ = false;
  Slab slab_;
  std::vector<uint8_t> buffer_;  // a block on its way between the pool and the disk; of the thread alone
  std::thread thread_;
};

}  // namespace kvasir
