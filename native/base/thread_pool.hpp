// A pool of threads that run the tasks of one op: they spin briefly between ops, then sleep.
#pragma once
#include <functional>
#include <memory>
#include <type_traits>

namespace kvasir {

class ThreadPool {
 public:
  /** `threads` includes the caller: a pool of 1 starts no thread. */
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  using Task = void (*)(void* context, int task, int thread);
  /** Runs tasks 0..count-1, each once, on any thread; tasks are handed out dynamically. Returns when all are done. */
  void run(int count, Task task, void* context);

  template <class F>
  void run(int count, F&& body) {
    auto call = [](void* context, int task, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(task, thread); };
    run(count, call, &body);
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir
