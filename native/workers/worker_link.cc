// Frames are written by the thread that runs the step: over shared memory no other thread is woken on this side.
#include "workers/worker_link.hpp"

#include <map>
#include <random>
#include <stdexcept>
#include <thread>

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnectMs = 1000;
constexpr auto kPollInterval = std::chrono::milliseconds(1);  // interval of checks of the abort flag
constexpr auto kSendPollInterval = std::chrono::milliseconds(10);  // the same, and for heartbeats, while a send waits
constexpr int32_t kNoAbort = 0;

}  // namespace

namespace {

/** The owners of the links of this process, by address. */
class LinkOwners {
 public:
  std::shared_ptr<const uint64_t> of(const HostPort& address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Known& known = known_[key_of(address)];
    if (auto owner = known.owner.lock()) return owner;
    const auto owner = std::make_shared<const uint64_t>(process_ | ++known.generation);
    known.owner = owner;
    return owner;
  }
  /** The next link to the address has another owner. */
  void end_generation(const HostPort& address, const std::shared_ptr<const uint64_t>& owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Known& known = known_[key_of(address)];
    if (known.owner.lock() == owner) known.owner.reset();
  }

 private:
  struct Known {
    std::weak_ptr<const uint64_t> owner;
    uint16_t generation = 0;
  };

  static std::string key_of(const HostPort& address) { return address.host + ":" + std::to_string(address.port); }
  static uint64_t random_process() {
    std::random_device random;
    return (uint64_t{random()} << 32 | random()) & ~kOwnerGenerations;
  }

  std::mutex mutex_;
  std::map<std::string, Known> known_;
  const uint64_t process_ = random_process();
};

LinkOwners& link_owners() {
  static LinkOwners owners;
  return owners;
}

}  // namespace

std::shared_ptr<const uint64_t> link_owner(const HostPort& address) { return link_owners().of(address); }

WorkerLink::WorkerLink(Isa isa, const KvLayout& layout, const HostPort& address, Transport transport, const HashKey& key, std::chrono::milliseconds deadline,
                       AttentionForm form, int first_page)
    : isa_(isa), layout_(layout), deadline_(deadline), form_(form), first_page_(first_page), address_(address), owner_(link_owner(address)), connection_(open_connection(address, transport, key, layout, kConnectMs, ended_)), abort_(&kNoAbort) {
  const std::string name = "Cannot use attention worker " + address.host + ":" + std::to_string(address.port) + ": ";
  ModelWorkerHello own;
  own.owner = *owner_;
  own.checksum = worker_checksum(own);
  WorkerHello hello;
  if (connection_ == nullptr) throw std::runtime_error(name + "it does not answer, has another token, or holds other KV heads");
  const bool answers = connection_->send(&own, sizeof own, in_milliseconds(kConnectMs), ended_) && connection_->receive(&hello, sizeof hello, in_milliseconds(kConnectMs), ended_);
  if (!answers || !is_valid_worker_header(hello) || hello.pages <= 0) {
    throw std::runtime_error(name + "it does not describe itself as an attention worker of version " + std::to_string(kWorkerWireVersion));
  }
  if (hello.isa != static_cast<int32_t>(isa)) {
    throw std::runtime_error(name + "it computes with another instruction set: " + std::to_string(hello.isa) + ", not " + std::to_string(static_cast<int>(isa)));
  }
  if (hello.is_taken != 0) throw std::runtime_error(name + "it holds the pages of another process");
  pages_ = hello.pages;
}

