// Frames in transit with pages that are written: while they fill, and by their next owner.
#pragma once
#include "remote_transfers_world.hpp"
#include "transfer/remote_page_sender.hpp"

namespace kvasir {

/** A listener that reads from one connection up to a limit. */
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
  /** The first frame, once complete. */
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

/**
 * `stop` does not wait for a peer that does not read: unsent pages are not read any more, and the frame's trailer marks
 * it stopped.
 */
inline void check_stopped_midway(World& world) {
  constexpr size_t kLong = size_t{8} << 20;
  const int many = static_cast<int>(kLong / kLayout.page_bytes());
  Reader reader(world.transport);
  const HostPort address = {"127.0.0.1", reader.listener.port()};
  RemotePageSender sender(world.from, world.transport, key_of(7), kLong, 15000);
  const RemoteReceiveBuffer nowhere = {1, 2, many};
  std::vector<PageDescriptor> descriptors;
  for (int i = 0; i < many; i++) descriptors.push_back({0, 0, i % kPages, i, i % 3 == 0});
  sender.send(address, nowhere, descriptors, true);
  await([&] { return reader.count() > 0; });
  sender.stop(address, nowhere);
  for (int page = 0; page < kPages; page++) std::memset(world.from->page(page), kReused, kLayout.page_bytes());
  reader.most = SIZE_MAX;
  const std::vector<uint8_t> frame = reader.frame();
  FrameHeader header;
  uint64_t end;
  std::memcpy(&header, frame.data(), sizeof header);
  std::memcpy(&end, frame.data() + frame.size() - sizeof end, sizeof end);
  expect(end == given_up(header), "a frame stopped midway is not marked");
  const uint8_t* pages = frame.data() + sizeof header + header.count * sizeof(uint32_t);
  expect(std::find(pages, pages + header.bytes, kReused) == pages + header.bytes, "a page was read after its stream was stopped");
  expect(sender.counts().broken == 0, "a stopped stream broke its connection");
  world.fill_sources();
}

#if !defined(__SANITIZE_THREAD__)
/** A page that is written continuously arrives with a valid checksum of the bytes sent. */
inline void check_filling(World& world) {
  std::atomic<bool> over{false};
  std::thread writes([&] {
    for (uint8_t value = 0; !over; value++) std::memset(world.from->page(0), value, kLayout.page_bytes());
  });
  RemotePageSender sender(world.from, world.transport, key_of(7), kFrameBytes, 15000);
  for (int round = 0; round < 50; round++) {
    const World::Opened opened = world.open(0);
    std::vector<PageDescriptor> descriptors;
    for (int i = 0; i < kSlots; i++) descriptors.push_back({0, 0, i, i, i == 0});
    sender.send({"127.0.0.1", world.receiver.port()}, opened.remote, descriptors, true);
    world.await_completion(opened.buffer->number());
    opened.buffer->close();
  }
  over = true;
  writes.join();
  expect(sender.counts().broken == 0, "a page that filling broke a connection");
  world.fill_sources();
}
#else
inline void check_filling(World&) {}
#endif

}  // namespace kvasir
