// A libibverbs for tests: adapters emulated by threads, and their network by Unix sockets of one host. It keeps the
// rules of reliable connections: writes arrive in order, need a key, and fail once the peer is gone.
//
// EMULATED_RDMA_DEVICES=0: no device. EMULATED_RDMA_REFUSES: memory, pair or path: what the device refuses.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rdma/verbs_abi.hpp"

namespace kvasir::verbs {

struct Device {
  char name[16] = "emulated0";
};
struct ProtectionDomain {
  Context* context;
};
struct CompletionQueue {
  Context* context;
  CompletionChannel* channel;
  std::mutex mutex;
  std::deque<WorkCompletion> completions;
  bool armed = false;
  unsigned events = 0, acknowledged = 0;
};

}  // namespace kvasir::verbs

namespace {

using namespace kvasir::verbs;

constexpr size_t kPieceBytes = size_t{1} << 16;
/** Fewer answers than the buffer of a socket holds. */
constexpr size_t kUnansweredMost = 32;
constexpr int kDepthMost = 1 << 14;
constexpr int kLocalAccessError = 4;  // IBV_WC_LOC_PROT_ERR

std::atomic<int> live_objects{0};
std::atomic<int> pending_writes{0};
std::atomic<int> writes_until_failure{-1};
/** Writes are delayed for ever once this is set. */
std::atomic<bool> is_stalled{false};

bool refuses(const char* what) {
  const char* refused = std::getenv("EMULATED_RDMA_REFUSES");
  return refused != nullptr && std::strcmp(refused, what) == 0;
}

/** As an adapter does, beside the processor: no sanitizer sees these accesses. */
void copy_unseen(volatile uint8_t* to, const volatile uint8_t* from, size_t bytes) {
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) *reinterpret_cast<volatile uint64_t*>(to + at) = *reinterpret_cast<const volatile uint64_t*>(from + at);
  for (; at < bytes; at++) to[at] = from[at];
}

struct Channel : CompletionChannel {
  std::mutex mutex;
  std::deque<CompletionQueue*> events;
};

void complete(CompletionQueue& queue, const WorkCompletion& completion) {
  const std::lock_guard<std::mutex> lock(queue.mutex);
  queue.completions.push_back(completion);
  if (!queue.armed || queue.channel == nullptr) return;
  queue.armed = false;
  queue.events++;
  auto& channel = static_cast<Channel&>(*queue.channel);
  const std::lock_guard<std::mutex> events(channel.mutex);
  channel.events.push_back(&queue);
  const uint64_t one = 1;
  if (write(channel.descriptor, &one, sizeof one) < 0) std::abort();
}

struct Region : MemoryRegion {
  int access;
};

/** All registered memory, by key. */
std::mutex regions_mutex;
std::map<uint32_t, Region*> regions;

bool may_access(uint32_t key, uint64_t address, uint64_t bytes, const ProtectionDomain* domain, int access) {
  const std::lock_guard<std::mutex> lock(regions_mutex);
  const auto found = regions.find(key);
  if (found == regions.end() || found->second->domain != domain || (found->second->access & access) != access) return false;
  const auto begin = reinterpret_cast<uint64_t>(found->second->address);
  return address >= begin && bytes <= found->second->bytes && address - begin <= found->second->bytes - bytes;
}

uint32_t random_number() {
  static std::mutex mutex;
  static std::mt19937 chance{std::random_device{}()};
  const std::lock_guard<std::mutex> lock(mutex);
  return chance();
}

struct PlaceOf {
  sockaddr_un place = {};
  socklen_t size;
  explicit PlaceOf(uint32_t number) {
    place.sun_family = AF_UNIX;
    const int bytes = std::snprintf(place.sun_path + 1, sizeof place.sun_path - 1, "kvasir-emulated-ibverbs-%u", number);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(bytes));
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&place); }
};

/** A write on the network; its bytes follow. */
struct Packet {
  uint64_t address, bytes;
  uint32_t key, notifies;
};

bool send_all(int socket, const void* from, size_t bytes) {
  for (const auto* at = static_cast<const uint8_t*>(from); bytes > 0;) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}
