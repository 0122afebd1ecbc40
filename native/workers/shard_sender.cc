// The pages of a batch are copied first: a receive buffer may be closed while they are sent.
#include "workers/shard_sender.hpp"

namespace kvasir {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 18;

}  // namespace

ShardSender::ShardSender(std::shared_ptr<WorkerLink> link)
    : link_(std::move(link)), queue_(std::make_shared<PullQueue>(link_->layout(), link_->pages())), thread_([this] { serve(); }) {}

ShardSender::~ShardSender() {
  queue_->end();
  link_->shut_down();
  thread_.join();
}

void ShardSender::serve() {
  const size_t page_bytes = link_->layout().page_bytes();
  std::vector<int32_t> pages;
  std::vector<uint8_t> bytes;
  const auto add = [&](int32_t page) {
    pages.push_back(page);
    bytes.resize(bytes.size() + page_bytes);
    return bytes.data() + bytes.size() - page_bytes;
  };
  while (queue_->await_page()) {
    pages.clear();
    bytes.clear();
    while ((pages.empty() || bytes.size() + page_bytes <= kBatchBytes) && queue_->send(add)) continue;
    const bool stored = pages.empty() || link_->send_pages(pages, bytes);
    if (!stored) {
      queue_->end();
      return;
    }
    pages_.fetch_add(pages.size(), std::memory_order_relaxed);
    queue_->arrived();
  }
}

}  // namespace kvasir
