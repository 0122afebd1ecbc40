// Every write to a page happens inside the buffer's `while_open`, with bytes that have arrived; waits happen outside.
#include "transfer/page_receiver.hpp"

#include <algorithm>

namespace kvasir {
namespace {

/** Longest wait between the parts of one frame. */
constexpr int kStallMs = 20000;
/** Bytes written under the lock at once. */
constexpr size_t kWriteBytes = size_t{1} << 18;
/** Bytes that must have arrived before a wake-up. */
constexpr size_t kWakeBytes = size_t{1} << 19;
constexpr size_t kAckBytes = size_t{1} << 22;

/** Adds the frame's first `bytes` bytes to the checksum at once, while they are cached. */
void check_arrived(PagesChecksum& sum, const ReceiveBuffer& buffer, const std::vector<uint32_t>& slots, size_t bytes, size_t page_bytes) {
  while (sum.bytes() < bytes) {
    const size_t in_page = std::min(page_bytes, sum.offset() + bytes - sum.bytes());
    const size_t ready = in_page / kChecksumStripe * kChecksumStripe;
    if (ready <= sum.offset()) return;
    sum.add(buffer.slot(static_cast<int>(slots[sum.bytes() / page_bytes])) + sum.offset(), ready - sum.offset());
  }
}

}  // namespace

PageReceiver::PageReceiver(std::shared_ptr<KvPool> pool, const HostPort& address, Transport transport, const HashKey& key)
    : pool_(std::move(pool)),
      page_bytes_(pool_->layout.page_bytes()),
      listener_(address, transport, key, pool_->layout, [this](Connection& connection, const std::atomic<bool>& ended) { serve(connection, ended); }) {}

uint64_t PageReceiver::register_buffer(const std::shared_ptr<ReceiveBuffer>& buffer) {
  uint64_t key;
  fill_random(&key, sizeof key);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = registered_.begin(); at != registered_.end();) at = at->second.buffer.expired() ? registered_.erase(at) : std::next(at);
  registered_[static_cast<uint32_t>(buffer->number())] = {buffer, key};
  return key;
}

ReceiverCounts PageReceiver::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  ReceiverCounts all = counts_;
  all.refused = listener_.refused();
  return all;
}

void PageReceiver::serve(Connection& connection, const std::atomic<bool>& ended) {
  BufferedReader reader(connection);
  Frame frame{};
  size_t unacknowledged = 0;
  bool open = true;
  for (uint32_t sequence = 1; open && !ended; sequence++) {
    const FrameOutcome outcome = receive_frame(reader, sequence, frame, ended);
    count(outcome, frame.slots.size());
    open = outcome == FrameOutcome::received || outcome == FrameOutcome::late;
    unacknowledged += frame.slots.size() * page_bytes_;
    // While more frames arrive, one acknowledgement covers many.
    const bool last = frame.header.kind == FrameKind::last_pages;
    if (!open || (outcome == FrameOutcome::received && unacknowledged < kAckBytes && (reader.is_readable() || (!last && connection.spin_until_readable())))) continue;
    unacknowledged = 0;
    const Ack ack = {kAckMagic, sequence, outcome == FrameOutcome::late ? AckStatus::closed : AckStatus::received, 0};
    open = connection.send(&ack, sizeof ack, in_milliseconds(kStallMs), ended);
  }
}

void PageReceiver::count(FrameOutcome outcome, size_t pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (outcome == FrameOutcome::received) {
    counts_.pages += pages;
    counts_.bytes += pages * page_bytes_;
  }
  if (outcome == FrameOutcome::late) counts_.late++;
  if (outcome == FrameOutcome::broken) counts_.broken++;
}

/** Receives one frame. Header and slots are used only once checksum, order and lengths are valid. */
PageReceiver::FrameOutcome PageReceiver::receive_frame(BufferedReader& reader, uint32_t sequence, Frame& frame, const std::atomic<bool>& ended) {
  auto& [header, slots] = frame;
  slots.clear();
  // The peer may end the connection between frames.
  if (!reader.await_some(ended)) return FrameOutcome::closed;
  if (!reader.receive(&header, sizeof header, in_milliseconds(kStallMs), ended) || !is_valid(header, sequence)) return FrameOutcome::broken;
  slots.resize(header.count);
  if (!reader.receive(slots.data(), header.count * sizeof(uint32_t), in_milliseconds(kStallMs), ended)) return FrameOutcome::broken;
  if (header.checksum != header_checksum(pool_->isa, header, slots.data())) return FrameOutcome::broken;

  const std::shared_ptr<ReceiveBuffer> buffer = find(header);
  const auto exists = [&](uint32_t slot) { return slot < static_cast<uint32_t>(buffer->slots()); };
  if (buffer && !std::all_of(slots.begin(), slots.end(), exists)) return FrameOutcome::broken;
  const FrameOutcome outcome = receive_pages(reader, buffer.get(), frame, ended);
  if (outcome == FrameOutcome::received)
    for (const uint32_t slot : slots) buffer->page_received(static_cast<int>(slot));
  if (outcome == FrameOutcome::received && header.kind == FrameKind::last_pages) buffer->complete();
  return outcome;
}

