#include "queue.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

namespace symmem_c10d {

thread_local Queue::State* Queue::working_for = nullptr;

namespace {

constexpr std::chrono::milliseconds kPollPeriod(100);

// Waits without a timeout. condition_variable::wait would require a newer libstdc++ than that of
// systems with glibc 2.34.
template <typename Condition>
void wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Condition holds) {
  while (!changed.wait_for(lock, std::chrono::hours(1), holds)) {
  }
}

} // namespace

Queue::Queue(std::function<void()> poll)
    : poll_(std::move(poll)), state_(std::make_shared<State>()), process_(getpid()) {}

Queue::~Queue() {
  if (process_ != getpid()) {
    return; // The queue's thread does not exist in a forked child.
  }
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->ended = true;
  state_->added.notify_all();
}

void Queue::add(std::function<void()> operation, std::function<void()> after) {
  TORCH_CHECK(
      process_ == getpid(),
      "symmem was initialized before this process was forked; start workers with the spawn or "
      "forkserver method");
  yield();
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->tasks.push_back({state_->next++, std::move(operation), std::move(after)});
  if (!state_->working) {
    state_->start();
  }
  state_->added.notify_one();
}

void Queue::yield() {
  if (working_for == nullptr) {
    return;
  }
  auto& state = *working_for;
  working_for = nullptr;
  std::lock_guard<std::mutex> lock(state.mutex);
  state.start();
}

Queue::Turn::Turn(State& state, const std::function<void()>& poll) : state_(state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  const auto number = state.next++;
  if (state.current == number) {
    return;
  }
  lock.unlock();
  yield();
  lock.lock();
  while (!state.turns.wait_for(lock, kPollPeriod, [&] { return state.current == number; })) {
    lock.unlock();
    try {
      poll();
    } catch (...) {
      state.give_up(number);
      throw;
    }
    lock.lock();
  }
}

Queue::Turn::~Turn() {
  std::lock_guard<std::mutex> lock(state_.mutex);
  state_.advance();
}

// Lets the next operation run. The caller holds the mutex.
void Queue::State::advance() {
  do {
    ++current;
  } while (given_up.erase(current) != 0);
  turns.notify_all();
}

// Removes an operation that has not started.
void Queue::State::give_up(size_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  if (number == current) {
    advance();
  } else {
    given_up.insert(number);
  }
}

// Starts a thread that runs the tasks. The caller holds the mutex.
void Queue::State::start() {
  working = true;
  std::thread([self = shared_from_this()] { self->work(); }).detach();
}

// Runs the tasks until the queue is destroyed or another thread takes over.
void Queue::State::work() {
  working_for = this;
  while (working_for == this) {
    std::unique_lock<std::mutex> lock(mutex);
    wait(added, lock, [&] { return ended || !tasks.empty(); });
    if (tasks.empty()) {
      return;
    }
    auto task = std::move(tasks.front());
    tasks.pop_front();
    wait(turns, lock, [&] { return current == task.number; });
    lock.unlock();
    task.operation();
    task.operation = nullptr;
    lock.lock();
    advance();
    lock.unlock();
    task.after();
  }
}

} // namespace symmem_c10d
