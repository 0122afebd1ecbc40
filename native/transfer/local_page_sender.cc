// The messenger's thread: sleeps on the bell of its pool, which rings when a layer is ready and when something is to be sent.
#include "transfer/local_page_sender.hpp"

#include <chrono>

namespace kvasir {
namespace {

/** Copied in one go: whoever stops a stream waits for no more than this. */
constexpr size_t kTurnBytes = size_t{1} << 18;

}  // namespace

Messenger::Messenger(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)), outbox_(pool_->progress), thread_([this] { serve(); }) {}

Messenger::~Messenger() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  pool_->progress.bell.ring();
  thread_.join();
}

void Messenger::send(const std::shared_ptr<Landing>& landing, const std::vector<Parcel>& parcels, bool last) {
  if (landing->layout() != pool_->layout) throw std::runtime_error("Cannot send pages: the landing has pages of another shape");
  check_parcels(*pool_, landing->places(), parcels);
  outbox_.add(landing, parcels, last);
  pool_->progress.bell.ring();
}

void Messenger::stop(int landing) {
  outbox_.stop([landing](const std::shared_ptr<Landing>& target) { return target->number() == landing; });
}

size_t Messenger::left(int landing) const {
  return outbox_.left([landing](const std::shared_ptr<Landing>& target) { return target->number() == landing; });
}

MessengerCounts Messenger::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void Messenger::serve() {
  for (;;) {
    const uint32_t seen = pool_->progress.bell.rung();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) return;
    }
    if (!advance()) pool_->progress.bell.wait(seen);
  }
}

/** A turn of one stream; false when none has anything that is ready. */
bool Messenger::advance() {
  Letters::Turn turn;
  if (!outbox_.take(std::max<size_t>(1, kTurnBytes / pool_->layout.page_bytes()), turn)) return false;
  if (outbox_.begin_reading(turn)) {
    copy(turn);
    outbox_.end_reading(turn);
  }
  outbox_.arrived(turn);
  if (turn.last && outbox_.finish(turn)) turn.stream->target->complete();
  return true;
}

void Messenger::copy(const Letters::Turn& turn) {
  const auto begin = std::chrono::steady_clock::now();
  const size_t page_bytes = pool_->layout.page_bytes();
  MessengerCounts done;
  done.streams = turn.first ? 1 : 0;
  done.first_pages = turn.ready_pages;
  for (const Parcel& parcel : turn.parcels) {
    const bool early = pool_->progress.runs();
    if (!turn.stream->target->put(parcel.place, pool_->page(parcel.page))) break;
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