void WorkerLink::begin(const StepView& step, const WorkerShare& share, const std::vector<std::vector<AttentionSequence>>& groups,
                       const std::vector<LayerGroup>& layers, const int32_t* abort, std::optional<StallLimits> limits) {
  abort_ = abort;
  limits_ = limits;
  if (is_broken() || !finish_earlier_steps()) return;
  step_number_++;
  ShardStep shard;
  shard.row_start.push_back(0);
  for (const int s : share.sequences) {
    shard.row_start.push_back(shard.row_start.back() + step.row_start[s + 1] - step.row_start[s]);
    shard.positions.push_back(step.positions[step.row_start[s]]);
  }
  tables_.resize(groups.size());
  for (size_t g = 0; g < groups.size(); g++) {
    const StepGroupView& from = step.groups[g];
    ShardGroup group;
    group.layers = from.layers;
    group.window = layers[g].window;
    const int first_block = share.first_block[g];
    for (const int s : share.sequences) {
      const AttentionSequence& sequence = groups[g][s];
      group.first_block.push_back(sequence.first_block);
      group.block_start.push_back(static_cast<int32_t>(group.blocks.size()));
      if (has_slots(step, s, static_cast<int>(g))) continue;
      const int blocks = (sequence.start + sequence.rows - 1) / kPageTokens + 1 - sequence.first_block;
      for (int b = 0; b < blocks; b++) group.blocks.push_back(sequence.blocks[b] - first_block);
    }
    group.block_start.push_back(static_cast<int32_t>(group.blocks.size()));
    std::vector<int32_t>& known = tables_[g];
    for (const int32_t block : group.blocks) {
      const size_t at = static_cast<size_t>(block) * group.layers, end = at + group.layers;
      if (end > known.size()) known.resize(end, -1);
      const int32_t* pages = from.page_table.data + static_cast<size_t>(block + first_block) * group.layers;
      if (std::equal(pages, pages + group.layers, known.begin() + at)) continue;
      std::copy_n(pages, group.layers, known.begin() + at);
      group.changed.push_back(block);
      for (int layer = 0; layer < group.layers; layer++) group.pages.push_back(pages[layer] - share.first_page + first_page_);
    }
    shard.groups.push_back(std::move(group));
  }
  if (step.any_sparse()) {
    std::vector<int> index_of(static_cast<size_t>(step.sequences()), -1);
    for (size_t i = 0; i < share.sequences.size(); i++) index_of[static_cast<size_t>(share.sequences[i])] = static_cast<int>(i);
    shard.sparse.add(step, index_of, first_page_ - share.first_page);
  }
  std::vector<int32_t> words = shard.encode();
  WorkerFrame frame = {};
  frame.kind = WorkerFrameKind::step;
  frame.rows = share.rows;
  frame.words = static_cast<uint32_t>(words.size());
  frame.bytes = words.size() * sizeof(int32_t);
  send(frame, {{words.data(), static_cast<size_t>(frame.bytes)}});
}

/** An attention worker that cannot send a result reads nothing. False if the step must not begin. */
bool WorkerLink::finish_earlier_steps() {
  if (!unsent_.empty()) {
    std::vector<uint8_t> rest;
    rest.swap(unsent_);
    if (!send_parts({{rest.data(), rest.size()}})) fail();
    if (is_broken() || !unsent_.empty()) return false;
  }
  while (!pending_.empty())
    if (!receive(discarded_, abort_)) return false;
  const auto since = Clock::now();
  while (pulls_ != nullptr && !pulls_->await_cancelled(Clock::now() + kPollInterval)) {
    // They can arrive at any time.
    if (pulls_->has_ended()) fail();
    if (is_broken() || is_over(since)) return false;
  }
  stalled_since_.reset();
  return true;
}

/** True if a wait since `since` ends: the step is aborted, or the link becomes stalled or, after its deadline, broken. */
bool WorkerLink::is_over(Deadline since) {
  if (__atomic_load_n(abort_, __ATOMIC_RELAXED) != 0) return true;
  const auto now = Clock::now();
  const auto silent_since = stalled_since_.value_or(since);
  if (now >= silent_since + deadline_) fail();
  else if (limits_ && now >= since + (stalled_since_ ? limits_->stalled : limits_->first)) stalled_since_ = silent_since;
  else return false;
  return true;
}

void WorkerLink::send_query(WorkerFrame frame, const float* slopes, const std::vector<uint8_t>& query) {
  frame.kind = WorkerFrameKind::query;
  frame.form = form_;
  frame.slopes = slopes == nullptr ? 0 : static_cast<uint32_t>(frame.heads);
  frame.bytes = query.size();
  send(frame, {{const_cast<float*>(slopes), frame.slopes * sizeof(float)}, {const_cast<uint8_t*>(query.data()), query.size()}});
}

void WorkerLink::send_keys(WorkerFrame frame, const std::vector<uint8_t>& keys, size_t count) {
  frame.kind = WorkerFrameKind::keys;
  frame.slopes = 0;
  frame.bytes = keys.size();
  send(frame, {{const_cast<uint8_t*>(keys.data()), keys.size()}});
  pending_.push_back({step_number_, frame.call, count * sizeof(float)});
  counts_.calls++;
}

bool WorkerLink::send_pages(const std::vector<int32_t>& pages, const std::vector<uint8_t>& bytes) {
  std::vector<int32_t> numbers = pages;
  for (int32_t& page : numbers) page += first_page_;
  WorkerFrame frame = {};
  frame.kind = WorkerFrameKind::pages;
  frame.rows = static_cast<int>(pages.size());
  frame.words = static_cast<uint32_t>(pages.size());
  frame.bytes = bytes.size();
  step_number_++;
  send(frame, {{numbers.data(), numbers.size() * sizeof(int32_t)}, {const_cast<uint8_t*>(bytes.data()), bytes.size()}});
  pending_.push_back({step_number_, frame.call, 0});
  return receive(discarded_, &kNoAbort);
}

