// A pool of KV pages in memory that other threads and processes can map.
#pragma once
#include <memory>
#include <string>

#include "attention/attention.hpp"
#include "base/shared_mapping.hpp"
#include "kv/progress.hpp"

namespace kvasir {

/** Pages from the mapping's start, shared by sequences. A description of their layout follows the last page. */
class KvPool {
 public:
  KvPool(Isa isa, const KvLayout& layout, int pages);
  /** A pool without memory here: its pages lie at attention workers. */
  static std::shared_ptr<KvPool> at_workers(Isa isa, const KvLayout& layout, int pages);
  /**
   * Opens the pool of another process of the same user. @throws std::runtime_error if the name is no pool of this
   * version
   */
  static std::shared_ptr<KvPool> open(Isa isa, const std::string& name);

  const Isa isa;  // of the programs that run over it
  const KvLayout layout;
  const int pages;
  StepProgress progress;
  LoadProgress loading;

  /** False if the pages lie at attention workers: `data` and `page` must not be used. */
  bool has_memory() const { return memory_.bytes() >= layout.page_bytes() * static_cast<size_t>(pages); }
  uint8_t* data() const { return memory_.data(); }
  uint8_t* page(int index) const { return data() + layout.page_bytes() * static_cast<size_t>(index); }
  const std::string& name() const { return memory_.name(); }
  /** Announces that the first `pages_used` pages will be written, so that the system can back them with huge pages. */
  void expect_use(int pages_used) {
    if (has_memory()) memory_.expect_use(layout.page_bytes() * static_cast<size_t>(pages_used));
  }

 private:
  KvPool(Isa isa, const KvLayout& layout, int pages, const std::string& name);
  KvPool(Isa isa, const KvLayout& layout, int pages, size_t bytes);

  SharedMapping memory_;
};

}  // namespace kvasir
