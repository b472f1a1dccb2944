// A queue of operations that run one at a time.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

namespace symmem_c10d {

// Queue runs the operations of a group in the order in which they were added. It is safe for
// concurrent use.
//
// Synchronous operations run on the caller's thread. Asynchronous ones run on the queue's thread,
// which starts with the first of them.
class Queue {
 public:
  // A caller that waits for earlier operations calls `poll` ten times per second. If `poll` throws,
  // the caller's operation does not run.
  explicit Queue(std::function<void()> poll);

  // Makes the queue's thread exit after it has run all operations.
  ~Queue();

  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Runs an operation on this thread after all earlier ones, and passes on its exceptions.
  template <typename Operation>
  void run(Operation&& operation) {
    Turn turn(*state_, poll_);
    operation();
  }

  // Adds an operation and returns. `after` runs on the same thread when the operation is complete,
  // and may add operations to this queue and wait for them. Neither function may throw.
  void add(std::function<void()> operation, std::function<void()> after);

  // Must be called before a wait for an operation. If this is a queue's thread, another thread
  // takes over its operations.
  static void yield();

 private:
  struct Task {
    size_t number;
    std::function<void()> operation, after;
  };

  struct State : std::enable_shared_from_this<State> {
    std::mutex mutex;
    std::condition_variable turns; // signals changes of current
    std::condition_variable added; // signals new tasks, or that the queue was destroyed
    std::deque<Task> tasks;
    size_t next = 0; // the number of the next operation to be added
    size_t current = 0; // the number of the operation that may run
    std::set<size_t> given_up; // numbers above current whose operations will not run
    bool working = false; // a thread runs the tasks
    bool ended = false;

    void advance();
    void give_up(size_t number);
    void start();
    void work();
  };

  // Turn waits for all earlier operations. Its destructor lets the next operation run.
  class Turn {
   public:
    Turn(State& state, const std::function<void()>& poll);
    ~Turn();

   private:
    State& state_;
  };

  static thread_local State* working_for; // the queue whose tasks this thread runs, or null

  const std::function<void()> poll_;
  const std::shared_ptr<State> state_;
  const pid_t process_;
};

} // namespace symmem_c10d
