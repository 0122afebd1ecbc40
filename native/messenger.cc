// The messenger's thread: sleeps on the bell of its pool, which rings when a layer is ready and when something is to be sent.
#include "messenger.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace kvasir {
namespace {

/** Copied in one go: whoever stops a stream waits for no more than this. */
constexpr size_t kTurnBytes = size_t{1} << 18;

}  // namespace

Messenger::Messenger(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)), thread_([this] { serve(); }) {}

Messenger::~Messenger() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  pool_->progress.bell.ring();
  thread_.join();
}

void Messenger::check(const Landing& landing, const Parcel& parcel) const {
  const KvLayout &own = pool_->layout, &other = landing.layout();
  if (own.type != other.type || own.kv_heads != other.kv_heads || own.head_dim != other.head_dim) {
    throw std::runtime_error("Cannot send pages: the landing has pages of another shape");
  }
  if (parcel.page < 0 || parcel.page >= pool_->pages || parcel.place < 0 || parcel.place >= landing.places()) {
    throw std::runtime_error("Cannot send pages: no such page or place: page " + std::to_string(parcel.page) + " to place " + std::to_string(parcel.place) +
                             " of " + std::to_string(landing.places()));
  }
}

void Messenger::send(const std::shared_ptr<Landing>& landing, const std::vector<Parcel>& parcels, bool last) {
  for (const Parcel& parcel : parcels) check(*landing, parcel);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = std::find_if(streams_.begin(), streams_.end(), [&](const Stream& stream) { return stream.landing == landing && !stream.stopped; });
    if (found == streams_.end()) {
      streams_.emplace_back();
      found = std::prev(streams_.end());
      found->landing = landing;
    }
    found->parcels.insert(found->parcels.end(), parcels.begin(), parcels.end());
    found->last = last;
  }
  pool_->progress.bell.ring();
}

void Messenger::stop(int landing) {
  const auto goes = [landing](const Stream& stream) { return stream.landing->number() == landing; };
  std::unique_lock<std::mutex> lock(mutex_);
  for (Stream& stream : streams_) {
    if (!goes(stream)) continue;
    stream.stopped = true;
    stream.parcels.clear();
  }
  idle_.wait(lock, [&] {
    return std::none_of(streams_.begin(), streams_.end(), [&](const Stream& stream) { return goes(stream) && stream.copying; });
  });
  streams_.remove_if(goes);
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
  std::vector<Parcel> taken;
  Stream* stream = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stream = next_ready(taken);
    if (stream == nullptr) return false;
    stream->copying = true;
  }
  copy(*stream, taken);
  settle(stream);
  return true;
}

/** The first stream with a parcel that is ready, or with nothing left but to say so, goes to the end of the line with its turn's parcels taken out. */
Messenger::Stream* Messenger::next_ready(std::vector<Parcel>& taken) {
  const size_t most = std::max<size_t>(1, kTurnBytes / pool_->layout.page_bytes());
  for (auto stream = streams_.begin(); stream != streams_.end(); ++stream) {
    std::deque<Parcel>& parcels = stream->parcels;
    while (taken.size() < most && !parcels.empty() && is_ready(parcels.front())) {
      taken.push_back(parcels.front());
      parcels.pop_front();
    }
    if (taken.empty() && !(parcels.empty() && stream->last)) continue;
    streams_.splice(streams_.end(), streams_, stream);
    return &streams_.back();
  }
  return nullptr;
}

void Messenger::copy(const Stream& stream, const std::vector<Parcel>& taken) {
  const auto begin = std::chrono::steady_clock::now();
  const size_t page_bytes = pool_->layout.page_bytes();
  MessengerCounts done;
  for (const Parcel& parcel : taken) {
    const bool early = pool_->progress.runs();
    if (!stream.landing->put(parcel.place, pool_->page(parcel.page))) break;
    done.pages++;
    done.bytes += page_bytes;
    if (early) done.early_bytes += page_bytes;
  }
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - begin;
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.pages += done.pages;
  counts_.bytes += done.bytes;
  counts_.early_bytes += done.early_bytes;
  counts_.nanoseconds += static_cast<uint64_t>(spent.count());
}

void Messenger::settle(Stream* stream) {
  std::shared_ptr<Landing> landed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stream->copying = false;
    if (!stream->stopped && stream->parcels.empty() && stream->last) {
      landed = stream->landing;
      streams_.remove_if([&](const Stream& other) { return &other == stream; });
    }
  }
  idle_.notify_all();
  if (landed) landed->complete();
}

}  // namespace kvasir
