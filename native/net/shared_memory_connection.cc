// The memory is an unnamed file with a sealed size: a peer cannot truncate it, so mapped pages never raise SIGBUS.
#include "net/shared_memory_connection.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

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
    : RingConnection(RingEnd::reader(rings->heads->states[offered ? 1 : 0], rings->memory[offered ? 1 : 0].data()),
                     RingEnd::writer(rings->heads->states[offered ? 0 : 1], rings->memory[offered ? 0 : 1].data())),
      socket_(std::move(socket)),
      rings_(std::move(rings)) {}

SharedMemoryConnection::~SharedMemoryConnection() { shut_down(); }

void SharedMemoryConnection::shut_down() const {
  rings_->heads->ended.store(1, std::memory_order_seq_cst);
  socket_.shut_down();
  in_.wake_all();
  out_.wake_all();
}

bool SharedMemoryConnection::has_ended() const { return rings_->heads->ended.load(std::memory_order_seq_cst) != 0; }

bool SharedMemoryConnection::write_out(size_t bytes) const {
  out_.advance(bytes);
  return true;
}

bool SharedMemoryConnection::await_available(const RingEnd& end, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  const auto has_available = [&] { return end.available() >= bytes || has_ended(); };
  if (spin(has_available)) return true;
  while (!ended.load(std::memory_order_acquire)) {
    if (is_hung_up(socket_)) shut_down();
    else end.sleep(bytes, std::clamp<std::chrono::nanoseconds>(deadline - steady_clock::now(), std::chrono::nanoseconds(0), std::chrono::milliseconds(kWaitMs)));
    if (has_available()) return true;
    if (steady_clock::now() >= deadline) return false;
  }
  return false;
}

}  // namespace kvasir
