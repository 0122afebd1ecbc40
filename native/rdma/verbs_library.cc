// Symbols are found by name and version: other versions have other layouts.
#include "rdma/verbs_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kvasir {
namespace {

constexpr char kFirstVersion[] = "IBVERBS_1.0", kVersion[] = "IBVERBS_1.1";

class LoadedLibrary {
 public:
  explicit LoadedLibrary(const char* path) : path_(path), handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    const char* reason = handle_ == nullptr ? dlerror() : nullptr;
    if (reason != nullptr) throw std::runtime_error(reason);
  }

  template <class Function>
  void find(Function& function, const std::string& name, const char* version = kVersion) const {
    const std::string symbol = "ibv_" + name;
#if defined(__GLIBC__)
    void* found = dlvsym(handle_, symbol.c_str(), version);
#else
    void* found = dlsym(handle_, symbol.c_str());
#endif
    if (found == nullptr) throw std::runtime_error(path_ + " has no " + symbol + " of version " + version);
    function = reinterpret_cast<Function>(found);
  }

 private:
  std::string path_;
  void* handle_;
};

}  // namespace

VerbsLibrary VerbsLibrary::load() {
  const char* path = std::getenv("KVASIR_IBVERBS");
  const LoadedLibrary library(path == nullptr || *path == '\0' ? "libibverbs.so.1" : path);
  VerbsLibrary verbs = {};
  library.find(verbs.get_device_list, "get_device_list");
  library.find(verbs.free_device_list, "free_device_list");
  library.find(verbs.get_device_name, "get_device_name");
  library.find(verbs.open_device, "open_device");
  library.find(verbs.close_device, "close_device");
  library.find(verbs.query_port, "query_port");
  library.find(verbs.query_gid, "query_gid");
  library.find(verbs.alloc_pd, "alloc_pd");
  library.find(verbs.dealloc_pd, "dealloc_pd");
  library.find(verbs.reg_mr, "reg_mr");
  library.find(verbs.dereg_mr, "dereg_mr");
  library.find(verbs.create_comp_channel, "create_comp_channel", kFirstVersion);
  library.find(verbs.destroy_comp_channel, "destroy_comp_channel", kFirstVersion);
  library.find(verbs.create_cq, "create_cq");
  library.find(verbs.destroy_cq, "destroy_cq");
  library.find(verbs.get_cq_event, "get_cq_event");
  library.find(verbs.ack_cq_events, "ack_cq_events");
  library.find(verbs.create_qp, "create_qp");
  library.find(verbs.modify_qp, "modify_qp");
  library.find(verbs.destroy_qp, "destroy_qp");
  return verbs;
}

}  // namespace kvasir
