// Writes frames of pages to a connection: straight from the pages where the system copies them, else by one copy into the connection's own memory.
#pragma once
#include <functional>
#include <vector>

#include "transfer/page_frames.hpp"
#include "transfer/pages_checksum.hpp"
#include "transfer/send_queue.hpp"

namespace kvasir {

/** Leave to read pages, asked for again and again: nobody waits for the network while it is held. */
struct ReadAccess {
  std::function<bool()> begin;  // false: nothing may be read any more
  std::function<void()> end;
};

/**
 * The checksum of what leaves must be right, so a page that may be written meanwhile is copied first, with the checksum in the same pass. All
 * others go straight: checked a chunk at a time, which the core's cache then still has when the system copies it. If one is written after all, the
 * checksums differ, the connection ends, and the page is sent again.
 */
class FrameWriter {
 public:
  FrameWriter(const KvPool& pool, Connection& connection, const std::atomic<bool>& broken);
  /** Once nothing may be read any more the rest is zeros, and the end says so. @param header but for its checksum @return false where the connection is broken */
  bool write(FrameHeader header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading);

 private:
  /** Bytes `from` to `to` of a frame's pages. */
  struct Chunk {
    size_t from, to;
    bool all;  // nothing comes behind it but the end
  };

  Chunk next(const FrameHeader& header, size_t from) const;
  bool write_copies(const FrameHeader& header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading);
  bool write_straight(const FrameHeader& header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading);
  void copy_pages(const std::vector<PageDescriptor>& descriptors, const Chunk& chunk, PagesChecksum& sum, uint8_t* out) const;
  void add_pages(const std::vector<PageDescriptor>& descriptors, const Chunk& chunk, PagesChecksum& sum);
  void add_part(const void* data, size_t bytes);
  bool send_parts(const FrameHeader& header, const Chunk& chunk, const ReadAccess& reading, bool& wanted);
  bool is_page(const iovec& part) const;
  bool drop_pages(size_t first);

  const KvPool& pool_;
  Connection& connection_;
  const std::atomic<bool>& broken_;
  const size_t page_bytes_;
  std::vector<uint8_t> head_, copies_, zeros_;
  std::vector<iovec> parts_;
  uint64_t end_ = 0;
};

}  // namespace kvasir
