// Checks of connections over RDMA, with the libibverbs that KVASIR_IBVERBS names (emulated_ibverbs.cc), for sanitizers:
// devices that are missing or refuse, invalid offers, writes that fail, and peers that are hostile, slow or killed.
// Prints a line per error and exits with 1 if there are any.
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <numeric>

#include "../remote_transfers_world.hpp"
#include "net/rdma_connection.hpp"
#include "transfer/remote_page_sender.hpp"

extern char** environ;

using namespace kvasir;

namespace {

/** The controls of the emulation. */
struct Emulation {
  int (*live_objects)();
  void (*fail_after)(int count);
  void (*stall)(bool stalls);
  int (*pending_writes)();
  Emulation() {
    void* library = dlopen(std::getenv("KVASIR_IBVERBS"), RTLD_NOW);
    find(library, live_objects, "emulated_live_objects");
    find(library, fail_after, "emulated_fail_after");
    find(library, stall, "emulated_stall");
    find(library, pending_writes, "emulated_pending_writes");
  }
  template <class Function>
  static void find(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

struct Setting {
  const char* name;
  std::string before;
  Setting(const char* of, const char* value) : name(of) {
    const char* old = std::getenv(name);
    before = old == nullptr ? "" : old;
    setenv(name, value, 1);
  }
  ~Setting() {
    if (before.empty()) unsetenv(name);
    else setenv(name, before.c_str(), 1);
  }
};

/** Two ends of a connection. */
struct Ends {
  Listener listener;
  std::atomic<Connection*> far{nullptr};
  std::atomic<bool> over{false};
  std::unique_ptr<Connection> near;

  Ends()
      : listener({"127.0.0.1", 0}, Transport::rdma, key_of(7), kLayout,
                 [this](Connection& connection, const std::atomic<bool>& ended) {
                   far = &connection;
                   await([&] { return ended || over; });
                 }),
        near(open_connection({"127.0.0.1", listener.port()}, Transport::rdma, key_of(7), kLayout, 3000, kNeverEnded)) {
    if (near != nullptr) await([&] { return far != nullptr; });
  }
  ~Ends() { over = true; }
  Connection& other() const { return *far; }
  bool uses(Transport transport) const { return near != nullptr && near->transport() == transport && other().transport() == transport; }
};

std::string reason() {
  try {
    return RdmaDevice::open()->name();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void check_devices() {
  expect(reason() == "emulated0 port 1", "the device has another name");
  for (const char* device : {"emulated0", "emulated0:1", "emulated0:1:1"}) {
    const Setting setting("KVASIR_RDMA_DEVICE", device);
    expect(reason() == "emulated0 port 1", "a selected device is not found");
  }
  for (const char* device : {"other", "emulated0:2", "emulated0:1:0"}) {
    const Setting setting("KVASIR_RDMA_DEVICE", device);
    expect(has(reason(), "no RDMA device named"), "another device than the selected one");
  }
  for (const char* device : {"emulated0:", "emulated0:0", "emulated0:x", "emulated0:1:", "emulated0:1:256", "emulated0:1:1:1"}) {
    const Setting setting("KVASIR_RDMA_DEVICE", device);
    expect(has(reason(), "KVASIR_RDMA_DEVICE must be"), "an invalid selection is not refused");
  }
  {
    const Setting setting("EMULATED_RDMA_DEVICES", "0");
    expect(has(reason(), "no RDMA device"), "a device where there is none");
  }
  {
    const Setting setting("KVASIR_IBVERBS", "/nonexistent/libibverbs.so");
    expect(has(reason(), "/nonexistent/libibverbs.so"), "a missing library is not named");
  }
  const Setting setting("KVASIR_IBVERBS", "libm.so.6");
  expect(has(reason(), "ibv_get_device_list of version IBVERBS_1.1"), "a library without the symbols is used");
}

bool moves_bytes(const Ends& ends) {
  const uint64_t sent = 42;
  uint64_t received = 0;
  return ends.near->send(&sent, sizeof sent, in_milliseconds(3000), kNeverEnded) && ends.other().receive(&received, sizeof received, in_milliseconds(3000), kNeverEnded) &&
         received == sent;
}

/** Whatever a device refuses, the bytes move over TCP. */
void check_fallbacks(const Emulation& emulation) {
  {
    const Ends ends;
    expect(ends.uses(Transport::rdma) && moves_bytes(ends), "two devices do not connect");
  }
  for (const char* refused : {"memory", "pair", "path"}) {
    const Setting setting("EMULATED_RDMA_REFUSES", refused);
    const Ends ends;
    expect(ends.uses(Transport::tcp) && moves_bytes(ends), "no TCP where a device refuses");
  }
  {
    const Setting setting("EMULATED_RDMA_DEVICES", "0");
    const Ends ends;
    expect(ends.uses(Transport::tcp) && moves_bytes(ends), "no TCP without a device");
  }
  // The first write of each side shows whether the other one is reached.
  for (const int side : {0, 1}) {
    emulation.fail_after(side);
    const Ends ends;
    emulation.fail_after(-1);
    expect(ends.uses(Transport::tcp) && moves_bytes(ends), "no TCP where the peer is not reached");
  }
}

/** A peer with the key, until it has sent its offer. */
struct Offering {
  Socket socket;
  explicit Offering(const Ends& ends) : socket(connect_to({"127.0.0.1", ends.listener.port()}, in_milliseconds(3000), kNeverEnded)) {
    bool rdma = true;
    expect(handshake_as_sender(socket, key_of(7), kLayout, in_milliseconds(3000), kNeverEnded, &rdma) == HandshakeResult::done && rdma, "RDMA is not offered");
  }
  void send(const RdmaOffer& offer) const { socket.send(&offer, sizeof offer, in_milliseconds(3000), kNeverEnded); }
  bool receives(RdmaOffer& offer) const { return socket.receive(&offer, sizeof offer, in_milliseconds(3000), kNeverEnded); }
};

void check_offers() {
  const Ends ends;
  RdmaOffer right, answer;
  right.usable = 1;
  right.memory = 4096;
  right.link_layer = verbs::kEthernet;
  right.mtu = 3;
  const auto change = [&](const std::function<void(RdmaOffer&)>& corrupt) {
    RdmaOffer offer = right;
    corrupt(offer);
    return offer;
  };
  // Malformed: the connection ends.
  RdmaOffer wrong_sum = change([](RdmaOffer& offer) { offer.checksum = offer.sum() + 1; });
  RdmaOffer wrong_magic = change([](RdmaOffer& offer) { offer.magic++, offer.checksum = offer.sum(); });
  for (const RdmaOffer& offer : {wrong_sum, wrong_magic}) {
    const uint64_t refused = ends.listener.refused();
    const Offering peer(ends);
    peer.send(offer);
    expect(!peer.receives(answer), "a malformed offer was answered");
    await([&] { return ends.listener.refused() == refused + 1; });
  }
  // Well-formed and not usable: the connection continues over TCP.
  const std::function<void(RdmaOffer&)> unusable[] = {
      [](RdmaOffer& offer) { offer.version++; },          [](RdmaOffer& offer) { offer.usable = 0; },
      [](RdmaOffer& offer) { offer.usable = 2; },         [](RdmaOffer& offer) { offer.memory = 0; },
      [](RdmaOffer& offer) { offer.ring_bytes *= 2; },    [](RdmaOffer& offer) { offer.link_layer = verbs::kInfiniBand; },
      [](RdmaOffer& offer) { offer.mtu = 6; },            [](RdmaOffer& offer) { offer.mtu = 0; },
      [](RdmaOffer& offer) { offer.number = 1u << 24; },  [](RdmaOffer& offer) { offer.first_packet = 1u << 24; },
  };
  for (const auto& corrupt : unusable) {
    const Offering peer(ends);
    RdmaOffer offer = change(corrupt);
    offer.checksum = offer.sum();
    peer.send(offer);
    expect(peer.receives(answer) && answer.usable == 0, "an impossible offer was accepted");
  }
  // A peer that does not answer the offer, or answers nonsense.
  for (const uint8_t verdict : {uint8_t{0}, uint8_t{9}}) {
    const Offering peer(ends);
    RdmaOffer offer = right;
    offer.checksum = offer.sum();
    peer.send(offer);
    expect(peer.receives(answer) && answer.usable == 1 && answer.checksum == answer.sum(), "a usable offer was refused");
    peer.socket.send(&verdict, sizeof verdict, in_milliseconds(3000), kNeverEnded);
    uint8_t back;
    expect(peer.socket.receive(&back, 1, in_milliseconds(3000), kNeverEnded) == (verdict == 0) && (verdict != 0 || back == 0), "a verdict was not answered");
  }
}

/** Bytes in both directions at once, in pieces of all sizes, by every way to send and receive. */
void check_streams() {
  const Ends ends;
  constexpr size_t kBytes = size_t{6} << 20;
  const auto value = [](size_t at) { return static_cast<uint8_t>(at * 31 + (at >> 12)); };
  const auto send = [&](Connection& to, uint32_t seed) {
    std::mt19937 chance(seed);
    std::vector<uint8_t> piece;
    for (size_t at = 0; at < kBytes;) {
      piece.resize(std::min<size_t>(kBytes - at, 1 + chance() % (chance() % 2 == 0 ? 64 : Connection::kReserveBytes)));
      for (size_t i = 0; i < piece.size(); i++) piece[i] = value(at + i);
      if (chance() % 2 == 0) {
        if (!to.send(piece.data(), piece.size(), in_milliseconds(20000), kNeverEnded)) return false;
      } else {
        uint8_t* out = to.reserve(piece.size(), in_milliseconds(20000), kNeverEnded);
        if (out == nullptr) return false;
        std::memcpy(out, piece.data(), piece.size());
        if (!to.commit(piece.size(), in_milliseconds(20000), kNeverEnded)) return false;
      }
      at += piece.size();
    }
    return true;
  };
  const auto receive = [&](const Connection& from, uint32_t seed) {
    std::mt19937 chance(seed);
    std::vector<uint8_t> piece(size_t{1} << 18);
    for (size_t at = 0; at < kBytes;) {
      size_t available;
      const uint8_t* in_place = from.peek(available);
      int64_t got = static_cast<int64_t>(std::min<size_t>(available, 1 + chance() % piece.size()));
      const bool consumes = got > 0 && chance() % 2 == 0;
      if (!consumes) {
        from.await_bytes(std::min<size_t>(kBytes - at, chance() % kRingWaitBytes));
        got = from.receive_some(piece.data(), piece.size());
      }
      if (got == Connection::kWouldBlock) continue;
      if (got <= 0) return false;
      for (int64_t i = 0; i < got; i++)
        if ((consumes ? in_place : piece.data())[i] != value(at + static_cast<size_t>(i))) return false;
      if (consumes) from.consume(static_cast<size_t>(got));
      at += static_cast<size_t>(got);
    }
    return true;
  };
  bool right[4];
  std::thread threads[] = {
      std::thread([&] { right[0] = send(*ends.near, 1); }),
      std::thread([&] { right[1] = receive(ends.other(), 2); }),
      std::thread([&] { right[2] = send(ends.other(), 3); }),
      std::thread([&] { right[3] = receive(*ends.near, 4); }),
  };
  for (std::thread& thread : threads) thread.join();
  expect(std::all_of(std::begin(right), std::end(right), [](bool each) { return each; }), "a stream has other bytes");
}

/** A peer that reads nothing receives one ring, also of single bytes; nothing is lost once it reads. */
void check_flow() {
  for (const size_t bytes : {size_t{1}, size_t{1} << 16}) {
    const Ends ends;
    const std::vector<uint8_t> piece(bytes, 5);
    size_t sent = 0;
    const std::atomic<bool> never{false};
    for (int refused = 0; refused < 3;) {
      const int64_t some = ends.near->send_some(piece.data(), bytes);
      if (some > 0) sent += static_cast<size_t>(some);
      else if (!ends.near->await_writable(in_milliseconds(20), never)) refused++;
    }
    expect(sent <= kRingBytes && (bytes == 1 || sent == kRingBytes), "more than a ring was sent to a peer that reads nothing");
    std::vector<uint8_t> all(sent);
    expect(ends.other().receive(all.data(), sent, in_milliseconds(20000), kNeverEnded), "bytes in flight were lost");
    expect(std::all_of(all.begin(), all.end(), [](uint8_t byte) { return byte == 5; }), "bytes in flight were changed");
    // What was sent before the end arrives before the end.
    const uint8_t last[3] = {1, 2, 3};
    expect(ends.near->send(last, sizeof last, in_milliseconds(20000), kNeverEnded), "no space after everything was read");
    ends.near->shut_down();
    uint8_t got[4];
    expect(ends.other().receive(got, 3, in_milliseconds(20000), kNeverEnded) && std::memcmp(got, last, 3) == 0, "the last bytes were lost");
    expect(ends.other().await_readable(kNever, never) && ends.other().receive_some(got, 1) == 0, "no end");
    expect(ends.other().send_some(got, 1) == Connection::kBroken, "bytes were sent after the end");
  }
}

/** A failed write ends the connection; unacknowledged pages are sent again over the next one. */
void check_failed_writes(const Emulation& emulation) {
  for (const int after : {0, 1, 2, 5}) {
    World world(Transport::rdma);
    RemotePageSender sender{world.from, Transport::rdma, key_of(7), kFrameBytes, 15000};
    const HostPort address = {"127.0.0.1", world.receiver.port()};
    for (int buffer = 0; buffer < 2; buffer++) {
      world.fill(buffer, 0);
      const World::Opened opened = world.open(buffer);
      if (buffer == 1) emulation.fail_after(after);
      std::vector<PageDescriptor> all;
      for (int i = 0; i < kSlots; i++) all.push_back({0, 0, World::source(buffer, i), i, false});
      sender.send(address, opened.remote, all, true);
      world.await_completion(opened.buffer->number());
      for (int i = 0; i < kSlots; i++) expect(world.holds(buffer, i, static_cast<uint8_t>(World::source(buffer, i) + 1)), "a page holds other bytes after a failed write");
      opened.buffer->close();
    }
    // The write that failed may be that of an acknowledgement, which the sender notices later.
    await([&] { return after > 1 || sender.counts().broken > 0; });
    emulation.fail_after(-1);
  }
}

/** A peer that has agreed and writes what it may not. */
void check_hostile_writes() {
  for (const uint64_t position : {kRingBytes + 1, UINT64_MAX}) {
    Ends ends;
    uint8_t byte;
    // The words of the near side are at the beginning of its memory: the far side writes there through its own pair.
    const auto device = RdmaDevice::open();
    const Offering peer(ends);
    std::vector<uint8_t> memory(1 << 17);
    QueuePair pair(device, memory.data(), memory.size() / 2, memory.size());
    RdmaOffer offer = RdmaOffer::of(pair.address(), 0), answer;
    offer.checksum = offer.sum();
    peer.send(offer);
    expect(peer.receives(answer) && answer.usable == 1, "a usable offer was refused");
    ends.far = nullptr;
    const auto written = [&](uint64_t value, uint64_t offset) {
      const uint64_t ticket = pair.write({}, {value, offset}, true);
      await([&] {
        pair.poll();
        return ticket == 0 || pair.completed() >= ticket || pair.has_failed();
      });
      return !pair.has_failed();
    };
    expect(pair.connect(answer.address()) && written(answer.probe, offsetof(RdmaWords, probe)), "a write within the memory fails");
    const uint8_t works = 1;
    uint8_t verdict = 0;
    peer.socket.send(&works, 1, in_milliseconds(3000), kNeverEnded);
    expect(peer.socket.receive(&verdict, 1, in_milliseconds(3000), kNeverEnded) && verdict == 1, "the receiver cannot write");
    await([&] { return ends.far != nullptr; });
    // Bytes in its ring that it has written beyond a word that says less are not received.
    expect(written(position, RdmaWords::written_offset()), "a word cannot be written");
    expect(ends.other().receive_some(&byte, 1) == Connection::kBroken, "an impossible position was accepted");
    expect(written(1, RdmaWords::read_offset()) && ends.other().send_some(&byte, 1) == Connection::kBroken, "an impossible read position was accepted");
    expect(!written(1, RdmaWords::kBytes + 2 * kRingBytes), "a peer writes to the ring of this side");
  }
}

/** A device that completes nothing delays neither the end of a connection nor other ones. */
void check_stalled(const Emulation& emulation) {
  auto ends = std::make_unique<Ends>();
  emulation.stall(true);
  const uint64_t sent = 1;
  expect(ends->near->send(&sent, sizeof sent, in_milliseconds(3000), kNeverEnded), "a write is not queued");
  ends->near = nullptr;
  ends = nullptr;
  emulation.stall(false);
  const Ends next;
  expect(moves_bytes(next), "no connection after one that stalled");
}

/** This program as the peer: sends half of a frame header, which arrives, reads `bytes`, and is killed. */
int run_peer(int port, size_t bytes) {
  const auto connection = open_connection({"127.0.0.1", port}, Transport::rdma, key_of(7), kLayout, 3000, kNeverEnded);
  if (connection == nullptr || connection->transport() != Transport::rdma) return 1;
  const FrameHeader header = {};
  connection->send(&header, sizeof header / 2, in_milliseconds(3000), kNeverEnded);
  const Emulation emulation;
  await([&] { return emulation.pending_writes() == 0; });
  std::vector<uint8_t> received(bytes);
  if (bytes > 0 && !connection->receive(received.data(), bytes, in_milliseconds(10000), kNeverEnded)) return 1;
  return raise(SIGKILL);
}

void spawn_peer(const char* program, int port, size_t bytes) {
  const std::string texts[] = {program, "peer", std::to_string(port), std::to_string(bytes)};
  char* arguments[] = {const_cast<char*>(texts[0].c_str()), const_cast<char*>(texts[1].c_str()), const_cast<char*>(texts[2].c_str()), const_cast<char*>(texts[3].c_str()), nullptr};
  pid_t child;
  int status = 0;
  expect(posix_spawn(&child, program, nullptr, nullptr, arguments, environ) == 0 && waitpid(child, &status, 0) == child, "no peer process");
  expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the peer process was not killed in its connection");
}

/** A killed peer ends its connection, and half of its frame changes nothing. */
void check_killed_peer(const char* program) {
  World world(Transport::rdma);
  for (int l = 0; l < kBuffers; l++) world.fill(l, kReused);
  const World::Opened opened = world.open(1);
  spawn_peer(program, world.receiver.port(), 0);
  await([&] { return world.receiver.counts().broken == 1; });
  expect(opened.buffer->while_open([] {}) && world.holds_all(1, kReused), "half of a frame changed its buffer");
  opened.buffer->close();
  // A peer that is killed while this side writes to it.
  std::atomic<bool> broken{false};
  const Listener listener({"127.0.0.1", 0}, Transport::rdma, key_of(7), kLayout, [&](const Connection& connection, const std::atomic<bool>& ended) {
    const std::vector<uint8_t> bytes(size_t{1} << 17);
    while (connection.send(bytes.data(), bytes.size(), kNever, ended)) continue;
    broken = !ended;
  });
  spawn_peer(program, listener.port(), size_t{1} << 19);
  await([&] { return broken.load(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3) return run_peer(std::atoi(argv[2]), static_cast<size_t>(std::atoi(argv[3])));
  const Emulation emulation;
  check_devices();
  check_fallbacks(emulation);
  check_offers();
  check_streams();
  check_flow();
  check_failed_writes(emulation);
  check_hostile_writes();
  check_stalled(emulation);
  check_killed_peer(argv[0]);
  expect(emulation.live_objects() == 0, "objects of the device are not freed");
  std::printf("%d wrong\n", failures);
  return failures == 0 ? 0 : 1;
}
