// Loads the functions of libsymmem.so that the backend calls.
#pragma once

#include <string>

#include "symmem.h"

namespace symmem_c10d {

// Interpreter holds the addresses of functions in Python, because the backend is not linked against
// Python.
struct Interpreter {
  void (*closed)(uint64_t group); // called once for each group that shutdown or abort closes
  int (*interrupted)(); // discards a signal handler's exception; 1 if it is KeyboardInterrupt
  void (*interrupt)(); // PyErr_SetInterrupt
};

// Library holds the functions of a loaded libsymmem.so. The library stays loaded until the process
// exits.
struct Library {
  // Loads the library from a path. It is the same library that ctypes.CDLL loads from that path.
  Library(const std::string& path, const Interpreter& interpreter);

  decltype(&::symmem_last_error) last_error;
  decltype(&::symmem_last_error_json) last_error_json;
  decltype(&::symmem_poll) poll;
  decltype(&::symmem_call) call;
  decltype(&::symmem_stream_forget) stream_forget;
  decltype(&::symmem_event_done) event_done;
  decltype(&::symmem_event_synchronize) event_synchronize;
  decltype(&::symmem_event_wait) event_wait;
  decltype(&::symmem_event_close) event_close;
  decltype(&::symmem_world_group_open) world_group_open;
  decltype(&::symmem_group_set_timeout) group_set_timeout;
  decltype(&::symmem_pool_open) pool_open;
  decltype(&::symmem_alloc_on) alloc_on;
  decltype(&::symmem_free) free;
  decltype(&::symmem_register_pending) register_pending;
  decltype(&::symmem_locate) locate;
  decltype(&::symmem_peer_addresses) peer_addresses;
  decltype(&::symmem_group_abort) group_abort;
  decltype(&::symmem_group_error) group_error;

  // Throws a c10::DistBackendError for a result that is not SYMMEM_OK. Call it on the thread that
  // received the result.
  void check(int code) const {
    if (code != SYMMEM_OK) {
      fail(code);
    }
  }

  // Throws like check if one of Python's signal handlers raises an exception. Call this about ten
  // times per second during a wait, without holding locks.
  void check_signals() const {
    if (poll() != 0) {
      interrupted("the wait was interrupted, but the operation continues");
    }
  }

  const Interpreter interpreter;

 private:
  [[noreturn]] void fail(int code) const;
  [[noreturn]] void interrupted(const std::string& text) const;
};

// Returns the JSON of the last error that check threw on any thread, or an empty string.
std::string last_failure();

} // namespace symmem_c10d
