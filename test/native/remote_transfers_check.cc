// Stress of page transfers between processes, over TCP and shared memory, for sanitizers: receive buffers are filled,
// stopped and closed while connections are cut and bytes corrupted; malformed frames and silent peers. Also over RDMA
// if KVASIR_IBVERBS names a library. Argument: rounds. Prints a line per error and exits with 1 if there are any.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <tuple>

#include "base/checksum.hpp"
#include "remote_transfers_filling.hpp"
#include "net/shared_memory_connection.hpp"
#include "transfer/remote_page_sender.hpp"

using namespace kvasir;

namespace {

enum class End { complete, stopped, closed };

struct Traffic {
  World& world;
  RemotePageSender sender{world.from, world.transport, key_of(7), kFrameBytes, 15000};

  std::vector<PageDescriptor> descriptors(int buffer) const {
    // Sent again before the first has left, as a page that is still filling.
    std::vector<PageDescriptor> all = {{0, 0, World::source(buffer, 1), 0}, {0, 0, World::source(buffer, 0), 0}};
    for (int i = 0; i < kSlots; i++) {
      const uint32_t step = world.chance() % 2 ? world.from->progress.next() : 0;
      all.push_back({step, static_cast<uint32_t>(world.chance() % kLayers), World::source(buffer, i), i, world.chance() % 4 == 0});
    }
    return all;
  }

  void round(const HostPort& address) {
    World::Opened opened[kBuffers];
    End ends[kBuffers];
    for (int l = 0; l < kBuffers; l++) {
      world.fill(l, 0);
      opened[l] = world.open(l);
      ends[l] = static_cast<End>(world.chance() % 3);
    }
    for (int l = 0; l < kBuffers; l++) sender.send(address, opened[l].remote, descriptors(l), true);
    for (int l = 0; l < kBuffers; l++) {
      if (ends[l] == End::stopped) sender.stop(address, opened[l].remote);
      if (ends[l] == End::closed) opened[l].buffer->close();
      // No sender may touch the pages any more.
      if (ends[l] == End::closed) world.fill(l, kReused);
    }
    bool complete[kBuffers] = {};
    await([&] {
      int32_t out[1];
      while (world.queue->take(out, 1) == 1)
        for (int l = 0; l < kBuffers; l++) complete[l] = complete[l] || opened[l].buffer->number() == out[0];
      for (int l = 0; l < kBuffers; l++)
        if (ends[l] == End::complete && !complete[l]) return false;
      return true;
    });
    for (int l = 0; l < kBuffers; l++) {
      sender.stop(address, opened[l].remote);
      opened[l].buffer->close();
      for (int i = 0; i < kSlots && ends[l] == End::complete; i++)
        expect(world.holds(l, i, static_cast<uint8_t>(World::source(l, i) + 1)), "a received page holds other bytes");
      if (ends[l] == End::closed) expect(world.holds_all(l, kReused), "a closed buffer was written to");
    }
  }
};

void check_traffic(World& world, int rounds) {
  std::atomic<bool> over{false};
  std::thread steps([&] {
    while (!over) {
      world.from->progress.begin();
      for (uint32_t layer = 1; layer <= kLayers; layer++) {
        world.from->progress.ready(layer);
        std::this_thread::yield();
      }
      world.from->progress.end();
    }
  });
  {
    Proxy proxy(world.receiver.port(), world.transport);
    Traffic traffic{world};
    const HostPort straight = {"127.0.0.1", world.receiver.port()};
    for (int i = 0; i < rounds; i++) {
      proxy.fault_odds = i % 2 == 0 ? 0 : 60;
      traffic.round(i % 3 == 0 ? straight : proxy.address());
    }
    // Also between rounds, until some faults have been injected.
    for (proxy.fault_odds = 20; proxy.faults == 0;) traffic.round(proxy.address());
    await([&] { return traffic.sender.counts().broken > 0; });
    expect(traffic.sender.counts().given_up == 0, "a reachable peer was given up");
  }
  over = true;
  steps.join();
}

/** A peer that has the key and sends arbitrary frames. */
struct MalformedPeer {
  World& world;
  std::unique_ptr<Connection> connection;
  explicit MalformedPeer(World& to) : world(to), connection(open_connection({"127.0.0.1", to.receiver.port()}, to.transport, key_of(7), kLayout, 3000, kNeverEnded)) {
    expect(connection != nullptr, "a peer with the key was refused");
  }

