// Requests of a reliable connection complete in order, so a count of requests identifies each.
#include "rdma/queue_pair.hpp"

#include <fcntl.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace kvasir {
namespace {

/** Requests in the send queue. Words alone may use the last ones, so that data do not delay them. */
constexpr uint64_t kSends = 1024, kSendsForWords = 16;
/** Notifications that may arrive before this side polls. Further ones wait at the sender. */
constexpr int kReceives = 1024;
constexpr int kReceivesAtOnce = 64;
constexpr int kCompletionsAtOnce = 32;
/** 2^kTimeout * 4 us, about 67 ms, before a retry; then the peer is considered dead after seven of them. */
constexpr uint8_t kTimeout = 14, kRetries = 7;
/** A peer without free notifications is asked again, after 0.64 ms, without end: the caller has deadlines. */
constexpr uint8_t kNotReadyDelay = 12, kNotReadyForever = 7;
constexpr uint8_t kHopLimit = 64;

template <class Created>
Created* created(Created* object, const char* what) {
  if (object == nullptr) throw std::runtime_error(std::string("the RDMA device refuses ") + what);
  return object;
}

/** 24 random bits: packets of an earlier connection with the same number are not accepted. */
uint32_t random_packet() { return std::random_device{}() & 0xffffff; }

}  // namespace

QueuePair::QueuePair(std::shared_ptr<RdmaDevice> device, uint8_t* memory, size_t writable, size_t bytes) : device_(std::move(device)), verbs_(device_->verbs()) {
  try {
    create(memory, writable, bytes);
  } catch (...) {
    free();
    throw;
  }
}

QueuePair::~QueuePair() { free(); }

void QueuePair::create(uint8_t* memory, size_t writable, size_t bytes) {
  inbox_ = created(verbs_.reg_mr(device_->domain(), memory, writable, verbs::kLocalWrite | verbs::kRemoteWrite), "to register memory: see `ulimit -l`");
  outbox_ = created(verbs_.reg_mr(device_->domain(), memory + writable, bytes - writable, verbs::kLocalWrite), "to register memory: see `ulimit -l`");
  channel_ = created(verbs_.create_comp_channel(device_->context()), "a completion channel");
  fcntl(channel_->descriptor, F_SETFL, fcntl(channel_->descriptor, F_GETFL) | O_NONBLOCK);
  sent_ = created(verbs_.create_cq(device_->context(), kSends, nullptr, nullptr, 0), "a completion queue");
  received_ = created(verbs_.create_cq(device_->context(), kReceives, nullptr, channel_, 0), "a completion queue");
  verbs::QueuePairOptions options = {};
  options.send_queue = sent_;
  options.receive_queue = received_;
  options.limits = {kSends, kReceives, 1, 1, sizeof(uint64_t)};
  options.type = verbs::kReliable;
  pair_ = created(verbs_.create_qp(device_->domain(), &options), "a queue pair");
  address_.memory = reinterpret_cast<uint64_t>(memory);
  address_.key = inbox_->remote_key;
  address_.number = pair_->number;
  address_.first_packet = random_packet();
  address_.lid = device_->attributes().lid;
  address_.link_layer = device_->attributes().link_layer;
  address_.mtu = static_cast<uint8_t>(device_->attributes().mtu_active);
  address_.gid = device_->gid();
  if (!initialise() || !post_receives(kReceives)) throw std::runtime_error("the RDMA device refuses to initialise a queue pair");
}

bool QueuePair::initialise() {
  verbs::QueuePairAttributes attributes = {};
  attributes.state = verbs::kInitialised;
  attributes.port = device_->port();
  attributes.access = verbs::kRemoteWrite;
  return verbs_.modify_qp(pair_, &attributes, verbs::kSetState | verbs::kSetPartition | verbs::kSetPort | verbs::kSetAccess) == 0;
}

bool QueuePair::connect(const QueuePairAddress& peer) {
  peer_ = peer;
  verbs::QueuePairAttributes attributes = {};
  attributes.state = verbs::kReadyToReceive;
  attributes.path_mtu = std::min(address_.mtu, peer.mtu);
  attributes.peer_number = peer.number;
  attributes.receive_packet = peer.first_packet;
  attributes.incoming_reads_most = 1;
  attributes.not_ready_delay = kNotReadyDelay;
  attributes.path.destination_lid = peer.lid;
  attributes.path.port = device_->port();
  // Ethernet has no LIDs, and a LID of 0 is none.
  if (device_->is_ethernet() || peer.lid == 0) {
    attributes.path.is_global = 1;
    attributes.path.route = {peer.gid, 0, device_->gid_index(), kHopLimit, 0};
  }
  const int receives = verbs::kSetState | verbs::kSetPath | verbs::kSetMtu | verbs::kSetPeer | verbs::kSetReceivePacket | verbs::kSetIncomingReads | verbs::kSetNotReadyDelay;
  if (verbs_.modify_qp(pair_, &attributes, receives) != 0) return false;
  attributes = {};
  attributes.state = verbs::kReadyToSend;
  attributes.timeout = kTimeout;
  attributes.retries = kRetries;
  attributes.not_ready_retries = kNotReadyForever;
  attributes.send_packet = address_.first_packet;
  attributes.reads_most = 1;
  const int sends = verbs::kSetState | verbs::kSetTimeout | verbs::kSetRetries | verbs::kSetNotReadyRetries | verbs::kSetSendPacket | verbs::kSetReads;
  return verbs_.modify_qp(pair_, &attributes, sends) == 0;
}