void WorkerLink::send(WorkerFrame& frame, std::initializer_list<iovec> body) {
  if (is_broken()) return;
  frame.magic = WorkerFrame::kMagic;
  frame.step = step_number_;
  frame.version = kWorkerWireVersion;
  frame.checksum = worker_checksum(frame);
  uint64_t sum = kBodySeed;
  std::vector<iovec> parts = {{&frame, sizeof frame}};
  for (const iovec& part : body) {
    sum = checksum(isa_, part.iov_base, part.iov_len, sum);
    if (part.iov_len > 0) parts.push_back(part);
    counts_.bytes_out += part.iov_len;
  }
  parts.push_back({&sum, sizeof sum});
  if (!send_parts(std::move(parts))) fail();
  counts_.bytes_out += sizeof frame;
}

/** Frames of the broken link may still be on their way: links that are opened from now on end the others. */
void WorkerLink::fail() {
  broken_ = true;
  if (!is_closing_) link_owners().end_generation(address_, owner_);
}

/**
 * The attention worker reads nothing while it computes: each heartbeat begins the wait anew. The rest of a frame of an
 * aborted or stalled step leaves before the next step.
 */
bool WorkerLink::send_parts(std::vector<iovec> parts) {
  auto since = Clock::now();
  for (size_t first = 0; first < parts.size();) {
    int64_t sent = connection_->send_parts(&parts[first], static_cast<int>(parts.size() - first), false);
    if (sent == Connection::kBroken) return false;
    if (sent == Connection::kWouldBlock && !connection_->await_writable(Clock::now() + kSendPollInterval, ended_)) {
      if (connection_->is_readable()) {
        if (!receive_heartbeat()) return false;
        since = Clock::now();
      } else if (is_over(since)) {
        for (; first < parts.size(); first++) {
          const auto* from = static_cast<const uint8_t*>(parts[first].iov_base);
          unsent_.insert(unsent_.end(), from, from + parts[first].iov_len);
        }
        return !is_broken();
      }
    }
    if (sent > 0) since = Clock::now();
    for (; first < parts.size() && sent >= static_cast<int64_t>(parts[first].iov_len); first++) sent -= static_cast<int64_t>(parts[first].iov_len);
    if (first == parts.size() || sent <= 0) continue;
    parts[first].iov_base = static_cast<uint8_t*>(parts[first].iov_base) + sent;
    parts[first].iov_len -= static_cast<size_t>(sent);
  }
  return true;
}

/** False unless the next frame is a heartbeat: before the keys of a call are sent there is no result. */
bool WorkerLink::receive_heartbeat() {
  AttentionFrame frame = {};
  return connection_->receive(&frame, sizeof frame, Clock::now() + deadline_, ended_) && is_valid_worker_header(frame) && frame.kind == AttentionFrameKind::heartbeat;
}

bool WorkerLink::receive(std::vector<float>& values, const int32_t* abort) {
  const auto begin = Clock::now();
  AttentionFrame frame = {};
  abort_ = abort;
  const bool received = receive_frame(frame, values);
  counts_.wait_nanoseconds += static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  if (!received) return false;
  pending_.pop_front();
  counts_.bytes_in += sizeof frame + frame.bytes;
  counts_.early_nanoseconds += frame.early_nanoseconds;
  counts_.late_nanoseconds += frame.late_nanoseconds;
  return true;
}

bool WorkerLink::receive_frame(AttentionFrame& frame, std::vector<float>& values) {
  if (is_broken() || pending_.empty()) return false;
  const PendingCall& call = pending_.front();
  for (bool is_result = false; !is_result;) {
    const auto since = Clock::now();
    while (!connection_->await_readable(Clock::now() + kPollInterval, ended_))
      if (is_over(since)) return false;
    stalled_since_.reset();
    const Deadline deadline = Clock::now() + deadline_;
    const bool valid = connection_->receive(&frame, sizeof frame, deadline, ended_) && is_valid_worker_header(frame);
    is_result = valid && frame.kind == AttentionFrameKind::result;
    if (is_result || (valid && frame.kind == AttentionFrameKind::heartbeat)) continue;
    fail();
    return false;
  }
  MessageReader body(*connection_, isa_, Clock::now() + deadline_, ended_);
  const bool valid = frame.step == call.step && frame.call == call.call && frame.bytes == call.bytes && body.receive(values, frame.bytes / sizeof(float)) &&
                     body.receive_sum();
  if (!valid) fail();
  return valid;
}

WorkerLinkAttempt::WorkerLinkAttempt(Isa isa, const KvLayout& layout, const HostPort& address, Transport transport, const HashKey& key,
                                     std::chrono::milliseconds deadline, AttentionForm form, int first_page)
    : state_(std::make_shared<State>()) {
  std::thread([=, state = state_] {
    std::shared_ptr<WorkerLink> link;
    std::string error;
    try {
      link = std::make_shared<WorkerLink>(isa, layout, address, transport, key, deadline, form, first_page);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->link = std::move(link);
    state->error = std::move(error);
  }).detach();
}

std::shared_ptr<WorkerLink> WorkerLinkAttempt::poll() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->error.empty()) throw std::runtime_error(state_->error);
  return state_->link;
}

}  // namespace kvasir
