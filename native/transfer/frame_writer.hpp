// Writes frames of pages to a connection: over TCP straight from the pages, over shared memory with one copy into the
// ring.
#pragma once
#include <functional>
#include <vector>

#include "transfer/page_frames.hpp"
#include "transfer/pages_checksum.hpp"
#include "transfer/send_queue.hpp"

namespace kvasir {

/** Permission to read pages, acquired for each chunk and never held during a wait for the network. */
struct ReadAccess {
  std::function<bool()> begin;  // false: the stream is stopped and its pages must not be read
  std::function<void()> end;
};

/**
 * The checksum must match the bytes sent. A page that may be written meanwhile is copied first, with the checksum in
 * the same pass. All other pages are sent in place: each chunk is summed and then still in the core's cache when the
 * system copies it. If such a page is written after all, the checksums differ, the connection ends, and the page is
 * sent again.
 */
class FrameWriter {
 public:
  FrameWriter(const KvPool& pool, Connection& connection, const std::atomic<bool>& broken);
  /**
   * Writes one frame. After the stream is stopped the rest is zeros and the trailer marks the frame as stopped. @param
   * header without its checksum @return false if the connection is broken
   */
  bool write(FrameHeader header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading);

 private:
  /** Bytes `from` to `to` of a frame's pages. */
  struct Chunk {
    size_t from, to;
    bool last;  // the frame's last chunk; the trailer follows
  };

  Chunk next(const FrameHeader& header, size_t from) const;
  bool write_copies(const FrameHeader& header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading);
  bool write_in_place(const FrameHeader& header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading);
  void copy_pages(const std::vector<PageDescriptor>& descriptors, const Chunk& chunk, PagesChecksum& sum, uint8_t* out) const;
  void add_pages(const std::vector<PageDescriptor>& descriptors, const Chunk& chunk, PagesChecksum& sum);
  void add_part(const void* data, size_t bytes);
  bool send_parts(const FrameHeader& header, const Chunk& chunk, const ReadAccess& reading, bool& readable);
  bool is_page(const iovec& part) const;
  bool drop_pages(size_t first);

  const KvPool& pool_;
  Connection& connection_;
  const std::atomic<bool>& broken_;
  const size_t page_bytes_;
  std::vector<uint8_t> head_, copies_, zeros_;
  std::vector<iovec> parts_;
  uint64_t trailer_ = 0;
};

}  // namespace kvasir
