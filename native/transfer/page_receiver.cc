// Every write to a page happens inside the landing's `while_open`, takes what has already arrived and waits for nothing; waiting is done outside.
#include "transfer/page_receiver.hpp"

#include <algorithm>

namespace kvasir {
namespace {

/** Between the parts of one frame. */
constexpr int kStallMs = 20000;
/** Written under the lock at once. */
constexpr size_t kWriteBytes = size_t{1} << 18;
/** Arrived before it is worth waking up. */
constexpr size_t kWakeBytes = size_t{1} << 19;
constexpr size_t kAckBytes = size_t{1} << 22;

/** What has arrived of a frame's pages, its first `bytes` bytes, is checked at once, while it is in the cache. */
void check_arrived(PagesChecksum& sum, const Landing& landing, const std::vector<uint32_t>& places, size_t bytes, size_t page_bytes) {
  while (sum.bytes() < bytes) {
    const size_t in_page = std::min(page_bytes, sum.offset() + bytes - sum.bytes());
    const size_t ready = in_page / kChecksumStripe * kChecksumStripe;
    if (ready <= sum.offset()) return;
    sum.add(landing.place(static_cast<int>(places[sum.bytes() / page_bytes])) + sum.offset(), ready - sum.offset());
  }
}

}  // namespace

PageReceiver::PageReceiver(std::shared_ptr<KvPool> pool, const HostPort& address, Way way, const HashKey& key)
    : pool_(std::move(pool)),
      page_bytes_(pool_->layout.page_bytes()),
      listener_(address, way, key, pool_->layout, [this](Line& line, const std::atomic<bool>& ended) { hear(line, ended); }) {}

uint64_t PageReceiver::admit(const std::shared_ptr<Landing>& landing) {
  uint64_t key;
  fill_random(&key, sizeof key);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = admitted_.begin(); at != admitted_.end();) at = at->second.landing.expired() ? admitted_.erase(at) : std::next(at);
  admitted_[static_cast<uint32_t>(landing->number())] = {landing, key};
  return key;
}

ReceiverCounts PageReceiver::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  ReceiverCounts all = counts_;
  all.refused = listener_.refused();
  return all;
}

void PageReceiver::hear(Line& line, const std::atomic<bool>& ended) {
  Inbox inbox(line);
  Frame frame{};
  size_t owed = 0;
  bool on = true;
  for (uint32_t sequence = 1; on && !ended; sequence++) {
    const Heard heard = hear_frame(inbox, sequence, frame, ended);
    count(heard, frame.places.size());
    on = heard == Heard::landed || heard == Heard::late;
    owed += frame.places.size() * page_bytes_;
    // One acknowledgement stands for many frames while more of them come.
    const bool last = frame.header.kind == FrameKind::last_pages;
    if (!on || (heard == Heard::landed && owed < kAckBytes && (inbox.is_readable() || (!last && line.comes_soon())))) continue;
    owed = 0;
    const Ack ack = {kAckMagic, sequence, heard == Heard::late ? Fate::closed : Fate::landed, 0};
    on = line.send(&ack, sizeof ack, in_milliseconds(kStallMs), ended);
  }
}

void PageReceiver::count(Heard heard, size_t pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (heard == Heard::landed) {
    counts_.pages += pages;
    counts_.bytes += pages * page_bytes_;
  }
  if (heard == Heard::late) counts_.late++;
  if (heard == Heard::broken) counts_.broken++;
}

/** A frame is believed once its checksum, its order, its lengths and its places are right; until then it goes into memory of this thread alone. */
PageReceiver::Heard PageReceiver::hear_frame(Inbox& inbox, uint32_t sequence, Frame& frame, const std::atomic<bool>& ended) {
  auto& [header, places] = frame;
  places.clear();
  // Between frames anybody may leave.
  if (!inbox.await_some(ended)) return Heard::left;
  if (!inbox.receive(&header, sizeof header, in_milliseconds(kStallMs), ended) || !is_sane(header, sequence)) return Heard::broken;
  places.resize(header.count);
  if (!inbox.receive(places.data(), header.count * sizeof(uint32_t), in_milliseconds(kStallMs), ended)) return Heard::broken;
  if (header.checksum != header_checksum(pool_->isa, header, places.data())) return Heard::broken;

  const std::shared_ptr<Landing> landing = find(header);
  const auto exists = [&](uint32_t place) { return place < static_cast<uint32_t>(landing->places()); };
  if (landing && !std::all_of(places.begin(), places.end(), exists)) return Heard::broken;
  const Heard heard = receive_pages(inbox, landing.get(), frame, ended);
  if (heard == Heard::landed)
    for (const uint32_t place : places) landing->landed(static_cast<int>(place));
  if (heard == Heard::landed && header.kind == FrameKind::last_pages) landing->complete();
  return heard;
}

