// Every write to a page happens inside the landing's `while_open`, takes what has already arrived and waits for nothing; waiting is done outside.
#include "page_receiver.hpp"

#include <algorithm>


namespace kvasir {
namespace {

/** Between the parts of one frame. */
constexpr int kStallMs = 20000;
/** Written under the lock at once. */
constexpr size_t kWriteBytes = size_t{1} << 18;
constexpr int kWritePages = 64;
/** Arrived before it is worth waking up. */
constexpr size_t kWakeBytes = size_t{1} << 19;
constexpr size_t kAckBytes = size_t{1} << 20;

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
  std::vector<uint32_t> places;
  size_t owed = 0;
  bool on = true;
  for (uint32_t sequence = 1; on && !ended; sequence++) {
    const Heard heard = hear_frame(line, sequence, places, ended);
    count(heard, places.size());
    on = heard == Heard::landed || heard == Heard::late;
    owed += places.size() * page_bytes_;
    // One acknowledgement stands for many frames while more of them come.
    if (!on || (heard == Heard::landed && owed < kAckBytes && line.is_readable())) continue;
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
PageReceiver::Heard PageReceiver::hear_frame(const Line& line, uint32_t sequence, std::vector<uint32_t>& places, const std::atomic<bool>& ended) {
  FrameHeader header;
  places.clear();
  if (!line.await_readable(kNever, ended)) return Heard::left;
  const int64_t begun = line.receive_some(&header, 1);
  // Between frames anybody may leave.
  if (begun == 0 || begun == Line::kBroken) return Heard::left;
  const size_t known = begun == 1 ? 1 : 0;
  if (!line.receive(reinterpret_cast<uint8_t*>(&header) + known, sizeof header - known, in_milliseconds(kStallMs), ended)) return Heard::broken;
  if (!is_sane(header, sequence)) return Heard::broken;
  places.resize(header.count);
  if (!line.receive(places.data(), header.count * sizeof(uint32_t), in_milliseconds(kStallMs), ended)) return Heard::broken;
  if (header.checksum != header_checksum(pool_->isa, header, places.data())) return Heard::broken;

  const std::shared_ptr<Landing> landing = find(header);
  const auto exists = [&](uint32_t place) { return place < static_cast<uint32_t>(landing->places()); };
  if (landing && !std::all_of(places.begin(), places.end(), exists)) return Heard::broken;
  const Heard heard = receive_pages(line, landing.get(), header, places, ended);
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
PageReceiver::Heard PageReceiver::receive_pages(const Line& line, Landing* landing, const FrameHeader& header, const std::vector<uint32_t>& places,
                                              const std::atomic<bool>& ended) {
  PagesChecksum sum(pool_->isa, kPagesSeed, page_bytes_);
  std::vector<uint8_t> waste;
  bool open = landing != nullptr;
  Deadline stalled = in_milliseconds(kStallMs);
  for (size_t done = 0; done < header.bytes;) {
    int64_t got = Line::kNothing;
    open = open && landing->while_open([&] {
      const size_t copied = copy_arrived(line, *landing, places, done, header.bytes - done, sum);
      got = copied > 0 ? static_cast<int64_t>(copied) : receive_into(line, *landing, places, done);
      if (got > 0) check_arrived(sum, *landing, places, done + static_cast<size_t>(got), page_bytes_);
    });
    if (!open) {
      waste.resize(std::min<size_t>(header.bytes, size_t{1} << 16));
      got = line.receive_some(waste.data(), std::min(waste.size(), header.bytes - done));
    }
    if (got == 0 || got == Line::kBroken || ended) return Heard::broken;
    if (got == Line::kNothing) {
      if (std::chrono::steady_clock::now() >= stalled) return Heard::broken;
      line.await_bytes(std::min(kWakeBytes, header.bytes - done));
      continue;
    }
    done += static_cast<size_t>(got);
    stalled = in_milliseconds(kStallMs);
  }
  uint64_t end;
  if (!line.receive(&end, sizeof end, in_milliseconds(kStallMs), ended)) return Heard::broken;
  open = open && landing->while_open([] {});
  if (!open || end == given_up(header)) return Heard::late;
  return end == sum.value() ? Heard::landed : Heard::broken;
}

/** Where a line keeps what has arrived: into the pages from byte `done` of the frame on, checked on the way. Returns how many bytes. */
size_t PageReceiver::copy_arrived(const Line& line, const Landing& landing, const std::vector<uint32_t>& places, size_t done, size_t rest, PagesChecksum& sum) const {
  size_t there;
  const uint8_t* from = line.arrived(there);
  // What was received otherwise before is checked first.
  const size_t bytes = sum.bytes() == done ? std::min({there, rest, kWriteBytes}) / kChecksumStripe * kChecksumStripe : 0;
  for (size_t at = 0; at < bytes;) {
    const size_t page = (done + at) / page_bytes_, offset = (done + at) % page_bytes_, part = std::min(page_bytes_ - offset, bytes - at);
    sum.add(from + at, part, landing.place(static_cast<int>(places[page])) + offset);
    at += part;
  }
  if (bytes > 0) line.take(bytes);
  return bytes;
}

/** Into the pages from byte `done` of the frame on. */
int64_t PageReceiver::receive_into(const Line& line, const Landing& landing, const std::vector<uint32_t>& places, size_t done) const {
  iovec parts[kWritePages];
  int count = 0;
  size_t offset = done % page_bytes_, wanted = 0;
  for (size_t i = done / page_bytes_; i < places.size() && count < kWritePages && wanted < kWriteBytes; i++) {
    const size_t bytes = std::min(page_bytes_ - offset, kWriteBytes - wanted);
    parts[count++] = {landing.place(static_cast<int>(places[i])) + offset, bytes};
    wanted += bytes;
    offset = 0;
    if (wanted == kWriteBytes) break;
  }
  return line.receive_parts(parts, count);
}

}  // namespace kvasir
