// The peer's sequence numbers are words of this side's memory: reading them costs no system call. A sleeping receiver
// is woken by the completion queue, because each sequence number is written with a notification.
#include "net/rdma_connection.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/spin.hpp"
#include "net/keyed_hash.hpp"
#include "net/message.hpp"

namespace kvasir {

static_assert(sizeof(RdmaWords) <= RdmaWords::kBytes, "the words fit");

/** One mapping: words that the peer writes, the ring that it writes to, then the ring from which this side writes. */
struct RdmaMemory {
  static constexpr size_t kWordBytes = RdmaWords::kBytes;
  static constexpr size_t kWritable = kWordBytes + 2 * kRingBytes, kBytes = kWritable + 2 * kRingBytes;

  RdmaMemory();
  ~RdmaMemory() { munmap(data, kBytes); }
  RdmaMemory(const RdmaMemory&) = delete;
  RdmaMemory& operator=(const RdmaMemory&) = delete;

  RdmaWords& words() const { return *reinterpret_cast<RdmaWords*>(data); }
  uint8_t* in_ring() const { return data + kWordBytes; }
  uint8_t* out_ring() const { return data + kWritable; }

  uint8_t* data;
};

struct RdmaConnection::Endpoint {
  explicit Endpoint(const std::shared_ptr<RdmaDevice>& device) : pair(device, memory.data, RdmaMemory::kWritable, RdmaMemory::kBytes) { fill_random(&probe, sizeof probe); }

  bool probe_peer(const RdmaOffer& peer, Deadline deadline, const std::atomic<bool>& ended);
  bool is_probed() const { return memory.words().probe.load(std::memory_order_acquire) == probe; }