bool QueuePair::can_write() const { return queued() - completed() + 2 + kSendsForWords <= kSends && !has_failed(); }

uint64_t QueuePair::write(const Data& data, const Word& word, bool notifies) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t count = data.bytes > 0 ? 2 : 1, last = queued() + count;
  if (last - completed() > kSends - (data.bytes > 0 ? kSendsForWords : 0) || has_failed()) return 0;
  uint64_t value = word.value;
  verbs::MemoryPart word_part = {reinterpret_cast<uint64_t>(&value), sizeof value, 0};
  verbs::SendRequest behind = {};
  behind.id = last;
  behind.parts = &word_part;
  behind.part_count = 1;
  behind.operation = notifies ? verbs::kWriteWithImmediate : verbs::kWrite;
  // An inline word is copied before the call returns.
  behind.flags = verbs::kSignaled | verbs::kInline;
  behind.remote_address = peer_.memory + word.offset;
  behind.remote_key = peer_.key;
  verbs::MemoryPart data_part = {reinterpret_cast<uint64_t>(data.from), static_cast<uint32_t>(data.bytes), outbox_->local_key};
  verbs::SendRequest first = {};
  first.id = last - 1;
  first.next = &behind;
  first.parts = &data_part;
  first.part_count = 1;
  first.operation = verbs::kWrite;
  first.remote_address = peer_.memory + data.offset;
  first.remote_key = peer_.key;
  verbs::SendRequest* refused = nullptr;
  if (device_->context()->ops.post_send(pair_, data.bytes > 0 ? &first : &behind, &refused) != 0) {
    // Data without their word would be lost.
    failed_ = true;
    return 0;
  }
  queued_.store(last, std::memory_order_release);
  return last;
}

void QueuePair::poll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  verbs::WorkCompletion done[kCompletionsAtOnce];
  const auto& ops = device_->context()->ops;
  for (int count = kCompletionsAtOnce; count == kCompletionsAtOnce;) {
    count = ops.poll_completions(sent_, kCompletionsAtOnce, done);
    if (count < 0) failed_ = true;
    for (int i = 0; i < count; i++) {
      if (done[i].status != verbs::kSuccess) failed_ = true;
      else completed_.store(done[i].id, std::memory_order_release);
    }
  }
  for (int count = kCompletionsAtOnce; count == kCompletionsAtOnce;) {
    count = ops.poll_completions(received_, kCompletionsAtOnce, done);
    if (count < 0) failed_ = true;
    for (int i = 0; i < count; i++) {
      if (done[i].status != verbs::kSuccess) failed_ = true;
      else used_++;
    }
  }
  if (used_ < kReceivesAtOnce || has_failed()) return;
  if (!post_receives(used_)) failed_ = true;
  used_ = 0;
}

/** A notification carries no data: its request names no memory. */
bool QueuePair::post_receives(int count) {
  verbs::ReceiveRequest requests[kReceivesAtOnce] = {};
  for (; count > 0; count -= kReceivesAtOnce) {
    const int posted = std::min(count, kReceivesAtOnce);
    for (int i = 0; i < posted; i++) requests[i].next = i + 1 < posted ? &requests[i + 1] : nullptr;
    verbs::ReceiveRequest* refused = nullptr;
    if (device_->context()->ops.post_receive(pair_, requests, &refused) != 0) return false;
  }
  return true;
}

void QueuePair::request_notification() {
  if (device_->context()->ops.request_event(received_, 0) != 0) failed_ = true;
}

void QueuePair::take_notification() {
  verbs::CompletionQueue* queue;
  void* user;
  if (verbs_.get_cq_event(channel_, &queue, &user) == 0) verbs_.ack_cq_events(queue, 1);
}

/** The queue pair first: nothing is written to memory that is released. */
void QueuePair::free() {
  if (pair_ != nullptr) verbs_.destroy_qp(pair_);
  if (sent_ != nullptr) verbs_.destroy_cq(sent_);
  if (received_ != nullptr) verbs_.destroy_cq(received_);
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (outbox_ != nullptr) verbs_.dereg_mr(outbox_);
  if (inbox_ != nullptr) verbs_.dereg_mr(inbox_);
}

}  // namespace kvasir
