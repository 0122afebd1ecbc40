// Sockets between processes of one host and one user, which nobody else can reach: over them a descriptor is passed on. Linux alone has them here.
#pragma once
#include "net/keyed_hash.hpp"
#include "net/tcp_socket.hpp"

namespace kvasir {

/** By which those who know the key find whoever listens at that address, if it is on this host: no other can guess it. */
std::string local_name(const HashKey& key, const HostPort& address);
/** Closed where there is none of that name on this host (and in its network namespace), or another user's. */
Socket connect_locally(const std::string& name);
/** Closed where it cannot. */
Socket listen_locally(const std::string& name);
/** Closed where none came in the end, or it was another user. */
Socket accept_locally(const Socket& listening);

bool pass_descriptor(const Socket& socket, int descriptor);
/** Negative where none comes. */
int take_descriptor(const Socket& socket, Deadline deadline, const std::atomic<bool>& ended);

}  // namespace kvasir
