// Arguments from JavaScript: handles of process-wide objects, and typed arrays checked by type and length.
// Include <napi.h> first.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ops/step.hpp"

namespace kvasir {

/**
 * Objects by handle. Handles are valid in every thread of the process. An object is released when it is removed, or
 * when the last thread that used its handle has ended; shared pointers to it keep it alive.
 */
template <class T>
class Registry {
 public:
  explicit Registry(const char* name) : name_(name) {}

  int add(std::shared_ptr<T> object) {
    std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(++last_, Entry{std::move(object), {std::this_thread::get_id()}});
    return last_;
  }

  std::shared_ptr<T> get(int handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) throw std::runtime_error(std::string("Cannot use ") + name_ + ": no such handle: " + std::to_string(handle));
    std::vector<std::thread::id>& users = found->second.users;
    const auto self = std::this_thread::get_id();
    if (std::find(users.begin(), users.end(), self) == users.end()) users.push_back(self);
    return found->second.object;
  }

  /** Unknown handles give nullptr. The calling thread does not count as a user. */
  std::shared_ptr<T> find(int handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second.object;
  }

  void remove(int handle) {
    std::shared_ptr<T> last;  // destroyed after the lock is released
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) throw std::runtime_error(std::string("Cannot free ") + name_ + ": no such handle: " + std::to_string(handle));
    last = std::move(found->second.object);
    objects_.erase(found);
  }

  /** The calling thread ends: releases objects that no other thread has used. */
  void forget_thread() {
    std::vector<std::shared_ptr<T>> last;  // destroyed after the lock is released
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      std::vector<std::thread::id>& users = entry->second.users;
      users.erase(std::remove(users.begin(), users.end(), std::this_thread::get_id()), users.end());
      if (users.empty()) last.push_back(std::move(entry->second.object));
      entry = users.empty() ? objects_.erase(entry) : std::next(entry);
    }
  }

 private:
  struct Entry {
    std::shared_ptr<T> object;
    std::vector<std::thread::id> users;
  };

  const char* name_;
  std::mutex mutex_;
  std::unordered_map<int, Entry> objects_;
  int last_ = 0;
};

template <class T>
struct ArrayType;
template <>
struct ArrayType<float> {
  static constexpr napi_typedarray_type type = napi_float32_array;
  static constexpr const char* name = "Float32Array";
};
template <>
struct ArrayType<double> {
  static constexpr napi_typedarray_type type = napi_float64_array;
  static constexpr const char* name = "Float64Array";
};
template <>
struct ArrayType<int32_t> {
  static constexpr napi_typedarray_type type = napi_int32_array;
  static constexpr const char* name = "Int32Array";
};
template <>
struct ArrayType<uint32_t> {
  static constexpr napi_typedarray_type type = napi_uint32_array;
  static constexpr const char* name = "Uint32Array";
};
template <>
struct ArrayType<uint8_t> {
  static constexpr napi_typedarray_type type = napi_uint8_array;
  static constexpr const char* name = "Uint8Array";
};

/** A view of a typed array. It never requests the array's buffer, which N-API refuses for a SharedArrayBuffer. */
template <class T>
Span<T> array_of(napi_env env, napi_value value, const char* what) {
  bool is_array = false;
  if (napi_is_typedarray(env, value, &is_array) == napi_ok && is_array) {
    napi_typedarray_type type;
    size_t length = 0;
    void* data = nullptr;
    const napi_status status = napi_get_typedarray_info(env, value, &type, &length, &data, nullptr, nullptr);
    if (status == napi_ok && type == ArrayType<T>::type) return {static_cast<const T*>(data), length};
  }
  throw std::runtime_error(std::string("Cannot use ") + what + ": it is not of type " + ArrayType<T>::name);
}

template <class T>
T* writable(const Span<T>& span) {
  return const_cast<T*>(span.data);
}

/** The positional arguments of one call, read in order. */
class Arguments {
 public:
  explicit Arguments(const Napi::CallbackInfo& info) : info_(info) {}

  int integer(const char* what, int least, int most) {
    const Napi::Value value = next(what);
    const double number = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : -1.5;
    if (!(number >= least && number <= most) || number != static_cast<int>(number)) {
      throw std::runtime_error(std::string("Cannot use ") + what + ": it is not an integer from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return static_cast<int>(number);
  }

  double real(const char* what) {
    const Napi::Value value = next(what);
    if (!value.IsNumber()) throw std::runtime_error(std::string("Cannot use ") + what + ": it is not a number");
    return value.As<Napi::Number>().DoubleValue();
  }

  std::string text(const char* what) {
    const Napi::Value value = next(what);
    if (!value.IsString()) throw std::runtime_error(std::string("Cannot use ") + what + ": it is not a string");
    return value.As<Napi::String>().Utf8Value();
  }

  Napi::Function function(const char* what) {
    const Napi::Value value = next(what);
    if (!value.IsFunction()) throw std::runtime_error(std::string("Cannot use ") + what + ": it is not a function");
    return value.As<Napi::Function>();
  }

  int handle(const char* what) { return integer(what, 1, INT32_MAX); }

  template <class T>
  Span<T> array(const char* what) {
    const Napi::Value value = next(what);
    return array_of<T>(info_.Env(), value, what);
  }

 private:
  Napi::Value next(const char* what) {
    if (index_ >= info_.Length()) throw std::runtime_error(std::string("Cannot call: an argument is missing: ") + what);
    return info_[index_++];
  }

  const Napi::CallbackInfo& info_;
  size_t index_ = 0;
};

using Binding = Napi::Value (*)(Arguments& in, Napi::Env env);

/** Sets `exports[name]`. C++ exceptions become JavaScript errors with the same message. */
template <Binding binding>
void bind(Napi::Env env, Napi::Object exports, const char* name) {
  const auto call = [](const Napi::CallbackInfo& info) -> Napi::Value {
    try {
      Arguments in(info);
      return binding(in, info.Env());
    } catch (const Napi::Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw Napi::Error::New(info.Env(), "Cannot allocate memory: the system refused");
    } catch (const std::exception& error) {
      throw Napi::Error::New(info.Env(), error.what());
    }
  };
  exports.Set(name, Napi::Function::New(env, call, name));
}

}  // namespace kvasir