  FrameHeader header(const RemoteReceiveBuffer& buffer, uint32_t count) const {
    FrameHeader header;
    header.kind = FrameKind::pages;
    header.sequence = 1;
    header.buffer = buffer.number;
    header.count = count;
    header.buffer_key = buffer.key;
    header.bytes = count * kLayout.page_bytes();
    return header;
  }
  enum class End { right, wrong, given_up };
  /** Sends pages of ones with valid checksums. */
  void send(FrameHeader header, const std::vector<uint32_t>& slots, End end = End::right) {
    const std::vector<uint8_t> pages(slots.size() * kLayout.page_bytes(), 1);
    uint64_t sum = kPagesSeed;
    for (size_t i = 0; i < slots.size(); i++) sum = checksum(Isa::portable, pages.data() + i * kLayout.page_bytes(), kLayout.page_bytes(), sum);
    if (end == End::wrong) sum++;
    header.checksum = slots.size() == header.count ? header_checksum(Isa::portable, header, slots.data()) : 0;
    connection->send(&header, sizeof header, in_milliseconds(3000), kNeverEnded);
    connection->send(slots.data(), slots.size() * sizeof(uint32_t), in_milliseconds(3000), kNeverEnded);
    connection->send(pages.data(), pages.size(), in_milliseconds(3000), kNeverEnded);
    if (end == End::given_up) sum = given_up(header);
    connection->send(&sum, sizeof sum, in_milliseconds(3000), kNeverEnded);
  }
  bool receives(AckStatus status) const {
    Ack ack;
    return connection->receive(&ack, sizeof ack, in_milliseconds(5000), kNeverEnded) && ack.status == status;
  }
  bool is_shut_down() const {
    uint8_t byte;
    return !connection->receive(&byte, 1, in_milliseconds(5000), kNeverEnded);
  }
};

/**
 * Each malformed frame ends its connection, is counted, and writes to no other buffer. With `spoils` its own buffer may
 * have been written.
 */
void check_malformed(World& world, const char* what, const std::function<void(MalformedPeer&, const World::Opened&)>& corrupt, bool spoils = false) {
  for (int l = 0; l < kBuffers; l++) world.fill(l, kReused);
  const World::Opened opened = world.open(1);
  const uint64_t broken = world.receiver.counts().broken;
  MalformedPeer peer(world);
  corrupt(peer, opened);
  expect(peer.is_shut_down(), what);
  await([&] { return world.receiver.counts().broken > broken; });
  opened.buffer->close();
  for (int l = 0; l < kBuffers; l++) expect((spoils && l == 1) || world.holds_all(l, kReused), what);
}

void check_malformed_frames(World& world) {
  const auto change = [&](const char* what, const std::function<void(FrameHeader&)>& corrupt) {
    check_malformed(world, what, [&](MalformedPeer& peer, const World::Opened& opened) {
      FrameHeader header = peer.header(opened.remote, 2);
      corrupt(header);
      peer.send(header, {0, 1});
    });
  };
  change("magic", [](FrameHeader& header) { header.magic++; });
  change("version", [](FrameHeader& header) { header.version++; });
  change("kind", [](FrameHeader& header) { header.kind = static_cast<FrameKind>(9); });
  change("sequence", [](FrameHeader& header) { header.sequence = 2; });
  change("bytes", [](FrameHeader& header) { header.bytes--; });
  change("count without bytes", [](FrameHeader& header) { header.count = 1; });
  change("count of everything", [](FrameHeader& header) { header.count = UINT32_MAX, header.bytes = UINT32_MAX * kLayout.page_bytes(); });
  for (const uint32_t slot : {uint32_t{kSlots}, uint32_t{kPages}, UINT32_MAX, uint32_t{1} << 31}) {
    check_malformed(world, "slot", [&](MalformedPeer& peer, const World::Opened& opened) { peer.send(peer.header(opened.remote, 2), {0, slot}); });
  }
  check_malformed(world, "checksum of the header", [](MalformedPeer& peer, const World::Opened& opened) {
    FrameHeader header = peer.header(opened.remote, 1);
    header.checksum = 1;
    peer.connection->send(&header, sizeof header, in_milliseconds(3000), kNeverEnded);
    const uint32_t slot = 0;
    peer.connection->send(&slot, sizeof slot, in_milliseconds(3000), kNeverEnded);
  });
  check_malformed(world, "checksum of the pages", [](MalformedPeer& peer, const World::Opened& opened) { peer.send(peer.header(opened.remote, 2), {0, 1}, MalformedPeer::End::wrong); }, true);
  check_malformed(world, "cut short", [](MalformedPeer& peer, const World::Opened& opened) {
    const FrameHeader header = peer.header(opened.remote, 1);
    peer.connection->send(&header, sizeof header / 2, in_milliseconds(3000), kNeverEnded);
    peer.connection->shut_down();
  });
  check_malformed(world, "doubled", [](MalformedPeer& peer, const World::Opened& opened) {
    peer.send(peer.header(opened.remote, 2), {0, 1});
    expect(peer.receives(AckStatus::received), "a frame was not received");
    peer.send(peer.header(opened.remote, 2), {0, 1});
  }, true);
}

/** A frame of a stream that was stopped in transit completes nothing, and later frames are received. */
void check_given_up(World& world) {
  const World::Opened opened = world.open(1);
  MalformedPeer peer(world);
  FrameHeader header = peer.header(opened.remote, 2);
  header.kind = FrameKind::last_pages;
  peer.send(header, {0, 1}, MalformedPeer::End::given_up);
  expect(peer.receives(AckStatus::closed), "a stopped frame was received");
  expect(opened.buffer->while_open([] {}), "a stopped frame completed its buffer");
  header.sequence = 2;
  peer.send(header, {0, 1});
  expect(peer.receives(AckStatus::received), "no frame is received after a stopped one");
}

/** Frames to closed, complete or unknown buffers are discarded; the connection continues. */
void check_late(World& world) {
  for (int l = 0; l < kBuffers; l++) world.fill(l, kReused);
  const World::Opened open = world.open(0), closed = world.open(1), complete = world.open(2);
  closed.buffer->close();
  complete.buffer->complete();
  RemoteReceiveBuffer forged = open.remote;
  forged.key++;
  MalformedPeer peer(world);
  uint32_t sequence = 0;
  const auto send = [&](const RemoteReceiveBuffer& buffer) {
    FrameHeader header = peer.header(buffer, 2);
    header.sequence = ++sequence;
    peer.send(header, {0, kSlots - 1});
  };
  for (const RemoteReceiveBuffer& buffer : {closed.remote, complete.remote, forged, RemoteReceiveBuffer{12345678, 1, 1}}) {
    send(buffer);
    expect(peer.receives(AckStatus::closed), "a frame was received without an open buffer");
  }
  for (int l = 0; l < kBuffers; l++) expect(world.holds_all(l, kReused), "a late frame was written");
  // A sanitizer does not see the synchronisation through a ring; the lock provides one that it sees.
  open.buffer->while_open([] {});
  send(open.remote);
  bool received = peer.receives(AckStatus::received);
  open.buffer->while_open([&] { received = received && world.holds(0, 0, 1) && world.holds(0, 1, kReused); });
  expect(received, "a frame was not received after late ones");
  open.buffer->close();
}

/** A connection before its handshake. */
Socket unauthenticated(const World& world) {
  const HostPort address = {"127.0.0.1", world.receiver.port()};
  return world.transport == Transport::shared ? connect_locally(local_socket_name(key_of(7), address)) : connect_to(address, in_milliseconds(3000), kNeverEnded);
}

void check_handshakes(World& world) {
  const uint64_t refused = world.receiver.counts().refused;
  const Socket socket = unauthenticated(world);
  expect(handshake_as_sender(socket, key_of(8), kLayout, in_milliseconds(3000), kNeverEnded) == HandshakeResult::refused, "a wrong key was accepted");
  await([&] { return world.receiver.counts().refused == refused + 1; });
  const Socket noisy = unauthenticated(world);
  const std::vector<uint8_t> noise(4096, 0x41);
  noisy.send(noise.data(), noise.size(), in_milliseconds(3000), kNeverEnded);
  await([&] { return world.receiver.counts().refused == refused + 2; });
  const Socket other = unauthenticated(world);
  expect(handshake_as_sender(other, key_of(7), {KvType::f32, 2, 16}, in_milliseconds(3000), kNeverEnded) == HandshakeResult::shape_mismatch, "another page layout was accepted");
}

/**
 * A peer that reads everything and acknowledges nothing receives one window, and delays neither other peers nor `stop`.
 */
void check_silence(World& world) {
  constexpr size_t kWindow = size_t{8} << 20;
  std::atomic<size_t> got{0};
  const auto read = [&](const Connection& connection, const std::atomic<bool>& ended) {
    std::vector<uint8_t> bytes(1 << 16);
    while (!ended && connection.await_readable(kNever, ended)) {
      const int64_t some = connection.receive_some(bytes.data(), bytes.size());
      if (some == 0 || some == Connection::kBroken) break;
      got += static_cast<size_t>(std::max<int64_t>(some, 0));
    }
  };
  const Listener listener({"127.0.0.1", 0}, world.transport, key_of(7), kLayout, read);
  const HostPort silent = {"127.0.0.1", listener.port()};
  Traffic traffic{world};
  const RemoteReceiveBuffer nowhere = {1, 2, kSlots};
  std::vector<PageDescriptor> many;
  for (size_t i = 0; i < 4 * kWindow / kLayout.page_bytes(); i++) many.push_back({0, 0, static_cast<int32_t>(i % kPages), static_cast<int32_t>(i % kSlots)});
  traffic.sender.send(silent, nowhere, many, true);
  await([&] { return got >= kWindow; });
  const World::Opened opened = world.open(0);
  traffic.sender.send({"127.0.0.1", world.receiver.port()}, opened.remote, {{0, 0, 3, 0}}, true);
  world.await_completion(opened.buffer->number());
  traffic.sender.stop(silent, nowhere);
  expect(traffic.sender.counts().sent.bytes <= kWindow + 2 * kFrameBytes, "more than a window was sent without acknowledgements");
  opened.buffer->close();
}

/** All lengths of remainders, and each single bit of a stripe. */
void check_checksums() {
  std::vector<uint8_t> bytes(300), copy(256);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  for (size_t count = 0; count <= bytes.size(); count++) {
    expect(checksum(detect_isa(), bytes.data(), count, count) == checksum(Isa::portable, bytes.data(), count, count), "checksums differ between instruction sets");
  }
  const uint64_t right = checksum(Isa::portable, bytes.data(), 256, 9);
  RunningChecksum running(detect_isa(), 9);
  running.add(bytes.data(), 64, copy.data());
  running.add(bytes.data() + 64, 192, copy.data() + 64);
  expect(running.value() == right && std::memcmp(copy.data(), bytes.data(), 256) == 0, "a copy in two parts");
  for (int bit = 0; bit < 256 * 8; bit++) {
    copy[bit / 8] ^= 1 << (bit % 8);
    expect(checksum(detect_isa(), copy.data(), 256, 9) != right, "a changed bit was not detected");
    copy[bit / 8] ^= 1 << (bit % 8);
  }
}

/** Keys 0..31, messages 0..n-1: digests of other implementations. */
void check_hash() {
  HashKey key;
  uint8_t message[130];
  for (size_t i = 0; i < key.size(); i++) key[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < sizeof message; i++) message[i] = static_cast<uint8_t>(i);
  const std::pair<size_t, const char*> known[] = {
      {0, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49"},
      {64, "8975b0577fd35566d750b362b0897a26c399136df07bababbde6203ff2954ed4"},
      {65, "21fe0ceb0052be7fb0f004187cacd7de67fa6eb0938d927677f2398c132317a8"},
      {130, "ad038ff9b14de84a801e4e621ce5df029dd93520d0c2fa38bff176a8b1d1698c"},
  };
  for (const auto& [count, digest] : known) {
    std::string text;
    char digits[3];
    for (const uint8_t byte : keyed_hash(key, message, count)) {
      std::snprintf(digits, sizeof digits, "%02x", byte);
      text += digits;
    }
    expect(text == digest, "a keyed hash");
  }
}

/** Shared memory if both sides allow it, TCP if either allows only TCP, no connection without a common transport. */
void check_transports() {
  const auto serve = [](const Connection& connection, const std::atomic<bool>& ended) { connection.await_readable(kNever, ended); };
  const Listener both({"127.0.0.1", 0}, Transport::automatic, key_of(7), kLayout, serve), tcp({"127.0.0.1", 0}, Transport::tcp, key_of(7), kLayout, serve);
  const auto shares = [](const Listener& to, Transport transport) {
    const auto connection = open_connection({"127.0.0.1", to.port()}, transport, key_of(7), kLayout, 3000, kNeverEnded);
    return connection == nullptr ? -1 : dynamic_cast<const SharedMemoryConnection*>(connection.get()) != nullptr ? 1 : 0;
  };
  expect(shares(both, Transport::automatic) == 1 && shares(both, Transport::tcp) == 0 && shares(both, Transport::shared) == 1, "a listener on both transports");
  expect(shares(tcp, Transport::automatic) == 0 && shares(tcp, Transport::tcp) == 0 && shares(tcp, Transport::shared) == -1, "a listener on TCP only");
}

/** Only valid memory is accepted from a peer, and impossible positions in it end the connection. */
void check_memory() {
  const std::string name = local_socket_name(key_of(9), {"127.0.0.1", 1});
  const Socket listening = listen_locally(name);
  const auto taken = [&](int descriptor) {
    const Socket near = connect_locally(name);
    Socket far = accept_locally(listening);
    if (descriptor >= 0) pass_descriptor(near, descriptor);
    else near.shut_down();
    return SharedMemoryConnection::accept(std::move(far), in_milliseconds(3000), kNeverEnded) != nullptr;
  };
  constexpr size_t kBytes = (1 << 16) + 2 * kRingBytes;
  const auto memory = [](size_t bytes, int seals) {
    const int descriptor = memfd_create("check", MFD_ALLOW_SEALING);
    expect(ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 && (seals == 0 || fcntl(descriptor, F_ADD_SEALS, seals) == 0), "memory");
    return descriptor;
  };
  expect(!taken(-1), "no descriptor was accepted as memory");
  for (const auto& [bytes, seals, right] : {std::tuple<size_t, int, bool>{kBytes, F_SEAL_SHRINK, true}, {kBytes, 0, false}, {kBytes - 4096, F_SEAL_SHRINK, false}, {0, F_SEAL_SHRINK, false}}) {
    const int descriptor = memory(bytes, seals);
    expect(taken(descriptor) == right, "memory that can be truncated or is too small was accepted");
    close(descriptor);
  }
  const int descriptor = memory(kBytes, F_SEAL_SHRINK);
  auto* states = static_cast<RingState*>(mmap(nullptr, sizeof(RingState), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
  const Socket near = connect_locally(name);
  pass_descriptor(near, descriptor);
  const auto connection = SharedMemoryConnection::accept(accept_locally(listening), in_milliseconds(3000), kNeverEnded);
  uint8_t bytes[64];
  states->written = 40;
  expect(connection->receive_some(bytes, sizeof bytes) == 40 && states->read == 40, "written bytes are not received");
  for (const uint64_t corrupt : {uint64_t{39}, 40 + kRingBytes + 1, UINT64_MAX}) {
    states->written = corrupt;
    expect(connection->receive_some(bytes, sizeof bytes) == Connection::kBroken, "an impossible position was accepted");
  }
  munmap(states, sizeof(RingState));
  close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  check_checksums();
  check_hash();
  for (const Transport transport : {Transport::tcp, Transport::shared, Transport::rdma}) {
    if (transport == Transport::rdma && std::getenv("KVASIR_IBVERBS") == nullptr) continue;
    World world(transport);
    expect(MalformedPeer(world).connection->transport() == transport, "another transport");
    check_handshakes(world);
    check_malformed_frames(world);
    check_given_up(world);
    check_late(world);
    check_silence(world);
    check_stopped_midway(world);
    check_filling(world);
    // The emulation takes longer than the other transports.
    check_traffic(world, transport == Transport::rdma ? rounds / 4 : rounds);
  }
  check_memory();
  check_transports();
  std::printf("%d rounds, %d wrong\n", rounds, failures);
  return failures == 0 ? 0 : 1;
}
