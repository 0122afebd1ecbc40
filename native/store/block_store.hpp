// The SSD tier of an instance: a thread that reads blocks of a slab straight into pages of a pool, and writes them straight from there.
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

/** A block of the slab, and the pages of the pool, one after another from `page` on, that it comes from or goes to. */
struct StoredBlock {
  int32_t slot;
  int32_t page;
  uint32_t depth;
  BlockDigest digest;
};

struct BlockStoreCounts {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t bad_blocks = 0;     // that were to be read and were not whole
  uint64_t failed_writes = 0;
  uint64_t read_nanoseconds = 0;  // spent reading
};

/** What became of a job: so many of its blocks, the first ones, are where they were to be. */
struct BlockStoreResult {
  int32_t job;
  int32_t done;
};

/** Jobs of reading go before those of writing, block by block; each kind in the order of asking. */
class BlockStore {
 public:
  enum class Kind { read, write, erase };

  /** `wake` is called by the thread of the store when there is a result to take. Throws as `Slab` does. */
  BlockStore(std::shared_ptr<KvPool> pool, int pages_of_block, const std::string& path, int slots, const std::array<uint8_t, 32>& identity,
             std::function<void()> wake);
  /** Ends when what was to be written is. */
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /** Before the first job: what was found. */
  const Slab& slab() const { return slab_; }
  /** Throws where a block names no slot or no pages. Reading ends with the first block that is not whole. Erasing has no result. */
  void begin(int job, Kind kind, std::vector<StoredBlock> blocks);
  /**
   * Reads blocks whose `page` says nothing: to pages (blocks, pages of a block), the first page of every block, then the second...; `arrivals` hear
   * of each (by its place), of a block's last one only when all of the block is whole. What is not comes to its end.
   */
  void begin_by_layer(int job, std::vector<StoredBlock> blocks, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals);
  /** Drops a job. Once this returns none of its pages is touched any more, and it has no result. */
  void stop(int job);
  /** Moves at most `room` results into `out`; returns how many. */
  int take(BlockStoreResult* out, int room);
  BlockStoreCounts counts() const;
  /** What the system said when a block could not be written last. */
  std::string error() const;

 private:
  struct Job {
    int number;
    Kind kind;
    std::vector<StoredBlock> blocks;
    size_t next = 0;
    // Of what is read by layer:
    std::vector<int32_t> pages;
    std::shared_ptr<LayerArrivals> arrivals;
    std::vector<Slab::Reading> readings;
    int layer = 0;
    bool stopped = false;
  };

  void serve();
  std::deque<Job>& queue_of(Kind kind) { return kind == Kind::read ? reads_ : writes_; }
  bool carry_out(Kind kind, const StoredBlock& block);
  bool read_page(Job& job);
  bool has_slot(const StoredBlock& block) const { return block.slot >= 0 && block.slot < slab_.slots(); }
  void enqueue(Job job);
  bool advance(std::deque<Job>& queue, bool done);

  std::shared_ptr<KvPool> pool_;
  const int pages_of_block_;
  std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> reads_, writes_;
  int working_on_ = 0;  // job whose pages are being touched
  std::deque<BlockStoreResult> results_;
  BlockStoreCounts counts_;
  std::string error_;
  bool closing_ = false;
  Slab slab_;
  std::thread thread_;
};

}  // namespace kvasir