bool PageReceiver::is_sane(const FrameHeader& header, uint32_t sequence) const {
  const bool known = header.kind == FrameKind::pages || header.kind == FrameKind::last_pages;
  return header.magic == kFrameMagic && header.version == kWireVersion && known && header.sequence == sequence && header.count <= kFramePagesMax &&
         header.bytes == header.count * page_bytes_;
}

std::shared_ptr<Landing> PageReceiver::find(const FrameHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = admitted_.find(header.landing);
  return found != admitted_.end() && found->second.key == header.landing_key ? found->second.landing.lock() : nullptr;
}

/** Without a landing, or once it is closed, what comes is thrown away. */
PageReceiver::Heard PageReceiver::receive_pages(Inbox& inbox, Landing* landing, const Frame& frame, const std::atomic<bool>& ended) {
  const FrameHeader& header = frame.header;
  PagesChecksum sum(pool_->isa, kPagesSeed, page_bytes_);
  std::vector<uint8_t> waste;
  bool open = landing != nullptr;
  Deadline stalled = in_milliseconds(kStallMs);
  for (size_t done = 0; done < header.bytes;) {
    int64_t got = Line::kNothing;
    open = open && landing->while_open([&] {
      const size_t copied = inbox.is_empty() ? copy_arrived(inbox.line(), *landing, frame, done, sum) : 0;
      got = copied > 0 ? static_cast<int64_t>(copied) : receive_into(inbox, *landing, frame, done);
      if (got > 0) check_arrived(sum, *landing, frame.places, done + static_cast<size_t>(got), page_bytes_);
    });
    if (!open) {
      waste.resize(std::min<size_t>(header.bytes, size_t{1} << 16));
      Inbox::Parts parts;
      parts.add(waste.data(), std::min(waste.size(), header.bytes - done));
      got = inbox.receive_parts(parts, false);
    }
    if (got == 0 || got == Line::kBroken || ended) return Heard::broken;
    if (got == Line::kNothing) {
      if (std::chrono::steady_clock::now() >= stalled) return Heard::broken;
      inbox.line().await_bytes(std::min(kWakeBytes, header.bytes - done));
      continue;
    }
    done += static_cast<size_t>(got);
    stalled = in_milliseconds(kStallMs);
  }
  uint64_t end;
  if (!inbox.receive(&end, sizeof end, in_milliseconds(kStallMs), ended)) return Heard::broken;
  open = open && landing->while_open([] {});
  if (!open || end == given_up(header)) return Heard::late;
  return end == sum.value() ? Heard::landed : Heard::broken;
}

/** Where a line keeps what has arrived: into the pages from byte `done` of the frame on, checked on the way. Returns how many bytes. */
size_t PageReceiver::copy_arrived(const Line& line, const Landing& landing, const Frame& frame, size_t done, PagesChecksum& sum) const {
  size_t there;
  const uint8_t* from = line.arrived(there);
  // What was received otherwise before is checked first.
  const size_t bytes = sum.bytes() == done ? std::min({there, static_cast<size_t>(frame.header.bytes) - done, kWriteBytes}) / kChecksumStripe * kChecksumStripe : 0;
  for (size_t at = 0; at < bytes;) {
    const size_t page = (done + at) / page_bytes_, offset = (done + at) % page_bytes_, part = std::min(page_bytes_ - offset, bytes - at);
    sum.add(from + at, part, landing.place(static_cast<int>(frame.places[page])) + offset);
    at += part;
  }
  if (bytes > 0) line.take(bytes);
  return bytes;
}

/** Into the pages from byte `done` of the frame on. */
int64_t PageReceiver::receive_into(Inbox& inbox, const Landing& landing, const Frame& frame, size_t done) const {
  Inbox::Parts parts;
  const size_t most = std::min<size_t>(frame.header.bytes, done + kWriteBytes);
  size_t at = done;
  while (at < most && !parts.is_full()) {
    const size_t offset = at % page_bytes_, bytes = std::min(page_bytes_ - offset, most - at);
    parts.add(landing.place(static_cast<int>(frame.places[at / page_bytes_])) + offset, bytes);
    at += bytes;
  }
  // What comes behind the last page is the next frame's head.
  return inbox.receive_parts(parts, at == frame.header.bytes);
}

}  // namespace kvasir