  RdmaMemory memory;
  QueuePair pair;  // behind the memory: freed first
  uint64_t probe = 0;
};

namespace {

using std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/** A first write that takes longer does not arrive: the adapters have no route to each other. */
constexpr int kProbeMs = 5000;
/** Bytes that are read before the peer receives their number. */
constexpr uint64_t kReportBytes = kRingBytes / 8;
static_assert(kRingWaitBytes + Connection::kReserveBytes + kReportBytes <= kRingBytes, "a receiver and a sender that wait never wait for each other");
/** Sleeps of a sender that waits for space: no notification wakes it. */
constexpr microseconds kSpaceSleepLeast{20}, kSpaceSleepMost{500};
/** Time for writes of the peer to arrive after its socket has ended, and for own writes to complete at the end. */
constexpr milliseconds kLinger{100};

bool is_well_formed(const RdmaOffer& offer) { return offer.magic == RdmaOffer::kMagic && offer.checksum == offer.sum(); }

/** False for an offer that this side cannot use; a well-formed one may be of another version. */
bool is_usable(const RdmaOffer& offer, const RdmaOffer& own) {
  constexpr uint32_t kBits24 = 1 << 24;
  const bool numbers = offer.number < kBits24 && offer.first_packet < kBits24 && offer.mtu >= verbs::kMtuLeast && offer.mtu <= verbs::kMtuMost;
  return offer.usable == 1 && own.usable == 1 && offer.version == own.version && offer.ring_bytes == own.ring_bytes && offer.link_layer == own.link_layer && offer.memory != 0 && numbers;
}

bool send_offer(const Socket& socket, RdmaOffer offer, Deadline deadline, const std::atomic<bool>& ended) {
  offer.checksum = offer.sum();
  return socket.send(&offer, sizeof offer, deadline, ended);
}

/** Whether a side can use the connection. `broken`: the peer did not answer. */
enum class Verdict : uint8_t { fails = 0, works = 1, broken = 2 };
bool send_verdict(const Socket& socket, bool works, Deadline deadline, const std::atomic<bool>& ended) {
  const Verdict verdict = works ? Verdict::works : Verdict::fails;
  return socket.send(&verdict, sizeof verdict, deadline, ended);
}
Verdict receive_verdict(const Socket& socket, Deadline deadline, const std::atomic<bool>& ended) {
  Verdict verdict;
  return socket.receive(&verdict, sizeof verdict, deadline, ended) && verdict <= Verdict::works ? verdict : Verdict::broken;
}

std::unique_ptr<Connection> over_tcp(Socket socket) { return std::make_unique<Socket>(std::move(socket)); }

}  // namespace

#if defined(__linux__)

/** Shared mappings of a file without a name: a fork does not copy them, and each ring can lie twice in a row. */
RdmaMemory::RdmaMemory() {
  constexpr size_t kFileBytes = kWordBytes + 2 * kRingBytes;
  void* reserved = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int descriptor = memfd_create("kvasir-rdma", MFD_CLOEXEC);
  bool mapped = reserved != MAP_FAILED && descriptor >= 0 && ftruncate(descriptor, kFileBytes) == 0;
  data = static_cast<uint8_t*>(reserved);
  const auto map = [&](size_t at, size_t bytes, size_t offset) {
    mapped = mapped && mmap(data + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, static_cast<off_t>(offset)) != MAP_FAILED;
  };
  map(0, kWordBytes, 0);
  for (size_t half = 0; half < 2 * kRingBytes; half += kRingBytes) {
    map(kWordBytes + half, kRingBytes, kWordBytes);
    map(kWritable + half, kRingBytes, kWordBytes + kRingBytes);
  }
  if (descriptor >= 0) close(descriptor);
  if (mapped) return;
  if (reserved != MAP_FAILED) munmap(reserved, kBytes);
  throw std::runtime_error("the system refuses memory for RDMA");
}

#else

RdmaMemory::RdmaMemory() { throw std::runtime_error("this system has no RDMA"); }

#endif

uint64_t RdmaOffer::sum() const { return header_checksum(*this, kSeed); }

RdmaOffer RdmaOffer::of(const QueuePairAddress& at, uint64_t probe) {
  RdmaOffer offer;
  offer.usable = 1;
  offer.memory = at.memory;
  offer.probe = probe;
  offer.key = at.key;
  offer.number = at.number;
  offer.first_packet = at.first_packet;
  offer.lid = at.lid;
  offer.link_layer = at.link_layer;
  offer.mtu = at.mtu;
  std::memcpy(offer.gid, at.gid.raw, sizeof offer.gid);
  return offer;
}

QueuePairAddress RdmaOffer::address() const {
  QueuePairAddress address = {memory, key, number, first_packet, lid, link_layer, mtu, {}};
  std::memcpy(address.gid.raw, gid, sizeof gid);
  return address;
}

/** Writes the peer's probe into its memory. */
bool RdmaConnection::Endpoint::probe_peer(const RdmaOffer& peer, Deadline deadline, const std::atomic<bool>& ended) {
  const uint64_t ticket = pair.write({}, {peer.probe, offsetof(RdmaWords, probe)}, true);
  const Deadline last = std::min(deadline, in_milliseconds(kProbeMs));
  while (ticket != 0 && !ended && steady_clock::now() < last) {
    pair.poll();
    if (pair.completed() >= ticket) return true;
    if (pair.has_failed()) return false;
    std::this_thread::sleep_for(kSpaceSleepLeast);
  }
  return false;
}

/** Null if the device refuses. */
std::unique_ptr<RdmaConnection::Endpoint> RdmaConnection::try_endpoint(const std::shared_ptr<RdmaDevice>& device) {
  try {
    return std::make_unique<Endpoint>(device);
  } catch (const std::runtime_error&) {
    return nullptr;
  }
}

void RdmaConnection::try_device(const std::shared_ptr<RdmaDevice>& device) { Endpoint{device}; }

std::unique_ptr<Connection> RdmaConnection::agree_as_sender(Socket socket, const std::shared_ptr<RdmaDevice>& device, Deadline deadline, const std::atomic<bool>& ended) {
  std::unique_ptr<Endpoint> endpoint = try_endpoint(device);
  const RdmaOffer own = endpoint == nullptr ? RdmaOffer{} : RdmaOffer::of(endpoint->pair.address(), endpoint->probe);
  RdmaOffer peer;
  if (!send_offer(socket, own, deadline, ended) || !socket.receive(&peer, sizeof peer, deadline, ended) || !is_well_formed(peer)) return nullptr;
  if (!is_usable(peer, own)) return peer.usable == 0 || own.usable == 0 ? over_tcp(std::move(socket)) : nullptr;
  const bool writes = endpoint->pair.connect(peer.address()) && endpoint->probe_peer(peer, deadline, ended);
  if (!send_verdict(socket, writes, deadline, ended)) return nullptr;
  const Verdict verdict = receive_verdict(socket, deadline, ended);
  if (verdict == Verdict::broken) return nullptr;
  if (verdict == Verdict::fails) return over_tcp(std::move(socket));
  return writes && endpoint->is_probed() ? std::unique_ptr<Connection>(new RdmaConnection(std::move(socket), std::move(endpoint))) : nullptr;
}

std::unique_ptr<Connection> RdmaConnection::agree_as_receiver(Socket socket, const std::shared_ptr<RdmaDevice>& device, Deadline deadline, const std::atomic<bool>& ended) {
  std::unique_ptr<Endpoint> endpoint = try_endpoint(device);
  RdmaOffer own = endpoint == nullptr ? RdmaOffer{} : RdmaOffer::of(endpoint->pair.address(), endpoint->probe);
  RdmaOffer peer;
  if (!socket.receive(&peer, sizeof peer, deadline, ended) || !is_well_formed(peer)) return nullptr;
  const bool usable = is_usable(peer, own) && endpoint->pair.connect(peer.address());
  // The sender writes as soon as it has the offer.
  if (!usable) own = RdmaOffer{};
  if (!send_offer(socket, own, deadline, ended)) return nullptr;
  if (!usable) return over_tcp(std::move(socket));
  const Verdict verdict = receive_verdict(socket, deadline, ended);
  if (verdict == Verdict::broken) return nullptr;
  const bool works = verdict == Verdict::works && endpoint->is_probed() && endpoint->probe_peer(peer, deadline, ended);
  if (!send_verdict(socket, works, deadline, ended)) return nullptr;
  return works ? std::unique_ptr<Connection>(new RdmaConnection(std::move(socket), std::move(endpoint))) : over_tcp(std::move(socket));
}

RdmaConnection::RdmaConnection(Socket socket, std::unique_ptr<Endpoint> endpoint)
    : RingConnection(RingEnd::reader(endpoint->memory.words().in, endpoint->memory.in_ring()), RingEnd::writer(endpoint->memory.words().out, endpoint->memory.out_ring())),
      socket_(std::move(socket)),
      endpoint_(std::move(endpoint)) {}

/** Writes that are complete need no memory of this side; the others end with the queue pair. */
RdmaConnection::~RdmaConnection() {
  shut_down();
  const QueuePair& pair = endpoint_->pair;
  for (const Deadline last = steady_clock::now() + kLinger; pair.completed() < pair.queued() && !pair.has_failed() && steady_clock::now() < last;) {
    endpoint_->pair.poll();
    std::this_thread::sleep_for(kSpaceSleepLeast);
  }
}

/** The word arrives behind the data; the socket wakes the threads that wait on both sides. */
void RdmaConnection::shut_down() const {
  if (ended_.exchange(true, std::memory_order_acq_rel)) return;
  endpoint_->pair.poll();
  endpoint_->pair.write({}, {1, offsetof(RdmaWords, ended)}, true);
  socket_.shut_down();
}

bool RdmaConnection::has_ended() const {
  return ended_.load(std::memory_order_acquire) || endpoint_->memory.words().ended.load(std::memory_order_acquire) != 0 || endpoint_->pair.has_failed();
}

bool RdmaConnection::has_failed() const { return endpoint_->pair.has_failed(); }

/** The socket carries no data after the agreement: it is readable once the peer has exited or shut it down. */
void RdmaConnection::check_peer() const {
  if (!socket_.is_readable()) return;
  const int64_t now = std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
  int64_t since = 0;
  if (!hung_up_at_.compare_exchange_strong(since, now) && now - since >= std::chrono::nanoseconds(kLinger).count()) shut_down();
}

void RdmaConnection::consume(size_t bytes) const {
  in_.advance(bytes);
  read_ += bytes;
  endpoint_->pair.poll();
  report_read();
}

void RdmaConnection::report_read() const {
  if (read_ - reported_ < kReportBytes) return;
  if (endpoint_->pair.write({}, {read_, RdmaWords::read_offset()}, false) != 0) reported_ = read_;
}

/** Free bytes of both rings: the peer has read them, and the adapter reads them no more on this side. */
size_t RdmaConnection::space() const {
  const size_t free = out_.available();
  if (free == RingEnd::kInvalid) return free;
  const uint64_t completed = endpoint_->pair.completed();
  for (; !unfinished_.empty() && unfinished_.front().ticket <= completed; unfinished_.pop_front()) finished_ = unfinished_.front().written;
  return std::min<size_t>(free, kRingBytes - (written_ - finished_));
}

bool RdmaConnection::is_writable() const {
  endpoint_->pair.poll();
  return endpoint_->pair.can_write();
}

/** Writes the next bytes of the ring and the sequence number behind them. False if the queue is full or has failed. */
bool RdmaConnection::write_out(size_t bytes) const {
  const auto offset = static_cast<uint64_t>(out_.next() - endpoint_->memory.out_ring());
  const uint64_t ticket = endpoint_->pair.write({out_.next(), bytes, RdmaMemory::kWordBytes + offset}, {written_ + bytes, RdmaWords::written_offset()}, true);
  if (ticket == 0) return false;
  out_.advance(bytes);
  written_ += bytes;
  unfinished_.push_back({ticket, written_});
  return true;
}

bool RdmaConnection::await_received(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  if (spin([&] { return has_received(bytes); })) return true;
  QueuePair& pair = endpoint_->pair;
  while (!ended.load(std::memory_order_acquire)) {
    pair.poll();
    report_read();
    pair.request_notification();
    // What arrived before the request causes no notification.
    if (has_received(bytes)) return true;
    const auto now = steady_clock::now();
    if (now >= deadline) return false;
    const bool hung_up = hung_up_at_.load(std::memory_order_relaxed) != 0;
    // The socket stays readable after the end: only the queue is waited for.
    pollfd waiting[2] = {{pair.descriptor(), POLLIN, 0}, {hung_up ? -1 : socket_.descriptor(), POLLIN, 0}};
    const auto left = std::chrono::ceil<milliseconds>(std::min<steady_clock::duration>(deadline - now, milliseconds(kWaitMs)));
    poll(waiting, 2, hung_up ? 1 : static_cast<int>(left.count()));
    if (waiting[0].revents != 0) pair.take_notification();
    check_peer();
    if (has_received(bytes)) return true;
  }
  return false;
}

bool RdmaConnection::await_space(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  const auto ready = [&] { return (is_writable() && space() >= bytes) || has_ended(); };
  if (spin(ready)) return true;
  for (microseconds pause = kSpaceSleepLeast; !ended.load(std::memory_order_acquire) && steady_clock::now() < deadline; pause = std::min(2 * pause, kSpaceSleepMost)) {
    std::this_thread::sleep_for(pause);
    check_peer();
    if (ready()) return true;
  }
  return false;
}

}  // namespace kvasir
