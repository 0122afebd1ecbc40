// Two threads: one copies pages into frames and sends them, the other hears what has arrived.
#include "transfer/peer_page_sender.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace kvasir {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/** Sent and not acknowledged, at most, beside one frame. */
constexpr size_t kWindowBytes = size_t{8} << 20;
constexpr int kReachMs = 3000;
/** Without an acknowledgement: then the other side is taken for gone. */
constexpr int kSilenceMs = 10000;
constexpr int kPauseMs = 20, kPauseMaxMs = 1000;

/** A place that is sent twice in one frame would not hold what the first was checked as: the later page stands for both. */
std::vector<Parcel> once_each(const std::vector<Parcel>& parcels) {
  const auto is_next = [](const Parcel& a, const Parcel& b) { return a.place >= b.place; };
  if (std::adjacent_find(parcels.begin(), parcels.end(), is_next) == parcels.end()) return parcels;
  std::unordered_set<int32_t> places;
  std::vector<Parcel> latest;
  for (auto at = parcels.rbegin(); at != parcels.rend(); ++at)
    if (places.insert(at->place).second) latest.push_back(*at);
  std::reverse(latest.begin(), latest.end());
  return latest;
}

}  // namespace

PageSender::PageSender(std::shared_ptr<KvPool> pool, HostPort address, Way way, const HashKey& key, size_t frame_bytes, int give_up_ms)
    : pool_(std::move(pool)),
      address_(std::move(address)),
      way_(way),
      key_(key),
      page_bytes_(pool_->layout.page_bytes()),
      turn_pages_(std::clamp<size_t>(frame_bytes / page_bytes_, 1, kFramePagesMax)),
      give_up_ms_(give_up_ms),
      outbox_(pool_->progress),
      thread_([this] { serve(); }) {}

PageSender::~PageSender() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  over_.notify_all();
  pool_->progress.bell.ring();
  thread_.join();
}

void PageSender::send(const RemoteLanding& landing, const std::vector<Parcel>& parcels, bool last) {
  check_parcels(*pool_, landing.places, parcels);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_lost(landing)) return;
    outbox_.add(landing, parcels, last);
  }
  pool_->progress.bell.ring();
}

void PageSender::stop(const RemoteLanding& landing) {
  outbox_.stop([&](const RemoteLanding& target) { return target == landing; });
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* all : {&lost_, &untold_}) all->erase(std::remove(all->begin(), all->end(), landing), all->end());
}

size_t PageSender::left(const RemoteLanding& landing) const {
  return outbox_.left([&](const RemoteLanding& target) { return target == landing; });
}

/** Under the lock. */
bool PageSender::is_lost(const RemoteLanding& landing) const {
  return std::find(lost_.begin(), lost_.end(), landing) != lost_.end();
}

SenderCounts PageSender::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

std::vector<RemoteLanding> PageSender::take_given_up() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(untold_, {});
}

bool PageSender::is_idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !connected_ && lost_.empty() && outbox_.empty();
}

void PageSender::serve() {
  while (!ended_) {
    const uint32_t seen = pool_->progress.bell.rung();
    if (outbox_.empty()) {
      if (!ended_) pool_->progress.bell.wait(seen);
      continue;
    }
    if (connect()) {
      carry();
      disconnect();
    }
    if (!ended_) rest();
  }
}

bool PageSender::connect() {
  line_ = reach(address_, way_, key_, pool_->layout, kReachMs, ended_);
  if (line_ == nullptr) return false;
  reached_ = line_->is_shared() ? Way::shared : Way::tcp;
  writer_ = std::make_unique<FrameWriter>(*pool_, *line_, broken_);
  sequence_ = 0;
  broken_ = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    connected_ = true;
  }
  ears_ = std::thread([this] { hear_acks(); });
  return true;
}

void PageSender::disconnect() {
  broken_ = true;
  line_->cut();
  ears_.join();
  writer_ = nullptr;
  line_ = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = false;
  if (unacknowledged_.empty()) fails_ = false;
  else counts_.broken++;
  for (; !unacknowledged_.empty(); unacknowledged_.pop_back()) outbox_.restore(unacknowledged_.back().turn);
  unacknowledged_bytes_ = 0;
}

