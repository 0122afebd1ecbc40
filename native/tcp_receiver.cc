// Every write to a page happens inside the landing's `while_open`, takes what has already arrived and waits for nothing; waiting is done outside.
#include "tcp_receiver.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "pages_checksum.hpp"

namespace kvasir {
namespace {

constexpr int kGreetMs = 5000;
/** Between the parts of one frame. */
constexpr int kStallMs = 20000;
constexpr size_t kConnectionsMax = 256;
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

TcpReceiver::TcpReceiver(std::shared_ptr<KvPool> pool, const HostPort& address, const HashKey& key)
    : pool_(std::move(pool)),
      key_(key),
      page_bytes_(pool_->layout.page_bytes()),
      listening_(listen_at(address)),
      port_(port_of(listening_)),
      thread_([this] { serve(); }) {}

TcpReceiver::~TcpReceiver() {
  ended_ = true;
  thread_.join();
  reap(true);
}

uint64_t TcpReceiver::admit(const std::shared_ptr<Landing>& landing) {
  uint64_t key;
  fill_random(&key, sizeof key);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = admitted_.begin(); at != admitted_.end();) at = at->second.landing.expired() ? admitted_.erase(at) : std::next(at);
  admitted_[static_cast<uint32_t>(landing->number())] = {landing, key};
  return key;
}

ReceiverCounts TcpReceiver::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void TcpReceiver::serve() {
  while (!ended_) {
    if (!listening_.await_readable(kNever, ended_)) continue;
    reap(false);
    Socket socket = accept_from(listening_);
    // Those who are too many, or came while no descriptor is free, try again.
    if (!socket.is_open() || connections_.size() >= kConnectionsMax) continue;
    connections_.emplace_back();
    Connection& connection = connections_.back();
    connection.socket = std::move(socket);
    connection.thread = std::thread([this, &connection] {
      hear(connection);
      connection.over = true;
    });
  }
}

void TcpReceiver::reap(bool all) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    if (!all && !at->over) {
      ++at;
      continue;
    }
    at->thread.join();
    at = connections_.erase(at);
  }
}

void TcpReceiver::hear(Connection& connection) {
  const Socket& socket = connection.socket;
  const Greeting greeting = greet_as_receiver(socket, key_, pool_->layout, in_milliseconds(kGreetMs), ended_);
  if (greeting == Greeting::refused) {
    std::lock_guard<std::mutex> lock(mutex_);
    counts_.refused++;
  }
  std::vector<uint32_t> places;
  bool on = greeting == Greeting::done;
  size_t owed = 0;
  for (uint32_t sequence = 1; on && !ended_; sequence++) {
    const Heard heard = hear_frame(socket, sequence, places);
    count(heard, places.size());
    on = heard == Heard::landed || heard == Heard::late;
    owed += places.size() * page_bytes_;
    // One acknowledgement stands for many frames while more of them come.
    if (!on || (heard == Heard::landed && owed < kAckBytes && socket.is_readable())) continue;
    owed = 0;
    const Ack ack = {kAckMagic, sequence, heard == Heard::late ? Fate::closed : Fate::landed, 0};
    on = socket.send(&ack, sizeof ack, in_milliseconds(kStallMs), ended_);
  }
  socket.cut();
}

void TcpReceiver::count(Heard heard, size_t pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (heard == Heard::landed) {
    counts_.pages += pages;
    counts_.bytes += pages * page_bytes_;
  }
  if (heard == Heard::late) counts_.late++;
  if (heard == Heard::broken) counts_.broken++;
}

/** A frame is believed once its checksum, its order, its lengths and its places are right; until then it goes into memory of this thread alone. */
TcpReceiver::Heard TcpReceiver::hear_frame(const Socket& socket, uint32_t sequence, std::vector<uint32_t>& places) {
  FrameHeader header;
  places.clear();
  if (!socket.await_readable(kNever, ended_)) return Heard::left;
  const int64_t begun = socket.receive_some(&header, 1);
  // Between frames anybody may leave.
  if (begun == 0 || begun == Socket::kBroken) return Heard::left;
  const size_t known = begun == 1 ? 1 : 0;
  if (!socket.receive(reinterpret_cast<uint8_t*>(&header) + known, sizeof header - known, in_milliseconds(kStallMs), ended_)) return Heard::broken;
  if (!is_sane(header, sequence)) return Heard::broken;
  places.resize(header.count);
  if (!socket.receive(places.data(), header.count * sizeof(uint32_t), in_milliseconds(kStallMs), ended_)) return Heard::broken;
  if (header.checksum != header_checksum(pool_->isa, header, places.data())) return Heard::broken;

  const std::shared_ptr<Landing> landing = find(header);
  const auto exists = [&](uint32_t place) { return place < static_cast<uint32_t>(landing->places()); };
  if (landing && !std::all_of(places.begin(), places.end(), exists)) return Heard::broken;
  const Heard heard = receive_pages(socket, landing.get(), header, places);
  if (heard == Heard::landed && header.kind == FrameKind::last_pages) landing->complete();
  return heard;
}

bool TcpReceiver::is_sane(const FrameHeader& header, uint32_t sequence) const {
  const bool known = header.kind == FrameKind::pages || header.kind == FrameKind::last_pages;
  return header.magic == kFrameMagic && header.version == kWireVersion && known && header.sequence == sequence && header.count <= kFramePagesMax &&
         header.bytes == header.count * page_bytes_;
}

std::shared_ptr<Landing> TcpReceiver::find(const FrameHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = admitted_.find(header.landing);
  return found != admitted_.end() && found->second.key == header.landing_key ? found->second.landing.lock() : nullptr;
}

/** Without a landing, or once it is closed, what comes is thrown away. */
TcpReceiver::Heard TcpReceiver::receive_pages(const Socket& socket, Landing* landing, const FrameHeader& header, const std::vector<uint32_t>& places) {
  PagesChecksum sum(pool_->isa, kPagesSeed, page_bytes_);
  std::vector<uint8_t> waste;
  bool open = landing != nullptr;
  Deadline stalled = in_milliseconds(kStallMs);
  for (size_t done = 0; done < header.bytes;) {
    int64_t got = Socket::kNothing;
    open = open && landing->while_open([&] {
      got = receive_into(socket, *landing, places, done);
      if (got > 0) check_arrived(sum, *landing, places, done + static_cast<size_t>(got), page_bytes_);
    });
    if (!open) {
      waste.resize(std::min<size_t>(header.bytes, size_t{1} << 16));
      got = socket.receive_some(waste.data(), std::min(waste.size(), header.bytes - done));
    }
    if (got == 0 || got == Socket::kBroken || ended_) return Heard::broken;
    if (got == Socket::kNothing) {
      if (std::chrono::steady_clock::now() >= stalled) return Heard::broken;
      socket.await_bytes(std::min(kWakeBytes, header.bytes - done));
      continue;
    }
    done += static_cast<size_t>(got);
    stalled = in_milliseconds(kStallMs);
  }
  uint64_t end;
  if (!socket.receive(&end, sizeof end, in_milliseconds(kStallMs), ended_)) return Heard::broken;
  open = open && landing->while_open([] {});
  if (!open || end == given_up(header)) return Heard::late;
  return end == sum.value() ? Heard::landed : Heard::broken;
}

/** Into the pages from byte `done` of the frame on. */
int64_t TcpReceiver::receive_into(const Socket& socket, const Landing& landing, const std::vector<uint32_t>& places, size_t done) const {
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
  const ssize_t got = readv(socket.descriptor(), parts, count);
  if (got >= 0) return got;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Socket::kNothing : Socket::kBroken;
}

}  // namespace kvasir