bool receive_all(int socket, void* to, size_t bytes) {
  for (auto* at = static_cast<uint8_t*>(to); bytes > 0;) {
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

/** One thread carries out the writes of this side, one those of the peer. */
class Pair : public QueuePair {
 public:
  Pair(ProtectionDomain* of, const QueuePairOptions& options) : QueuePair{of->context, options.user, of, options.send_queue, options.receive_queue, nullptr, 0, 0} {
    listening_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    do {
      number = random_number() & 0xffffff;
    } while (bind(listening_, PlaceOf(number).get(), PlaceOf(number).size) != 0 && errno == EADDRINUSE);
    if (listen(listening_, 4) != 0) std::abort();
  }

  ~Pair() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
      for (const int socket : {listening_, accepted_, connected_})
        if (socket >= 0) shutdown(socket, SHUT_RDWR);
    }
    changed_.notify_all();
    for (std::thread* thread : {&sender_, &receiver_})
      if (thread->joinable()) thread->join();
    for (const int socket : {listening_, accepted_, connected_})
      if (socket >= 0) close(socket);
  }

  int modify(const QueuePairAttributes& attributes) {
    if (attributes.state == kReadyToReceive) {
      peer_ = attributes.peer_number;
      receiver_ = std::thread([this] { receive_writes(); });
    }
    if (attributes.state == kReadyToSend) sender_ = std::thread([this] { send_writes(); });
    return 0;
  }

  int post(SendRequest* request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (; request != nullptr; request = request->next) {
      Write write = {};
      write.id = request->id;
      write.is_signaled = (request->flags & kSignaled) != 0;
      const MemoryPart& part = *request->parts;
      write.packet = {request->remote_address, part.bytes, request->remote_key, request->operation == kWriteWithImmediate ? 1u : 0u};
      if ((request->flags & kInline) != 0) std::memcpy(&write.word, reinterpret_cast<const void*>(part.address), sizeof write.word);
      else write.from = part.address, write.key = part.local_key;
      if (static_cast<int>(writes_.size()) >= kDepthMost || request->part_count != 1) return ENOMEM;
      writes_.push_back(write);
      pending_writes++;
    }
    changed_.notify_all();
    return 0;
  }

  int post(ReceiveRequest* request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (; request != nullptr; request = request->next) receives_.push_back(request->id);
    changed_.notify_all();
    return 0;
  }

 private:
  struct Write {
    uint64_t id, word, from;  // from 0: the word is the data
    uint32_t key;
    bool is_signaled;
    Packet packet;
  };

  void finish(const Write& write, int status) {
    if (status == kSuccess && !write.is_signaled) return;
    WorkCompletion completion = {};
    completion.id = write.id;
    completion.status = status;
    completion.pair_number = number;
    complete(*send_queue, completion);
  }

  bool connect_peer() {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const PlaceOf place(peer_);
    const bool connected = connect(socket, place.get(), place.size) == 0 && send_all(socket, &number, sizeof number);
    const std::lock_guard<std::mutex> lock(mutex_);
    connected_ = socket;
    return connected && !closing_;
  }

  /** Sends one write; the peer answers it. */
  int begin(const Write& write) {
    if (writes_until_failure >= 0 && writes_until_failure-- == 0) return kRetriesExceeded;
    while (is_stalled && !closing_) std::this_thread::yield();
    if (write.from != 0 && !may_access(write.key, write.from, write.packet.bytes, domain, 0)) return kLocalAccessError;
    if (connected_ < 0 && !connect_peer()) return kRetriesExceeded;
    if (!send_all(connected_, &write.packet, sizeof write.packet)) return kRetriesExceeded;
    std::vector<uint8_t> piece(std::min<size_t>(kPieceBytes, write.packet.bytes));
    for (size_t done = 0; done < write.packet.bytes; done += kPieceBytes) {
      const size_t bytes = std::min(kPieceBytes, static_cast<size_t>(write.packet.bytes) - done);
      copy_unseen(piece.data(), write.from == 0 ? reinterpret_cast<const uint8_t*>(&write.word) : reinterpret_cast<const uint8_t*>(write.from + done), bytes);
      if (!send_all(connected_, piece.data(), bytes)) return kRetriesExceeded;
    }
    return kSuccess;
  }

  int answer() {
    int32_t status;
    return receive_all(connected_, &status, sizeof status) ? status : kRetriesExceeded;
  }

  /** After the first failure all later writes fail. */
  void send_writes() {
    int failed = kSuccess;
    std::unique_lock<std::mutex> lock(mutex_);
    for (std::vector<Write> writes;;) {
      changed_.wait(lock, [this] { return closing_ || !writes_.empty(); });
      if (closing_) return;
      for (; !writes_.empty() && writes.size() < kUnansweredMost; writes_.pop_front()) writes.push_back(writes_.front());
      lock.unlock();
      std::vector<int> begun;
      for (const Write& write : writes) begun.push_back(begun.empty() || begun.back() == kSuccess ? (failed == kSuccess ? begin(write) : kFlushed) : kFlushed);
      for (size_t i = 0; i < begun.size(); i++) {
        const int status = failed != kSuccess ? kFlushed : begun[i] == kSuccess ? answer() : begun[i];
        if (status != kSuccess) failed = status;
        finish(writes[i], status);
        pending_writes--;
      }
      writes.clear();
      lock.lock();
    }
  }

  bool accept_peer() {
    for (;;) {
      const int socket = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return false;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        accepted_ = socket;
        if (closing_) return false;
      }
      uint32_t from;
      if (receive_all(socket, &from, sizeof from) && from == peer_) return true;
      const std::lock_guard<std::mutex> lock(mutex_);
      close(socket);
      accepted_ = -1;
    }
  }

  void receive_writes() {
    if (!accept_peer()) return;
    Packet packet;
    int32_t status = kSuccess;
    while (status == kSuccess && receive_all(accepted_, &packet, sizeof packet)) {
      status = may_access(packet.key, packet.address, packet.bytes, domain, kRemoteWrite) ? kSuccess : kRemoteAccessError;
      if (status == kSuccess && !receive_bytes(packet)) return;
      if (status == kSuccess && packet.notifies == 1 && !notify()) return;
      if (!send_all(accepted_, &status, sizeof status)) return;
    }
  }

  bool receive_bytes(const Packet& packet) {
    std::vector<uint8_t> piece(kPieceBytes);
    for (size_t done = 0; done < packet.bytes; done += kPieceBytes) {
      const size_t bytes = std::min(kPieceBytes, static_cast<size_t>(packet.bytes) - done);
      if (!receive_all(accepted_, piece.data(), bytes)) return false;
      std::atomic_thread_fence(std::memory_order_release);
      copy_unseen(reinterpret_cast<uint8_t*>(packet.address + done), piece.data(), bytes);
    }
    return true;
  }

  /** Waits for a receive request, as a sender that retries without end. */
  bool notify() {
    WorkCompletion completion = {};
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !receives_.empty(); });
      if (closing_) return false;
      completion.id = receives_.front();
      receives_.pop_front();
    }
    complete(*receive_queue, completion);
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Write> writes_;
  std::deque<uint64_t> receives_;
  std::atomic<bool> closing_{false};
  uint32_t peer_ = 0;
  int listening_ = -1, accepted_ = -1, connected_ = -1;
  std::thread sender_, receiver_;
};

