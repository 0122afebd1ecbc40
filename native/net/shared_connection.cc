// The memory is a nameless file whose size is sealed: who maps it can neither lose it nor be stopped by a hole in it.
#include "net/shared_connection.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/spin.hpp"

namespace kvasir {

/** One page of memory that says how far both have come, and two rings behind it. */
struct SharedRings {
  struct Heads {
    RingState states[2];
    std::atomic<uint32_t> over{0};
  };
  static constexpr size_t kHeadBytes = size_t{1} << 16;  // whole pages, of whatever size
  static constexpr size_t kBytes = kHeadBytes + 2 * kRingBytes;
  static_assert(sizeof(Heads) <= kHeadBytes && sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free, "plain words");

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

constexpr std::chrono::milliseconds kNap{100};

#if defined(__linux__)

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/** Negative where the system has none. */
int new_memory() {
  const int descriptor = memfd_create("kvasir-line", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return descriptor;
  if (ftruncate(descriptor, SharedRings::kBytes) == 0 && fcntl(descriptor, F_ADD_SEALS, kSeals) == 0) return descriptor;
  close(descriptor);
  return -1;
}

bool is_sound(int descriptor) {
  struct stat info = {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &info) == 0 && static_cast<size_t>(info.st_size) == SharedRings::kBytes;
}

#else

int new_memory() { return -1; }
bool is_sound(int) { return false; }

#endif

/** A socket over which nothing more is said: readable once the other process has ended it, or itself. */
bool is_hung_up(const Socket& socket) { return socket.is_readable(); }

}  // namespace

std::unique_ptr<SharedLine> SharedLine::offer(Socket socket, Deadline deadline, const std::atomic<bool>& ended) {
  const int descriptor = new_memory();
  if (descriptor < 0) return nullptr;
  const bool passed = pass_descriptor(socket, descriptor);
  uint8_t taken;
  if (passed && socket.receive(&taken, 1, deadline, ended)) return over(std::move(socket), descriptor, true);
  close(descriptor);
  return nullptr;
}

std::unique_ptr<SharedLine> SharedLine::take(Socket socket, Deadline deadline, const std::atomic<bool>& ended) {
  const int descriptor = take_descriptor(socket, deadline, ended);
  if (descriptor < 0) return nullptr;
  if (!is_sound(descriptor)) {
    close(descriptor);
    return nullptr;
  }
  auto line = over(std::move(socket), descriptor, false);
  const uint8_t taken = 1;
  return line != nullptr && line->socket_.send(&taken, 1, deadline, ended) ? std::move(line) : nullptr;
}

std::unique_ptr<SharedLine> SharedLine::over(Socket socket, int descriptor, bool offered) {
  auto rings = std::make_unique<SharedRings>(descriptor);
  close(descriptor);
  if (!rings->are_mapped()) return nullptr;
  return std::unique_ptr<SharedLine>(new SharedLine(std::move(socket), std::move(rings), offered));
}

/** Whoever offered writes to the first ring. */
SharedLine::SharedLine(Socket socket, std::unique_ptr<SharedRings> rings, bool offered)
    : socket_(std::move(socket)),
      rings_(std::move(rings)),
      in_(RingEnd::reader(rings_->heads->states[offered ? 1 : 0], rings_->memory[offered ? 1 : 0].data())),
      out_(RingEnd::writer(rings_->heads->states[offered ? 0 : 1], rings_->memory[offered ? 0 : 1].data())) {}

SharedLine::~SharedLine() { cut(); }

void SharedLine::cut() const {
  rings_->heads->over.store(1, std::memory_order_seq_cst);
  socket_.cut();
  in_.wake_all();
  out_.wake_all();
}

bool SharedLine::is_over() const { return rings_->heads->over.load(std::memory_order_seq_cst) != 0; }

/** What was written before the end is received still. */
int64_t SharedLine::receive_parts(const iovec* parts, int count) const {
  const bool last = is_over();
  size_t there = in_.available();
  if (there == RingEnd::kLie) return kBroken;
  if (there == 0) return last ? 0 : kNothing;
  size_t moved = 0;
  const uint8_t* from = in_.next();
  for (int i = 0; i < count && there > 0; i++) {
    const size_t bytes = std::min(parts[i].iov_len, there);
    std::memcpy(parts[i].iov_base, from + moved, bytes);
    moved += bytes;
    there -= bytes;
  }
  in_.pass(moved);
  return static_cast<int64_t>(moved);
}

const uint8_t* SharedLine::arrived(size_t& bytes) const {
  const size_t there = in_.available();
  bytes = there == RingEnd::kLie ? 0 : there;
  return in_.next();
}

void SharedLine::take(size_t bytes) const { in_.pass(bytes); }

int64_t SharedLine::send_parts(const iovec* parts, int count, bool) const {
  const size_t room = out_.available();
  if (room == RingEnd::kLie || is_over()) return kBroken;
  if (room == 0) return kNothing;
  size_t moved = 0;
  for (int i = 0; i < count && moved < room; i++) {
    const size_t bytes = std::min(parts[i].iov_len, room - moved);
    std::memcpy(out_.next() + moved, parts[i].iov_base, bytes);
    moved += bytes;
  }
  out_.pass(moved);
  return static_cast<int64_t>(moved);
}

bool SharedLine::is_there(const RingEnd& end, size_t bytes) const { return end.available() >= bytes || is_over(); }

bool SharedLine::is_readable() const { return is_there(in_, 1); }
bool SharedLine::comes_soon() const {
  return spin([this] { return is_readable(); });
}

bool SharedLine::await_available(const RingEnd& end, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  if (spin([&] { return is_there(end, bytes); })) return true;
  while (!ended.load(std::memory_order_acquire)) {
    if (is_hung_up(socket_)) cut();
    else end.sleep(bytes, kNap);
    if (is_there(end, bytes)) return true;
    if (steady_clock::now() >= deadline) return false;
  }
  return false;
}

bool SharedLine::await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const {
  return await_available(ready == Ready::to_receive ? in_ : out_, 1, deadline, ended);
}

void SharedLine::await_bytes(size_t count) const {
  const std::atomic<bool> never{false};
  await_available(in_, std::min(count, kRingWaitBytes), in_milliseconds(kNap.count()), never);
}

bool SharedLine::has_room() const {
  const size_t room = out_.available();
  return room != RingEnd::kLie && room >= kDraftBytes && !is_over();
}

uint8_t* SharedLine::draft(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) {
  static_assert(kDraftBytes <= kRingWaitBytes, "a draft fits");
  if (!await_available(out_, bytes, deadline, ended) || is_over() || out_.available() < bytes) return nullptr;
  return out_.available() == RingEnd::kLie ? nullptr : out_.next();
}

bool SharedLine::post(size_t bytes, Deadline, const std::atomic<bool>&) {
  if (is_over()) return false;
  out_.pass(bytes);
  return true;
}

}  // namespace kvasir
