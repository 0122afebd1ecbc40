// A plain transfer with blocking socket calls.
#include "bench/sockets.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "bench/cores.hpp"
#include "net/socket.hpp"

namespace kvasir {
namespace {

bool write_all(const Socket& socket, const uint8_t* from, size_t bytes, size_t chunk_bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = send(socket.descriptor(), from + done, std::min(chunk_bytes, bytes - done), 0);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

bool read_all(const Socket& socket, uint8_t* to, size_t bytes, size_t chunk_bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = recv(socket.descriptor(), to + done, std::min(chunk_bytes, bytes - done), 0);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

double bench_sockets(const uint8_t* from, uint8_t* to, size_t bytes, size_t chunk_bytes, const std::vector<int>& reader_cores) {
  const SocketPair pair = loopback_pair();
  for (const Socket* socket : {&pair.sender, &pair.receiver}) {
    fcntl(socket->descriptor(), F_SETFL, fcntl(socket->descriptor(), F_GETFL) & ~O_NONBLOCK);
    // The default of a socket.
    const int off = 0;
    setsockopt(socket->descriptor(), IPPROTO_TCP, TCP_NODELAY, &off, sizeof off);
  }
  std::thread reader([&] {
    set_thread_affinity(reader_cores);
    const uint8_t here = 1;
    while (read_all(pair.receiver, to, bytes, chunk_bytes) && write_all(pair.receiver, &here, 1, 1)) {
    }
  });
  std::chrono::duration<double> spent{};
  bool whole = true;
  for (int pass = 0; pass < 2 && whole; pass++) {
    const auto begin = std::chrono::steady_clock::now();
    uint8_t here;
    whole = write_all(pair.sender, from, bytes, chunk_bytes) && read_all(pair.sender, &here, 1, 1);
    spent = std::chrono::steady_clock::now() - begin;
  }
  pair.sender.shut_down();
  reader.join();
  if (!whole) throw std::runtime_error("Cannot measure sockets: the connection ended early");
  return spent.count();
}

}  // namespace kvasir
