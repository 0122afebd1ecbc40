// The sender's thread: waits for the pool's progress event, which is notified of ready layers and of queued pages.
#include "transfer/local_page_sender.hpp"

#include <chrono>

namespace kvasir {
namespace {

/** Bytes copied at once, which bounds how long `stop` waits. */
constexpr size_t kBatchBytes = size_t{1} << 18;

}  // namespace

LocalPageSender::LocalPageSender(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)), queue_(pool_->progress), thread_([this] { serve(); }) {}

LocalPageSender::~LocalPageSender() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  pool_->progress.event.notify();
  thread_.join();
}

void LocalPageSender::send(const std::shared_ptr<ReceiveBuffer>& buffer, const std::vector<PageDescriptor>& descriptors, bool last) {
  if (buffer->layout() != pool_->layout) throw std::runtime_error("Cannot send pages: the receive buffer has pages of another shape");
  check_descriptors(*pool_, buffer->slots(), descriptors);
  queue_.add(buffer, descriptors, last);
  pool_->progress.event.notify();
}

void LocalPageSender::stop(int buffer) {
  queue_.stop([buffer](const std::shared_ptr<ReceiveBuffer>& target) { return target->number() == buffer; });
}

size_t LocalPageSender::pending(int buffer) const {
  return queue_.pending([buffer](const std::shared_ptr<ReceiveBuffer>& target) { return target->number() == buffer; });
}

SendCounts LocalPageSender::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void LocalPageSender::serve() {
  for (;;) {
    const uint32_t seen = pool_->progress.event.epoch();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) return;
    }
    if (!advance()) pool_->progress.event.wait(seen);
  }
}

/** Sends one batch; false if no stream has ready pages. */
bool LocalPageSender::advance() {
  Queue::Batch batch;
  if (!queue_.next_batch(std::max<size_t>(1, kBatchBytes / pool_->layout.page_bytes()), batch)) return false;
  if (queue_.begin_reading(batch)) {
    copy(batch);
    queue_.end_reading(batch);
  }
  queue_.acknowledge(batch);
  if (batch.last && queue_.finish(batch)) batch.stream->target->complete();
  return true;
}

void LocalPageSender::copy(const Queue::Batch& batch) {
  const auto begin = std::chrono::steady_clock::now();
  const size_t page_bytes = pool_->layout.page_bytes();
  SendCounts done;
  done.streams = batch.first ? 1 : 0;
  done.first_pages = batch.ready_pages;
  for (const PageDescriptor& descriptor : batch.descriptors) {
    const bool early = pool_->progress.runs();
    if (!batch.stream->target->write(descriptor.slot, pool_->page(descriptor.page))) break;
    done.pages++;
    done.bytes += page_bytes;
    if (early) done.early_bytes += page_bytes;
  }
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - begin;
  done.nanoseconds = static_cast<uint64_t>(spent.count());
  std::lock_guard<std::mutex> lock(mutex_);
  counts_ += done;
}

}  // namespace kvasir