/** After a failure: waits a little longer each time, and gives up in the end. */
void PageSender::rest() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!fails_) failing_ = steady_clock::now();
  fails_ = true;
  if (steady_clock::now() - failing_ >= milliseconds(give_up_ms_)) {
    give_up();
    return;
  }
  over_.wait_for(lock, milliseconds(pause_ms_), [this] { return ended_.load(); });
  pause_ms_ = std::clamp(2 * pause_ms_, kPauseMs, kPauseMaxMs);
}

/** Under the lock. */
void PageSender::give_up() {
  counts_.given_up++;
  fails_ = false;
  pause_ms_ = 0;
  for (const RemoteLanding& landing : outbox_.targets()) {
    lost_.push_back(landing);
    untold_.push_back(landing);
  }
  outbox_.stop([&](const RemoteLanding& target) { return is_lost(target); });
}

void PageSender::carry() {
  Letters::Turn turn;
  while (!ended_ && !broken_) {
    const uint32_t seen = pool_->progress.bell.rung();
    if (is_full() || !outbox_.take(turn_pages_, turn)) {
      line_->flush();
      if (!ended_ && !broken_) pool_->progress.bell.wait(seen);
    } else if (!send_turn(turn)) {
      return;
    }
  }
}

bool PageSender::is_full() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return unacknowledged_bytes_ >= kWindowBytes;
}

bool PageSender::send_turn(const Letters::Turn& turn) {
  // Stopped meanwhile: nothing of it is sent.
  if (outbox_.is_stopped(turn)) return true;
  const auto begin = steady_clock::now();
  const std::vector<Parcel> parcels = once_each(turn.parcels);
  const RemoteLanding& landing = turn.stream->target;
  FrameHeader header;
  header.kind = turn.last ? FrameKind::last_pages : FrameKind::pages;
  header.sequence = ++sequence_;
  header.landing = landing.number;
  header.count = static_cast<uint32_t>(parcels.size());
  header.landing_key = landing.key;
  header.bytes = parcels.size() * page_bytes_;
  MessengerCounts sent;
  sent.streams = turn.first ? 1 : 0;
  sent.first_pages = turn.ready_pages;
  sent.pages = header.count;
  sent.bytes = header.bytes;
  sent.early_bytes = pool_->progress.runs() ? header.bytes : 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (unacknowledged_.empty()) heard_ = begin;
    unacknowledged_.push_back({turn, header.sequence, header.bytes});
    unacknowledged_bytes_ += header.bytes;
    // Before the other side can say that it is there.
    counts_.sent += sent;
  }
  const Reading reading = {[&] { return outbox_.begin_reading(turn); }, [&] { outbox_.end_reading(turn); }};
  const bool done = writer_->write(header, parcels, reading);
  MessengerCounts spent;
  spent.nanoseconds = static_cast<uint64_t>(std::chrono::nanoseconds(steady_clock::now() - begin).count());
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.sent += spent;
  return done;
}

/** Whatever is wrong with what it hears ends the connection. */
void PageSender::hear_acks() {
  Ack ack;
  for (;;) {
    if (!line_->await_readable(in_milliseconds(0), broken_)) {
      if (broken_ || ended_ || is_late()) break;
      continue;
    }
    if (!line_->receive(&ack, sizeof ack, in_milliseconds(kSilenceMs), broken_) || !take_ack(ack)) break;
    pool_->progress.bell.ring();
  }
  broken_ = true;
  line_->cut();
  pool_->progress.bell.ring();
}

bool PageSender::is_late() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !unacknowledged_.empty() && steady_clock::now() - heard_ > milliseconds(kSilenceMs);
}

/** Frames up to the acknowledged one have arrived. */
bool PageSender::take_ack(const Ack& ack) {
  std::vector<Letters::Turn> arrived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_sane = ack.magic == kAckMagic && !unacknowledged_.empty() && ack.sequence >= unacknowledged_.front().sequence &&
                         ack.sequence <= unacknowledged_.back().sequence;
    if (!is_sane) return false;
    while (!unacknowledged_.empty() && unacknowledged_.front().sequence <= ack.sequence) {
      unacknowledged_bytes_ -= unacknowledged_.front().bytes;
      arrived.push_back(std::move(unacknowledged_.front().turn));
      unacknowledged_.pop_front();
    }
    heard_ = steady_clock::now();
    fails_ = false;
    pause_ms_ = 0;
  }
  for (const Letters::Turn& turn : arrived) {
    outbox_.arrived(turn);
    if (turn.last) outbox_.finish(turn);
  }
  if (ack.fate == Fate::closed) stop(arrived.back().stream->target);
  return true;
}

}  // namespace kvasir