bool PageReceiver::is_valid(const FrameHeader& header, uint32_t sequence) const {
  const bool known = header.kind == FrameKind::pages || header.kind == FrameKind::last_pages;
  return header.magic == kFrameMagic && header.version == kWireVersion && known && header.sequence == sequence && header.count <= kFramePagesMax &&
         header.bytes == header.count * page_bytes_;
}

std::shared_ptr<ReceiveBuffer> PageReceiver::find(const FrameHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = registered_.find(header.buffer);
  return found != registered_.end() && found->second.key == header.buffer_key ? found->second.buffer.lock() : nullptr;
}

/** Discards the pages if the buffer is unknown or closed. */
PageReceiver::FrameOutcome PageReceiver::receive_pages(BufferedReader& reader, ReceiveBuffer* buffer, const Frame& frame, const std::atomic<bool>& ended) {
  const FrameHeader& header = frame.header;
  PagesChecksum sum(pool_->isa, kPagesSeed, page_bytes_);
  std::vector<uint8_t> discarded;
  bool open = buffer != nullptr;
  Deadline stalled = in_milliseconds(kStallMs);
  for (size_t done = 0; done < header.bytes;) {
    int64_t got = Connection::kWouldBlock;
    open = open && buffer->while_open([&] {
      const size_t copied = reader.is_empty() ? copy_arrived(reader.connection(), *buffer, frame, done, sum) : 0;
      got = copied > 0 ? static_cast<int64_t>(copied) : receive_into(reader, *buffer, frame, done);
      if (got > 0) check_arrived(sum, *buffer, frame.slots, done + static_cast<size_t>(got), page_bytes_);
    });
    if (!open) {
      discarded.resize(std::min<size_t>(header.bytes, size_t{1} << 16));
      BufferedReader::Parts parts;
      parts.add(discarded.data(), std::min<uint64_t>(discarded.size(), header.bytes - done));
      got = reader.receive_parts(parts, false);
    }
    if (got == 0 || got == Connection::kBroken || ended) return FrameOutcome::broken;
    if (got == Connection::kWouldBlock) {
      if (std::chrono::steady_clock::now() >= stalled) return FrameOutcome::broken;
      reader.connection().await_bytes(std::min<uint64_t>(kWakeBytes, header.bytes - done));
      continue;
    }
    done += static_cast<size_t>(got);
    stalled = in_milliseconds(kStallMs);
  }
  uint64_t end;
  if (!reader.receive(&end, sizeof end, in_milliseconds(kStallMs), ended)) return FrameOutcome::broken;
  open = open && buffer->while_open([] {});
  if (!open || end == given_up(header)) return FrameOutcome::late;
  return end == sum.value() ? FrameOutcome::received : FrameOutcome::broken;
}

/**
 * Copies bytes that a ring holds into the pages, from byte `done` of the frame on, and sums them. Returns
 * their count.
 */
size_t PageReceiver::copy_arrived(const Connection& connection, const ReceiveBuffer& buffer, const Frame& frame, size_t done, PagesChecksum& sum) const {
  size_t available;
  const uint8_t* from = connection.peek(available);
  // Only if everything received before is summed.
  const size_t bytes = sum.bytes() == done ? std::min({available, static_cast<size_t>(frame.header.bytes) - done, kWriteBytes}) / kChecksumStripe * kChecksumStripe : 0;
  for (size_t at = 0; at < bytes;) {
    const size_t page = (done + at) / page_bytes_, offset = (done + at) % page_bytes_, part = std::min(page_bytes_ - offset, bytes - at);
    sum.add(from + at, part, buffer.slot(static_cast<int>(frame.slots[page])) + offset);
    at += part;
  }
  if (bytes > 0) connection.consume(bytes);
  return bytes;
}

/** Receives into the pages, from byte `done` of the frame on. */
int64_t PageReceiver::receive_into(BufferedReader& reader, const ReceiveBuffer& buffer, const Frame& frame, size_t done) const {
  BufferedReader::Parts parts;
  const size_t most = std::min<size_t>(frame.header.bytes, done + kWriteBytes);
  size_t at = done;
  while (at < most && !parts.is_full()) {
    const size_t offset = at % page_bytes_, bytes = std::min(page_bytes_ - offset, most - at);
    parts.add(buffer.slot(static_cast<int>(frame.slots[at / page_bytes_])) + offset, bytes);
    at += bytes;
  }
  // Bytes after the last page belong to the trailer and the next frame.
  return reader.receive_parts(parts, at == frame.header.bytes);
}

}  // namespace kvasir
