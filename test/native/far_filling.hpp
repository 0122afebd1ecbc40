// Frames on their transport when their pages are written: by whoever filling them, and by whoever has them next.
#pragma once
#include "far_world.hpp"
#include "transfer/remote_page_sender.hpp"

namespace kvasir {

/** Whoever listens and reads from one connection, until it has so much. */
struct Reader {
  std::atomic<size_t> most{1};
  std::mutex mutex;
  std::vector<uint8_t> bytes;
  Listener listener;
  explicit Reader(Transport transport) : listener({"127.0.0.1", 0}, transport, key_of(7), kLayout, [this](const Connection& connection, const std::atomic<bool>& ended) { read(connection, ended); }) {}

  void read(const Connection& connection, const std::atomic<bool>& ended) {
    std::vector<uint8_t> some(1 << 16);
    while (!ended) {
      if (count() >= most) {
        std::this_thread::yield();
        continue;
      }
      if (!connection.await_readable(kNever, ended)) return;
      const int64_t got = connection.receive_some(some.data(), some.size());
      if (got == 0 || got == Connection::kBroken) return;
      const std::lock_guard<std::mutex> lock(mutex);
      bytes.insert(bytes.end(), some.begin(), some.begin() + std::max<int64_t>(got, 0));
    }
  }
  size_t count() {
    const std::lock_guard<std::mutex> lock(mutex);
    return bytes.size();
  }
  /** The first frame, once it is all there. */
  std::vector<uint8_t> frame() {
    std::vector<uint8_t> whole;
    await([&] {
      const std::lock_guard<std::mutex> lock(mutex);
      FrameHeader header;
      if (bytes.size() < sizeof header) return false;
      std::memcpy(&header, bytes.data(), sizeof header);
      const size_t size = sizeof header + header.count * sizeof(uint32_t) + header.bytes + sizeof(uint64_t);
      if (bytes.size() >= size) whole.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      return bytes.size() >= size;
    });
    return whole;
  }
};

/** A frame whose other side does not read holds up nobody who stops it: what has not left is no longer read, and its end says so. */
inline void check_stopped_midway(World& world) {
  constexpr size_t kLong = size_t{8} << 20;
  const int many = static_cast<int>(kLong / kLayout.page_bytes());
  Reader reader(world.transport);
  const HostPort address = {"127.0.0.1", reader.listener.port()};
  RemotePageSender messenger(world.from, world.transport, key_of(7), kLong, 15000);
  const RemoteReceiveBuffer nowhere = {1, 2, many};
  std::vector<PageDescriptor> descriptors;
  for (int i = 0; i < many; i++) descriptors.push_back({0, 0, i % kPages, i, i % 3 == 0});
  messenger.send(address, nowhere, descriptors, true);
  await([&] { return reader.count() > 0; });
  messenger.stop(address, nowhere);
  for (int page = 0; page < kPages; page++) std::memset(world.from->page(page), kMine, kLayout.page_bytes());
  reader.most = SIZE_MAX;
  const std::vector<uint8_t> frame = reader.frame();
  FrameHeader header;
  uint64_t end;
  std::memcpy(&header, frame.data(), sizeof header);
  std::memcpy(&end, frame.data() + frame.size() - sizeof end, sizeof end);
  expect(end == given_up(header), "a frame that was stopped midway does not say so");
  const uint8_t* pages = frame.data() + sizeof header + header.count * sizeof(uint32_t);
  expect(std::find(pages, pages + header.bytes, kMine) == pages + header.bytes, "a page was read after its stream was stopped");
  expect(messenger.counts().broken == 0, "a stream that was stopped broke its connection");
  world.fill_sources();
}

#if !defined(__SANITIZE_THREAD__)
/** A page that is written all the while arrives as it was at one moment, or chunk by chunk: its checksum is that of what left. */
inline void check_filling(World& world) {
  std::atomic<bool> over{false};
  std::thread writes([&] {
    for (uint8_t value = 0; !over; value++) std::memset(world.from->page(0), value, kLayout.page_bytes());
  });
  RemotePageSender messenger(world.from, world.transport, key_of(7), kFrameBytes, 15000);
  for (int round = 0; round < 50; round++) {
    const World::Opened opened = world.open(0);
    std::vector<PageDescriptor> descriptors;
    for (int i = 0; i < kSlots; i++) descriptors.push_back({0, 0, i, i, i == 0});
    messenger.send({"127.0.0.1", world.receiver.port()}, opened.remote, descriptors, true);
    world.await_landed(opened.buffer->number());
    opened.buffer->close();
  }
  over = true;
  writes.join();
  expect(messenger.counts().broken == 0, "a page that filling broke a connection");
  world.fill_sources();
}
#else
inline void check_filling(World&) {}
#endif

}  // namespace kvasir