int poll_completions(CompletionQueue* queue, int count, WorkCompletion* completions) {
  const std::lock_guard<std::mutex> lock(queue->mutex);
  int taken = 0;
  for (; taken < count && !queue->completions.empty(); queue->completions.pop_front()) completions[taken++] = queue->completions.front();
  return taken;
}
int request_event(CompletionQueue* queue, int) {
  const std::lock_guard<std::mutex> lock(queue->mutex);
  queue->armed = true;
  return 0;
}
int post_send(QueuePair* pair, SendRequest* request, SendRequest**) { return static_cast<Pair*>(pair)->post(request); }
int post_receive(QueuePair* pair, ReceiveRequest* request, ReceiveRequest**) { return static_cast<Pair*>(pair)->post(request); }

template <class Object>
Object* counted(Object* object) {
  live_objects++;
  return object;
}
template <class Object>
int destroyed(Object* object) {
  delete object;
  live_objects--;
  return 0;
}

Device device;

}  // namespace

extern "C" {

/** Objects that are not destroyed. */
int emulated_live_objects() { return live_objects; }
/** Writes of this process that are not carried out. */
int emulated_pending_writes() { return pending_writes; }
/** The write after `count` further ones fails; negative: none. */
void emulated_fail_after(int count) { writes_until_failure = count; }
void emulated_stall(bool stalls) { is_stalled = stalls; }

Device** ibv_get_device_list(int* count) {
  const char* devices = std::getenv("EMULATED_RDMA_DEVICES");
  const bool none = devices != nullptr && std::strcmp(devices, "0") == 0;
  if (count != nullptr) *count = none ? 0 : 1;
  return counted(new Device* [2] { none ? nullptr : &device, nullptr });
}
void ibv_free_device_list(Device** list) {
  delete[] list;
  live_objects--;
}
const char* ibv_get_device_name(Device* of) { return of->name; }
Context* ibv_open_device(Device* of) {
  auto* context = counted(new Context());
  context->device = of;
  context->ops.poll_completions = poll_completions;
  context->ops.request_event = request_event;
  context->ops.post_send = post_send;
  context->ops.post_receive = post_receive;
  return context;
}
int ibv_close_device(Context* context) { return destroyed(context); }
int ibv_query_port(Context*, uint8_t port, PortAttributes* attributes) {
  if (port != 1) return EINVAL;
  attributes->state = kPortActive;
  attributes->mtu_active = kMtuMost;
  attributes->gids = 2;
  attributes->lid = 7;
  attributes->link_layer = kEthernet;
  return 0;
}
int ibv_query_gid(Context*, uint8_t, int index, Gid* gid) {
  *gid = {};
  if (index == 1) *gid = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
  return 0;
}
ProtectionDomain* ibv_alloc_pd(Context* context) { return counted(new ProtectionDomain{context}); }
int ibv_dealloc_pd(ProtectionDomain* domain) { return destroyed(domain); }
MemoryRegion* ibv_reg_mr(ProtectionDomain* domain, void* address, size_t bytes, int access) {
  if (refuses("memory")) return nullptr;
  auto* region = counted(new Region());
  region->context = domain->context;
  region->domain = domain;
  region->address = address;
  region->bytes = bytes;
  region->access = access;
  const std::lock_guard<std::mutex> lock(regions_mutex);
  do {
    region->remote_key = region->local_key = random_number();
  } while (!regions.emplace(region->local_key, region).second);
  return region;
}
int ibv_dereg_mr(MemoryRegion* region) {
  {
    const std::lock_guard<std::mutex> lock(regions_mutex);
    regions.erase(region->local_key);
  }
  return destroyed(static_cast<Region*>(region));
}
CompletionChannel* ibv_create_comp_channel(Context* context) {
  auto* channel = counted(new Channel());
  channel->context = context;
  channel->descriptor = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return channel;
}
int ibv_destroy_comp_channel(CompletionChannel* channel) {
  close(channel->descriptor);
  return destroyed(static_cast<Channel*>(channel));
}
CompletionQueue* ibv_create_cq(Context* context, int, void*, CompletionChannel* channel, int) {
  auto* queue = counted(new CompletionQueue());
  queue->context = context;
  queue->channel = channel;
  return queue;
}
/** As the real one, requires that events that were taken are acknowledged. */
int ibv_destroy_cq(CompletionQueue* queue) {
  size_t waiting = 0;
  if (auto* channel = static_cast<Channel*>(queue->channel); channel != nullptr) {
    for (const CompletionQueue* of : channel->events) waiting += of == queue ? 1 : 0;
  }
  if (queue->acknowledged + waiting != queue->events) std::abort();
  return destroyed(queue);
}
int ibv_get_cq_event(CompletionChannel* given, CompletionQueue** queue, void** user) {
  auto* channel = static_cast<Channel*>(given);
  uint64_t one;
  if (read(channel->descriptor, &one, sizeof one) != sizeof one) return -1;
  const std::lock_guard<std::mutex> lock(channel->mutex);
  *queue = channel->events.front();
  *user = nullptr;
  channel->events.pop_front();
  return 0;
}
void ibv_ack_cq_events(CompletionQueue* queue, unsigned count) {
  const std::lock_guard<std::mutex> lock(queue->mutex);
  queue->acknowledged += count;
}
QueuePair* ibv_create_qp(ProtectionDomain* domain, QueuePairOptions* options) {
  if (refuses("pair") || options->type != kReliable) return nullptr;
  return counted(new Pair(domain, *options));
}
int ibv_modify_qp(QueuePair* pair, QueuePairAttributes* attributes, int) {
  if (refuses("path") && attributes->state == kReadyToReceive) return EINVAL;
  return static_cast<Pair*>(pair)->modify(*attributes);
}
int ibv_destroy_qp(QueuePair* pair) { return destroyed(static_cast<Pair*>(pair)); }

}  // extern "C"
