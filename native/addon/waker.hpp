// Waking a JavaScript thread from other threads. Include <napi.h> first.
#pragma once
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

namespace kvasir {

/** Calls a JavaScript function in its own thread, on request of any thread, until that thread's environment ends. */
class Waker {
 public:
  static std::shared_ptr<Waker> create(napi_env env, napi_value callback, const std::string& of) {
    auto waker = std::make_shared<Waker>();
    napi_value name;
    // A queue of one: a pending call serves later requests too.
    const bool made = napi_create_string_utf8(env, ("kvasir " + of).c_str(), NAPI_AUTO_LENGTH, &name) == napi_ok &&
                      napi_create_threadsafe_function(env, callback, nullptr, name, 1, 1, nullptr, nullptr, nullptr, nullptr, &waker->function_) == napi_ok;
    if (!made) throw std::runtime_error("Cannot create " + of + ": the callback cannot be called from other threads");
    napi_unref_threadsafe_function(env, waker->function_);
    // Hooks run in reverse order: this one before the function's own, after which it may not be called.
    auto* held = new std::shared_ptr<Waker>(waker);
    napi_add_env_cleanup_hook(env, [](void* argument) {
      auto* ended = static_cast<std::shared_ptr<Waker>*>(argument);
      (*ended)->detach();
      delete ended;
    }, held);
    return waker;
  }

  void wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (function_ != nullptr) napi_call_threadsafe_function(function_, nullptr, napi_tsfn_nonblocking);
  }

 private:
  void detach() {
    std::lock_guard<std::mutex> lock(mutex_);
    function_ = nullptr;
  }

  std::mutex mutex_;
  napi_threadsafe_function function_ = nullptr;
};

}  // namespace kvasir
