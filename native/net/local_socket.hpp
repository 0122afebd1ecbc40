// Unix domain sockets between processes of one user on one host, which pass a memory descriptor. Linux only.
#pragma once
#include "net/keyed_hash.hpp"
#include "net/socket.hpp"

namespace kvasir {

/**
 * The name under which the listener at `address` is found on this host. It depends on the key, so others cannot guess
 * it.
 */
std::string local_socket_name(const HashKey& key, const HostPort& address);
/** Returns a closed socket if no process of this user listens under that name in this network namespace. */
Socket connect_locally(const std::string& name);
/** Returns a closed socket on failure. */
Socket listen_locally(const std::string& name);
/** Returns a closed socket if the peer has gone or belongs to another user. */
Socket accept_locally(const Socket& listening);

bool pass_descriptor(const Socket& socket, int descriptor);
/** Returns a negative number if none arrives. */
int receive_descriptor(const Socket& socket, Deadline deadline, const std::atomic<bool>& ended);

}  // namespace kvasir
