// The Node-API module: instruction sets, backends, memory figures. Other files bind the rest.
#include <napi.h>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#include "addon/addon.hpp"

namespace kvasir {

Registries& registries() {
  static Registries* all = new Registries;
  return *all;
}

namespace {

constexpr int kThreadsMax = 1024;

/** () => best instruction set of this machine within KVASIR_ISA, as its number in types.hpp */
Napi::Value bind_detect_isa(Arguments&, Napi::Env env) { return Napi::Number::New(env, static_cast<int>(detect_isa())); }

/** (isa, threads) => backend */
Napi::Value bind_create_backend(Arguments& in, Napi::Env env) {
  const auto isa = static_cast<Isa>(in.integer("isa", 0, static_cast<int>(detect_isa())));
  const int threads = in.integer("threads", 1, kThreadsMax);
  return Napi::Number::New(env, registries().backends.add(std::make_shared<Backend>(isa, threads)));
}

/** (backend) */
Napi::Value bind_free_backend(Arguments& in, Napi::Env env) {
  registries().backends.remove(in.handle("backend"));
  return env.Undefined();
}

/** () => { residentBytes, residentPeakBytes, anonymousBytes, availableBytes } */
Napi::Value bind_memory_info(Arguments&, Napi::Env env) {
  const MemoryInfo memory = memory_info();
  Napi::Object result = Napi::Object::New(env);
  result.Set("residentBytes", static_cast<double>(memory.resident_bytes));
  result.Set("residentPeakBytes", static_cast<double>(memory.resident_peak_bytes));
  result.Set("anonymousBytes", static_cast<double>(memory.anonymous_bytes));
  result.Set("availableBytes", static_cast<double>(memory.available_bytes));
  return result;
}

/** () */
Napi::Value bind_trim_heap(Arguments&, Napi::Env env) {
  trim_heap();
  return env.Undefined();
}

/**
 * Keeps the addon's code mapped until the process ends. Node unloads an addon with the last thread that loaded it,
 * while pool threads still wait in its code: a process that exits during a step would crash.
 */
void stay_loaded() {
#if !defined(_WIN32)
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&stay_loaded), &self) != 0) dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE);
#endif
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  stay_loaded();
  // Runs in the loading thread when its environment ends: returned, terminated or crashed.
  napi_add_env_cleanup_hook(env, [](void*) { registries().forget_thread(); }, nullptr);
  exports.Set("encodingVersion", kEncodingVersion);
  bind<bind_detect_isa>(env, exports, "detectIsa");
  bind<bind_create_backend>(env, exports, "createBackend");
  bind<bind_free_backend>(env, exports, "freeBackend");
  bind<bind_memory_info>(env, exports, "memoryInfo");
  bind<bind_trim_heap>(env, exports, "trimHeap");
  bind_weights(env, exports);
  bind_attention_workers(env, exports);
  bind_pools(env, exports);
  bind_local_transfers(env, exports);
  bind_remote_attention(env, exports);
  bind_remote_transfers(env, exports);
  bind_stores(env, exports);
  bind_programs(env, exports);
  bind_benches(env, exports);
  return exports;
}

}  // namespace
}  // namespace kvasir

static Napi::Object initialise_kvasir(Napi::Env env, Napi::Object exports) { return kvasir::initialise(env, exports); }
NODE_API_MODULE(kvasir, initialise_kvasir)
