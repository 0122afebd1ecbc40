// Blocking calls, which cost least.
#include "bench_sockets.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "bench_cores.hpp"
#include "tcp_socket.hpp"

namespace kvasir {

double bench_sockets(const uint8_t* from, uint8_t* to, size_t bytes, size_t chunk_bytes, const std::vector<int>& reader_cores) {
  const SocketPair pair = loopback_pair();
  for (const Socket* socket : {&pair.sender, &pair.receiver}) {
    fcntl(socket->descriptor(), F_SETFL, fcntl(socket->descriptor(), F_GETFL) & ~O_NONBLOCK);
  }
  size_t received = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::thread reader([&] {
    stay_on(reader_cores);
    while (received < bytes) {
      const int64_t got = pair.receiver.receive_some(to + received, std::min(chunk_bytes, bytes - received));
      if (got <= 0) break;
      received += static_cast<size_t>(got);
    }
  });
  for (size_t sent = 0; sent < bytes;) {
    const int64_t count = pair.sender.send_some(from + sent, std::min(chunk_bytes, bytes - sent));
    if (count <= 0) break;
    sent += static_cast<size_t>(count);
  }
  pair.sender.cut();
  reader.join();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  if (received != bytes) throw std::runtime_error("Cannot measure sockets: the connection ended early");
  return spent.count();
}

}  // namespace kvasir
