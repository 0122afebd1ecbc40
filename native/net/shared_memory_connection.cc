// The memory is an unnamed file with a sealed size: a peer cannot truncate it, so mapped pages never raise SIGBUS.
#include "net/shared_memory_connection.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/spin.hpp"

namespace kvasir {

/** The shared file: ring states first, then two rings. */
struct SharedRings {
  struct Heads {
    RingState states[2];
    std::atomic<uint32_t> ended{0};
  };
  static constexpr size_t kHeadBytes = size_t{1} << 16;  // a multiple of every page size
  static constexpr size_t kBytes = kHeadBytes + 2 * kRingBytes;
  static_assert(sizeof(Heads) <= kHeadBytes && sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free, "ring states are plain lock-free words");

  explicit SharedRings(int descriptor) : memory{{descriptor, kHeadBytes}, {descriptor, kHeadBytes + kRingBytes}} {
    void* mapped = mmap(nullptr, kHeadBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    heads = mapped == MAP_FAILED ? nullptr : static_cast<Heads*>(mapped);
  }
  ~SharedRings() {
    if (heads != nullptr) munmap(heads, kHeadBytes);
  }
  bool are_mapped() const { return heads != nullptr && memory[0].data() != nullptr && memory[1].data() != nullptr; }

  Heads* heads;
  RingMemory memory[2];
};

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWait{100};

#if defined(__linux__)

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/** Negative if the system has no sealed memory files. */
int new_memory() {
  const int descriptor = memfd_create("kvasir-connection", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return descriptor;
  if (ftruncate(descriptor, SharedRings::kBytes) == 0 && fcntl(descriptor, F_ADD_SEALS, kSeals) == 0) return descriptor;
  close(descriptor);
  return -1;
}

bool is_valid(int descriptor) {
  struct stat info = {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &info) == 0 && static_cast<size_t>(info.st_size) == SharedRings::kBytes;
}

#else

int new_memory() { return -1; }
bool is_valid(int) { return false; }

#endif

/** The socket carries no data after setup, so it becomes readable only when the peer closes it or exits. */
bool is_hung_up(const Socket& socket) { return socket.is_readable(); }

}  // namespace

std::unique_ptr<SharedMemoryConnection> SharedMemoryConnection::offer(Socket socket, Deadline deadline, const std::atomic<bool>& ended) {
  const int descriptor = new_memory();
  if (descriptor < 0) return nullptr;
  const bool passed = pass_descriptor(socket, descriptor);
  uint8_t taken;
  if (passed && socket.receive(&taken, 1, deadline, ended)) return create(std::move(socket), descriptor, true);
  close(descriptor);
  return nullptr;
}

std::unique_ptr<SharedMemoryConnection> SharedMemoryConnection::accept(Socket socket, Deadline deadline, const std::atomic<bool>& ended) {
  const int descriptor = receive_descriptor(socket, deadline, ended);
  if (descriptor < 0) return nullptr;
  if (!is_valid(descriptor)) {
    close(descriptor);
    return nullptr;
  }
  auto connection = create(std::move(socket), descriptor, false);
  const uint8_t taken = 1;
  return connection != nullptr && connection->socket_.send(&taken, 1, deadline, ended) ? std::move(connection) : nullptr;
}

std::unique_ptr<SharedMemoryConnection> SharedMemoryConnection::create(Socket socket, int descriptor, bool offered) {
  auto rings = std::make_unique<SharedRings>(descriptor);
  close(descriptor);
  if (!rings->are_mapped()) return nullptr;
  return std::unique_ptr<SharedMemoryConnection>(new SharedMemoryConnection(std::move(socket), std::move(rings), offered));
}

/** The side that offered the memory writes to the first ring. */
SharedMemoryConnection::SharedMemoryConnection(Socket socket, std::unique_ptr<SharedRings> rings, bool offered)
    : socket_(std::move(socket)),
      rings_(std::move(rings)),
      in_(RingEnd::reader(rings_->heads->states[offered ? 1 : 0], rings_->memory[offered ? 1 : 0].data())),
      out_(RingEnd::writer(rings_->heads->states[offered ? 0 : 1], rings_->memory[offered ? 0 : 1].data())) {}

SharedMemoryConnection::~SharedMemoryConnection() { shut_down(); }

void SharedMemoryConnection::shut_down() const {
  rings_->heads->ended.store(1, std::memory_order_seq_cst);
  socket_.shut_down();
  in_.wake_all();
  out_.wake_all();
}

bool SharedMemoryConnection::has_ended() const { return rings_->heads->ended.load(std::memory_order_seq_cst) != 0; }

/** Bytes written before the end are still received. */
int64_t SharedMemoryConnection::receive_parts(const iovec* parts, int count) const {
  const bool last = has_ended();
  size_t available = in_.available();
  if (available == RingEnd::kInvalid) return kBroken;
  if (available == 0) return last ? 0 : kWouldBlock;
  size_t moved = 0;
  const uint8_t* from = in_.next();
  for (int i = 0; i < count && available > 0; i++) {
    const size_t bytes = std::min(parts[i].iov_len, available);
    std::memcpy(parts[i].iov_base, from + moved, bytes);
    moved += bytes;
    available -= bytes;
  }
  in_.advance(moved);
  return static_cast<int64_t>(moved);
}

const uint8_t* SharedMemoryConnection::peek(size_t& bytes) const {
  const size_t available = in_.available();
  bytes = available == RingEnd::kInvalid ? 0 : available;
  return in_.next();
}

void SharedMemoryConnection::consume(size_t bytes) const { in_.advance(bytes); }

int64_t SharedMemoryConnection::send_parts(const iovec* parts, int count, bool) const {
  const size_t space = out_.available();
  if (space == RingEnd::kInvalid || has_ended()) return kBroken;
  if (space == 0) return kWouldBlock;
  size_t moved = 0;
  for (int i = 0; i < count && moved < space; i++) {
    const size_t bytes = std::min(parts[i].iov_len, space - moved);
    std::memcpy(out_.next() + moved, parts[i].iov_base, bytes);
    moved += bytes;
  }
  out_.advance(moved);
  return static_cast<int64_t>(moved);
}

bool SharedMemoryConnection::has_available(const RingEnd& end, size_t bytes) const { return end.available() >= bytes || has_ended(); }

bool SharedMemoryConnection::is_readable() const { return has_available(in_, 1); }
bool SharedMemoryConnection::spin_until_readable() const {
  return spin([this] { return is_readable(); });
}

bool SharedMemoryConnection::await_available(const RingEnd& end, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  if (spin([&] { return has_available(end, bytes); })) return true;
  while (!ended.load(std::memory_order_acquire)) {
    if (is_hung_up(socket_)) shut_down();
    else end.sleep(bytes, std::clamp<std::chrono::nanoseconds>(deadline - steady_clock::now(), std::chrono::nanoseconds(0), kWait));
    if (has_available(end, bytes)) return true;
    if (steady_clock::now() >= deadline) return false;
  }
  return false;
}

bool SharedMemoryConnection::await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const {
  return await_available(ready == Ready::to_receive ? in_ : out_, 1, deadline, ended);
}

void SharedMemoryConnection::await_bytes(size_t count) const {
  const std::atomic<bool> never{false};
  await_available(in_, std::min(count, kRingWaitBytes), in_milliseconds(kWait.count()), never);
}

bool SharedMemoryConnection::can_reserve() const {
  const size_t space = out_.available();
  return space != RingEnd::kInvalid && space >= kReserveBytes && !has_ended();
}

uint8_t* SharedMemoryConnection::reserve(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) {
  static_assert(kReserveBytes <= kRingWaitBytes, "a reservation fits into a ring");
  if (!await_available(out_, bytes, deadline, ended) || has_ended() || out_.available() < bytes) return nullptr;
  return out_.available() == RingEnd::kInvalid ? nullptr : out_.next();
}

bool SharedMemoryConnection::commit(size_t bytes, Deadline, const std::atomic<bool>&) {
  if (has_ended()) return false;
  out_.advance(bytes);
  return true;
}

}  // namespace kvasir
